#include "cpu/system/threads.h"

#include <pthread.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "cpu/system/quota.h"
#include "cpu/system/subnormals.h"
#include "cpu/system/team_limit.h"

namespace ribbit::cpu {
namespace {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

// Spins about 20 us, then yields: a thread that waits for one that lost its core must not burn it.
template <class Done>
bool spin_until(Done done, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (done()) return true;
    pause_cpu();
  }
  return done();
}
#if defined(__aarch64__)
constexpr int kSpins = 10000;  // yield is over at once on most cores, where pause takes its time
#else
constexpr int kSpins = 1500;
#endif
// At the end of a call: a sleep of 20 us takes 70, which small networks would pay at each
// transition. Workers that wait for a call do not spin that long: beside a busy program it costs
// them their turn.
constexpr int kEndSpins = 4 * kSpins;

using Clock = std::chrono::steady_clock;

std::atomic<int> rehearsed{0};  // barriers between two that halve a team; 0: none
std::atomic<int> halved{0};

}  // namespace

struct Worker {
  enum State : int { kIdle, kPosted, kRunning };
  std::atomic<int> state{kIdle};
  const std::function<void(int)>* body = nullptr;
  std::atomic<int>* remaining = nullptr;
  int index = 0;
  bool asleep = false;  // guarded by mutex
  std::mutex mutex;
  std::condition_variable wake;

  bool claim(State next) {
    int posted = kPosted;
    return state.compare_exchange_strong(posted, next, std::memory_order_acq_rel);
  }

  [[noreturn]] void loop() {
    const Subnormals flushed(Subnormals::kFlushed);  // as the caller's while it works, in run()
    const auto posted = [&] { return state.load(std::memory_order_acquire) == kPosted; };
    for (;;) {
      if (!spin_until(posted, kSpins)) {
        std::unique_lock lock(mutex);
        asleep = true;
        wake.wait(lock, posted);
        asleep = false;
      }
      if (!claim(kRunning)) continue;  // the caller took it back
      std::atomic<int>* counter = remaining;
      (*body)(index);
      state.store(kIdle, std::memory_order_release);
      counter->fetch_sub(1, std::memory_order_release);
    }
  }

  void post(const std::function<void(int)>* task, int thread, std::atomic<int>* counter) {
    body = task;
    index = thread;
    remaining = counter;
    const std::unique_lock lock(mutex);
    state.store(kPosted, std::memory_order_release);
    if (asleep) wake.notify_one();
  }
};

namespace {

struct Pool {
  std::mutex mutex;
  std::vector<Worker*> idle;  // workers live as long as the process
  TeamLimit limit;
};

std::atomic<Pool*> pool_pointer{nullptr};
std::atomic<int> requested_threads{0};

// After a fork the child has no workers: it starts with an empty pool and leaks the old one.
void forget_pool() {
  pool_pointer.store(new Pool, std::memory_order_release);
}

Pool& pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    forget_pool();
    pthread_atfork(nullptr, nullptr, forget_pool);
  });
  return *pool_pointer.load(std::memory_order_acquire);
}

int default_threads() {
  // joblib, Dask, Ray and torchrun tell their workers by the second name; a list "4,2" is for
  // nested regions, of which only the first concerns us.
  for (const char* name : {"RIBBIT_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const char* text = std::getenv(name)) {
      const int count = std::atoi(text);
      if (count >= 1 && count <= 1024) return count;
    }
  }
  return available_cores();
}

}  // namespace

int available_cores() {
  int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
#if defined(__linux__)  // macOS binds no thread to a core
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
#endif
  const int quota = cpu_quota();
  return quota > 0 ? std::min(cores, quota) : cores;
}

int num_threads() {
  int count = requested_threads.load();
  if (count != 0) return count;
  const int found = default_threads();
  // Another thread may have set a number meanwhile: that one stays.
  return requested_threads.compare_exchange_strong(count, found) ? found : count;
}

void set_num_threads(int count) {
  if (count < 1 || count > 1024) {
    throw std::invalid_argument("[set_num_threads] expected 1 <= n <= 1024, got " +
                                std::to_string(count));
  }
  requested_threads.store(count);
}

void Cancel::ask() {
  // Small networks check every microsecond, where the clock would be a twentieth of the time.
  constexpr auto kOften = std::chrono::microseconds(100);
  constexpr int kMost = 16;
  const auto now = std::chrono::steady_clock::now();
  often_ = now - asked_ < kOften ? std::min(2 * often_, kMost) : 1;
  asked_ = now;
  passed_ = 0;
  if (now - last_ < Poll::kInterval) return;
  last_ = now;
  if (poll_->stop()) cancel();
}

Team::Team(int size, Cancel* cancel) : size_(size), wanted_(size), cancel_(cancel) {
  if (size == 1) return;
  waits_.open(Clock::now());
}

// Waits of less than kSpins are the usual ones and not counted, nor is the clock read for them.
bool Team::meet(bool counts, bool settles) {
  const int size = this->size();
  if (size == 1) return !cancel_->check();
  const unsigned phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    arrived_.store(0, std::memory_order_relaxed);
    if (!counts) {
      waits_.open(Clock::now());
    } else if (waits_.any() || rehearsed.load(std::memory_order_relaxed) > 0) {
      weigh();
    }
    if (settles && wanted_ < size) {
      size_.store(wanted_, std::memory_order_relaxed);
      halved.fetch_add(1, std::memory_order_relaxed);
    }
    phase_.store(phase + 1, std::memory_order_release);
    return !cancel_->check();
  }
  const auto passed = [&] { return phase_.load(std::memory_order_acquire) != phase; };
  // A wait counts from its beginning: of threads that share a core, which the system leaves so for
  // a while where a stranger has the other, each spins first while the other could work.
  const Clock::time_point begin = Clock::now();
  if (!spin_until(passed, kSpins)) {
    do {
      if (cancel_->check()) return false;
      std::this_thread::yield();
    } while (!spin_until(passed, kSpins));
    if (counts) waits_.add(begin, Clock::now());
  }
  return !cancel_->check();
}

// While nobody else is between barriers.
void Team::weigh() {
  const int size = this->size();
  if (wanted_ < size) return;
  if (const int often = rehearsed.load(std::memory_order_relaxed); often > 0) {
    if (++barriers_ % often == 0) wanted_ = std::max(1, size / 2);
    return;
  }
  const Clock::time_point now = Clock::now();
  const Clock::duration late = waits_.weigh(size, now);
  if (late == Clock::duration{0}) return;
  wanted_ = std::max(1, size / 2);
  pool().limit.came_late(size, late, now);
}

int team_limit() {
  if (rehearsed.load(std::memory_order_relaxed) > 0) return TeamLimit::kNone;
  return pool().limit.most(Clock::now());
}

int halve_teams(int barriers) {
  rehearsed.store(barriers);
  return halved.exchange(0);
}

Crew::Crew(int wanted) {
  Pool& shared = pool();
  std::scoped_lock lock(shared.mutex);
  while (static_cast<int>(workers_.size()) + 1 < wanted) {
    if (shared.idle.empty()) {
      auto* worker = new Worker;
      try {
        std::thread(&Worker::loop, worker).detach();
      } catch (const std::system_error&) {
        delete worker;
        break;
      }
      workers_.push_back(worker);
    } else {
      workers_.push_back(shared.idle.back());
      shared.idle.pop_back();
    }
  }
}

Crew::~Crew() {
  Pool& shared = pool();
  std::scoped_lock lock(shared.mutex);
  shared.idle.insert(shared.idle.end(), workers_.begin(), workers_.end());
}

void Crew::run(const std::function<void(int)>& body, bool independent, Cancel* cancel) {
  const Subnormals flushed(Subnormals::kFlushed);
  std::atomic<int> remaining{static_cast<int>(workers_.size())};
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    workers_[i]->post(&body, static_cast<int>(i) + 1, &remaining);
  }
  body(0);
  // On a busy machine a worker may not have woken up yet: do its part rather than wait for it.
  for (std::size_t i = workers_.size(); independent && i-- > 0;) {
    if (workers_[i]->claim(Worker::kIdle)) {
      remaining.fetch_sub(1, std::memory_order_relaxed);
      body(static_cast<int>(i) + 1);
    }
  }
  const auto finished = [&] { return remaining.load(std::memory_order_acquire) == 0; };
  while (!spin_until(finished, kEndSpins)) {
    if (cancel != nullptr) cancel->check();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

int threads_for(double flops) {
  // Waking a thread costs some microseconds, which is what a core needs for this many.
  constexpr double kWorthOneThread = 1e6;
  return static_cast<int>(std::min<double>(num_threads(), 1.0 + flops / kWorthOneThread));
}

}  // namespace ribbit::cpu
