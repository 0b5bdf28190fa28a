#pragma once
// A log density given as a C function pointer, as Python holds it.

#include "bindings/array.h"
#include "cpu/density/pointer_density.h"

namespace ribbit::bindings {

class Pointer {
 public:
  Pointer(std::uintptr_t address, std::int64_t dim, std::uintptr_t user_data, bool threadsafe)
      : native_(reinterpret_cast<cpu::DensityFunction>(address), dim,
                reinterpret_cast<void*>(user_data), threadsafe) {
    if (address == 0 || dim < 1) {
      throw py::value_error("[_core] expected a non-null address and dim >= 1");
    }
  }
  const cpu::PointerDensity& native() const { return native_; }
  std::int64_t dim() const { return native_.dim(); }

  Arrays<double, double> value_and_grad(const py::object& theta,
                                        const InterruptFlag* interrupt) const {
    const py::array at = checked<double>(theta, "theta", {kAny, dim()});
    const std::int64_t chains = at.shape(0);
    py::array_t<double> lp = empty<double>({chains}), grad = empty<double>({chains, dim()});
    double *lps = lp.mutable_data(), *grads = grad.mutable_data();
    PythonPoll poll(interrupt);
    cpu::CallEnd outcome;
    {
      const WithoutGil release;
      outcome = native_.evaluate(data<double>(at), chains, lps, grads, &poll);
    }
    raise_unless_done(outcome, poll);
    return py::make_tuple(lp, grad);
  }

 private:
  static void raise_unless_done(const cpu::CallEnd& outcome, const PythonPoll& poll) {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // Ctrl-C comes first
    if (outcome.code != 0) {
      throw py::value_error("[CallableDensity] expected the function to return 0, got " +
                            std::to_string(outcome.code));
    }
    if (outcome.cancelled) poll.rethrow();
  }

  cpu::PointerDensity native_;
};

}  // namespace ribbit::bindings
