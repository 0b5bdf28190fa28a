#pragma once
// A log density given as a C function pointer, and its leapfrog trajectories.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cpu/density/leapfrog.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

// Writes grad (n,) and *lp at x (n,); returns 0 when all went well.
using DensityFunction = int (*)(std::size_t n, const double* x, double* grad, double* lp,
                                void* user);

// How a call ended.
struct CallEnd {
  bool cancelled = false;
  int code = 0;  // the first non-zero code that a function returned
  bool done() const { return !cancelled && code == 0; }
};

class PointerDensity {
 public:
  // threadsafe: several threads may call the function at once.
  PointerDensity(DensityFunction function, std::int64_t dim, void* user, bool threadsafe)
      : function_(function), dim_(dim), user_(user), threadsafe_(threadsafe) {}
  std::int64_t dim() const { return dim_; }
  int threads() const { return threadsafe_ ? num_threads() : 1; }

  CallEnd evaluate(const double* theta, std::int64_t chains, double* lp, double* grad,
                   Poll* poll) const;
  // As of a network, the log density in place of the likelihood and 0 in place of the prior.
  CallEnd leapfrog(const Trajectories<double>& all, Poll* poll) const;

  // The function's code.
  int call(const double* theta, double* grad, double* lp) const;
  // One trajectory; it ends at the first value or gradient that is not finite. Returns the
  // function's code.
  int trajectory(const Trajectories<double>& all, std::int64_t chain, Cancel& cancel) const;
  // body(chain, cancel) returns the function's code.
  template <class Body>
  CallEnd on_chains(std::int64_t chains, Poll* poll, const Body& body) const {
    Cancel cancel(poll);
    std::atomic<std::int64_t> next{0};
    std::atomic<int> code{0};
    Crew crew(static_cast<int>(std::min<std::int64_t>(threads(), chains)));
    crew.run(
        [&](int) {
          for (;;) {
            const std::int64_t chain = next.fetch_add(1, std::memory_order_relaxed);
            if (chain >= chains || cancel.check()) return;
            if (const int result = body(chain, cancel); result != 0) {
              int none = 0;
              code.compare_exchange_strong(none, result);
              cancel.cancel();
            }
          }
        },
        true, &cancel);
    return {cancel.cancelled() && code.load() == 0, code.load()};
  }

 private:
  DensityFunction function_;
  std::int64_t dim_;
  void* user_;
  bool threadsafe_;
};

}  // namespace ribbit::cpu
