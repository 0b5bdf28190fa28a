#pragma once
// The smallest test harness: count failures, say where, return them as exit code.

#include <cstdio>

inline int failures = 0;

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
