// Stochastic-gradient steps of a LogDensity.

#include "cpu/density/stochastic_steps.h"

#include <cmath>

#include "cpu/density/team_evaluation.h"

namespace ribbit::cpu {
namespace {

template <class T>
UpdateStep<T> update_step(const StochasticSteps& steps, std::int64_t i, std::uint32_t chain,
                          std::int64_t rows) {
  const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
  const double eps = steps.step_size[i], noise = steps.noise[i];
  const double count = static_cast<double>(step) + 1.0;
  UpdateStep<T> u{};
  switch (steps.rule) {
    case kRuleLangevin:
      u.step = static_cast<T>(0.5 * eps);
      u.noise = static_cast<T>(noise * std::sqrt(eps));
      u.scale = static_cast<T>(1.0 / static_cast<double>(rows));
      break;
    case kRuleFriction:
      u.step = static_cast<T>(eps);
      u.noise = static_cast<T>(noise * std::sqrt(2.0 * steps.friction * eps));
      u.keep = static_cast<T>(1.0 - steps.friction);
      break;
    case kRuleAdam:
      u.step = static_cast<T>(eps);
      u.correct1 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay1, count)));
      u.correct2 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay2, count)));
      break;
    case kRuleCount:
      unreachable();
  }
  u.decay1 = static_cast<T>(steps.decay1);
  u.decay2 = static_cast<T>(steps.decay2);
  u.epsilon = static_cast<T>(steps.epsilon);
  u.adapt = step < steps.adapt_until;
  u.key = steps.seed;
  u.c1 = counter_step(step);
  u.c2 = chain;
  u.c3 = counter_purpose(kPurposeUpdateNoise, 0, step);
  return u;
}

}  // namespace

// The member's panels of a step's batch, gathered and packed; member 0 notes its size. scaled:
// the likelihood counts N / n times. A barrier must follow.
template <class T>
void LogDensity<T>::take_batch(const Member& m, EpochRows& epoch, std::uint64_t step,
                               bool scaled) const {
  const KernelTable<T>& k = kernels<T>();
  TeamSpace& s = m.shared;
  const auto [begin, count] = epoch.take(step);
  const std::int64_t panels = panel_count(count), features = network_.input_size();
  for (std::int64_t p = m.first(panels); p < m.last(panels); ++p) {
    const std::int64_t first = p * kPanel, last = std::min(count, first + kPanel);
    for (std::int64_t r = first; r < last; ++r) {
      s.rows[static_cast<std::size_t>(r)] = epoch.row(begin + r);
    }
    const int n = static_cast<int>(last - first);
    x_.pack(features, s.rows.data(), first, n, s.batch.x.buffer.data() + p * features * kPanel);
    k.pack_panel(y_, targets_, s.rows.data(), first, n,
                 s.batch.y.buffer.data() + p * targets_ * kPanel);
  }
  if (m.index != 0) return;
  s.batch.x.rows = s.batch.y.rows = count;
  s.batch.scale = scaled ? static_cast<double>(rows_) / static_cast<double>(count) : 1.0;
  s.batch.constant = 0;
  if (row_constant_.empty()) return;
  for (std::int64_t r = begin; r < begin + count; ++r) {
    s.batch.constant += row_constant_[static_cast<std::size_t>(epoch.row(r))];
  }
}

// Buffers of a team for batches of up to batch_rows rows.
template <class T>
void LogDensity<T>::prepare(TeamSpace& s, std::int64_t batch_rows) const {
  const std::int64_t panels = panel_count(batch_rows);
  s.failed = false;
  s.grad.resize(dim_);
  s.rows.resize(static_cast<std::size_t>(batch_rows));
  s.batch.x.features = network_.input_size();
  s.batch.y.features = targets_;
  if (batch_rows < rows_) {
    s.batch.x.buffer.resize(panels * network_.input_size() * kPanel);
    s.batch.y.buffer.resize(panels * targets_ * kPanel);
  }
}

template <class T>
bool LogDensity<T>::advance(const StochasticSteps& steps, T* theta, T* first, T* second,
                            std::int64_t chains, StochasticOutcome* outcomes, Poll* poll) const {
  const KernelTable<T>& k = kernels<T>();
  const Pass pass(*this, steps.batch_rows, steps.num_steps, chains);
  Crew crew(pass.threads);
  std::unique_ptr<CallSpace> space = acquire(crew.size(), chains, pass.shards, pass.rows);
  for (int t = 0; t < crew.size(); ++t) {
    if (!leads_team(t, crew.size(), chains)) continue;
    prepare(*space->teams[static_cast<std::size_t>(t)], pass.rows);
  }
  const Batch* everything = pass.all ? &full_batch() : nullptr;
  Cancel cancel(poll);
  for_each_chain(crew, chains, cancel,
                 [&](Team& team, int index, int thread, std::int64_t chain, int first_thread) {
                   TeamSpace& shared = *space->teams[static_cast<std::size_t>(first_thread)];
                   Member m{team,
                            index,
                            shared,
                            *space->threads[static_cast<std::size_t>(thread)],
                            pass.all ? *everything : shared.batch,
                            pass.shards,
                            shared.grad.data(),
                            space->graph(thread),
                            pass.pieces};
                   const std::uint32_t id = steps.chain_ids[chain];
                   T* position = theta + chain * dim_;
                   const auto at = [&](T* array) {
                     return array != nullptr ? array + chain * dim_ : nullptr;
                   };
                   T *moment1 = at(first), *moment2 = at(second);
                   const std::int64_t begin = std::min(dim_, m.first(chunk_count()) * kChunk);
                   const std::int64_t end = std::min(dim_, m.last(chunk_count()) * kChunk);
                   EpochRows epoch(steps.seed, id, rows_, steps.batch_rows);
                   Masks masks{steps.seed, 0, id, false, pass.all ? nullptr : shared.rows.data()};
                   masks.logits = logits_at();
                   if (masked_) m.masks = &masks;
                   if (index == 0) shared.failed = false;
                   for (std::int64_t i = 0; i < steps.num_steps; ++i) {
                     const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
                     masks.step = step;
                     if (!pass.all) take_batch(m, epoch, step, true);
                     const Wanted wanted{false, true, steps.prior};
                     if (!run_shards(m, position, wanted)) return false;
                     UpdateStep<T> u = update_step<T>(steps, i, id, rows_);
                     bool finite = true;
                     const auto move = [&](std::int64_t b, std::int64_t e) {
                       u.first_element = static_cast<std::uint64_t>(b);
                       finite = k.update(steps.rule, u, m.grad + b, e - b, position + b,
                                         moment1 != nullptr ? moment1 + b : nullptr,
                                         moment2 != nullptr ? moment2 + b : nullptr) &&
                                finite;
                     };
                     if (concrete_) {  // the learned rates see all of the weights before they move
                       combine(m, position, wanted, [](std::int64_t, std::int64_t) {});
                       if (!m.barrier() || !rate_terms(m, position, wanted)) return false;
                       if (begin < end) move(begin, end);
                     } else {
                       combine(m, position, wanted, move);
                     }
                     if (!finite) shared.failed.store(true, std::memory_order_relaxed);
                     if (!m.barrier()) return false;
                     if (shared.failed.load(std::memory_order_relaxed)) {
                       if (index != 0) return true;
                       outcomes[chain] = {i, largest_size(m.grad, dim_)};
                       return true;
                     }
                     if (m.team.cancel().check()) return false;
                   }
                   if (index == 0) outcomes[chain] = {-1, 0.0};
                   return true;
                 });
  release(std::move(space));
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template void LogDensity<T>::take_batch(const Member&, EpochRows&, std::uint64_t, bool) const; \
  template void LogDensity<T>::prepare(TeamSpace&, std::int64_t) const;                          \
  template bool LogDensity<T>::advance(const StochasticSteps&, T*, T*, T*, std::int64_t,         \
                                       StochasticOutcome*, Poll*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
