// The log posterior of a network.

#include "bindings/density.h"

namespace ribbit::bindings {
namespace {

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
           py::arg("interrupt") = nullptr);
  module.def("prior_constants", &prior_constants_of, py::arg("prior"));
  module.def(
      "xla_log_density", [] { return py::capsule(reinterpret_cast<void*>(&cpu::xla_log_density)); },
      "The handler of XLA programs, as jax.ffi.register_ffi_target takes it.");
  module.def("likelihood_constants", &likelihood_constants_of, py::arg("kind"), py::arg("scale"),
             py::arg("shape"));
}

}  // namespace ribbit::bindings
