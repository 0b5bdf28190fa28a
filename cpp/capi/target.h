#pragma once
// A target of the C interface: the posterior of a network, or a function of the caller's.

#include <memory>
#include <variant>
#include <vector>

#include "capi/network.h"
#include "cpu/density/hamiltonian.h"
#include "cpu/density/leapfrog.h"
#include "cpu/density/stochastic_steps.h"

namespace ribbit::capi {

// What predictions need of a posterior.
struct Predictive {
  const ribbit_network* network;
  LikelihoodKind kind;
  LikelihoodParameters parameters;
  std::vector<double> scales;  // where the parameters have more than one
};

// Arrays as in ribbit.h; the functions are false when they were cancelled.
template <class T>
class Target {
 public:
  virtual ~Target() = default;
  virtual std::int64_t dim() const = 0;
  virtual void start(std::uint64_t seed, const std::uint32_t* chain_ids, std::int64_t chains,
                     T* position) const = 0;
  // grad may be null.
  virtual bool value_and_grad(const T* theta, std::int64_t chains, const std::int64_t* subset,
                              std::int64_t count, double* terms, T* grad,
                              cpu::Poll* poll) const = 0;
  // Positions and so on at the ends may be those at the starts; terms (chains, 2).
  virtual bool leapfrog(const cpu::Trajectories<T>& all, double* terms, cpu::Poll* poll) const = 0;
  virtual bool transition(const cpu::Transitions<T>& all, cpu::Poll* poll) const = 0;
  // In place, by the rule of SGLD.
  virtual bool advance(const cpu::StochasticSteps&, T*, std::int64_t, cpu::StochasticOutcome*,
                       cpu::Poll*) const {
    refuse("ribbit", "a posterior, which has rows to take batches of");
  }
  virtual const Predictive* predictive() const { return nullptr; }
};

// Chain ids 0, 1, .. where the caller gave none.
class ChainIds {
 public:
  ChainIds(const std::uint32_t* given, std::int64_t chains);
  const std::uint32_t* data() const { return ids_; }

 private:
  std::vector<std::uint32_t> own_;
  const std::uint32_t* ids_;
};

// Throws unless there are 1..2^32 chains.
void check_chains(const char* function, std::int64_t chains);

// The chains and the steps of a run, of any sampler's options.
template <class Options>
void check_run(const char* function, const Options& o, const char* expected) {
  check_chains(function, o.chains);
  constexpr std::int64_t kMost = std::int64_t{1} << 39;
  needs(o.warmup >= 0 && o.draws >= 0 && o.thin >= 1 && o.warmup < kMost && o.draws < kMost &&
            o.thin < kMost &&
            static_cast<double>(o.warmup) +
                    static_cast<double>(o.draws) * static_cast<double>(o.thin) <
                static_cast<double>(kMost) &&
            o.first_step < static_cast<std::uint64_t>(kMost),
        function, expected);
}

// The inverse mass (dim,) of positive numbers, or null.
template <class T>
const T* checked_mass(const char* function, const void* mass, std::int64_t dim);

}  // namespace ribbit::capi

struct ribbit_target {
  template <class T>
  using Of = std::unique_ptr<ribbit::capi::Target<T>>;
  std::variant<Of<float>, Of<double>> of;
};

namespace ribbit::capi {

// A target of these tables that predicts alone; it has no data.
int create_predictive(const ribbit_network& network, const ribbit_posterior_options& options,
                      ribbit_target** out);

// body(target, T{}) with the target's scalar type.
template <class Body>
auto on_target(const char* function, const ribbit_target* target, const Body& body) {
  needs(target != nullptr, function, "a target, got NULL");
  const auto* single = std::get_if<ribbit_target::Of<float>>(&target->of);
  if (single != nullptr) return body(**single, 0.0F);
  return body(*std::get<ribbit_target::Of<double>>(target->of), 0.0);
}

}  // namespace ribbit::capi
