#pragma once
// Names of the faults, and the switch.

#include "bindings/array.h"
#include "cpu/system/faults.h"

namespace ribbit::bindings {

// None removes the fault.
inline void set_fault(const py::object& name) {
  cpu::planted_fault = cpu::Fault::kNone;
  if (name.is_none()) return;
  const auto wanted = name.cast<std::string>();
  for (const auto& [fault, known] : cpu::kFaults) {
    if (wanted == known) cpu::planted_fault = fault;
  }
  if (cpu::planted_fault == cpu::Fault::kNone) {
    throw py::value_error("[_core] expected the name of a fault or None, got " + wanted);
  }
}

inline void bind_faults(py::module_& module) {
  py::list names;
  for (const cpu::NamedFault& known : cpu::kFaults) names.append(known.name);
  module.attr("FAULTS") = py::tuple(names);
  module.def("set_fault", &set_fault, py::arg("name"));
}

}  // namespace ribbit::bindings
