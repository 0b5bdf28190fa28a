#pragma once
// How many threads may wait for each other, by what waiting has cost.

#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>

namespace ribbit::cpu {

// Threads that meet at barriers lose a slice of the scheduler at each of them while one shares its
// core with a stranger: milliseconds, for the microseconds of work between. Who waited more than
// they worked go on with half as many threads, and so do later teams, until a trial a while later:
// 50 ms or ten times what was lost, twice as long after each trial that failed, at most 1 s. So a
// stranger who stays costs a few hundredths. Safe from any thread.
class TeamLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kNone = std::numeric_limits<int>::max();

  // The most threads of a team that starts now; kNone: as many as the work is worth.
  int most(Clock::time_point now);
  // A team of so many waited more than it worked: so long.
  void came_late(int size, Clock::duration late, Clock::time_point now);

 private:
  static constexpr std::chrono::milliseconds kShortest{50}, kLongest{1000};

  std::atomic<int> most_{kNone};
  std::mutex mutex_;
  Clock::duration pause_{0};
  Clock::time_point grew_{}, trial_{};  // when teams last got more threads, and when they may
};

}  // namespace ribbit::cpu
