#include "cpu/system/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <initializer_list>
#include <stdexcept>

namespace ribbit::cpu {
namespace {

#if defined(__x86_64__)
constexpr unsigned bits(std::initializer_list<int> numbers) {
  unsigned mask = 0;
  for (int number : numbers) mask |= 1u << number;
  return mask;
}
constexpr bool has(unsigned word, unsigned mask) {
  return (word & mask) == mask;
}

// The level of the x86-64 psABI, 1 to 4: what the processor has and the system saves. Read from the
// processor, as some run-time libraries answer __builtin_cpu_supports with no.
int x86_64_level() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0, basic = 0, extended = 0, structured = 0, saved = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) basic = ecx;
  if (__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx)) extended = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) structured = ebx;
  if (has(basic, bits({27}))) asm volatile("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
  // SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF
  if (!has(basic, bits({0, 9, 13, 19, 20, 23})) || !has(extended, bits({0}))) return 1;
  // FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT; xmm and ymm
  if (!has(basic, bits({12, 22, 27, 28, 29})) || !has(structured, bits({3, 5, 8})) ||
      !has(extended, bits({5})) || !has(saved, bits({1, 2}))) {
    return 2;
  }
  // AVX-512 F, DQ, CD, BW, VL; masks and zmm
  return has(structured, bits({16, 17, 28, 30, 31})) && has(saved, bits({5, 6, 7})) ? 4 : 3;
}
#endif

std::vector<const InstructionSet*> detect() {
  std::vector<const InstructionSet*> sets;
#if defined(__x86_64__)
  const int level = x86_64_level();
#if defined(RIBBIT_X86_BASELINE)
  if (level >= 2) sets.push_back(&instruction_set_baseline);
#endif
#if defined(RIBBIT_X86_AVX2)
  if (level >= 3) sets.push_back(&instruction_set_avx2);
#endif
#if defined(RIBBIT_X86_AVX512)
  if (level >= 4) sets.push_back(&instruction_set_avx512);
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
