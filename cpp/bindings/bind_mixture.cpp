// Quantiles, distribution function and score of mixtures over draws.

#include <pybind11/stl.h>

#include "bindings/array.h"
#include "cpu/predictive/mixture.h"

namespace ribbit::bindings {
namespace {

// values (S, N, K) and widths of the same shape, or None for counts; any strides.
struct Draws : cpu::MixtureDraws {
  py::array values_array, widths_array;
  Draws(const py::object& values_given, const py::object& widths_given)
      : values_array(strided(values_given, "values", values)) {
    draws = values_array.shape(0);
    rows = values_array.shape(1);
    outputs = values_array.shape(2);
    if (draws < 1) throw py::value_error("[_core] expected at least one draw");
    if (widths_given.is_none()) return;
    widths_array = strided(widths_given, "widths", widths);
    for (int axis = 0; axis < 3; ++axis) {
      if (widths_array.shape(axis) != values_array.shape(axis)) {
        throw py::value_error("[_core] expected widths of the shape of values, got " +
                              described(widths_array));
      }
    }
  }

  cpu::Noise noise(double df) const {
    if (!(df > 0.0)) throw py::value_error("[_core] expected df > 0");
    if (widths.data == nullptr) return cpu::Noise::kPoisson;
    return std::isinf(df) ? cpu::Noise::kNormal : cpu::Noise::kStudent;
  }

 private:
  static py::array strided(const py::object& object, const char* name, cpu::MixtureArray& to) {
    const py::array array = array_of(object, name);
    to.single = holds<float>(array);
    const py::ssize_t size = to.single ? sizeof(float) : sizeof(double);
    bool good =
        (to.single || holds<double>(array)) && array.ndim() == 3 && (array.flags() & kAligned) != 0;
    for (int axis = 0; good && axis < 3; ++axis) {
      good = array.strides(axis) % size == 0;
      to.steps[axis] = array.strides(axis) / size;
    }
    if (!good) {
      throw py::type_error(std::string("[_core] expected ") + name +
                           " (S, N, K) of dtype float32 or float64, got " + described(array));
    }
    to.data = array.data();
    return array;
  }
};

// body(draws, poll) without the GIL.
template <class Body>
void without_gil(const Body& body) {
  PythonPoll poll(nullptr);
  bool done = false;
  {
    const WithoutGil release;
    done = body(&poll);
  }
  if (!done) poll.rethrow();
}

py::array_t<double> mixture_quantiles(const py::object& values, const py::object& widths, double df,
                                      const std::vector<double>& levels) {
  const Draws d(values, widths);
  for (const double q : levels) {
    if (!(q > 0.0 && q < 1.0)) throw py::value_error("[_core] expected levels in (0, 1)");
  }
  const auto count = static_cast<std::int64_t>(levels.size());
  py::array_t<double> out = empty<double>({count, d.rows, d.outputs});
  double* to = out.mutable_data();
  const cpu::Noise noise = d.noise(df);
  without_gil([&](cpu::Poll* poll) {
    return cpu::mixture_quantiles(noise, df, d, levels.data(), count, to, poll);
  });
  return out;
}

py::array_t<double> of_y(const py::object& values, const py::object& widths, double df,
                         const py::object& y, bool score) {
  const Draws d(values, widths);
  const py::array at = checked<double>(y, "y", {d.rows, d.outputs});
  py::array_t<double> out = empty<double>({d.rows, d.outputs});
  double* to = out.mutable_data();
  const double* from = data<double>(at);
  const cpu::Noise noise = d.noise(df);
  if (score && (noise == cpu::Noise::kPoisson || !(df > 1.0))) {
    throw py::value_error("[_core] expected widths and df > 1");
  }
  without_gil([&](cpu::Poll* poll) {
    return score ? cpu::mixture_crps(noise, df, d, from, to, poll)
                 : cpu::mixture_cdf(noise, df, d, from, to, poll);
  });
  return out;
}

py::array_t<double> mixture_cdf(const py::object& values, const py::object& widths, double df,
                                const py::object& y) {
  return of_y(values, widths, df, y, false);
}
py::array_t<double> mixture_crps(const py::object& values, const py::object& widths, double df,
                                 const py::object& y) {
  return of_y(values, widths, df, y, true);
}

}  // namespace

void bind_mixture(py::module_& module) {
  module.def("mixture_quantiles", &mixture_quantiles, py::arg("values"), py::arg("widths"),
             py::arg("df"), py::arg("levels"));
  module.def("mixture_cdf", &mixture_cdf, py::arg("values"), py::arg("widths"), py::arg("df"),
             py::arg("y"));
  module.def("mixture_crps", &mixture_crps, py::arg("values"), py::arg("widths"), py::arg("df"),
             py::arg("y"));
}

}  // namespace ribbit::bindings
