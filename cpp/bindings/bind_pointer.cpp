// Log densities given as C function pointers.

#include "bindings/array.h"
#include "cpu/density/pointer_density.h"

namespace ribbit::bindings {
namespace {

class Pointer {
 public:
  Pointer(std::uintptr_t address, std::int64_t dim, std::uintptr_t user_data, bool threadsafe)
      : native_(reinterpret_cast<cpu::DensityFunction>(address), dim,
                reinterpret_cast<void*>(user_data), threadsafe) {
    if (address == 0 || dim < 1) {
      throw py::value_error("[_core] expected a non-null address and dim >= 1");
    }
  }
  std::int64_t dim() const { return native_.dim(); }

  Arrays<double, double> value_and_grad(const py::object& theta,
                                        const InterruptFlag* interrupt) const {
    const py::array at = checked<double>(theta, "theta", {kAny, dim()});
    const std::int64_t chains = at.shape(0);
    py::array_t<double> lp = empty<double>({chains}), grad = empty<double>({chains, dim()});
    double *lps = lp.mutable_data(), *grads = grad.mutable_data();
    PythonPoll poll(interrupt);
    cpu::PointerDensity::Outcome outcome;
    {
      const WithoutGil release;
      outcome = native_.evaluate(data<double>(at), chains, lps, grads, &poll);
    }
    raise_unless_done(outcome, poll);
    return py::make_tuple(lp, grad);
  }

  Arrays<double, double, double, double, std::int64_t> leapfrog(
      const py::object& position, const py::object& momentum, const py::object& grad,
      const py::object& step_size, const py::object& num_steps, const py::object& inverse_mass,
      const InterruptFlag* interrupt) const {
    const std::int64_t n = dim();
    const std::int64_t chains = checked<double>(position, "position", {kAny, n}).shape(0);
    const py::array eps = checked<double>(step_size, "step_size", {chains});
    const Steps steps(num_steps, chains);
    const Mass<double> mass(inverse_mass, chains, n);
    py::array_t<double> q = copied<double>(position, "position", chains, n),
                        p = copied<double>(momentum, "momentum", chains, n),
                        g = copied<double>(grad, "grad", chains, n), lp = empty<double>({chains});
    py::array_t<std::int64_t> made = empty<std::int64_t>({chains});
    std::int64_t* counts = made.mutable_data();
    double *qs = q.mutable_data(), *ps = p.mutable_data(), *gs = g.mutable_data(),
           *lps = lp.mutable_data();
    PythonPoll poll(interrupt);
    cpu::PointerDensity::Outcome outcome;
    {
      const WithoutGil release;
      outcome = native_.leapfrog(qs, ps, gs, mass.values, mass.stride, data<double>(eps),
                                 steps.values, chains, lps, counts, &poll);
    }
    raise_unless_done(outcome, poll);
    return py::make_tuple(q, p, lp, g, made);
  }

 private:
  static void raise_unless_done(const cpu::PointerDensity::Outcome& outcome,
                                const PythonPoll& poll) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // Ctrl-C comes first
    if (outcome.code != 0) {
      throw py::value_error("[CallableDensity] expected the function to return 0, got " +
                            std::to_string(outcome.code));
    }
    if (outcome.cancelled) poll.rethrow();
  }

  cpu::PointerDensity native_;
};

}  // namespace

void bind_pointer(py::module_& module) {
  py::class_<Pointer>(module, "PointerDensity", "A log density behind a C function pointer.")
      .def(py::init<std::uintptr_t, std::int64_t, std::uintptr_t, bool>(), py::arg("address"),
           py::arg("dim"), py::arg("user_data") = 0, py::arg("threadsafe") = false)
      .def_property_readonly("dim", &Pointer::dim)
      .def("value_and_grad", &Pointer::value_and_grad, py::arg("theta"),
           py::arg("interrupt") = nullptr)
      .def("leapfrog", &Pointer::leapfrog, py::arg("position"), py::arg("momentum"),
           py::arg("grad"), py::arg("step_size"), py::arg("num_steps"),
           py::arg("inverse_mass") = py::none(), py::arg("interrupt") = nullptr);
}

}  // namespace ribbit::bindings
