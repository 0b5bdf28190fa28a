#pragma once
// Names of the faults, and the switch.

#include "bindings/array.h"
#include "cpu/system/faults.h"

namespace ribbit::bindings {

// None: right code.
inline void set_fault(const py::object& name) {
  cpu::planted_fault = cpu::Fault::kNone;
  if (name.is_none()) return;
  const auto wanted = name.cast<std::string>();
  int number = 0;
  for (const char* known : cpu::kFaultNames) {
    if (wanted == known) cpu::planted_fault = static_cast<cpu::Fault>(number);
    ++number;
  }
  if (cpu::planted_fault == cpu::Fault::kNone) {
    throw py::value_error("[_core] expected the name of a fault or None, got " + wanted);
  }
}

inline void bind_faults(py::module_& module) {
  py::list names;
  for (const char* name : cpu::kFaultNames) names.append(name);
  module.attr("FAULTS") = py::tuple(names);
  module.def("set_fault", &set_fault, py::arg("name"));
}

}  // namespace ribbit::bindings
