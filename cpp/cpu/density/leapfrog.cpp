#include "cpu/density/leapfrog.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/density/chains.h"
#include "cpu/system/faults.h"

namespace ribbit::cpu {

std::vector<std::int64_t> longest_first(const std::int64_t* num_steps, std::int64_t chains) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(chains));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return num_steps[a] > num_steps[b]; });
  return order;
}

template <class T>
bool trajectory(const Evaluator<T>& evaluator, const Member<T>& member, const Trajectories<T>& all,
                std::int64_t chain) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t at = chain * evaluator.dim(), chunks = evaluator.chunk_count();
  T *position = all.end_position + at, *momentum = all.end_momentum + at;
  const T* inverse_mass = all.mass != nullptr ? all.mass + chain * all.mass_stride : nullptr;
  const T step = static_cast<T>(all.step_size[chain]);
  const std::int64_t steps = all.num_steps[chain];

  // Who moves what.
  Member<T> m = member;
  m.twin = m.team.size() > 1 && evaluator.may_be_twins(m.shards);
  T copies[3][kChunk];  // position, momentum and gradient of a twin other than the first
  if (m.twin && m.index > 0) {
    position = copies[0];
    momentum = copies[1];
    m.grad = copies[2];
  }
  // A member copies, kicks and drifts the same chunks that it combines, so no barrier lies
  // between.
  const auto kick_drift = [&](std::int64_t begin, std::int64_t end, T kick, T drift) {
    if (planted(Fault::kGradientSign)) kick = -kick;
    if (planted(Fault::kFullKicks)) kick = step;
    k.kick_drift(position + begin, momentum + begin, m.grad + begin,
                 inverse_mass != nullptr ? inverse_mass + begin : nullptr, end - begin, kick,
                 drift);
  };

  // The start.
  const std::int64_t first = std::min(evaluator.dim(), m.first_chunk(chunks) * kChunk);
  const std::int64_t last = std::min(evaluator.dim(), m.last_chunk(chunks) * kChunk);
  std::copy(all.position + at + first, all.position + at + last, position + first);
  if (all.momentum + at != momentum) {
    std::copy(all.momentum + at + first, all.momentum + at + last, momentum + first);
  }
  if (all.grad != nullptr) {
    std::copy(all.grad + at + first, all.grad + at + last, m.grad + first);
  }
  if (m.index == 0) m.shared.failed = false;
  // What the first one moves is where the others copy from.
  if (m.twin && !m.barrier()) return false;
  if (all.grad != nullptr) kick_drift(first, last, step / 2, step);

  // Step after step.
  std::int64_t i = all.grad != nullptr ? 1 : 0;
  bool lost = false;
  for (; i <= steps && !lost; ++i) {
    const bool ends = i == steps, looks = i % kCheckedSteps == 0 && i > 0 && !ends;
    if (m.twin) m.turn = static_cast<int>(i % 2);
    if (!evaluator.run_shards(m, position, {ends, true})) return false;
    evaluator.combine(m, position, {ends, true}, [&](std::int64_t begin, std::int64_t end) {
      kick_drift(begin, end, i == 0 || ends ? step / 2 : step, ends ? T(0) : step);
      if (looks && !std::isfinite(k.dot_weighted(momentum + begin, nullptr, end - begin))) {
        m.shared.failed.store(true, std::memory_order_relaxed);
        lost = m.twin;
      }
    });
    if (looks && !m.twin) {
      if (!m.barrier()) return false;
      lost = m.shared.failed.load(std::memory_order_relaxed);
    }
    if (!ends && !m.settle()) return false;
  }

  // The end.
  if (!m.barrier()) return false;
  if (m.index != 0) return true;
  all.made[chain] = i - 1;
  if (lost) {
    all.log_likelihood[chain] = all.log_prior[chain] = std::numeric_limits<double>::quiet_NaN();
  } else {
    evaluator.sum_terms(m, all.log_likelihood + chain, all.log_prior + chain);
  }
  return true;
}

template <class T>
bool leapfrog(const Evaluator<T>& evaluator, const Trajectories<T>& all, Poll* poll) {
  double passes = all.grad == nullptr ? static_cast<double>(all.chains) : 0.0;
  for (std::int64_t c = 0; c < all.chains; ++c) passes += static_cast<double>(all.num_steps[c]);
  return evaluator.on_chains(
      all.chains, evaluator.full_batch(), passes, all.end_grad, poll,
      [&](const Member<T>& m, std::int64_t chain) { return trajectory(evaluator, m, all, chain); },
      NoPreparation{}, longest_first(all.num_steps, all.chains).data());
}

#define RIBBIT_INSTANTIATE(T)                                                             \
  template bool trajectory(const Evaluator<T>&, const Member<T>&, const Trajectories<T>&, \
                           std::int64_t);                                                 \
  template bool leapfrog(const Evaluator<T>&, const Trajectories<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
