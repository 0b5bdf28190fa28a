// The thread pool: every piece runs once, barriers hold, calls from several threads share it,
// cancellation ends a call soon, and a forked child can compute.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/system/shards.h"
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

}  // namespace

int main(int argc, char** argv) {
  for (const int threads : {1, 2, 3, 5}) {
    for (const std::int64_t chains : {1, 2, 3, 7}) check_chains(threads, chains);
  }
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([] { check_chains(2, 5); });
  for (auto& caller : callers) caller.join();
  check_cancel();
  if (argc == 1 || *argv[1] == 0) check_fork();
  return report("check_threads");
}
