// Monte Carlo forward passes.

#include "bindings/array.h"
#include "bindings/network.h"
#include "bindings/scalar.h"
#include "bindings/scales.h"
#include "core/likelihood_hd.h"
#include "cpu/predictive/forward.h"
#include "cpu/predictive/jacobian.h"
#include "cpu/random.h"
#include "cpu/system/memory.h"

namespace ribbit::bindings {
namespace {

// Weights and masks of samples; keeps the arrays alive that it points into.
template <class T>
class Source {
 public:
  // theta: (chains, draws, dim); scales: learned ones, or None
  static Source stored(const py::object& theta, const py::object& scales) {
    Source s;
    s.first_ = checked<T>(theta, "theta", {kAny, kAny, kAny});
    s.source.theta = data<T>(s.first_);
    s.source.chains = s.first_.shape(0);
    s.source.draws = s.first_.shape(1);
    s.source.dim = s.first_.shape(2);
    s.take(scales);
    return s;
  }
  static Source drawn(const py::object& mean, const py::object& scale, std::uint64_t seed,
                      const py::object& scales) {
    Source s;
    s.first_ = checked<T>(mean, "mean", {kAny});
    s.second_ = checked<T>(scale, "scale", {s.first_.shape(0)});
    s.source.mean = data<T>(s.first_);
    s.source.scale = data<T>(s.second_);
    s.source.dim = s.first_.shape(0);
    s.source.seed = seed;
    s.take(scales);
    return s;
  }
  static Source masked(const py::object& theta, std::uint64_t seed, bool shared,
                       std::int64_t first_row) {
    Source s;
    s.first_ = checked<T>(theta, "theta", {kAny});
    s.source.theta = data<T>(s.first_);
    s.source.dim = s.first_.shape(0);
    s.source.seed = seed;
    s.source.masked = true;
    s.source.shared = shared;
    s.source.first_row = first_row;
    return s;
  }

  // Throws unless samples first .. first + samples - 1 exist and have enough parameters.
  void check(std::int64_t first, std::int64_t samples, std::int64_t dim) const {
    const bool stored = source.mean == nullptr && !source.masked;
    const std::int64_t end =
        stored ? source.chains * source.draws : std::int64_t{1} << 32;  // an address has 32 bits
    if (first < 0 || samples < 0 || samples > end - first) {
      throw py::value_error("[_core] expected samples in [0, " + std::to_string(end) + "), got " +
                            std::to_string(first) + " to " + std::to_string(first + samples - 1));
    }
    if (source.dim < dim) {
      throw py::value_error("[_core] expected at least " + std::to_string(dim) +
                            " parameters, got " + std::to_string(source.dim));
    }
  }

  cpu::WeightSource<T> source;

 private:
  void take(const py::object& scales) {
    if (scales.is_none()) return;
    std::vector<cpu::ScaleSegment> segments = scales_of(scales);
    std::int64_t network_dim = 0;  // at least: the model's may have more
    for (const cpu::ScaleSegment& one : segments) network_dim = one.offset + one.size;
    scales_ = std::make_shared<const cpu::Scales<T>>(std::move(segments), network_dim, source.dim);
    source.scales = scales_.get();
  }

  py::array first_, second_;
  std::shared_ptr<const cpu::Scales<T>> scales_;
};

// -> outputs (samples, rows, K), and `noises` parameters behind the network's (samples, noises).
template <class T>
Arrays<FloatArray, FloatArray> forward_of(const py::object& table, const py::object& rates,
                                          const Source<T>& source, std::int64_t first,
                                          std::int64_t samples, const py::object& x,
                                          std::int64_t noises) {
  const Network network = network_of(table, rates);
  py::array rows;
  const cpu::Rows<T> data_rows = rows_of<T>(x, network.input_size(), rows);
  if (noises < 0) throw py::value_error("[_core] expected noises >= 0");
  source.check(first, samples, network.dim() + noises);
  const std::int64_t outputs = samples * rows.shape(0) * network.output_size();
  cpu::require_memory(outputs * static_cast<std::int64_t>(sizeof(T)),
                      "the outputs of " + std::to_string(samples) + " samples at " +
                          std::to_string(rows.shape(0)) + " rows");
  py::array_t<T> out = empty<T>({samples, rows.shape(0), network.output_size()});
  py::array_t<T> log_noise = empty<T>({samples, noises});
  T *values = out.mutable_data(), *logs = log_noise.mutable_data();
  PythonPoll poll(nullptr);
  bool done = true;
  if (samples > 0 && rows.shape(0) > 0) {
    const WithoutGil release;
    cpu::Forward<T> pass(network, source.source, data_rows, rows.shape(0), samples, &poll, noises);
    done = pass.run(first, samples, 0, rows.shape(0), values, logs);
  }
  if (!done) poll.rethrow();
  return py::make_tuple(out, log_noise);
}

// -> first, sum, squares, extra of cpu::PredictiveMoments
template <class T>
Arrays<double, double, double, double> moments_of(const py::object& table, const py::object& rates,
                                                  const Source<T>& source, int kind,
                                                  const std::vector<double>& scales, double shape,
                                                  std::int64_t samples, const py::object& x) {
  const Network network = network_of(table, rates);
  py::array rows;
  const cpu::Rows<T> data_rows = rows_of<T>(x, network.input_size(), rows);
  const LikelihoodKind likelihood = likelihood_kind(kind);
  const LikelihoodTraits traits = traits_of(likelihood);
  const LikelihoodParameters parameters = parameters_of(scales, shape);
  if (parameters.noises != 1 && parameters.noises != network.output_size()) {
    throw py::value_error("[_core] expected 1 scale of the noise or one per output");
  }
  if (samples < 1 || rows.shape(0) < 1) {
    throw py::value_error("[_core] expected samples and rows >= 1");
  }
  if (traits.shape == LikelihoodShape::kMeanAndScale && network.output_size() % 2 != 0) {
    throw py::value_error("[_core] expected an even number of outputs");
  }
  source.check(0, samples, network.dim() + traits.learned(parameters));
  const std::int64_t n = rows.shape(0);
  const std::int64_t width = means_of(traits.shape, network.output_size());
  py::array_t<double> first = empty<double>({n, width}), sum = empty<double>({n, width}),
                      squares = empty<double>({n, width}),
                      extra = traits.classes ? empty<double>({n}) : empty<double>({n, width});
  const cpu::PredictiveMoments out{first.mutable_data(), sum.mutable_data(), squares.mutable_data(),
                                   extra.mutable_data()};
  PythonPoll poll(nullptr);
  bool done = false;
  {
    const WithoutGil release;
    done = cpu::predictive_moments(network, source.source, likelihood, parameters, samples,
                                   data_rows, n, out, &poll);
  }
  if (!done) poll.rethrow();
  return py::make_tuple(first, sum, squares, extra);
}

using WeightSource = Either<Source>;

WeightSource stored(const py::object& theta, const py::object& scales) {
  return for_scalar<WeightSource>(
      theta, "theta", [&](auto zero) { return Source<decltype(zero)>::stored(theta, scales); });
}

WeightSource drawn(const py::object& mean, const py::object& scale, std::uint64_t seed,
                   const py::object& scales) {
  return for_scalar<WeightSource>(mean, "mean", [&](auto zero) {
    return Source<decltype(zero)>::drawn(mean, scale, seed, scales);
  });
}

WeightSource masked(const py::object& theta, std::uint64_t seed, bool shared,
                    std::int64_t first_row) {
  return for_scalar<WeightSource>(theta, "theta", [&](auto zero) {
    return Source<decltype(zero)>::masked(theta, seed, shared, first_row);
  });
}

Arrays<FloatArray, FloatArray> forward(const py::object& table, const py::object& rates,
                                       const WeightSource& source, std::int64_t first,
                                       std::int64_t samples, const py::object& x,
                                       std::int64_t noises) {
  return std::visit(
      [&](const auto& s) { return forward_of(table, rates, s, first, samples, x, noises); },
      source.of);
}

Arrays<double, double, double, double> predictive_moments(
    const py::object& table, const py::object& rates, const WeightSource& source, int kind,
    const std::vector<double>& scales, double shape, std::int64_t samples, const py::object& x) {
  return std::visit(
      [&](const auto& s) { return moments_of(table, rates, s, kind, scales, shape, samples, x); },
      source.of);
}

// What learned scales make of positions (samples, dim): weights before their log scales.
FloatArray scaled_weights(const py::object& theta, const py::object& scales) {
  return for_scalar<FloatArray>(theta, "theta", [&](auto zero) {
    using T = decltype(zero);
    const py::array positions = checked<T>(theta, "theta", {kAny, kAny});
    const std::int64_t samples = positions.shape(0), dim = positions.shape(1);
    std::vector<cpu::ScaleSegment> segments = scales_of(scales);
    const std::int64_t end = segments.empty() ? 0 : segments.back().offset + segments.back().size;
    const cpu::Scales<T> native(std::move(segments), end, dim);
    py::array_t<T> out = empty<T>({samples, dim});
    const T* from = data<T>(positions);
    T* to = out.mutable_data();
    {
      const WithoutGil release;
      for (std::int64_t s = 0; s < samples; ++s) {
        native.weights(from + s * dim, 0, dim, to + s * dim);
      }
    }
    return out;
  });
}

// -> outputs (rows, K), and their derivatives by the network's parameters (rows, K, dim).
Arrays<FloatArray, FloatArray> jacobian(const py::object& table, const py::object& rates,
                                        const py::object& theta, const py::object& x,
                                        const InterruptFlag* interrupt) {
  using Both = Arrays<FloatArray, FloatArray>;
  return for_scalar<Both>(theta, "theta", [&](auto zero) -> Both {
    using T = decltype(zero);
    const Network network = network_of(table, rates);
    const std::int64_t dim = network.dim(), outputs = network.output_size();
    const py::array at = checked<T>(theta, "theta", {dim});
    py::array held;
    const cpu::Rows<T> rows = rows_of<T>(x, network.input_size(), held);
    const std::int64_t n = held.shape(0);
    cpu::require_memory(n * outputs * dim * static_cast<std::int64_t>(sizeof(T)),
                        "the Jacobians of " + std::to_string(n) + " rows, " +
                            std::to_string(outputs) + " outputs and " + std::to_string(dim) +
                            " parameters");
    py::array_t<T> f = empty<T>({n, outputs}), out = empty<T>({n, outputs, dim});
    T *values = f.mutable_data(), *derivatives = out.mutable_data();
    PythonPoll poll(interrupt);
    bool done = true;
    if (n > 0) {
      const WithoutGil release;
      done = cpu::jacobian(network, data<T>(at), rows, n, values, derivatives, &poll);
    }
    if (!done) poll.rethrow();
    return py::make_tuple(f, out);
  });
}

// Weights of samples 0 .. samples - 1 of a drawn source: (samples, dim).
FloatArray draw_weights(const py::object& mean, const py::object& scale, std::uint64_t seed,
                        std::int64_t samples) {
  return for_scalar<FloatArray>(mean, "mean", [&](auto zero) {
    using T = decltype(zero);
    const Source<T> source = Source<T>::drawn(mean, scale, seed, py::none());
    source.check(0, samples, 1);
    py::array_t<T> out = empty<T>({samples, source.source.dim});
    T* values = out.mutable_data();
    {
      const WithoutGil release;
      const cpu::Stream stream{seed, 0, kPurposeFitDraw, 0};
      cpu::draw_scaled(stream, source.source.mean, source.source.scale, samples, source.source.dim,
                       values);
    }
    return out;
  });
}

}  // namespace

void bind_forward(py::module_& module) {
  py::class_<WeightSource>(module, "WeightSource",
                           "Where the weights and masks of samples come from.")
      .def_static("stored", &stored, py::arg("theta"), py::arg("scales") = py::none())
      .def_static("drawn", &drawn, py::arg("mean"), py::arg("scale"), py::arg("seed"),
                  py::arg("scales") = py::none())
      .def_static("masked", &masked, py::arg("theta"), py::arg("seed"), py::arg("shared"),
                  py::arg("first_row"));
  module.def("forward", &forward, py::arg("table"), py::arg("rates"), py::arg("source"),
             py::arg("first"), py::arg("samples"), py::arg("x"), py::arg("noises") = 0);
  module.def("predictive_moments", &predictive_moments, py::arg("table"), py::arg("rates"),
             py::arg("source"), py::arg("kind"), py::arg("scales"), py::arg("shape"),
             py::arg("samples"), py::arg("x"));
  module.def("scaled_weights", &scaled_weights, py::arg("theta"), py::arg("scales"));
  module.def("jacobian", &jacobian, py::arg("table"), py::arg("rates"), py::arg("theta"),
             py::arg("x"), py::arg("interrupt") = nullptr);
  module.def("draw_weights", &draw_weights, py::arg("mean"), py::arg("scale"), py::arg("seed"),
             py::arg("samples"));
}

}  // namespace ribbit::bindings
