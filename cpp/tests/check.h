#pragma once
// The smallest test harness: count failures, say where, return them as exit code.

#include <cstdio>

inline int failures = 0;

// What grids, trials and threads' repeats are divided by: 1, or more where a processor is emulated
// (the CMake option RIBBIT_TEST_REDUCTION). Every check is made either way.
inline constexpr int kReduction = RIBBIT_TEST_REDUCTION;

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                         \
    }                                                                     \
  } while (false)

inline int report(const char* name) {
  std::printf("%s: %d failures\n", name, failures);
  return failures == 0 ? 0 : 1;
}
