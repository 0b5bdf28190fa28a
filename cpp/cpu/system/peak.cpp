#include "cpu/system/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "cpu/system/dispatch.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {
namespace {

using Clock = std::chrono::steady_clock;

template <class T>
double measure(double seconds) {
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
  if (!(seconds <= 60.0)) throw std::invalid_argument("[fma_peak_gflops] expected seconds <= 60");
  return bits == 64 ? measure<double>(seconds) : measure<float>(seconds);
}

double handover_ns() {
  constexpr int kBatches = 10, kTrips = 200;
  constexpr auto kMost = std::chrono::milliseconds(50);
  struct alignas(128) {
    std::atomic<int> number{0};
  } turn;
  double best = std::numeric_limits<double>::infinity();
  Crew crew(2);
  if (crew.size() < 2) return 0.0;
  const auto end = Clock::now() + kMost;
  std::atomic<bool> late{false};  // they may share a core
  const auto wait = [&](int number) {
    for (int spins = 1; turn.number.load(std::memory_order_acquire) != number; ++spins) {
      if (spins % 4096 == 0 && Clock::now() > end) late.store(true, std::memory_order_relaxed);
      if (late.load(std::memory_order_relaxed)) return false;
    }
    return true;
  };
  crew.run(
      [&](int thread) {
        if (thread > 1) return;
        int number = thread;
        for (int batch = 0; batch < kBatches; ++batch) {
          const auto begin = Clock::now();
          for (int trip = 0; trip < kTrips; ++trip, number += 2) {
            if (!wait(number)) return;
            turn.number.store(number + 1, std::memory_order_release);
          }
          if (thread != 0 || batch == 0) continue;  // the other one may have slept before
          const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
          best = std::min(best, took.count() / (2 * kTrips));
        }
      },
      false, nullptr);
  return late.load() ? 0.0 : best;
}

}  // namespace ribbit::cpu
