// Stochastic-gradient steps of a LogDensity. A batch that is one shard is spread over its team: the
// panels go forwards and backwards in parallel, then each member takes a part of every layer's
// inputs, so that no gradient has to be summed over threads.

#include "cpu/advance.h"

#include <cmath>

#include "cpu/log_density_parts.h"

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
    default:
      u.step = static_cast<T>(eps);
      u.correct1 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay1, count)));
      u.correct2 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay2, count)));
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

// The gradient of the log likelihood of a batch of one shard into m.grad, every member its part of
// each layer. Ends with a barrier; false when cancelled.
template <class T>
bool LogDensity<T>::spread_gradient(const Member& m, const T* theta, Wanted wanted) const {
  TeamSpace& s = m.shared;
  Workspace<T>& space = *s.whole;
  T* packed = s.packed.data();
  pack_weights(plan_, theta, true, m.index, m.team.size(), packed);
  if (!m.barrier()) return false;
  const std::int64_t panels = panel_count(m.batch.x.rows);
  const std::int64_t outputs = network_.output_size();
  const PanelLikelihood likelihood(*this, m.batch, theta, wanted.values);
  const std::int64_t group = m.own.group();
  for (std::int64_t p = m.first(panels); p < m.last(panels); p += group) {
    const std::int64_t count = std::min(group, m.last(panels) - p);
    const T* f = forward_group(plan_, theta, packed, m.batch.x.panel(p), p, count, true, space,
                               m.masks, p * kPanel, m.batch.x.rows - p * kPanel);
    T* delta = output_delta(plan_, p, space);
    for (std::int64_t i = 0; i < count; ++i) {
      double noise = 0, ll = 0;
      const std::int64_t place = i * outputs * kPanel;
      likelihood(m.batch, p + i, f + place, delta + place, ll, noise);
      s.panel_noise[static_cast<std::size_t>(p + i)] = noise;
      s.panel_ll[static_cast<std::size_t>(p + i)] = ll;
    }
    double* rates = s.panel_rates.data() + p * plan_.rates;
    std::fill_n(rates, count * plan_.rates, 0.0);
    backward_group(plan_, packed, m.batch.x.panel(p), p, count, false, space, rates);
  }
  if (!m.barrier()) return false;
  T* scratch = s.scratch[static_cast<std::size_t>(m.index)].data();
  for (const Stage& stage : plan_.stages) {
    if (stage.layer.op != Op::kDense) continue;
    layer_gradient(stage, m.batch.x.panel(0), m.batch.x.rows, m.index, m.team.size(), space,
                   scratch, m.grad);
  }
  if (likelihood.learned && m.index == 0) {
    double noise = 0;
    for (std::int64_t p = 0; p < panels; ++p) noise += s.panel_noise[static_cast<std::size_t>(p)];
    m.grad[noise_at()] = static_cast<T>(likelihood.weight * noise);
  }
  for (std::int64_t l = 0; m.index == 0 && l < plan_.rates; ++l) {
    double sum = 0;
    for (std::int64_t p = 0; p < panels; ++p) {
      sum += s.panel_rates[static_cast<std::size_t>(p * plan_.rates + l)];
    }
    m.grad[logits_at() + l] = static_cast<T>(sum);
  }
  if (wanted.values && m.index == 0) {
    s.shard_ll[0] = 0;
    for (std::int64_t p = 0; p < panels; ++p) {
      s.shard_ll[0] += s.panel_ll[static_cast<std::size_t>(p)];
    }
  }
  return m.barrier();
}

// The gradient at theta, which its owners have just written, with the prior's part: each member
// its chunks of m.grad.
template <class T>
bool LogDensity<T>::batch_gradient(const Member& m, const T* theta, bool spread,
                                   Wanted wanted) const {
  if (!m.barrier()) return false;
  if (!(spread ? spread_gradient(m, theta, wanted) : run_shards(m, theta, wanted))) return false;
  combine(m, theta, wanted);
  return !concrete_ || (m.barrier() && rate_terms(m, theta, wanted));
}

// Buffers of a team for batches of up to batch_rows rows; whole: how many panels are kept, or 0.
template <class T>
void LogDensity<T>::prepare(TeamSpace& s, std::int64_t batch_rows, std::int64_t whole,
                            int members) const {
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
  if (whole == 0) return;
  if (!s.whole || s.whole->block() < whole) {
    s.whole = std::make_unique<Workspace<T>>(plan_, whole);
  }
  s.panel_noise.resize(static_cast<std::size_t>(whole));
  s.panel_ll.resize(static_cast<std::size_t>(whole));
  s.panel_rates.resize(static_cast<std::size_t>(whole * plan_.rates));
  const std::int64_t lanes = kernels<T>().lanes;
  const std::int64_t widest = *std::max_element(plan_.delta_width.begin(), plan_.delta_width.end());
  s.scratch.resize(static_cast<std::size_t>(members));
  for (Buffer<T>& buffer : s.scratch) {
    buffer.resize((widest + lanes - 1) / lanes * lanes * whole * kPanel);
  }
}

template <class T>
bool LogDensity<T>::advance(const StochasticSteps& steps, T* theta, T* first, T* second,
                            std::int64_t chains, StochasticOutcome* outcomes, Poll* poll) const {
  const KernelTable<T>& k = kernels<T>();
  const Pass pass(*this, steps.batch_rows, steps.num_steps, chains);
  Crew crew(pass.threads);
  std::unique_ptr<CallSpace> space = borrow(crew.size(), chains, pass.shards);
  for (int t = 0; t < crew.size(); ++t) {
    if (!leads_team(t, crew.size(), chains)) continue;
    prepare(*space->teams[static_cast<std::size_t>(t)], pass.rows, pass.whole, crew.size());
  }
  const Batch* everything = pass.all ? &full_batch() : nullptr;
  Cancel cancel(poll);
  for_each_chain(
      crew, chains, cancel,
      [&](Team& team, int index, int thread, std::int64_t chain, int first_thread) {
        TeamSpace& shared = *space->teams[static_cast<std::size_t>(first_thread)];
        Member m{team,
                 index,
                 shared,
                 *space->threads[static_cast<std::size_t>(thread)],
                 pass.all ? *everything : shared.batch,
                 pass.shards,
                 shared.grad.data(),
                 space->walk(thread)};
        const std::uint32_t id = steps.chain_ids[chain];
        T* position = theta + chain * dim_;
        const auto at = [&](T* array) { return array != nullptr ? array + chain * dim_ : nullptr; };
        T *moment1 = at(first), *moment2 = at(second);
        const std::int64_t begin = std::min(dim_, m.first(chunk_count()) * kChunk);
        const std::int64_t size = std::min(dim_, m.last(chunk_count()) * kChunk) - begin;
        EpochRows epoch(steps.seed, id, rows_, steps.batch_rows);
        Masks masks{steps.seed, 0, id, false, pass.all ? nullptr : shared.rows.data()};
        masks.logits = logits_at();
        if (masked_) m.masks = &masks;
        if (index == 0) shared.failed = false;
        for (std::int64_t i = 0; i < steps.num_steps; ++i) {
          const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
          masks.step = step;
          if (!pass.all) take_batch(m, epoch, step, true);
          if (!batch_gradient(m, position, pass.spread, {false, true, steps.prior})) return false;
          UpdateStep<T> u = update_step<T>(steps, i, id, rows_);
          u.first_element = static_cast<std::uint64_t>(begin);
          const bool finite = k.update(steps.rule, u, m.grad + begin, size, position + begin,
                                       moment1 != nullptr ? moment1 + begin : nullptr,
                                       moment2 != nullptr ? moment2 + begin : nullptr);
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
  give_back(std::move(space));
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template void LogDensity<T>::take_batch(const Member&, EpochRows&, std::uint64_t, bool) const; \
  template bool LogDensity<T>::spread_gradient(const Member&, const T*, Wanted) const;           \
  template bool LogDensity<T>::batch_gradient(const Member&, const T*, bool, Wanted) const;      \
  template void LogDensity<T>::prepare(TeamSpace&, std::int64_t, std::int64_t, int) const;       \
  template bool LogDensity<T>::advance(const StochasticSteps&, T*, T*, T*, std::int64_t,         \
                                       StochasticOutcome*, Poll*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
