#pragma once
// A small pool of threads. Work is cut by the caller, so results never depend on the pool's size.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/system/team_limit.h"

namespace ribbit::cpu {

// Asks whoever called into the core whether to stop. Only the calling thread polls.
class Poll {
 public:
  virtual ~Poll() = default;
  virtual bool stop() = 0;  // may take locks; called at most every kInterval
  static constexpr std::chrono::milliseconds kInterval{20};
};

// One call's cancellation: set by the calling thread, seen by all.
class Cancel {
 public:
  explicit Cancel(Poll* poll) : poll_(poll), last_(std::chrono::steady_clock::now()) {}
  // True when the call is to end early. The thread that made this object asks the poll, whatever
  // part of the work it does; the others read the flag.
  bool check() {
    if (poll_ != nullptr && std::this_thread::get_id() == caller_ && ++passed_ >= often_) ask();
    return cancelled_.load(std::memory_order_relaxed);
  }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  void ask();
  Poll* poll_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_, asked_ = last_;
  int passed_ = 0, often_ = 1;  // the clock is read at every so many checks
  std::atomic<bool> cancelled_{false};
};

// Whether to leave off between two parts of a panel. null: panels are short, it is not asked there.
inline bool stops(Cancel* cancel) {
  return cancel != nullptr && cancel->check();
}

struct Worker;

// A group of threads that meet at barriers. It measures how long they wait there, and gets smaller
// where that is longer than they work: a thread that lost its core is not waited for again.
class Team {
 public:
  explicit Team(int size, Cancel* cancel);
  // Changes in settle() alone.
  int size() const { return size_.load(std::memory_order_relaxed); }
  Cancel& cancel() { return *cancel_; }
  // Waits for the whole team. False when the call was cancelled: then return at once.
  bool barrier() { return meet(true, false); }
  // The same after work of one member, or of other calls: the wait for it is not counted.
  bool gather() { return meet(false, false); }
  // By all members, between the same two barriers, where shares of the work may be cut anew for
  // size() members. False for those that are to return at once: the call was cancelled, or the
  // team goes on without them. Member 0 always stays.
  bool settle(int index) {
    if (wanted_ == size()) return true;
    return meet(true, true) && index < size();
  }

 private:
  bool meet(bool counts, bool settles);
  void weigh();

  std::atomic<int> size_;
  int wanted_, barriers_ = 0;  // by the last who arrives at a barrier
  Cancel* const cancel_;
  Waits waits_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

int team_limit();  // the most threads a team that starts now should have
// For tests: teams halve after every so many barriers, as if a thread came late, and start as large
// as they can; 0: by the clock. Returns how many have halved since it was last called.
int halve_teams(int barriers);

int num_threads();
void set_num_threads(int count);  // throws std::invalid_argument unless 1 <= count <= 1024
int available_cores();            // by affinity and control group
int threads_for(double flops);    // how many threads a call with that much work should use

// Threads reserved for one call. Calls from several Python threads share the pool: a crew may get
// fewer threads than it wants, never fewer than one (the caller, thread 0).
class Crew {
 public:
  explicit Crew(int wanted);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  int size() const { return static_cast<int>(workers_.size()) + 1; }
  // Runs body(thread) for thread = 0..size()-1, with subnormal numbers flushed to 0. body must not
  // throw. independent: no call waits for one that has yet to begin, so that the caller may run
  // the calls of threads that start late.
  void run(const std::function<void(int)>& body, bool independent, Cancel* cancel);

 private:
  std::vector<Worker*> workers_;
};

// Calls body(i) for i = 0 .. pieces - 1, which go over so many elements in all, on several threads
// where that pays: waking one costs more than some thousand elements.
template <class Body>
void for_each_piece(std::int64_t pieces, std::int64_t elements, const Body& body) {
  constexpr std::int64_t kWorthThread = 1 << 14;
  const std::int64_t useful = std::max<std::int64_t>(1, elements / kWorthThread);
  Crew crew(static_cast<int>(std::min<std::int64_t>({num_threads(), pieces, useful})));
  std::atomic<std::int64_t> next{0};
  crew.run(
      [&](int) {
        for (;;) {
          const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
          if (i >= pieces) return;
          body(i);
        }
      },
      true, nullptr);
}

}  // namespace ribbit::cpu
