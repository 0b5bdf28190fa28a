// Log densities given as C function pointers.

#include "bindings/pointer.h"

namespace ribbit::bindings {

void bind_pointer(py::module_& module) {
  py::class_<Pointer>(module, "PointerDensity", "A log density behind a C function pointer.")
      .def(py::init<std::uintptr_t, std::int64_t, std::uintptr_t, bool>(), py::arg("address"),
           py::arg("dim"), py::arg("user_data") = 0, py::arg("threadsafe") = false)
      .def_property_readonly("dim", &Pointer::dim)
      .def("value_and_grad", &Pointer::value_and_grad, py::arg("theta"),
           py::arg("interrupt") = nullptr);
}

}  // namespace ribbit::bindings
