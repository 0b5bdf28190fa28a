// The log posterior of a network.

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
#include "core/no_u_turn_hd.h"
#include "core/prior_hd.h"
#include "cpu/density/hamiltonian_run.h"
#include "cpu/density/log_density.h"
#include "cpu/density/xla_handler.h"

namespace ribbit::bindings {
namespace {

constexpr std::int64_t kMostSamples = std::int64_t{1} << 32;  // an address has 32 bits of them

std::vector<cpu::PriorSegment> prior_of(const py::object& prior) {
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
std::optional<cpu::LastLayer> last_layer_of(const py::object& last) {
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
cpu::RowFormat format_of(const py::array& array) {
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

  std::int64_t dim() const { return native_->dim(); }
  std::int64_t rows() const { return native_->rows(); }
  std::int64_t workspace_bytes() const { return native_->workspace_bytes(); }

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

  // One transition of Hamiltonian Monte Carlo of every chain: position, terms (chains, 2), grad,
  // then per chain the log density, energy, energy error and acceptance (4, chains), steps
  // (chains,), whether accepted and whether diverging (2, chains).
  Arrays<FloatArray, double, FloatArray, double, std::int64_t, bool> hamiltonian(
      const py::object& position, const py::object& grad, const py::object& terms,
      const py::object& step_size, const py::object& num_steps, const py::object& inverse_mass,
      std::uint64_t seed, std::uint64_t step, const py::object& chain_ids, double threshold,
      const InterruptFlag* interrupt) const {
    needs_no_masks();
    const std::int64_t chains = chains_of(position, "position"), n = dim();
    const py::array eps = checked<double>(step_size, "step_size", {chains}),
                    ids = checked<std::uint32_t>(chain_ids, "chains", {chains}),
                    parts = checked<double>(terms, "terms", {chains, 2});
    const Steps steps(num_steps, chains);
    const Mass<T> mass(inverse_mass, chains, n);
    const py::array start = checked<T>(position, "position", {chains, n}),
                    slope = checked<T>(grad, "grad", {chains, n});
    check_steps("step", step, 1);
    py::array_t<T> q = empty<T>({chains, n}), g = empty<T>({chains, n});
    py::array_t<double> end_terms = empty<double>({chains, 2}), reals = empty<double>({4, chains});
    py::array_t<std::int64_t> made = empty<std::int64_t>({chains});
    py::array_t<bool> flags = empty<bool>({2, chains});
    std::vector<cpu::TransitionOutcome> outcomes(static_cast<std::size_t>(chains));
    const cpu::Transitions<T> all{chains,
                                  data<T>(start),
                                  data<T>(slope),
                                  data<double>(parts),
                                  mass.values,
                                  mass.stride,
                                  data<double>(eps),
                                  steps.values,
                                  seed,
                                  step,
                                  data<std::uint32_t>(ids),
                                  threshold,
                                  q.mutable_data(),
                                  g.mutable_data(),
                                  end_terms.mutable_data(),
                                  outcomes.data()};
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->hamiltonian(all, &poll);
    }
    if (!done) end(poll, interrupt);
    double* real = reals.mutable_data();
    bool* flag = flags.mutable_data();
    for (std::int64_t c = 0; c < chains; ++c) {
      const cpu::TransitionOutcome& one = outcomes[static_cast<std::size_t>(c)];
      real[c] = one.log_density;
      real[chains + c] = one.energy;
      real[2 * chains + c] = one.energy_error;
      real[3 * chains + c] = one.acceptance;
      made.mutable_data()[c] = one.steps;
      flag[c] = one.accepted;
      flag[chains + c] = one.diverging;
    }
    return py::make_tuple(q, end_terms, g, reals, made, flags);
  }

  // `count` transitions of every chain, of which those of keep (K,), 0-based and ascending, are
  // told of. most, brief, brief_until, randomize_length: see cpu/density/hamiltonian_run.h. sums:
  // None, or of dual averaging log step, log average, error, centre and log settled (5, chains)
  // after `updates` updates, `settled` of them from brief_until on, with the rest of what
  // TrajectoryRule says. kept: None, or (chains, K, dim) to be filled, with the layer that is
  // integrated out. Returns position, terms (chains, 2), grad, step sizes (chains,), log density,
  // energy, energy error, acceptance and step size (5, chains, K), steps and divergences since the
  // one kept before (2, chains, K), whether accepted, diverging and capped (3, chains, K), sums,
  // and how many transitions were made, of which how many are told of: after `seconds` the call
  // ends with the next one that is to be kept, and what stands in arrays behind it is of no use.
  py::typing::Tuple<FloatArray, py::array_t<double>, FloatArray, py::array_t<double>,
                    py::array_t<double>, py::array_t<std::int64_t>, py::array_t<bool>, py::object,
                    std::int64_t, std::int64_t>
  hamiltonian_run(const py::object& position, const py::object& grad, const py::object& terms,
                  const py::object& inverse_mass, std::uint64_t seed, std::uint64_t step,
                  const py::object& chain_ids, double threshold, std::int64_t count,
                  const py::object& step_size, const py::object& num_steps,
                  const py::object& capped, bool randomize_length, std::int64_t most,
                  std::int64_t brief, std::uint64_t brief_until, const py::object& sums,
                  int updates, int settled, double target, double length,
                  std::int64_t most_on_average, bool ends, const py::object& keep,
                  const py::object& kept, double seconds, const InterruptFlag* interrupt) const {
    // Arguments.
    needs_no_masks();
    const std::int64_t chains = chains_of(position, "position"), n = dim();
    const cpu::LastLayer* last = native_->last();
    const std::int64_t whole = n + (last != nullptr ? last->terms() * last->outputs : 0);
    const py::array ids = checked<std::uint32_t>(chain_ids, "chains", {chains}),
                    eps = checked<double>(step_size, "step_size", {chains}),
                    caps = checked<bool>(capped, "capped", {chains}),
                    keeps = checked<std::int64_t>(keep, "keep", {kAny});
    const Steps steps(num_steps, chains);
    const Mass<T> mass(inverse_mass, chains, n);
    const std::int64_t told = keeps.shape(0);
    if (count < 1 || most < 1 || brief < 1 || most_on_average < 1 || !(length >= 0.0) ||
        updates < 0 || settled < 0 || !(seconds >= 0.0)) {
      throw py::value_error("[_core] expected at least 1 transition and leapfrog");
    }
    check_steps("step", step, count);
    for (std::int64_t i = 0; i < told; ++i) {
      const std::int64_t at = data<std::int64_t>(keeps)[i];
      if (at < (i == 0 ? 0 : data<std::int64_t>(keeps)[i - 1] + 1) || at >= count) {
        throw py::value_error("[_core] expected keep as ascending transitions of the call");
      }
    }
    py::array to;
    if (!kept.is_none()) to = checked<T>(kept, "kept", {chains, told, whole}, true);

    // What is moved in place, and what is told.
    py::array_t<T> q = copied<T>(position, "position", chains, n),
                   g = copied<T>(grad, "grad", chains, n);
    py::array_t<double> at = copied<double>(terms, "terms", chains, 2),
                        sizes = empty<double>({chains}), reals = empty<double>({5, chains, told});
    py::array_t<std::int64_t> counts = empty<std::int64_t>({2, chains, told});
    py::array_t<bool> flags = empty<bool>({3, chains, told});
    std::copy_n(data<double>(eps), chains, sizes.mutable_data());
    std::vector<std::int64_t> mean(steps.values, steps.values + chains);
    const std::unique_ptr<bool[]> cut(new bool[static_cast<std::size_t>(chains)]);
    std::copy_n(data<bool>(caps), chains, cut.get());
    std::optional<cpu::DualAveraging> dual;
    if (!sums.is_none()) {
      const py::array found = checked<double>(sums, "sums", {5, chains});
      const double* row = data<double>(found);
      const auto values = [&](std::int64_t i) {
        return std::vector<double>(row + i * chains, row + (i + 1) * chains);
      };
      dual.emplace(cpu::DualAveraging::Sums{values(0), values(1), values(2), values(3), values(4)},
                   updates, settled);
    }
    const std::int64_t all = chains * told;
    double* real = reals.mutable_data();
    bool* flag = flags.mutable_data();
    const cpu::HamiltonianRun<T> run{
        chains,
        count,
        q.mutable_data(),
        g.mutable_data(),
        at.mutable_data(),
        mass.values,
        mass.stride,
        seed,
        step,
        data<std::uint32_t>(ids),
        threshold,
        sizes.mutable_data(),
        mean.data(),
        cut.get(),
        {randomize_length, most, brief, brief_until, target, length, most_on_average, ends},
        dual ? &*dual : nullptr,
        data<std::int64_t>(keeps),
        told,
        kept.is_none() ? nullptr : mutable_data<T>(to),
        {real, real + all, real + 2 * all, real + 3 * all, real + 4 * all, counts.mutable_data(),
         flag, flag + all, flag + 2 * all, counts.mutable_data() + all},
        seconds};
    PythonPoll poll(interrupt);
    cpu::RunEnd ended{};
    {
      const WithoutGil release;
      ended = cpu::hamiltonian_run(*native_, run, &poll);
    }
    if (ended.made == 0) end(poll, interrupt);
    py::object after = py::none();
    if (dual) {
      py::array_t<double> found = empty<double>({5, chains});
      double* row = found.mutable_data();
      for (const auto* values :
           {&dual->sums().log_step, &dual->sums().log_average, &dual->sums().error,
            &dual->sums().centre, &dual->sums().log_settled}) {
        row = std::copy_n(values->data(), chains, row);
      }
      after = found;
    }
    return py::make_tuple(q, at, g, sizes, reals, counts, flags, after, ended.made, ended.kept);
  }

  // One transition of every chain: position, terms (chains, 2), grad, then per chain the kinetic
  // energy, energy error and acceptance (3, chains) and steps, depth, diverging and at the largest
  // depth (4, chains).
  Arrays<FloatArray, double, FloatArray, double, std::int64_t> no_u_turn(
      const py::object& position, const py::object& momentum, const py::object& grad,
      const py::object& terms, const py::object& step_size, const py::object& inverse_mass,
      std::uint64_t seed, std::uint64_t step, const py::object& chain_ids, int max_depth,
      double threshold, const InterruptFlag* interrupt) const {
    needs_no_masks();
    const std::int64_t chains = chains_of(position, "position"), n = dim();
    const py::array eps = checked<double>(step_size, "step_size", {chains}),
                    ids = checked<std::uint32_t>(chain_ids, "chains", {chains}),
                    parts = checked<double>(terms, "terms", {chains, 2});
    const Mass<T> mass(inverse_mass, chains, n);
    const py::array start = checked<T>(position, "position", {chains, n}),
                    kicks = checked<T>(momentum, "momentum", {chains, n}),
                    slope = checked<T>(grad, "grad", {chains, n});
    check_range("max_tree_depth", max_depth, 1, kMostTreeDepth);
    check_steps("step", step, 1);
    py::array_t<T> q = empty<T>({chains, n}), g = empty<T>({chains, n});
    py::array_t<double> end_terms = empty<double>({chains, 2}), reals = empty<double>({3, chains});
    py::array_t<std::int64_t> counts = empty<std::int64_t>({4, chains});
    std::vector<cpu::TreeOutcome> outcomes(static_cast<std::size_t>(chains));
    const cpu::Trees<T> all{chains,
                            data<T>(start),
                            data<T>(kicks),
                            data<T>(slope),
                            data<double>(parts),
                            mass.values,
                            mass.stride,
                            data<double>(eps),
                            seed,
                            step,
                            data<std::uint32_t>(ids),
                            max_depth,
                            threshold,
                            q.mutable_data(),
                            g.mutable_data(),
                            end_terms.mutable_data(),
                            outcomes.data()};
    PythonPoll poll(interrupt);
    bool done = false;
    {
      const WithoutGil release;
      done = native_->no_u_turn(all, &poll);
    }
    if (!done) end(poll, interrupt);
    double* real = reals.mutable_data();
    std::int64_t* count = counts.mutable_data();
    for (std::int64_t c = 0; c < chains; ++c) {
      const cpu::TreeOutcome& one = outcomes[static_cast<std::size_t>(c)];
      real[c] = one.kinetic;
      real[chains + c] = one.energy_error;
      real[2 * chains + c] = one.acceptance;
      count[c] = one.steps;
      count[chains + c] = one.depth;
      count[2 * chains + c] = one.diverging;
      count[3 * chains + c] = one.at_max_depth;
    }
    return py::make_tuple(q, end_terms, g, reals, counts);
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

  // Ends a call that was cancelled: here, or by the ranks of a group together.
  [[noreturn]] void end(const PythonPoll& poll, const InterruptFlag* interrupt) const {
    if (native_->group() != nullptr) exchange_->rethrow(interrupt);
    poll.rethrow();
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

// Of the dtype of y: x may be bytes of images.
LogDensity log_density(const py::object& table, const py::object& rates, const py::object& prior,
                       int kind, const std::vector<double>& noise_scales, double shape,
                       const py::object& x, const py::object& y, double temperature,
                       double likelihood_temperature, bool masks, bool concrete,
                       const py::object& centre, const py::object& last, const py::object& scales,
                       const py::object& weights) {
  return for_scalar<LogDensity>(y, "y", [&](auto zero) {
    return Density<decltype(zero)>(table, rates, prior, kind, noise_scales, shape, x, y,
                                   temperature, likelihood_temperature, masks, concrete, centre,
                                   last, scales, weights);
  });
}

// The constants of prior segments (segments, 6) that kernels of a device are given, (segments, 5).
py::array_t<double> prior_constants_of(const py::object& prior) {
  const std::vector<cpu::PriorSegment> segments = prior_of(prior);
  const auto count = static_cast<std::int64_t>(segments.size());
  py::array_t<double> out = empty<double>({count, 5});
  double* row = out.mutable_data();
  for (const cpu::PriorSegment& s : segments) {
    const PriorConstants k = prior_constants(s.kind, s.a, s.b, s.c);
    row = std::copy_n(k.p, 4, row);
    *row++ = k.log_norm;
  }
  return out;
}

// Those of a likelihood: scale, p and log_norm of core/likelihood_hd.h.
std::tuple<double, double, double, double> likelihood_constants_of(int kind, double scale,
                                                                   double shape) {
  const LikelihoodConstants k = likelihood_constants(likelihood_kind(kind), {scale, shape});
  return {k.scale, k.p[0], k.p[1], k.log_norm};
}

}  // namespace

void bind_density(py::module_& module) {
  using D32 = Density<float>;
  using D64 = Density<double>;
  py::class_<LogDensity>(module, "LogDensity", "The log posterior of a network on data.")
      .def(py::init(&log_density), py::arg("table"), py::arg("rates"), py::arg("prior"),
           py::arg("kind"), py::arg("noise_scales"), py::arg("shape"), py::arg("x"), py::arg("y"),
           py::arg("temperature"), py::arg("likelihood_temperature"), py::arg("masks") = false,
           py::arg("concrete") = false, py::arg("centre") = py::none(),
           py::arg("last") = py::none(), py::arg("scales") = py::none(),
           py::arg("weights") = py::none())
      .def("set_shards", method(&D32::set_shards, &D64::set_shards), py::arg("shards"))
      .def("join", method(&D32::join, &D64::join), py::arg("group"), py::arg("shards"),
           py::arg("rows"))
      .def_property_readonly("dim", method(&D32::dim, &D64::dim))
      .def_property_readonly("num_rows", method(&D32::rows, &D64::rows))
      .def_property_readonly("workspace_bytes",
                             method(&D32::workspace_bytes, &D64::workspace_bytes))
      .def_property_readonly("xla_number", method(&D32::xla_number, &D64::xla_number))
      .def("value_and_grad", method(&D32::value_and_grad, &D64::value_and_grad), py::arg("theta"),
           py::arg("rows") = py::none(), py::arg("interrupt") = nullptr)
      .def("masked_value_and_grad",
           method(&D32::masked_value_and_grad, &D64::masked_value_and_grad), py::arg("theta"),
           py::arg("rows"), py::arg("seed"), py::arg("step"), py::arg("sample") = 0,
           py::arg("interrupt") = nullptr)
      .def("value", method(&D32::value, &D64::value), py::arg("theta"),
           py::arg("rows") = py::none(), py::arg("interrupt") = nullptr)
      .def("complete", method(&D32::complete, &D64::complete), py::arg("theta"), py::arg("seed"),
           py::arg("step"), py::arg("chains"), py::arg("interrupt") = nullptr)
      .def("advance", method(&D32::advance, &D64::advance), py::arg("position"), py::arg("first"),
           py::arg("second"), py::arg("seed"), py::arg("chains"), py::arg("first_step"),
           py::arg("batch_size"), py::arg("step_size"), py::arg("noise"), py::arg("rule"),
           py::arg("prior"), py::arg("friction"), py::arg("previous"), py::arg("decay1"),
           py::arg("decay2"), py::arg("epsilon"), py::arg("adapt_until"),
           py::arg("interrupt") = nullptr, py::arg("keep") = py::none(),
           py::arg("kept") = py::none())
      .def("advance_variational", method(&D32::advance_variational, &D64::advance_variational),
           py::arg("state"), py::arg("seed"), py::arg("first_step"), py::arg("batch_size"),
           py::arg("num_samples"), py::arg("estimator"), py::arg("closed"), py::arg("step_size"),
           py::arg("kl_weight"), py::arg("decay1"), py::arg("decay2"), py::arg("epsilon"),
           py::arg("interrupt") = nullptr)
      .def("leapfrog", method(&D32::leapfrog, &D64::leapfrog), py::arg("position"),
           py::arg("momentum"), py::arg("grad"), py::arg("step_size"), py::arg("num_steps"),
           py::arg("inverse_mass") = py::none(), py::arg("interrupt") = nullptr)
      .def("isokinetic", method(&D32::isokinetic, &D64::isokinetic), py::arg("position"),
           py::arg("velocity"), py::arg("grad"), py::arg("terms"), py::arg("seed"),
           py::arg("chains"), py::arg("first_step"), py::arg("integrator"), py::arg("step_size"),
           py::arg("decoherence_length"), py::arg("num_steps"), py::arg("scale") = py::none(),
           py::arg("blocks") = py::none(), py::arg("mixing") = py::none(), py::arg("turns") = true,
           py::arg("interrupt") = nullptr)
      .def("hamiltonian", method(&D32::hamiltonian, &D64::hamiltonian), py::arg("position"),
           py::arg("grad"), py::arg("terms"), py::arg("step_size"), py::arg("num_steps"),
           py::arg("inverse_mass"), py::arg("seed"), py::arg("step"), py::arg("chains"),
           py::arg("threshold"), py::arg("interrupt") = nullptr)
      .def("hamiltonian_run", method(&D32::hamiltonian_run, &D64::hamiltonian_run),
           py::arg("position"), py::arg("grad"), py::arg("terms"), py::arg("inverse_mass"),
           py::arg("seed"), py::arg("step"), py::arg("chains"), py::arg("threshold"),
           py::arg("count"), py::arg("step_size"), py::arg("num_steps"), py::arg("capped"),
           py::arg("randomize_length"), py::arg("most"), py::arg("brief"), py::arg("brief_until"),
           py::arg("sums"), py::arg("updates"), py::arg("settled"), py::arg("target"),
           py::arg("length"), py::arg("most_on_average"), py::arg("ends"), py::arg("keep"),
           py::arg("kept"), py::arg("seconds"), py::arg("interrupt") = nullptr)
      .def("no_u_turn", method(&D32::no_u_turn, &D64::no_u_turn), py::arg("position"),
           py::arg("momentum"), py::arg("grad"), py::arg("terms"), py::arg("step_size"),
           py::arg("inverse_mass"), py::arg("seed"), py::arg("step"), py::arg("chains"),
           py::arg("max_tree_depth"), py::arg("threshold"), py::arg("interrupt") = nullptr);
  module.def("prior_constants", &prior_constants_of, py::arg("prior"));
  module.def(
      "xla_log_density", [] { return py::capsule(reinterpret_cast<void*>(&cpu::xla_log_density)); },
      "The handler of XLA programs, as jax.ffi.register_ffi_target takes it.");
  module.def("likelihood_constants", &likelihood_constants_of, py::arg("kind"), py::arg("scale"),
             py::arg("shape"));
}

}  // namespace ribbit::bindings
