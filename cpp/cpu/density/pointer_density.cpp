#include "cpu/density/pointer_density.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/system/dispatch.h"
#include "cpu/system/subnormals.h"

namespace ribbit::cpu {

// body(chain, cancel) returns the function's code.
template <class Body>
PointerDensity::Outcome PointerDensity::on_chains(std::int64_t chains, Poll* poll,
                                                  const Body& body) const {
  Cancel cancel(poll);
  std::atomic<std::int64_t> next{0};
  std::atomic<int> code{0};
  Crew crew(threadsafe_ ? static_cast<int>(std::min<std::int64_t>(num_threads(), chains)) : 1);
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

// The function computes as its author's other code does.
int PointerDensity::call(const double* theta, double* grad, double* lp) const {
  const Subnormals kept(Subnormals::kKept);
  return function_(static_cast<std::size_t>(dim_), theta, grad, lp, user_);
}

PointerDensity::Outcome PointerDensity::evaluate(const double* theta, std::int64_t chains,
                                                 double* lp, double* grad, Poll* poll) const {
  return on_chains(chains, poll, [&](std::int64_t chain, Cancel&) {
    return call(theta + chain * dim_, grad + chain * dim_, lp + chain);
  });
}

PointerDensity::Outcome PointerDensity::leapfrog(double* q, double* p, double* g, const double* m,
                                                 std::int64_t m_stride, const double* step_size,
                                                 const std::int64_t* num_steps, std::int64_t chains,
                                                 double* lp, std::int64_t* made, Poll* poll) const {
  const KernelTable<double>& k = kernels<double>();
  return on_chains(chains, poll, [&](std::int64_t chain, Cancel& cancel) {
    double* position = q + chain * dim_;
    double* momentum = p + chain * dim_;
    double* grad = g + chain * dim_;
    const double* mass = m != nullptr ? m + chain * m_stride : nullptr;
    const double step = step_size[chain];
    const std::int64_t steps = num_steps[chain];
    k.kick_drift(position, momentum, grad, mass, dim_, step / 2, step);
    for (std::int64_t i = 1;; ++i) {
      const int code = call(position, grad, lp + chain);
      if (code != 0) return code;
      if (cancel.check()) return 0;
      // A lost chain stops here: the function never sees the NaN that would follow.
      const bool finite = std::isfinite(lp[chain]) &&
                          std::all_of(grad, grad + dim_, [](double v) { return std::isfinite(v); });
      if (i == steps || !finite) {
        made[chain] = i;
        break;
      }
      k.kick_drift(position, momentum, grad, mass, dim_, step, step);
    }
    k.kick_drift(position, momentum, grad, mass, dim_, step / 2, 0);
    return 0;
  });
}

}  // namespace ribbit::cpu
