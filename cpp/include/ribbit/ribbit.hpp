/// @file
/// Ribbit for C++17: ribbit.h with owners of its handles, vectors and exceptions. Header only.
#ifndef RIBBIT_RIBBIT_HPP
#define RIBBIT_RIBBIT_HPP

#include <ribbit/ribbit.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ribbit {
inline namespace v1 {

/// What the library refused; what() is its message.
class Error : public std::runtime_error {
 public:
  /// Of a status and its text.
  Error(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int status() const noexcept { return status_; }  ///< what was not RIBBIT_OK

 private:
  int status_;
};

/// Throws Error unless a status is RIBBIT_OK.
inline void check(int status) {
  if (status != RIBBIT_OK) throw Error(status, ribbit_last_error());
}

/// Gives a handle back.
template <class Handle, void (*Free)(Handle*)>
struct Freed {
  /// Of a handle that is not NULL.
  void operator()(Handle* handle) const noexcept { Free(handle); }
};
/// A handle that is given back with its owner.
template <class Handle, void (*Free)(Handle*)>
using Owned = std::unique_ptr<Handle, Freed<Handle, Free>>;

/// The dtype of float or double.
template <class T>
constexpr int dtype_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "float or double");
  return std::is_same_v<T, float> ? RIBBIT_FLOAT32 : RIBBIT_FLOAT64;
}

/// Ends running calls from any thread or signal handler.
class Interrupt {
 public:
  Interrupt() {
    ribbit_interrupt* made = nullptr;
    check(ribbit_interrupt_create(&made));
    handle_.reset(made);
  }
  void set() noexcept { ribbit_interrupt_set(handle_.get()); }      ///< ends calls that have it
  void clear() noexcept { ribbit_interrupt_clear(handle_.get()); }  ///< for the next call
  /// What functions of C take.
  const ribbit_interrupt* get() const noexcept { return handle_.get(); }

 private:
  Owned<ribbit_interrupt, ribbit_interrupt_free> handle_;
};

/// Layers with the places of their parameters.
class Network {
 public:
  /// Of a table of layers.
  explicit Network(const std::vector<ribbit_layer>& layers) {
    ribbit_network* made = nullptr;
    check(ribbit_network_create(layers.data(), static_cast<std::int64_t>(layers.size()),
                                sizeof(ribbit_layer), &made));
    handle_.reset(made);
  }
  /// Dense layers of hidden widths, an activation behind each but the last.
  static Network mlp(std::int64_t inputs, const std::vector<std::int64_t>& hidden,
                     std::int64_t outputs, int activation = RIBBIT_SILU) {
    ribbit_network* made = nullptr;
    check(ribbit_network_create_mlp(inputs, hidden.data(), static_cast<std::int64_t>(hidden.size()),
                                    outputs, activation, &made));
    return Network(Handle(made));
  }
  /// Parameters.
  std::int64_t dim() const noexcept { return ribbit_network_dim(handle_.get()); }
  /// Numbers of a row of x.
  std::int64_t inputs() const noexcept { return ribbit_network_inputs(handle_.get()); }
  /// Numbers that come of a row.
  std::int64_t outputs() const noexcept { return ribbit_network_outputs(handle_.get()); }
  /// What functions of C take.
  const ribbit_network* get() const noexcept { return handle_.get(); }

 private:
  using Handle = Owned<ribbit_network, ribbit_network_free>;
  explicit Network(Handle made) : handle_(std::move(made)) {}
  Handle handle_;
};

/// The defaults of a posterior.
inline ribbit_posterior_options posterior_options() {
  ribbit_posterior_options options;
  check(ribbit_posterior_options_init(&options, sizeof options));
  return options;
}

/// The defaults of a run.
inline ribbit_hmc_options hmc_options() {
  ribbit_hmc_options options;
  check(ribbit_hmc_options_init(&options, sizeof options));
  return options;
}

/// The log density at x (n,), whose gradient (n,) it writes. What it throws comes out of the call.
using LogDensity = std::function<double(std::size_t n, const double* x, double* grad)>;

/// What is sampled, with the data or the function that it needs. T: of positions.
template <class T>
class Target {
 public:
  /// Of a network and data, which are kept: x (rows, inputs), y (rows, columns).
  static Target posterior(const Network& network, ribbit_posterior_options options,
                          std::vector<T> x, std::vector<T> y) {
    auto kept = std::make_unique<Kept>();
    kept->x = std::move(x);
    kept->y = std::move(y);
    const std::size_t inputs = static_cast<std::size_t>(network.inputs());
    const std::size_t rows = kept->x.size() / inputs;
    const auto outputs = static_cast<std::size_t>(network.outputs());
    const int kind = options.likelihood;
    const bool halved = kind == RIBBIT_HETEROSCEDASTIC || kind == RIBBIT_HETEROSCEDASTIC_FLOORED;
    const std::size_t columns = kind == RIBBIT_CATEGORICAL ? 1 : halved ? outputs / 2 : outputs;
    if (kept->x.size() != rows * inputs || kept->y.size() != rows * columns) {
      throw Error(RIBBIT_ERROR_ARGUMENT, "[ribbit::Target] expected x of " +
                                             std::to_string(inputs) + " and y of " +
                                             std::to_string(columns) + " numbers per row");
    }
    options.dtype = dtype_of<T>();
    ribbit_target* made = nullptr;
    check(ribbit_target_create_posterior(network.get(), &options, kept->x.data(), kept->y.data(),
                                         static_cast<std::int64_t>(rows), &made));
    return Target(made, std::move(kept));
  }
  /// Of a log density, called by one thread at a time; of double alone.
  static Target function(std::int64_t dim, LogDensity log_density) {
    static_assert(std::is_same_v<T, double>, "a function is of double");
    auto kept = std::make_unique<Kept>();
    kept->function = std::move(log_density);
    ribbit_target* made = nullptr;
    check(ribbit_target_create_function(&evaluate, dim, kept.get(), 0, &made));
    return Target(made, std::move(kept));
  }

  /// Numbers of a position.
  std::int64_t dim() const noexcept { return ribbit_target_dim(handle_.get()); }
  /// What functions of C take.
  const ribbit_target* get() const noexcept { return handle_.get(); }
  /// Where chains begin, (chains, dim).
  std::vector<T> start(std::uint64_t seed, std::int64_t chains,
                       const std::uint32_t* chain_ids = nullptr) const {
    std::vector<T> position(static_cast<std::size_t>(chains * dim()));
    check(ribbit_target_start(handle_.get(), seed, chain_ids, chains, position.data()));
    return position;
  }
  /// The log density at theta (dim,), and its gradient.
  std::pair<double, std::vector<T>> value_and_grad(const std::vector<T>& theta) const {
    if (static_cast<std::int64_t>(theta.size()) != dim()) {
      throw Error(RIBBIT_ERROR_ARGUMENT,
                  "[ribbit::Target] expected theta of " + std::to_string(dim()) + " numbers");
    }
    double terms[2];
    std::vector<T> grad(theta.size());
    finish(ribbit_value_and_grad(handle_.get(), theta.data(), 1, nullptr, 0, terms, grad.data(),
                                 nullptr));
    return {terms[0] + terms[1], std::move(grad)};
  }
  /// check, but what a function threw comes first.
  void finish(int status) const {
    if (kept_->thrown) std::rethrow_exception(std::exchange(kept_->thrown, nullptr));
    check(status);
  }

 private:
  struct Kept {
    std::vector<T> x, y;
    LogDensity function;
    std::exception_ptr thrown;
  };
  Target(ribbit_target* made, std::unique_ptr<Kept> kept) : kept_(std::move(kept)), handle_(made) {}
  static int evaluate(std::size_t n, const double* x, double* grad, double* lp, void* user) {
    Kept& kept = *static_cast<Kept*>(user);
    try {
      *lp = kept.function(n, x, grad);
      return 0;
    } catch (...) {
      kept.thrown = std::current_exception();
      return 1;
    }
  }

  std::unique_ptr<Kept> kept_;  ///< outlives the handle
  Owned<ribbit_target, ribbit_target_free> handle_;
};

/// What a run gave; arrays in C order.
template <class T>
struct Draws {
  std::int64_t chains;                  ///< C
  std::int64_t draws;                   ///< D of each chain
  std::int64_t dim;                     ///< P numbers of a draw
  std::vector<T> positions;             ///< (C, D, P)
  std::vector<double> lp;               ///< (C, D): log density
  std::vector<double> acceptance_rate;  ///< (C, D): Metropolis probability
  std::vector<double> energy;           ///< (C, D): Hamiltonian
  std::vector<double> energy_error;     ///< (C, D): how much a trajectory changed it
  std::vector<double> step_size;        ///< (C, D)
  std::vector<std::int64_t> n_steps;    ///< (C, D): leapfrog steps
  std::vector<std::uint8_t> accepted;   ///< (C, D): 1: the proposal was taken
  std::vector<std::uint8_t> diverging;  ///< (C, D): 1: its energy error was over the threshold
  std::vector<double> step_sizes;       ///< (C,): of the chains in the end
  std::vector<T> last;                  ///< (C, P): where to go on, with first_step larger by made
  std::int64_t made;                    ///< transitions, warmup included
  bool complete;                        ///< false: interrupted, and what was not made is 0
};

/// Called after every transition; true ends the run.
using Progress = std::function<bool(const ribbit_progress&)>;

/// Hamiltonian Monte Carlo. position: (chains, dim), or {} for the target's own start.
template <class T>
Draws<T> hmc(const Target<T>& target, ribbit_hmc_options options, std::vector<T> position = {},
             const Progress& progress = {}) {
  if (position.empty()) position = target.start(options.seed, options.chains, options.chain_ids);
  if (static_cast<std::int64_t>(position.size()) != options.chains * target.dim()) {
    throw Error(RIBBIT_ERROR_ARGUMENT, "[ribbit::hmc] expected position of (chains, dim) numbers");
  }
  const auto count = static_cast<std::size_t>(options.chains * options.draws);
  Draws<T> out{options.chains,
               options.draws,
               target.dim(),
               std::vector<T>(count * static_cast<std::size_t>(target.dim())),
               std::vector<double>(count),
               std::vector<double>(count),
               std::vector<double>(count),
               std::vector<double>(count),
               std::vector<double>(count),
               std::vector<std::int64_t>(count),
               std::vector<std::uint8_t>(count),
               std::vector<std::uint8_t>(count),
               {},
               std::move(position),
               0,
               false};
  ribbit_hmc_statistics statistics;
  check(ribbit_hmc_statistics_init(&statistics, sizeof statistics));
  statistics.lp = out.lp.data();
  statistics.acceptance_rate = out.acceptance_rate.data();
  statistics.energy = out.energy.data();
  statistics.energy_error = out.energy_error.data();
  statistics.step_size = out.step_size.data();
  statistics.n_steps = out.n_steps.data();
  statistics.accepted = out.accepted.data();
  statistics.diverging = out.diverging.data();
  out.step_sizes.resize(static_cast<std::size_t>(options.chains));
  if (options.step_sizes != nullptr) {
    out.step_sizes.assign(options.step_sizes, options.step_sizes + options.chains);
  }
  options.step_sizes = out.step_sizes.data();
  struct Watched {
    const Progress& progress;
    std::exception_ptr thrown;
  } watched{progress, nullptr};
  if (progress) {
    options.user = &watched;
    options.progress = [](const ribbit_progress* at, void* user) -> int {
      auto& from = *static_cast<Watched*>(user);
      try {
        return from.progress(*at) ? 1 : 0;
      } catch (...) {
        from.thrown = std::current_exception();
        return 1;
      }
    };
  }
  const int status = ribbit_hmc(target.get(), &options, out.last.data(), out.positions.data(),
                                &statistics, &out.made);
  if (watched.thrown) std::rethrow_exception(watched.thrown);
  out.complete = status == RIBBIT_OK;
  if (status != RIBBIT_INTERRUPTED) target.finish(status);
  return out;
}

/// What draws of a posterior say at x (rows, inputs): (rows, means) each; of classes aleatoric is
/// (rows,).
struct Prediction {
  std::vector<double> mean;          ///< of the function, or probabilities
  std::vector<double> epistemic_sd;  ///< how far the draws spread
  std::vector<double> aleatoric;     ///< the noise
};

/// The prediction of draws at x (rows, inputs).
template <class T>
Prediction predict(const Target<T>& target, const Network& network, const Draws<T>& draws,
                   const std::vector<T>& x) {
  const std::size_t rows = x.size() / static_cast<std::size_t>(network.inputs());
  const std::size_t most = rows * static_cast<std::size_t>(network.outputs());
  Prediction p{std::vector<double>(most), std::vector<double>(most), std::vector<double>(most)};
  check(ribbit_predict(target.get(), draws.positions.data(), draws.chains, draws.draws, x.data(),
                       static_cast<std::int64_t>(rows), p.mean.data(), p.epistemic_sd.data(),
                       p.aleatoric.data(), nullptr));
  return p;
}

}  // namespace v1
}  // namespace ribbit

#endif
