#include "cpu/system/peak.h"

#include <algorithm>
#include <chrono>

#include "cpu/system/dispatch.h"

namespace ribbit::cpu {
namespace {

template <class T>
double measure(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kCount = 1 << 19;  // about 1 ms
  alignas(64) T sink[64 / sizeof(T)];
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    const double flops = kernels<T>().fma_loop(kCount, sink);
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - begin).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  return best * 1e-9;
}

}  // namespace

double fma_peak_gflops(double seconds, int bits) {
  return bits == 64 ? measure<double>(seconds) : measure<float>(seconds);
}

}  // namespace ribbit::cpu
