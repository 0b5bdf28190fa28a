#pragma once
// A target of the C interface: the posterior of a network, or a function of the caller's.

#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "capi/network.h"
#include "chains/chains.h"
#include "chains/options.h"
#include "cpu/density/leapfrog.h"
#include "cpu/density/stochastic_steps.h"

namespace ribbit::capi {

// The units of the user's data: a network that was described with them sees (x - x_mean) / x_scale
// and (y - y_mean) / y_scale.
struct Units {
  std::vector<double> x_mean, x_scale;  // (D,), or empty if the inputs have no unit
  std::vector<double> y_mean, y_scale;  // (J,), or empty if the targets have no unit

  // Returns inputs (rows, D) or targets (rows, J) in the network's units.
  template <class T>
  std::vector<T> inputs(const T* x, std::int64_t rows) const;
  template <class T>
  std::vector<T> targets(const T* y, std::int64_t rows) const;
};

// The parts of a posterior that predictions need.
struct Predictive {
  const ribbit_network* network;
  LikelihoodKind kind;
  LikelihoodParameters parameters;
  std::vector<double> scales;  // more than one if the outputs have scales of their own
  Units units;
};

// The entry of a fingerprint that says which form of a posterior chains are on, as in Python.
inline constexpr const char* kIntegrated = "integrated";
inline constexpr const char* kLastLayer = "last layer";

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
  // Whether the target has a form with its last layer integrated out. The form's chains have draws
  // of all parameters, and it has facts of its own.
  virtual bool integrates() const { return false; }
  virtual TargetFacts facts(bool integrated) const = 0;
  // Returns new chains, or those of bytes that save() wrote.
  virtual std::unique_ptr<Chains<T>> chains(const Kernel& kernel, const Run& run,
                                            const std::string_view* bytes,
                                            bool integrated) const = 0;
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

// Throws if two chains have the same id.
void check_distinct(const char* function, const ChainIds& ids, std::int64_t chains);

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

// Makes a target of these tables that has no data and predicts alone.
int create_predictive(const ribbit_network& network, const ribbit_posterior_options& options,
                      const Units& units, ribbit_target** out);
// Makes the posterior of data in the user's units, of which it keeps standardised copies.
// mean: (P,) of the prior in float64, or empty: the options' centre.
int create_standardized(const ribbit_network& network, const ribbit_posterior_options& options,
                        const Units& units, std::vector<double> mean, const void* x, const void* y,
                        std::int64_t rows, ribbit_target** out);

// body(target, T{}) with the target's scalar type.
template <class Body>
auto on_target(const char* function, const ribbit_target* target, const Body& body) {
  needs(target != nullptr, function, "a target, got NULL");
  const auto* single = std::get_if<ribbit_target::Of<float>>(&target->of);
  if (single != nullptr) return body(**single, 0.0F);
  return body(*std::get<ribbit_target::Of<double>>(target->of), 0.0);
}

}  // namespace ribbit::capi
