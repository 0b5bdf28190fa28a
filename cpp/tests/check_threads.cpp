// The thread pool: every piece runs once, barriers hold, calls from several threads share it,
// cancellation ends a call soon, teams go on without threads that come late, and a forked child can
// compute.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/system/large_blocks.h"
#include "cpu/system/peak.h"
#include "cpu/system/pieces.h"
#include "cpu/system/shards.h"
#include "cpu/system/slices.h"
#include "cpu/system/team_limit.h"
#include "cpu/system/threads.h"

using namespace ribbit::cpu;

namespace {

void check_chains(int wanted, std::int64_t chains) {
  Crew crew(wanted);
  Cancel cancel(nullptr);
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(chains));
  std::atomic<int> broken{0};
  for_each_chain(crew, chains, cancel, [&](Team& team, int member, int, std::int64_t c, int) {
    auto& count = visits[static_cast<std::size_t>(c)];
    for (int round = 1; round <= 50; ++round) {
      if (member == 0) count.fetch_add(1);
      if (!team.barrier()) return false;
      if (count.load() != round) broken.fetch_add(1);
      if (!team.barrier()) return false;
    }
    return true;
  });
  for (auto& count : visits) CHECK(count.load() == 50);
  CHECK(broken.load() == 0);
  CHECK(!cancel.cancelled());
}

// Every slice once, those of a chain one after the other, whatever thread is late; and no team has
// one, which would have to be told apart from a chain.
void check_slices(int wanted, std::int64_t chains, std::int64_t most) {
  Crew crew(wanted);
  Cancel cancel(nullptr);
  Slices slices(chains, most, crew.size());
  const std::int64_t count = slices.size() / chains;
  CHECK(slices.size() % chains == 0 && count >= 1 && count <= most);
  CHECK(count == 1 || slices.size() % crew.size() == 0);
  if (crew.size() > 1 && chains > crew.size() && most >= crew.size()) CHECK(count > 1);
  std::vector<std::int64_t> next(static_cast<std::size_t>(chains), 0);  // not atomic: TSan looks on
  std::atomic<int> broken{0}, shared{0};
  for_each_chain(crew, slices.size(), cancel,
                 [&](Team& team, int member, int thread, std::int64_t place, int) {
                   const Slice slice = slices.at(place);
                   if (!slices.begin(slice, cancel)) return false;
                   if (thread == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
                   auto& due = next[static_cast<std::size_t>(slice.chain)];
                   if (count > 1 && team.size() > 1) shared.fetch_add(1);
                   if (member == 0 && due++ != slice.index) broken.fetch_add(1);
                   slices.end(slice);
                   return true;
                 });
  CHECK(broken.load() == 0 && shared.load() == 0);
  for (const std::int64_t done : next) CHECK(done == count);
  const Slice last{0, count - 1, count};
  CHECK(last.end(17) == 17 && Slice({0, 0, count}).begin(17) == 0);
}

// A slice that waits for one that nobody makes ends when the call is cancelled.
void check_cancelled_slice() {
  Cancel cancel(nullptr);
  Slices slices(3, 4, 2);
  cancel.cancel();
  CHECK(!slices.begin({0, 1, 4}, cancel));
}

// One chain on two threads, the second of which sleeps in each of its steps as if it had lost its
// core. Returns the seconds; `made`: the steps that the second made.
double late_thread(int steps, std::chrono::microseconds late, int& made) {
  Crew crew(crew_size(1e9, 1, 2));
  Cancel cancel(nullptr);
  std::vector<int> pieces(static_cast<std::size_t>(2 * steps), 0);
  const auto start = std::chrono::steady_clock::now();
  made = 0;
  for_each_chain(crew, 1, cancel, [&](Team& team, int member, int, std::int64_t, int) {
    for (int step = 0; step < steps; ++step) {
      if (member == 1) {
        ++made;
        std::this_thread::sleep_for(late);
      }
      for (int piece = 2 * member / team.size(); piece < 2 * (member + 1) / team.size(); ++piece) {
        ++pieces[static_cast<std::size_t>(2 * step + piece)];
      }
      if (!team.barrier() || !team.settle(member)) return false;
    }
    return true;
  });
  const auto spent = std::chrono::steady_clock::now() - start;
  for (const int times : pieces) CHECK(times == 1);
  return std::chrono::duration<double>(spent).count();
}

void check_late_thread() {
  set_num_threads(2);
  int made = 0;
  const auto start = std::chrono::steady_clock::now();
  const double spent = late_thread(2000, std::chrono::milliseconds(2), made);
  CHECK(made < 20);    // of 2000
  CHECK(spent < 2.0);  // 4 s with all of them
  // The next call has one thread; a while later there is a trial of two again.
  const int next = crew_size(1e9, 1, 2);
  if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(45)) CHECK(next == 1);
  CHECK(crew_size(1e9, 3, 2) == 2);  // two chains go on at the same time
  int waits = 0;
  for (; waits < 150 && crew_size(1e9, 1, 2) < 2; ++waits) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(waits < 150);  // 1 s at most
  // Rehearsed: whatever the load, after so many barriers.
  halve_teams(3);
  late_thread(50, std::chrono::microseconds(0), made);
  CHECK(made == 2);  // the first barrier is the start
  CHECK(halve_teams(1 << 30) == 1);
  late_thread(50, std::chrono::microseconds(0), made);
  CHECK(made == 50);
  CHECK(halve_teams(0) == 0);
}

// Jobs of 16 pieces, of which those of one member take it longer. Every piece is done once, a
// member's own in order and before those of others; the rest do what the late one has not begun.
void check_pieces(int wanted, std::chrono::microseconds late) {
  constexpr std::int64_t kPieces = 16;
  constexpr int kJobs = 20;
  Crew crew(wanted);
  const int members = crew.size();
  Pieces pieces;
  pieces.clear(members);
  Cancel cancel(nullptr);
  std::vector<std::atomic<int>> done(static_cast<std::size_t>(kPieces * kJobs));
  std::atomic<int> by_late{0}, out_of_order{0};
  for_each_chain(crew, 1, cancel, [&](Team& team, int member, int, std::int64_t, int) {
    const std::int64_t first = kPieces * member / members, end = kPieces * (member + 1) / members;
    for (int job = 0; job < kJobs; ++job) {
      pieces.own(member, first, end);
      if (!team.gather()) return false;
      std::int64_t next = first;
      bool others = false;
      for (std::int64_t piece; (piece = pieces.take(member, members)) >= 0;) {
        const bool own = first <= piece && piece < end;
        if (own && (others || piece != next++)) out_of_order.fetch_add(1);
        others = others || !own;
        done[static_cast<std::size_t>(job * kPieces + piece)].fetch_add(1);
        if (late.count() == 0) continue;
        if (member == members - 1) by_late.fetch_add(1);
        std::this_thread::sleep_for(member == members - 1 ? late : late / 20);
      }
      if (!team.gather()) return false;
    }
    return true;
  });
  for (auto& times : done) CHECK(times.load() == 1);
  CHECK(out_of_order.load() == 0);
  if (members == 1 || members == kPieces || late.count() == 0) return;
  const auto own = static_cast<int>(kPieces - kPieces * (members - 1) / members);
  CHECK(by_late.load() >= 1 && by_late.load() < kJobs * own);  // its own are kJobs * own
}

void check_waits() {
  using std::chrono::microseconds;
  const Waits::Clock::time_point start{std::chrono::hours(1)};
  const auto at = [&](int us) { return start + microseconds(us); };
  const Waits::Clock::duration fine{0};
  Waits waits;
  waits.open(start);
  CHECK(!waits.any());
  waits.add(at(100), at(1000));
  CHECK(waits.any());
  CHECK(waits.weigh(2, at(1000)) == fine);  // one thread was woken late
  waits.add(at(1100), at(3100));
  CHECK(waits.weigh(3, at(3200)) == fine);                // of two others, 1.45 ms each
  CHECK(waits.weigh(2, at(3200)) == microseconds(2900));  // 2.9 of 3.2 ms
  CHECK(!waits.any());                                    // counted once
  waits.open(start);
  waits.add(at(1000), at(4000));
  CHECK(waits.weigh(2, at(6000)) == fine);  // half of the time: as fast as one thread
  // A wait during which a window ends is not counted in the next, which has hardly begun.
  waits.open(start);
  waits.add(at(1000), at(2000));
  CHECK(waits.weigh(2, at(23000)) == fine);
  waits.add(at(20000), at(23001));
  CHECK(waits.weigh(2, at(23400)) == fine);
  waits.add(at(23400), at(26400));
  CHECK(waits.weigh(2, at(26500)) == microseconds(3001));
  // One that the team went on without comes to count when its wait is long over.
  waits.add(at(20000), at(21000));
  CHECK(!waits.any());
  waits.add(at(27000), at(30000));
  CHECK(waits.weigh(2, at(30000)) == microseconds(3000));
}

void check_team_limit() {
  using std::chrono::milliseconds;
  TeamLimit limit;
  TeamLimit::Clock::time_point now{std::chrono::hours(1)};
  const auto after = [&](int ms) { return limit.most(now += milliseconds(ms)); };
  CHECK(after(0) == TeamLimit::kNone);
  limit.came_late(8, milliseconds(3), now);
  limit.came_late(8, milliseconds(3), now);  // another team of the same call
  CHECK(after(0) == 4);
  CHECK(after(49) == 4);
  CHECK(after(1) == 8);  // a trial
  limit.came_late(8, milliseconds(3), now);
  CHECK(after(99) == 4);  // failed: twice as long
  CHECK(after(1) == 8);
  CHECK(after(100) == 16);  // it went well
  for (int i = 0; i < 5; ++i) after(100);
  CHECK(after(100) == 1024);
  CHECK(after(100) == TeamLimit::kNone);
  limit.came_late(2, milliseconds(12), now += milliseconds(500));  // something new
  CHECK(after(119) == 1);
  CHECK(after(1) == 2);
  limit.came_late(2, milliseconds(3), now += milliseconds(500));
  CHECK(after(49) == 1);
  CHECK(after(1) == 2);
  for (const int pause : {100, 200, 250, 250}) {
    limit.came_late(2, milliseconds(3), now);
    CHECK(after(pause - 1) == 1);
    CHECK(after(1) == 2);
  }
  limit.came_late(2, milliseconds(40), now);  // ten times what a trial costs, whatever was before
  CHECK(after(399) == 1);
  CHECK(after(1) == 2);
  limit.came_late(2, milliseconds(500), now);
  CHECK(after(999) == 1);
  CHECK(after(1) == 2);
}

class StopAfter : public Poll {
 public:
  explicit StopAfter(int calls) : left_(calls) {}
  bool stop() override { return --left_ <= 0; }

 private:
  int left_;
};

void check_cancel() {
  StopAfter poll(2);
  Cancel cancel(&poll);
  Crew crew(3);
  const auto start = std::chrono::steady_clock::now();
  for_each_chain(crew, 2, cancel, [&](Team& team, int, int, std::int64_t, int) {
    while (team.barrier()) {
    }
    return false;
  });
  const auto spent = std::chrono::steady_clock::now() - start;
  CHECK(cancel.cancelled());
  CHECK(spent < std::chrono::milliseconds(2000));
}

void check_fork() {
  check_chains(3, 3);  // the pool has workers now
  const pid_t child = fork();
  if (child == 0) {
    check_chains(3, 4);
    _exit(failures == 0 ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A thread that takes and gives back most of the time holds the lock at some of these forks.
void check_fork_beside_blocks() {
  std::atomic<bool> done{false};
  std::thread other([&done] {
    while (!done) give_block(take_block(kLargeBlock), kLargeBlock);
  });
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends a child that waits for that thread
      give_block(take_block(kLargeBlock), kLargeBlock);
      _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (failures > 0) break;
  }
  done = true;
  other.join();
}

// Far below a slice of a scheduler; 0 where the threads never ran at once.
void check_handover() {
  const double ns = handover_ns();
  CHECK(ns >= 0.0 && ns < 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  check_waits();
  check_handover();
  check_team_limit();
  check_late_thread();  // first: no other team has been late
  for (const int members : {1, 2, 3, 16}) {
    for (const int late : {0, 2000}) check_pieces(members, std::chrono::microseconds(late));
  }
  for (const int threads : {1, 2, 3, 5}) {
    for (const std::int64_t chains : {1, 2, 3, 7}) check_chains(threads, chains);
  }
  for (const int threads : {1, 2, 3, 4}) {
    for (const std::int64_t chains : {1, 2, 3, 7, 10}) {
      for (const std::int64_t most : {1, 5, 16}) check_slices(threads, chains, most);
    }
  }
  check_cancelled_slice();
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([] { check_chains(2, 5); });
  for (auto& caller : callers) caller.join();
  check_cancel();
  if (argc == 1 || *argv[1] == 0) {
    check_fork();
    check_fork_beside_blocks();
  }
  return report("check_threads");
}
