#pragma once
// The log posterior of a network, as Python holds it.

#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/array.h"
#include "bindings/exchange.h"
#include "bindings/network.h"
#include "bindings/scalar.h"
#include "bindings/scales.h"
#include "core/prior_hd.h"
#include "cpu/density/log_density.h"
#include "cpu/density/xla_handler.h"

namespace ribbit::bindings {

inline constexpr std::int64_t kMostSamples = std::int64_t{1}
                                             << 32;  // an address has 32 bits of them

inline std::vector<cpu::PriorSegment> prior_of(const py::object& prior) {
  const py::array p = checked<double>(prior, "prior", {kAny, 6});
  std::vector<cpu::PriorSegment> segments;
  for (py::ssize_t i = 0; i < p.shape(0); ++i) {
    const double* row = data<double>(p) + 6 * i;
    segments.push_back(
        {whole("offset of a prior", row[0], 0), whole("size of a prior", row[1], 1),
         static_cast<PriorKind>(whole("kind of a prior", row[2], 0, Priors::kCount - 1)), row[3],
         row[4], row[5]});
  }
  return segments;
}

// None, or (bias, alone, sd (K,), mean (K, J)).
inline std::optional<cpu::LastLayer> last_layer_of(const py::object& last) {
  if (last.is_none()) return std::nullopt;
  const auto parts = last.cast<py::tuple>();
  if (parts.size() != 4) throw py::value_error("[_core] expected 4 parts of a last layer");
  const py::array sd = checked<double>(parts[2], "sd", {kAny}),
                  mean = checked<double>(parts[3], "mean", {sd.shape(0), kAny});
  cpu::LastLayer layer{};
  layer.bias = parts[0].cast<bool>();
  layer.alone = parts[1].cast<bool>();
  layer.inputs = sd.shape(0) - (layer.bias ? 1 : 0);
  layer.outputs = mean.shape(1);
  layer.sd.assign(data<double>(sd), data<double>(sd) + sd.size());
  layer.mean.assign(data<double>(mean), data<double>(mean) + mean.size());
  return layer;
}

// Numbers of a file (N, features), in the byte order of the machine.
inline cpu::RowFormat format_of(const py::array& array) {
  constexpr const char* kNames[] = {"float16", "float32", "float64", "uint8", "int8",
                                    "uint16",  "int16",   "uint32",  "int32", "int64"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(cpu::RowFormat::kCount));
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (array.dtype().equal(py::dtype(kNames[i]))) return static_cast<cpu::RowFormat>(i);
  }
  throw py::type_error("[_core] expected x of real numbers, got " + described(array));
}

// Blocks (K, 3) of first parameter, inputs and outputs, and the matrices (chains, sum of inputs^2)
// that mix them; None and None: nothing is mixed.
template <class T>
struct InputMixing {
  py::array blocks, matrices;
  std::vector<cpu::InputBlock> each;
  cpu::Mixing<T> all{nullptr, 0, nullptr, 0};
  InputMixing(const py::object& given, const py::object& mixing, std::int64_t chains,
              std::int64_t dim) {
    if (given.is_none() && mixing.is_none()) return;
    blocks = checked<std::int64_t>(given, "blocks", {kAny, 3});
    const std::int64_t* numbers = data<std::int64_t>(blocks);
    std::int64_t end = 0, size = 0;
    for (py::ssize_t k = 0; k < blocks.shape(0); ++k, numbers += 3) {
      const cpu::InputBlock block{numbers[0], numbers[1], numbers[2]};
      if (block.first < end || block.inputs < 1 || block.outputs < 1 || block.inputs > dim ||
          block.outputs > dim || block.size() > dim - block.first) {
        throw py::value_error("[_core] expected blocks as ascending parameters of the density");
      }
      end = block.first + block.size();
      size += block.inputs * block.inputs;
      each.push_back(block);
    }
    matrices = checked<T>(mixing, "mixing", {chains, size});
    all = {each.data(), static_cast<std::int64_t>(each.size()), data<T>(matrices), size};
  }
};

// Keeps the arrays alive that the native object points into.
template <class T>
class Density {
 public:
  Density(const py::object& table, const py::object& rates, const py::object& prior, int kind,
          const std::vector<double>& noise_scales, double shape, const py::object& x,
          const py::object& y, double temperature, double likelihood_temperature, bool masks,
          bool concrete, const py::object& centre, const py::object& last, const py::object& scales,
          const py::object& weights)
      : masks_(masks) {
    Network network = network_of(table, rates);
    std::optional<cpu::LastLayer> last_layer = last_layer_of(last);
    // Looked at before anything reads y.
    const std::int64_t columns =
        last_layer ? last_layer->outputs
                   : columns_of(traits_of(likelihood_kind(kind)).shape, network.output_size());
    const cpu::Rows<T> rows = py::isinstance<py::tuple>(x)
                                  ? stored_rows(x.cast<py::tuple>(), network.input_size())
                                  : rows_of<T>(x, network.input_size(), x_);
    y_ = checked<T>(y, "y", {x_.shape(0), columns});
    if (x_.shape(0) < 1) throw py::value_error("[_core] expected at least 1 row of x");
    if (!centre.is_none()) centre_ = checked<T>(centre, "centre", {kAny});
    if (!weights.is_none()) weights_ = checked<T>(weights, "weights", {x_.shape(0)});
    native_ = std::make_unique<cpu::LogDensity<T>>(
        std::move(network), prior_of(prior), likelihood_kind(kind),
        parameters_of(noise_scales, shape), rows, data<T>(y_), x_.shape(0),
        cpu::Temperatures{temperature, likelihood_temperature}, masks, concrete,
        centre.is_none() ? nullptr : data<T>(centre_), std::move(last_layer), scales_of(scales),
        weights.is_none() ? nullptr : data<T>(weights_));
    if (!centre.is_none() && centre_.shape(0) != dim()) {
      throw py::value_error("[_core] expected centre of " + std::to_string(dim()) +
                            " numbers, got " + std::to_string(centre_.shape(0)));
    }
  }

  // Before the first use.
  void set_shards(std::int64_t shards) const { native_->set_shards(shards); }
  // group: see bindings/exchange.h; total: rows of all ranks. Before the first use, on every rank.
  void join(const py::object& group, std::int64_t shards, std::int64_t total) const {
    exchange_ = std::make_unique<PythonExchange>(group);
    const cpu::RowGroup rows{exchange_->rank(), exchange_->ranks(), shards, cpu::panel_count(total),
                             exchange_.get()};
    bool joined = false;
    {
      const WithoutGil release;
      joined = native_->join(rows, total);
    }
    if (!joined) exchange_->rethrow(nullptr);
  }

  using Scalar = T;
  const cpu::LogDensity<T>& native() const { return *native_; }
  std::int64_t dim() const { return native_->dim(); }
  std::int64_t rows() const { return native_->rows(); }

  // Ends a call that was cancelled: here, or by the ranks of a group together.
  [[noreturn]] void end(const PythonPoll& poll, const InterruptFlag* interrupt) const {
    if (native_->group() != nullptr) exchange_->rethrow(interrupt);
    poll.rethrow();
  }

  // By which XLA programs find this density while it lives.
  std::int64_t xla_number() const {
    needs_no_masks();
    needs_one_process();
    static std::mutex asked;  // by two threads at once; nothing in here calls Python
    const std::scoped_lock lock(asked);
    if (published_ == nullptr) published_ = std::make_unique<cpu::Published>(native_.get());
    return published_->number();
  }

  // theta with the weights of the layer that is integrated out, (chains, dim + K J).
  FloatArray complete(const py::object& theta, std::uint64_t seed, std::uint64_t step,
                      const py::object& chain_ids, const InterruptFlag* interrupt) const {
    const std::int64_t chains = chains_of(theta, "position");
    const py::array at = checked<T>(theta, "position", {chains, dim()}),
                    ids = checked<std::uint32_t>(chain_ids, "chains", {chains});
    const cpu::LastLayer* last = native_->last();
    if (last == nullptr) throw py::value_error("[_core] expected a last layer integrated out");
    check_steps("step", step, 1);
    py::array_t<T> out = empty<T>({chains, dim() + last->terms() * last->outputs});
    T* to = out.mutable_data();
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->complete(data<T>(at), chains, 1, seed, &step, data<std::uint32_t>(ids), to,
                               &poll);
    }
    if (!done) end(poll, interrupt);
    return out;
  }

  Arrays<double, double, FloatArray> value_and_grad(const py::object& theta, const py::object& rows,
                                                    const InterruptFlag* interrupt) const {
    const std::int64_t chains = chains_of(theta, "theta");
    py::array_t<T> grad = empty<T>({chains, dim()});
    const Arrays<double, double> terms = evaluate(theta, rows, interrupt, grad.mutable_data());
    return py::make_tuple(terms[0], terms[1], grad);
  }

  // Chain c under the masks of sample + c.
  Arrays<double, double, FloatArray> masked_value_and_grad(const py::object& theta,
                                                           const py::object& rows,
                                                           std::uint64_t seed, std::uint64_t step,
                                                           std::uint32_t sample,
                                                           const InterruptFlag* interrupt) const {
    if (!masks_) throw py::value_error("[_core] expected a density with dropout masks");
    py::array_t<T> grad = empty<T>({chains_of(theta, "theta"), dim()});
    const cpu::Masks masks{seed, step, sample};
    const Arrays<double, double> terms =
        evaluate(theta, rows, interrupt, grad.mutable_data(), &masks);
    return py::make_tuple(terms[0], terms[1], grad);
  }

  Arrays<double, double> value(const py::object& theta, const py::object& rows,
                               const InterruptFlag* interrupt) const {
    return evaluate(theta, rows, interrupt, nullptr);
  }

  // Position, first and second moments (None stays None), failed step or -1, largest |gradient|.
  // kept (C, K, dim) is filled with the positions after the steps `keep` (K,) of the call.
  py::typing::Tuple<FloatArray, py::object, py::object, py::array_t<std::int64_t>,
                    py::array_t<double>>
  advance(const py::object& position, const py::object& first, const py::object& second,
          std::uint64_t seed, const py::object& chain_ids, std::uint64_t first_step,
          std::int64_t batch_rows, const py::object& step_size, const py::object& noise, int rule,
          double prior, double friction, double previous, double decay1, double decay2,
          double epsilon, std::uint64_t adapt_until, const InterruptFlag* interrupt,
          const py::object& keep, const py::object& kept) const {
    const std::int64_t chains = chains_of(position, "position"), n = dim();
    const py::array ids = checked<std::uint32_t>(chain_ids, "chains", {chains});
    const py::array eps = checked<double>(step_size, "step_size", {kAny});
    const py::array factor = checked<double>(noise, "noise", {eps.shape(0)});
    const std::int64_t count = eps.shape(0);
    needs_rows();
    check_range("batch_size", batch_rows, 1, rows());
    check_range("rule", rule, 0, cpu::kRuleCount - 1);
    check_steps("first_step", first_step, count);
    const KeptPositions<T> keeps(keep, kept, chains, count, n);
    py::array_t<T> q = copied<T>(position, "position", chains, n);
    py::object m1 = py::none(), m2 = py::none();
    T *firsts = nullptr, *seconds = nullptr;
    const auto copy = [&](const py::object& from, const char* name, py::object& to, T*& values) {
      if (from.is_none()) return;
      py::array_t<T> array = copied<T>(from, name, chains, n);
      values = array.mutable_data();
      to = array;
    };
    copy(first, "first", m1, firsts);
    copy(second, "second", m2, seconds);
    const cpu::StochasticSteps steps{seed,
                                     first_step,
                                     count,
                                     batch_rows,
                                     data<std::uint32_t>(ids),
                                     data<double>(eps),
                                     data<double>(factor),
                                     static_cast<cpu::UpdateRule>(rule),
                                     prior,
                                     friction,
                                     previous,
                                     decay1,
                                     decay2,
                                     epsilon,
                                     adapt_until,
                                     keeps.after,
                                     keeps.count};
    std::vector<cpu::StochasticOutcome> outcomes(static_cast<std::size_t>(chains));
    T* qs = q.mutable_data();
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->advance(steps, qs, firsts, seconds, chains, outcomes.data(), &poll, keeps.to);
    }
    if (!done) end(poll, interrupt);
    py::array_t<std::int64_t> failed = empty<std::int64_t>({chains});
    py::array_t<double> largest = empty<double>({chains});
    for (std::int64_t c = 0; c < chains; ++c) {
      failed.mutable_data()[c] = outcomes[static_cast<std::size_t>(c)].failed;
      largest.mutable_data()[c] = outcomes[static_cast<std::size_t>(c)].largest;
    }
    return py::make_tuple(q, m1, m2, failed, largest);
  }

  // state: (6, dim) mean, rho and their moments, copied; -> state, records (3, steps), failed step
  // or -1, largest |gradient|.
  py::typing::Tuple<FloatArray, py::array_t<double>, std::int64_t, double> advance_variational(
      const py::object& state, std::uint64_t seed, std::uint64_t first_step,
      std::int64_t batch_rows, std::int64_t samples, int estimator, bool closed,
      const py::object& step_size, const py::object& kl_weight, double decay1, double decay2,
      double epsilon, const InterruptFlag* interrupt) const {
    const std::int64_t n = dim();
    const py::array eps = checked<double>(step_size, "step_size", {kAny});
    const py::array weights = checked<double>(kl_weight, "kl_weight", {eps.shape(0)});
    const std::int64_t count = eps.shape(0);
    needs_rows();
    check_range("batch_size", batch_rows, 1, rows());
    check_range("num_samples", samples, 1, kMostSamples);
    check_range("estimator", estimator, 0, static_cast<int>(cpu::Estimator::kCount) - 1);
    check_steps("first_step", first_step, count);
    py::array_t<T> moved = copied<T>(state, "state", 6, n);
    py::array_t<double> records = empty<double>({3, count});
    T* s = moved.mutable_data();
    double* r = records.mutable_data();
    const cpu::VariationalSteps steps{seed,
                                      first_step,
                                      count,
                                      batch_rows,
                                      samples,
                                      static_cast<cpu::Estimator>(estimator),
                                      closed,
                                      data<double>(eps),
                                      data<double>(weights),
                                      decay1,
                                      decay2,
                                      epsilon,
                                      r,
                                      r + count,
                                      r + 2 * count};
    const cpu::VariationalState<T> at{s, s + n, s + 2 * n, s + 3 * n, s + 4 * n, s + 5 * n};
    cpu::StochasticOutcome outcome{-1, 0.0};
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->advance_variational(steps, at, &outcome, &poll);
    }
    if (!done) end(poll, interrupt);
    return py::make_tuple(moved, records, outcome.failed, outcome.largest);
  }

  Arrays<FloatArray, FloatArray, double, double, FloatArray, std::int64_t> leapfrog(
      const py::object& position, const py::object& momentum, const py::object& grad,
      const py::object& step_size, const py::object& num_steps, const py::object& inverse_mass,
      const InterruptFlag* interrupt) const {
    needs_no_masks();
    const std::int64_t chains = chains_of(position, "position"), n = dim();
    const py::array eps = checked<double>(step_size, "step_size", {chains});
    const Steps steps(num_steps, chains);
    const Mass<T> mass(inverse_mass, chains, n);
    const py::array start = checked<T>(position, "position", {chains, n}),
                    kicks = checked<T>(momentum, "momentum", {chains, n});
    py::array slope;
    if (!grad.is_none()) slope = checked<T>(grad, "grad", {chains, n});
    py::array_t<T> q = empty<T>({chains, n}), p = empty<T>({chains, n}), g = empty<T>({chains, n});
    py::array_t<double> ll = empty<double>({chains}), lp = empty<double>({chains});
    py::array_t<std::int64_t> made = empty<std::int64_t>({chains});
    const cpu::Trajectories<T> all{chains,
                                   data<T>(start),
                                   data<T>(kicks),
                                   grad.is_none() ? nullptr : data<T>(slope),
                                   mass.values,
                                   mass.stride,
                                   data<double>(eps),
                                   steps.values,
                                   q.mutable_data(),
                                   p.mutable_data(),
                                   g.mutable_data(),
                                   ll.mutable_data(),
                                   lp.mutable_data(),
                                   made.mutable_data()};
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->leapfrog(all, &poll);
    }
    if (!done) end(poll, interrupt);
    return py::make_tuple(q, p, ll, lp, g, made);
  }

  // position, velocity, grad, terms (C, 2), what the kicks gained (C,), errors (C, most steps).
  Arrays<FloatArray, FloatArray, FloatArray, double, double, double> isokinetic(
      const py::object& position, const py::object& velocity, const py::object& grad,
      const py::object& terms, std::uint64_t seed, const py::object& chain_ids,
      std::uint64_t first_step, int integrator, const py::object& step_size,
      const py::object& length, const py::object& num_steps, const py::object& scale,
      const py::object& blocks, const py::object& matrices, bool turns,
      const InterruptFlag* interrupt) const {
    needs_no_masks();
    const std::int64_t chains = chains_of(position, "position"), n = dim();
    const InputMixing<T> mixing(blocks, matrices, chains, n);
    const py::array ids = checked<std::uint32_t>(chain_ids, "chains", {chains});
    const py::array eps = checked<double>(step_size, "step_size", {chains});
    const py::array lengths = checked<double>(length, "decoherence_length", {chains});
    const Steps steps(num_steps, chains);
    const Mass<T> scales(scale, chains, n, "scale");
    const std::int64_t most = *std::max_element(steps.values, steps.values + chains);
    if (n < 2) throw py::value_error("[_core] expected at least 2 parameters, got 1");
    check_range("integrator", integrator, 0, kIntegratorCount - 1);
    check_range("num_steps", most, 1, (std::int64_t{1} << 32) - 1);
    check_steps("first_step", first_step, most);
    py::array_t<T> q = copied<T>(position, "position", chains, n),
                   u = copied<T>(velocity, "velocity", chains, n),
                   g = copied<T>(grad, "grad", chains, n);
    py::array_t<double> at = copied<double>(terms, "terms", chains, 2),
                        energy = empty<double>({chains}), errors = empty<double>({chains, most});
    const cpu::IsokineticSteps<T> all{chains,
                                      seed,
                                      first_step,
                                      data<std::uint32_t>(ids),
                                      static_cast<Integrator>(integrator),
                                      steps.values,
                                      most,
                                      data<double>(eps),
                                      data<double>(lengths),
                                      scales.values,
                                      scales.stride,
                                      mixing.all,
                                      turns,
                                      q.mutable_data(),
                                      u.mutable_data(),
                                      g.mutable_data(),
                                      at.mutable_data(),
                                      energy.mutable_data(),
                                      errors.mutable_data()};
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->isokinetic(all, &poll);
    }
    if (!done) end(poll, interrupt);
    return py::make_tuple(q, u, g, at, energy, errors);
  }

 private:
  // Rows that stay where they lie: numbers (N, features), whether they are bytes of images, and
  // what is subtracted from the features and divides them, (features,) or None.
  cpu::Rows<T> stored_rows(const py::tuple& parts, std::int64_t features) {
    if (parts.size() != 4) throw py::value_error("[_core] expected 4 parts of stored rows");
    x_ = array_of(parts[0], "x");
    const bool images = parts[1].cast<bool>();
    constexpr int kNeeded = py::array::c_style | kAligned;
    if (x_.ndim() != 2 || x_.shape(1) != features || (x_.flags() & kNeeded) != kNeeded) {
      throw py::value_error("[_core] expected x as a C-contiguous array (any, " +
                            std::to_string(features) + "), got " + described(x_));
    }
    cpu::Rows<T> rows;
    rows.streamed = true;
    if (images) {
      x_ = checked<std::uint8_t>(x_, "x", {kAny, features});
      rows.bytes = data<std::uint8_t>(x_);
    } else if (parts[2].is_none() && holds<T>(x_)) {
      rows.values = data<T>(x_);
    } else {
      rows.format = format_of(x_);
      rows.stored = x_.data();
    }
    if (images || parts[2].is_none()) return rows;
    mean_ = checked<double>(parts[2], "mean", {features});
    scale_ = checked<double>(parts[3], "scale", {features});
    rows.mean = data<double>(mean_);
    rows.scale = data<double>(scale_);
    return rows;
  }

  void needs_one_process() const {
    if (native_->group() != nullptr) {
      throw py::value_error("[_core] expected all rows in one process");
    }
  }
  // Where the last layer is integrated out the density is no sum over rows.
  void needs_rows() const {
    if (native_->last() != nullptr) {
      throw py::value_error("[_core] expected all rows where the last layer is integrated out");
    }
  }
  // Every pass of a density with masks has to be told which.
  void needs_no_masks() const {
    if (masks_) throw py::value_error("[_core] expected a density without dropout masks");
  }
  std::int64_t chains_of(const py::object& theta, const char* name) const {
    const std::int64_t chains = checked<T>(theta, name, {kAny, dim()}).shape(0);
    if (chains > 0) return chains;
    throw py::value_error("[_core] expected " + std::string(name) + " of at least 1 chain, got 0");
  }

  Arrays<double, double> evaluate(const py::object& theta, const py::object& rows,
                                  const InterruptFlag* interrupt, T* grad,
                                  const cpu::Masks* masks = nullptr) const {
    if (masks == nullptr) needs_no_masks();
    const std::int64_t chains = chains_of(theta, "theta");
    const py::array at = checked<T>(theta, "theta", {chains, dim()});
    py::array subset;
    const std::int64_t* numbers = nullptr;
    std::int64_t count = 0;
    if (!rows.is_none()) {
      needs_rows();
      subset = checked<std::int64_t>(rows, "rows", {kAny});
      numbers = data<std::int64_t>(subset);
      count = subset.shape(0);
      if (count < 1) throw py::value_error("[_core] expected at least 1 row, got 0");
      for (std::int64_t i = 0; i < count; ++i) {
        if (numbers[i] < 0 || numbers[i] >= this->rows()) {
          throw py::value_error("[_core] expected rows in [0, " + std::to_string(this->rows()) +
                                "), got " + std::to_string(numbers[i]));
        }
      }
    }
    py::array_t<double> ll = empty<double>({chains}), lp = empty<double>({chains});
    double *lls = ll.mutable_data(), *lps = lp.mutable_data();
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->evaluate(data<T>(at), chains, numbers, count, lls, lps, grad, &poll, masks);
    }
    if (!done) end(poll, interrupt);
    return py::make_tuple(ll, lp);
  }

  py::array x_, y_, mean_, scale_, centre_, weights_;
  bool masks_ = false;
  mutable std::unique_ptr<PythonExchange> exchange_;  // of a group
  std::unique_ptr<cpu::LogDensity<T>> native_;
  mutable std::unique_ptr<cpu::Published> published_;  // ends before what it points at
};

using LogDensity = Either<Density>;

}  // namespace ribbit::bindings
