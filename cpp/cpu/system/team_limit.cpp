#include "cpu/system/team_limit.h"

#include <algorithm>

namespace ribbit::cpu {

// With w the work of a thread and d the delay of the one that is late, half as many are faster if
// 2 w < w + d, d more than half of the time; somewhat more is asked for, since unequal shares of
// work make threads wait for up to half of it too. A few slices of a scheduler are needed as proof:
// waking a thread takes up to a millisecond now and then.
Waits::Clock::duration Waits::weigh(int size, Clock::time_point now) {
  constexpr double kShare = 0.6;
  const Clock::duration span = now - since_.load(std::memory_order_relaxed);
  const std::chrono::nanoseconds late{late_.load(std::memory_order_relaxed) / (size - 1)};
  const bool too_late = late > kLeast && std::chrono::duration<double>(late) > kShare * span;
  if (too_late || span > kWindow) open(now);
  return too_late ? late : Clock::duration{0};
}

int TeamLimit::most(Clock::time_point now) {
  if (most_.load(std::memory_order_relaxed) == kNone) return kNone;
  const std::scoped_lock lock(mutex_);
  const int most = most_.load(std::memory_order_relaxed);
  if (most == kNone || now < trial_) return most;
  constexpr int kLarge = 1024;  // of set_num_threads
  const int more = most >= kLarge ? kNone : 2 * most;
  most_.store(more, std::memory_order_relaxed);
  grew_ = now;
  trial_ = now + pause_;
  return more;
}

void TeamLimit::came_late(int size, Clock::duration late, Clock::time_point now) {
  const std::scoped_lock lock(mutex_);
  const int half = std::max(1, size / 2);
  if (half >= most_.load(std::memory_order_relaxed)) return;  // another team said so before
  // What went well for four pauses was no failed trial, but the beginning of something new.
  const bool failed = now - grew_ < 4 * pause_;
  const auto least = std::clamp<Clock::duration>(10 * late, kShortest, kLongest);
  pause_ = failed ? std::max(least, std::min<Clock::duration>(2 * pause_, kDoubled)) : least;
  most_.store(half, std::memory_order_relaxed);
  trial_ = now + pause_;
}

}  // namespace ribbit::cpu
