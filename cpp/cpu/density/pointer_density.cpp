#include "cpu/density/pointer_density.h"

#include <cmath>

#include "cpu/system/dispatch.h"
#include "cpu/system/subnormals.h"

namespace ribbit::cpu {

// The function computes as its author's other code does.
int PointerDensity::call(const double* theta, double* grad, double* lp) const {
  const Subnormals kept(Subnormals::kKept);
  return function_(static_cast<std::size_t>(dim_), theta, grad, lp, user_);
}

CallEnd PointerDensity::evaluate(const double* theta, std::int64_t chains, double* lp, double* grad,
                                 Poll* poll) const {
  return on_chains(chains, poll, [&](std::int64_t chain, Cancel&) {
    return call(theta + chain * dim_, grad + chain * dim_, lp + chain);
  });
}

CallEnd PointerDensity::leapfrog(const Trajectories<double>& all, Poll* poll) const {
  return on_chains(all.chains, poll, [&](std::int64_t chain, Cancel& cancel) {
    return trajectory(all, chain, cancel);
  });
}

int PointerDensity::trajectory(const Trajectories<double>& all, std::int64_t chain,
                               Cancel& cancel) const {
  const KernelTable<double>& k = kernels<double>();
  const std::int64_t at = chain * dim_;
  double *position = all.end_position + at, *momentum = all.end_momentum + at,
         *grad = all.end_grad + at, *lp = all.log_likelihood + chain;
  const auto copy = [this](const double* from, double* to) {
    if (from != to) std::copy_n(from, dim_, to);
  };
  copy(all.position + at, position);
  copy(all.momentum + at, momentum);
  copy(all.grad + at, grad);
  all.log_prior[chain] = 0.0;
  const double* mass = all.mass != nullptr ? all.mass + chain * all.mass_stride : nullptr;
  const double step = all.step_size[chain];
  const std::int64_t steps = all.num_steps[chain];
  k.kick_drift(position, momentum, grad, mass, dim_, step / 2, step);
  for (std::int64_t i = 1;; ++i) {
    const int code = call(position, grad, lp);
    if (code != 0) return code;
    if (cancel.check()) return 0;
    // A lost chain stops here: the function never sees the NaN that would follow.
    const bool finite = std::isfinite(*lp) &&
                        std::all_of(grad, grad + dim_, [](double v) { return std::isfinite(v); });
    if (i == steps || !finite) {
      all.made[chain] = i;
      break;
    }
    k.kick_drift(position, momentum, grad, mass, dim_, step, step);
  }
  k.kick_drift(position, momentum, grad, mass, dim_, step / 2, 0);
  return 0;
}

}  // namespace ribbit::cpu
