#pragma once
// Which instruction set runs: chosen once from what the CPU has, or by RIBBIT_ISA (tests use that).

#include <string>
#include <vector>

#include "cpu/isa/kernel_table-inl.h"

namespace ribbit::cpu {

// Throws std::invalid_argument when RIBBIT_ISA names a set that this CPU lacks.
const InstructionSet& instruction_set();
std::vector<std::string> available_instruction_sets();  // slowest first
const InstructionSet& instruction_set_named(const std::string& name);

template <class T>
const KernelTable<T>& kernels();
template <>
inline const KernelTable<float>& kernels<float>() {
  return *instruction_set().f32;
}
template <>
inline const KernelTable<double>& kernels<double>() {
  return *instruction_set().f64;
}

}  // namespace ribbit::cpu
