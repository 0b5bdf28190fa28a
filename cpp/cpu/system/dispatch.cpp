#include "cpu/system/dispatch.h"

#include <cstdlib>
#include <stdexcept>

namespace ribbit::cpu {
namespace {

std::vector<const InstructionSet*> detect() {
  std::vector<const InstructionSet*> sets;
#if defined(__x86_64__)
  __builtin_cpu_init();
#if defined(RIBBIT_X86_BASELINE)
  if (__builtin_cpu_supports("x86-64-v2")) sets.push_back(&instruction_set_baseline);
#endif
#if defined(RIBBIT_X86_AVX2)
  if (__builtin_cpu_supports("x86-64-v3")) sets.push_back(&instruction_set_avx2);
#endif
#if defined(RIBBIT_X86_AVX512)
  if (__builtin_cpu_supports("x86-64-v4")) sets.push_back(&instruction_set_avx512);
#endif
#elif defined(__aarch64__)
  sets.push_back(&instruction_set_neon);  // which every such processor has
#else
  sets.push_back(&instruction_set_baseline);
#endif
  if (sets.empty()) {
    throw std::runtime_error(
        "[ribbit] expected a CPU of level x86-64-v2 or above, or of what this build has kernels "
        "for");
  }
  return sets;
}

}  // namespace

std::vector<std::string> available_instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet* set : detect()) names.emplace_back(set->name);
  return names;
}

const InstructionSet& instruction_set_named(const std::string& name) {
  std::string known;
  for (const InstructionSet* set : detect()) {
    if (name == set->name) return *set;
    known += (known.empty() ? "" : ", ") + std::string(set->name);
  }
  throw std::invalid_argument("[RIBBIT_ISA] expected one of " + known + ", got '" + name + "'");
}

const InstructionSet& instruction_set() {
  static const InstructionSet& chosen = []() -> const InstructionSet& {
    const char* name = std::getenv("RIBBIT_ISA");
    if (name != nullptr && *name != '\0') return instruction_set_named(name);
    return *detect().back();
  }();
  return chosen;
}

}  // namespace ribbit::cpu
