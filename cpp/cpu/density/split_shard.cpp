// A batch of one shard on a team: its panels go forwards and backwards in parallel, then each
// member takes a part of every layer's inputs, so that no gradient has to be summed over threads.
// Sums have the order of run_shard, and so the same bits.

#include <algorithm>
#include <numeric>

#include "cpu/density/evaluator.h"
#include "cpu/network/mlp_pass.h"

namespace ribbit::cpu {

// How many threads a chain is worth.
template <class T>
std::int64_t Evaluator<T>::pieces(std::int64_t rows, std::int64_t shards) const {
  if (shards > 1 || pass_->mlp_plan() == nullptr || last_) return shards;
  return std::min(panel_count(rows),
                  1 + static_cast<std::int64_t>(gradient_flops(rows) / kWorthThread));
}

// What teams of up to `members` need for batches of up to `rows` rows.
template <class T>
void Evaluator<T>::prepare_split(TeamSpace<T>& s, std::int64_t rows, int members) const {
  const MlpPlan& plan = *pass_->mlp_plan();
  // Whole blocks, and panels enough for all members.
  const std::int64_t block = plan.block_panels(sizeof(T)), panels = panel_count(rows);
  const std::int64_t some = std::max<std::int64_t>(1, (2 * members + block - 1) / block) * block;
  const std::int64_t most = std::min(panels, some);
  if (!s.whole || s.whole->block() < most) s.whole = std::make_unique<Workspace<T>>(plan, most);
  s.panel_noise.resize(static_cast<std::size_t>(panels * learned_noises()));
  s.panel_ll.resize(static_cast<std::size_t>(panels));
  s.panel_rates.resize(static_cast<std::size_t>(panels * plan.rates));
}

// The gradient of the log likelihood into m.grad. The weights are packed. Ends with a barrier;
// false when cancelled.
template <class T>
bool Evaluator<T>::split_shard(const Member<T>& m, const T* theta, Wanted wanted) const {
  const MlpPlan& plan = *pass_->mlp_plan();
  TeamSpace<T>& s = m.shared;
  const Batch<T>& batch = m.batch;
  Workspace<T>& space = *s.whole;
  auto& own = static_cast<Workspace<T>&>(m.own);
  Cancel* const asked = between(plan, m.team.cancel());
  const int members = m.team.size();
  const std::int64_t panels = panel_count(batch.x.rows), outputs = network_.output_size();
  const PanelLikelihood<T> likelihood(*this, batch, theta, wanted.values);
  const bool narrow = wanted.gradient && m.index == members - 1;
  const Part own_part = part(m);
  if (wanted.gradient) clear_part(plan, own_part, m.grad);
  if (narrow) clear_narrow_sums(plan, own);
  const std::int64_t own_block = own.block(), group = own.group();
  const std::int64_t step = std::max(own_block, space.block() / own_block * own_block);
  for (std::int64_t block = 0; block < panels; block += step) {
    const std::int64_t stop = std::min(panels, block + step), count = stop - block;
    const std::int64_t last = block + m.last(count);
    for (std::int64_t p = block + m.first(count); p < last; p += group) {
      const std::int64_t some = std::min(group, last - p), at = p - block;
      const T* x = batch.x.panel(p);
      const T* f = forward_group(plan, theta, s.packed.data(), x, at, some, wanted.gradient, space,
                                 m.masks, p * kPanel, batch.x.rows - p * kPanel, {}, asked);
      if (f == nullptr) return false;
      T* delta = output_delta(plan, at, space);
      for (std::int64_t i = 0; i < some; ++i) {
        const auto number = static_cast<std::size_t>(p + i);
        const std::int64_t place = i * outputs * kPanel;
        double* const noise = s.panel_noise.data() + (p + i) * likelihood.learned;
        s.panel_ll[number] = 0;
        std::fill_n(noise, likelihood.learned, 0.0);
        likelihood(p + i, f + place, delta + place, s.panel_ll[number], noise);
      }
      if (!wanted.gradient) continue;
      double* rates = s.panel_rates.data() + p * plan.rates;
      std::fill_n(rates, some * plan.rates, 0.0);
      backward_group(plan, theta, s.packed.data(), x, at, some, false, space, rates, asked);
    }
    if (!m.barrier()) return false;
    if (!wanted.gradient) continue;
    for (std::int64_t p = block; p < stop; p += own_block) {
      const std::int64_t end = std::min(batch.x.rows, std::min(stop, p + own_block) * kPanel);
      block_gradient(plan, batch.x.panel(p), p - block, end - p * kPanel, own_part, space,
                     own.scratch(), m.grad, asked);
    }
    if (narrow) {
      narrow_gradient(plan, batch.x.panel(block), 0, count, space, own.narrow_sums());
    }
    if (stop < panels && !m.barrier()) return false;
    if (m.team.cancel().check()) return false;
  }
  if (narrow) add_narrow_sums(plan, own, m.grad);
  if (m.index != 0) return m.barrier();
  s.shard_ll[0] = std::accumulate(s.panel_ll.begin(), s.panel_ll.begin() + panels, 0.0);
  for (std::int64_t k = 0; wanted.gradient && k < likelihood.learned; ++k) {
    m.grad[noise_at() + k] = static_cast<T>(likelihood.noise_gradient(s.panel_noise, panels, k));
  }
  for (std::int64_t l = 0; wanted.gradient && l < plan.rates; ++l) {
    double total = 0;
    for (std::int64_t p = 0; p < panels; ++p) {
      total += s.panel_rates[static_cast<std::size_t>(p * plan.rates + l)];
    }
    m.grad[logits_at() + l] = static_cast<T>(total);
  }
  return m.barrier();
}

#define RIBBIT_INSTANTIATE(T)                                                        \
  template std::int64_t Evaluator<T>::pieces(std::int64_t, std::int64_t) const;      \
  template void Evaluator<T>::prepare_split(TeamSpace<T>&, std::int64_t, int) const; \
  template bool Evaluator<T>::split_shard(const Member<T>&, const T*, Wanted) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
