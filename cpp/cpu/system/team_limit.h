#pragma once
// How many threads may wait for each other, by what waiting has cost.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>

namespace ribbit::cpu {

// How long the members of a team waited for each other, in a window of time.
class Waits {
 public:
  using Clock = std::chrono::steady_clock;

  // By one thread, while the others are at a barrier.
  void open(Clock::time_point now) {
    since_.store(now, std::memory_order_relaxed);
    late_.store(0, std::memory_order_relaxed);
  }
  // By any that waited. What it waited before a window was opened does not count in it: who opened
  // it has weighed already.
  void add(Clock::time_point from, Clock::time_point until) {
    from = std::max(from, since_.load(std::memory_order_relaxed));
    if (until <= from) return;  // a member that the team has gone on without
    late_.fetch_add(std::chrono::nanoseconds(until - from).count(), std::memory_order_relaxed);
  }
  bool any() const { return late_.load(std::memory_order_relaxed) > 0; }
  // By one thread, while the others are at a barrier: how long the late ones of `size` members kept
  // the rest waiting, where half as many members would have been faster, else zero. A window that
  // has lasted, or was found too late, is followed by the next.
  Clock::duration weigh(int size, Clock::time_point now);

 private:
  static constexpr std::chrono::milliseconds kLeast{2}, kWindow{20};

  // Atomic for members that the team has gone on without.
  std::atomic<Clock::time_point> since_{};
  std::atomic<std::int64_t> late_{0};  // ns, of all members together
};

// Threads that meet at barriers lose a slice of the scheduler at each of them while one shares its
// core with a stranger: milliseconds, for the microseconds of work between. Who waited more than
// they worked go on with half as many threads, and so do later teams, until a trial a while later:
// 50 ms or ten times what was lost (at most 1 s), up to 250 ms after trials that failed. So a
// stranger who stays costs a few hundredths, and one who comes often and briefly does not keep a
// core from us for much longer than it works there. Safe from any thread.
class TeamLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kNone = std::numeric_limits<int>::max();

  // The most threads of a team that starts now; kNone: as many as the work is worth.
  int most(Clock::time_point now);
  // A team of so many waited more than it worked: so long.
  void came_late(int size, Clock::duration late, Clock::time_point now);

 private:
  static constexpr std::chrono::milliseconds kShortest{50}, kDoubled{250}, kLongest{1000};

  std::atomic<int> most_{kNone};
  std::mutex mutex_;
  Clock::duration pause_{0};
  Clock::time_point grew_{}, trial_{};  // when teams last got more threads, and when they may
};

}  // namespace ribbit::cpu
