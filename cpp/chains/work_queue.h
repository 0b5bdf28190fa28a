#pragma once
// How one call of HMC divides its transitions among threads and over time.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cpu/system/threads.h"

namespace ribbit {

// Measures the time of a call and checks for a stop request between rounds, because a short round
// ends before its own first interrupt check.
class Stopwatch {
 public:
  explicit Stopwatch(cpu::Poll* poll) : poll_(poll), begun_(Clock::now()), asked_(begun_) {}
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  bool stop() {
    if (poll_ == nullptr) return false;
    const Clock::time_point now = Clock::now();
    if (now - asked_ < cpu::Poll::kInterval) return false;
    asked_ = now;
    return poll_->stop();
  }

 private:
  using Clock = std::chrono::steady_clock;
  cpu::Poll* poll_;
  const Clock::time_point begun_;
  Clock::time_point asked_;
};

// The queue of transitions if each thread may move any chain.
class WorkQueue {
 public:
  // Transitions [begin, end) of each chain. ahead (chains,): the leapfrogs they take, roughly.
  WorkQueue(std::int64_t begin, std::int64_t end, std::vector<std::int64_t> ahead)
      : end_(end), ahead_(std::move(ahead)), next_(ahead_.size(), begin) {}

  // Returns a chain and the number of its next transition. Only this thread moves the chain until
  // it puts the chain back.
  std::optional<std::pair<std::int64_t, std::int64_t>> take() {
    const std::scoped_lock lock(mutex_);
    std::size_t best = next_.size();
    for (std::size_t c = 0; c < next_.size(); ++c) {
      const bool free = next_[c] >= 0 && next_[c] < end_;
      if (free && (best == next_.size() || ahead_[c] > ahead_[best])) best = c;
    }
    if (best == next_.size()) return std::nullopt;
    const std::int64_t number = next_[best];
    next_[best] = ~number;  // taken
    return std::pair{static_cast<std::int64_t>(best), number};
  }
  void put(std::int64_t chain, std::int64_t steps) {
    const std::scoped_lock lock(mutex_);
    const auto c = static_cast<std::size_t>(chain);
    next_[c] = ~next_[c] + 1;
    ahead_[c] -= steps;
  }

 private:
  const std::int64_t end_;
  std::mutex mutex_;
  std::vector<std::int64_t> ahead_, next_;
};

// The number of transitions in the next round. Threads wait for each other between rounds, so long
// rounds are faster. Short rounds end the call in time and let it check for a stop request.
class RoundLength {
 public:
  // flops: work of the first transition of all chains. seconds: time limit of the call.
  RoundLength(double flops, double seconds) {
    // The first round takes about a quarter of the time at the rate of one thread.
    constexpr double kRate = 2e10;  // flops per second on small networks
    length_ = rounded(0.25 * std::min(seconds, kInterval) * kRate / flops);
  }
  std::int64_t next(std::int64_t made, double passed, double seconds) {
    constexpr std::int64_t kGrowth = 4;  // the rate of the first few transitions is rough
    if (made == 0) return length_;
    const double time = std::min(seconds - passed, kInterval);
    length_ = std::min(kGrowth * length_, rounded(time * static_cast<double>(made) / passed));
    return length_;
  }

 private:
  static constexpr double kInterval = std::chrono::duration<double>(cpu::Poll::kInterval).count();
  static std::int64_t rounded(double length) {
    return static_cast<std::int64_t>(std::fmin(std::fmax(length, 1.0), 1e6));  // NaN is 1
  }
  std::int64_t length_;
};

}  // namespace ribbit
