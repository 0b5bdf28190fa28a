/// @file
/// Ribbit for C++17: ribbit.h with owners of its handles, vectors and exceptions. Header only.
#ifndef RIBBIT_RIBBIT_HPP
#define RIBBIT_RIBBIT_HPP

#include <ribbit/ribbit.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ribbit {
inline namespace v1 {

/// An error of the library; what() is its message.
class Error : public std::runtime_error {
 public:
  /// An error of a status and its text.
  Error(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int status() const noexcept { return status_; }  ///< the status

 private:
  int status_;
};

/// Throws Error unless a status is RIBBIT_OK.
inline void check(int status) {
  if (status != RIBBIT_OK) throw Error(status, ribbit_last_error());
}

/// Frees a handle.
template <class Handle, void (*Free)(Handle*)>
struct Freed {
  /// Frees a handle that is not NULL.
  void operator()(Handle* handle) const noexcept { Free(handle); }
};
/// A handle that is freed with its owner.
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
  void set() noexcept { ribbit_interrupt_set(handle_.get()); }      ///< ends calls that use it
  void clear() noexcept { ribbit_interrupt_clear(handle_.get()); }  ///< allows the next call
  /// The handle for functions of C.
  const ribbit_interrupt* get() const noexcept { return handle_.get(); }

 private:
  Owned<ribbit_interrupt, ribbit_interrupt_free> handle_;
};

/// Layers of a network with the offsets of their parameters.
class Network {
 public:
  /// A network of a table of layers.
  explicit Network(const std::vector<ribbit_layer>& layers) {
    ribbit_network* made = nullptr;
    check(ribbit_network_create(layers.data(), static_cast<std::int64_t>(layers.size()),
                                sizeof(ribbit_layer), &made));
    handle_.reset(made);
  }
  /// Dense layers with hidden widths; an activation follows each but the last.
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
  /// Outputs of a row.
  std::int64_t outputs() const noexcept { return ribbit_network_outputs(handle_.get()); }
  /// The handle for functions of C.
  const ribbit_network* get() const noexcept { return handle_.get(); }

 private:
  using Handle = Owned<ribbit_network, ribbit_network_free>;
  explicit Network(Handle made) : handle_(std::move(made)) {}
  Handle handle_;
};

/// Returns the defaults of a posterior.
inline ribbit_posterior_options posterior_options() {
  ribbit_posterior_options options;
  check(ribbit_posterior_options_init(&options, sizeof options));
  return options;
}

/// Returns the defaults of a run of chains.
inline ribbit_run_options run_options() {
  ribbit_run_options options;
  check(ribbit_run_options_init(&options, sizeof options));
  return options;
}

/// Returns the log density at x (n,) and writes its gradient (n,). The call that evaluates it
/// throws its exceptions.
using LogDensity = std::function<double(std::size_t n, const double* x, double* grad)>;

/// A posterior with its data, or a function. T is the type of positions. Copies share the data.
template <class T>
class Target {
 public:
  /// The posterior of a network on x (rows, inputs) and y (rows, columns), which the target keeps.
  static Target posterior(const Network& network, ribbit_posterior_options options,
                          std::vector<T> x, std::vector<T> y) {
    auto kept = std::make_shared<Kept>();
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
  /// A log density of double, which one thread at a time calls.
  static Target function(std::int64_t dim, LogDensity log_density) {
    static_assert(std::is_same_v<T, double>, "a function takes double");
    auto kept = std::make_shared<Kept>();
    kept->function = std::move(log_density);
    ribbit_target* made = nullptr;
    check(ribbit_target_create_function(&evaluate, dim, kept.get(), 0, &made));
    return Target(made, std::move(kept));
  }

  /// Numbers of a position.
  std::int64_t dim() const noexcept { return ribbit_target_dim(kept_->handle.get()); }
  /// The handle for functions of C.
  const ribbit_target* get() const noexcept { return kept_->handle.get(); }
  /// Starts of chains, (chains, dim).
  std::vector<T> start(std::uint64_t seed, std::int64_t chains,
                       const std::uint32_t* chain_ids = nullptr) const {
    std::vector<T> position(static_cast<std::size_t>(chains * dim()));
    check(ribbit_target_start(kept_->handle.get(), seed, chain_ids, chains, position.data()));
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
    finish(ribbit_value_and_grad(kept_->handle.get(), theta.data(), 1, nullptr, 0, terms,
                                 grad.data(), nullptr));
    return {terms[0] + terms[1], std::move(grad)};
  }
  /// Throws the exception of the function if it threw one, else what check throws.
  void finish(int status) const {
    if (kept_->thrown) std::rethrow_exception(std::exchange(kept_->thrown, nullptr));
    check(status);
  }

 private:
  struct Kept {
    std::vector<T> x, y;
    LogDensity function;
    std::exception_ptr thrown;
    Owned<ribbit_target, ribbit_target_free> handle;  ///< uses the other members
  };
  Target(ribbit_target* made, std::shared_ptr<Kept> kept) : kept_(std::move(kept)) {
    kept_->handle.reset(made);
  }
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

  std::shared_ptr<Kept> kept_;
};

/// An option of a kernel: a number, text, or numbers. ribbit_kernel_option() has all names.
class Option {
 public:
  /// A number; true and false are 1 and 0.
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  Option(std::string name, Number number)
      : name_(std::move(name)), numbers_{static_cast<double>(number)} {}
  /// A text, such as "auto".
  Option(std::string name, const char* text) : name_(std::move(name)), text_(text) {}
  /// Numbers, such as a step size for each chain.
  Option(std::string name, std::vector<double> numbers)
      : name_(std::move(name)), numbers_(std::move(numbers)) {}
  /// The struct of C, which points into this object.
  ribbit_option get() const noexcept {
    const auto count = static_cast<std::int64_t>(numbers_.size());
    return {name_.c_str(), numbers_.empty() ? text_.c_str() : nullptr, numbers_.data(), count};
  }

 private:
  std::string name_, text_;
  std::vector<double> numbers_;
};
/// Options of a kernel; those that are not named have their defaults.
using Options = std::vector<Option>;

/// Draws of chains; arrays in C order.
template <class T>
struct Draws {
  std::int64_t chains;       ///< C
  std::int64_t draws;        ///< D of each chain
  std::int64_t dim;          ///< P numbers of a draw
  std::vector<T> positions;  ///< (C, D, P)
  /// Statistics (C, D) by name, such as "lp" and "acceptance_rate"; flags are 0 and 1.
  std::map<std::string, std::vector<double>> statistics;
};

/// Called about 10 times a second; true ends the call.
using Progress = std::function<bool(const ribbit_summary&)>;

/// Chains of a kernel on a target, of which they keep a copy. One thread at a time may use them.
template <class T>
class Chains {
 public:
  /// New chains of "hmc" or "nuts"; call start() next.
  static Chains create(Target<T> target, const std::string& kernel, const Options& options = {},
                       const ribbit_run_options& run = run_options()) {
    const std::vector<ribbit_option> rows = rows_of(options);
    ribbit_chains* made = nullptr;
    check(ribbit_chains_create(target.get(), kernel.c_str(), rows.data(),
                               static_cast<std::int64_t>(rows.size()), &run, &made));
    return Chains(made, std::move(target));
  }
  /// Chains from bytes of save(); thin and save_warmup of `run` are read, the rest is in the bytes.
  static Chains load(Target<T> target, const std::string& kernel, const std::string& bytes,
                     const Options& options = {}, const ribbit_run_options& run = run_options()) {
    const std::vector<ribbit_option> rows = rows_of(options);
    ribbit_chains* made = nullptr;
    check(ribbit_chains_load(target.get(), kernel.c_str(), rows.data(),
                             static_cast<std::int64_t>(rows.size()), &run, bytes.data(),
                             bytes.size(), &made));
    return Chains(made, std::move(target));
  }

  /// Number of chains.
  std::int64_t chains() const noexcept { return count_; }
  /// The handle for functions of C.
  ribbit_chains* get() const noexcept { return handle_.get(); }

  /// Starts at position (chains, dim), or at the target's own start for {}.
  void start(const std::vector<T>& position = {}, const Interrupt* interrupt = nullptr) {
    if (!position.empty() && position.size() != size()) {
      throw Error(RIBBIT_ERROR_ARGUMENT,
                  "[ribbit::Chains] expected position of " + std::to_string(size()) + " numbers");
    }
    target_.finish(ribbit_chains_start(handle_.get(), position.empty() ? nullptr : position.data(),
                                       flag(interrupt)));
  }
  /// Makes up to `most` draws, for at most `seconds`. In warmup `most` counts transitions, which
  /// are draws with save_warmup alone.
  Draws<T> advance(std::int64_t most, double seconds = std::numeric_limits<double>::infinity(),
                   const Interrupt* interrupt = nullptr) {
    Draws<T> out = room(most);
    fill(out, most, most, seconds, interrupt);
    trim(out, most);
    return out;
  }
  /// Makes `draws` draws, after warmup if that is not over. If progress returns true, there are
  /// fewer.
  Draws<T> sample(std::int64_t draws, const Progress& progress = {},
                  const Interrupt* interrupt = nullptr) {
    const double seconds = progress ? 0.1 : std::numeric_limits<double>::infinity();
    Draws<T> out = room(draws);
    for (bool over = false; out.draws < draws && !over;) {
      fill(out, draws, draws - out.draws, seconds, interrupt);
      over = progress && progress(summary());
    }
    trim(out, draws);
    return out;
  }
  /// A statistic (chains, count) of the draws of the last call; count: their number of each chain.
  std::vector<double> statistic(const std::string& name, std::int64_t count) const {
    for (const ribbit_statistic_info& info : statistics()) {
      if (name == info.name) return statistic(info, count);
    }
    throw Error(RIBBIT_ERROR_ARGUMENT, "[ribbit::Chains] there is no statistic '" + name + "'");
  }
  /// Where the chains are, (chains, dim).
  std::vector<T> position() const {
    std::vector<T> out(size());
    check(ribbit_chains_position(handle_.get(), out.data()));
    return out;
  }
  /// Counts of the run.
  ribbit_summary summary() const {
    ribbit_summary out;
    out.size = sizeof out;
    check(ribbit_chains_summary(handle_.get(), &out));
    return out;
  }
  /// The chains as bytes.
  std::string save() const {
    std::size_t count = 0;
    check(ribbit_chains_save(handle_.get(), nullptr, &count));
    std::string bytes(count, '\0');
    check(ribbit_chains_save(handle_.get(), &bytes[0], &count));
    return bytes;
  }

 private:
  Chains(ribbit_chains* made, Target<T> target)
      : target_(std::move(target)), handle_(made), count_(summary().chains) {}
  static std::vector<ribbit_option> rows_of(const Options& options) {
    std::vector<ribbit_option> rows;
    for (const Option& option : options) rows.push_back(option.get());
    return rows;
  }
  static const ribbit_interrupt* flag(const Interrupt* interrupt) {
    return interrupt == nullptr ? nullptr : interrupt->get();
  }
  std::size_t size() const { return static_cast<std::size_t>(chains() * target_.dim()); }
  std::vector<ribbit_statistic_info> statistics() const {
    std::vector<ribbit_statistic_info> rows;
    ribbit_statistic_info info;
    for (std::int64_t i = 0; ribbit_chains_statistic_info(handle_.get(), i, &info) == RIBBIT_OK;
         ++i) {
      rows.push_back(info);
    }
    return rows;
  }
  template <class V>
  std::vector<double> read(const char* name, std::int64_t count) const {
    std::vector<V> values(static_cast<std::size_t>(chains() * count) + 1);  // never empty
    check(ribbit_chains_statistic(handle_.get(), name, values.data(), count));
    return std::vector<double>(values.begin(), values.end() - 1);
  }
  std::vector<double> statistic(const ribbit_statistic_info& info, std::int64_t count) const {
    if (info.dtype == 'q') return read<std::int64_t>(info.name, count);
    return info.dtype == '?' ? read<std::uint8_t>(info.name, count)
                             : read<double>(info.name, count);
  }
  /// Returns no draws, with memory for `most` of them.
  Draws<T> room(std::int64_t most) const {
    if (most < 0) throw Error(RIBBIT_ERROR_ARGUMENT, "[ribbit::Chains] expected draws >= 0");
    const auto rows = static_cast<std::size_t>(chains() * most);
    Draws<T> out{chains(), 0, target_.dim(), {}, {}};
    out.positions.resize(rows * static_cast<std::size_t>(target_.dim()));
    for (const ribbit_statistic_info& info : statistics()) out.statistics[info.name].resize(rows);
    return out;
  }
  /// Appends the draws of a call. The chains' rows lie `stride` apart.
  void fill(Draws<T>& out, std::int64_t stride, std::int64_t most, double seconds,
            const Interrupt* interrupt) {
    std::int64_t count = 0;
    target_.finish(ribbit_chains_advance(handle_.get(), most, seconds,
                                         out.positions.data() + out.draws * out.dim, stride, &count,
                                         flag(interrupt)));
    for (const ribbit_statistic_info& info : statistics()) {
      const std::vector<double> values = statistic(info, count);
      for (std::int64_t c = 0; c < chains(); ++c) {
        std::copy_n(values.data() + c * count, count,
                    out.statistics[info.name].data() + c * stride + out.draws);
      }
    }
    out.draws += count;
  }
  /// Removes the rows behind each chain's draws.
  static void trim(Draws<T>& out, std::int64_t stride) {
    const auto close = [&](auto& values, std::int64_t width) {
      for (std::int64_t c = 1; c < out.chains && out.draws < stride; ++c) {
        std::copy_n(values.data() + c * stride * width, out.draws * width,
                    values.data() + c * out.draws * width);
      }
      values.resize(static_cast<std::size_t>(out.chains * out.draws * width));
    };
    close(out.positions, out.dim);
    for (auto& named : out.statistics) close(named.second, 1);
  }

  Target<T> target_;  ///< outlives the handle
  Owned<ribbit_chains, ribbit_chains_free> handle_;
  std::int64_t count_;
};

/// The prediction of draws at x (rows, inputs): (rows, means) each; for classes aleatoric is
/// (rows,).
struct Prediction {
  std::vector<double> mean;          ///< of the function, or probabilities
  std::vector<double> epistemic_sd;  ///< sd of the draws' means
  std::vector<double> aleatoric;     ///< sd of the noise, or entropy
};

/// Returns the prediction of draws at x (rows, inputs).
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
