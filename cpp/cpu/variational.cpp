// Bayes by Backprop on a LogDensity: reparameterised weights (Blundell et al. 2015, sec. 3.2), or
// two paths for each row.

#include "cpu/variational.h"

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "core/permutation_hd.h"
#include "core/prior_hd.h"
#include "cpu/log_density_parts.h"
#include "cpu/paired_walk.h"

namespace ribbit::cpu {
namespace {

constexpr double kHalfLog2PiE = 1.4189385332046727;  // 1/2 log(2 pi e)

}  // namespace

// The member's chunks of the closed values: E log q, and E log prior when it has a closed form.
// shared.scale holds the sds.
template <class T>
void LogDensity<T>::closed_values(const Member& m, const T* mean, bool prior) const {
  const KernelTable<T>& k = kernels<T>();
  const T* scale = m.shared.scale.data();
  for (std::int64_t c = m.first(chunk_count()); c < m.last(chunk_count()); ++c) {
    const std::int64_t begin = c * kChunk, end = std::min(dim_, begin + kChunk);
    m.shared.chunk_log_q[static_cast<std::size_t>(c)] =
        -k.sum_log(scale + begin, end - begin) - kHalfLog2PiE * static_cast<double>(end - begin);
    if (!prior) continue;
    double total = 0;
    for (const PriorSegment& segment : prior_) {
      const std::int64_t b = std::max(begin, segment.offset);
      const std::int64_t e = std::min(end, segment.offset + segment.size);
      if (b >= e) continue;
      const PriorConstants p = prior_constants(segment.kind, segment.a, segment.b, segment.c);
      const double squares =
          k.dot_weighted(mean + b, nullptr, e - b) + k.dot_weighted(scale + b, nullptr, e - b);
      total += static_cast<double>(e - b) * p.log_norm - 0.5 * p.p[1] * squares;
    }
    m.shared.chunk_log_prior[static_cast<std::size_t>(c)] = total;
  }
}

// Moves the member's chunks along the gradients of the step; false when not finite any more.
template <class T>
bool LogDensity<T>::move_variational(const Member& m, const VariationalSteps& steps, std::int64_t i,
                                     const VariationalState<T>& state) const {
  const KernelTable<T>& k = kernels<T>();
  const double count = static_cast<double>(steps.first_step + static_cast<std::uint64_t>(i)) + 1.0;
  const double weight = steps.kl_weight[i];
  VariationalStep<T> u{};
  u.step = static_cast<T>(steps.step_size[i]);
  u.decay1 = static_cast<T>(steps.decay1);
  u.decay2 = static_cast<T>(steps.decay2);
  u.correct1 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay1, count)));
  u.correct2 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay2, count)));
  u.epsilon = static_cast<T>(steps.epsilon);
  u.samples = static_cast<T>(1.0 / static_cast<double>(steps.samples));
  u.entropy = static_cast<T>(weight);
  const std::int64_t begin = m.first(chunk_count()) * kChunk;
  const std::int64_t end = std::min(dim_, m.last(chunk_count()) * kChunk);
  bool finite = true;
  for (const PriorSegment& segment : prior_) {
    const std::int64_t b = std::max(begin, segment.offset);
    const std::int64_t e = std::min(end, segment.offset + segment.size);
    if (b >= e) continue;
    if (steps.closed) {
      u.shrink = static_cast<T>(weight / (segment.a * segment.a * temperatures_.posterior));
    }
    const TeamSpace& s = m.shared;
    const VariationalArrays<T> arrays{s.mean_gradient.data() + b,
                                      s.scale_gradient.data() + b,
                                      state.mean + b,
                                      state.rho + b,
                                      state.mean_first + b,
                                      state.mean_second + b,
                                      state.rho_first + b,
                                      state.rho_second + b};
    finite = k.variational_update(u, arrays, e - b) && finite;
  }
  return finite;
}

// Two paths hold two gradients: shards of a panel or two, as long as their sum costs little.
template <class T>
std::int64_t LogDensity<T>::pair_shards(std::int64_t rows) const {
  if (walk_) return shard_count(rows);
  constexpr std::int64_t kRows = 2 * kPanel, kScalars = std::int64_t{4} << 20;
  std::int64_t shards = 1;
  while (shards < kMostShards && rows >= 2 * shards * kRows && 4 * shards * dim_ <= kScalars) {
    shards *= 2;
  }
  return shards;
}

template <class T>
void LogDensity<T>::paired_shard(const Member& m, PairSpace<T>& space,
                                 const PairedWeights<T>& weights, std::int64_t shard) const {
  const Batch& batch = m.batch;
  const std::int64_t begin = m.first_panel(shard), end = m.last_panel(shard);
  const PanelLikelihood likelihood(*this, batch, m.shared.theta.data(), true);
  const std::int64_t outputs = network_.output_size();
  T* first = m.shared.pair_grads.data() + 2 * shard * dim_;
  T* second = first + dim_;
  std::fill_n(first, 2 * dim_, T(0));
  double ll = 0, noise = 0;
  const auto numbers = [&](std::int64_t p) {
    return m.shared.rows.empty() ? nullptr : m.shared.rows.data() + p * kPanel;
  };
  for (std::int64_t p = begin; walk_ && p < end; ++p) {
    PairedWalkSpace<T>& walk = *space.walk;
    const std::int64_t at = p * kPanel, count = batch.x.rows - at;
    const T *drawn = m.shared.theta.data(), *input = walk_input(batch, p, walk.first);
    const T* f =
        paired_walk_forward(*paired_walk_, weights, drawn, input, numbers(p), at, count, walk);
    likelihood(batch, p, f, walk.first.delta(paired_walk_->output), ll, noise);
    paired_walk_backward(*paired_walk_, weights, drawn, input, numbers(p), at, count, walk, first,
                         second);
    if (m.team.cancel().check()) return;
  }
  for (std::int64_t p = begin; !walk_ && p < end; p += space.block()) {
    const std::int64_t count = std::min(space.block(), end - p), left = batch.x.rows - p * kPanel;
    const T* f = paired_forward(plan_, weights, batch.x.panel(p), 0, count, numbers(p), p * kPanel,
                                left, space);
    T* delta = output_delta(plan_, 0, space.first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = i * outputs * kPanel;
      likelihood(batch, p + i, f + place, delta + place, ll, noise);
    }
    paired_backward(plan_, weights, 0, count, space);
    paired_gradients(plan_, weights.estimator, batch.x.panel(p), 0, std::min(count * kPanel, left),
                     0, 1, space, space.first.scratch(), first, second);
    if (m.team.cancel().check()) return;
  }
  // Of what is drawn once for all rows, the gradient by its noise is that by itself.
  for (const Layer::Array& array : drawn_[static_cast<std::size_t>(weights.estimator)]) {
    if (walk_) std::copy_n(first + array.offset, array.size, second + array.offset);
  }
  m.shared.shard_noise[shard] = likelihood.weight * noise;
  m.shared.shard_ll[shard] = ll;
}

// The same for a batch of one shard, every member its panels, then its part of each layer. What
// follows needs a barrier; false when cancelled.
template <class T>
bool LogDensity<T>::spread_pair(const Member& m, const PairedWeights<T>& weights) const {
  TeamSpace& s = m.shared;
  const Batch& batch = m.batch;
  PairSpace<T>& space = *s.pair;
  const std::int64_t panels = panel_count(batch.x.rows), outputs = network_.output_size();
  const PanelLikelihood likelihood(*this, batch, s.theta.data(), true);
  const std::int64_t last = m.last(panels), block = m.own.block();
  for (std::int64_t p = m.first(panels); p < last; p += block) {
    const std::int64_t count = std::min(block, last - p);
    const T* f = paired_forward(plan_, weights, batch.x.panel(p), p, count,
                                s.rows.empty() ? nullptr : s.rows.data() + p * kPanel, p * kPanel,
                                batch.x.rows - p * kPanel, space);
    T* delta = output_delta(plan_, p, space.first);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<std::size_t>(p + i);
      const std::int64_t place = i * outputs * kPanel;
      s.panel_noise[number] = s.panel_ll[number] = 0;
      likelihood(batch, p + i, f + place, delta + place, s.panel_ll[number], s.panel_noise[number]);
    }
    paired_backward(plan_, weights, p, count, space);
    if (m.team.cancel().check()) return false;
  }
  if (!m.barrier()) return false;
  T *first = s.pair_grads.data(), *second = first + dim_;
  clear_part(plan_, m.index, m.team.size(), first);
  clear_part(plan_, m.index, m.team.size(), second);
  for (std::int64_t p = 0; p < panels; p += block) {
    const std::int64_t rows = std::min(block * kPanel, batch.x.rows - p * kPanel);
    paired_gradients(plan_, weights.estimator, batch.x.panel(p), p, rows, m.index, m.team.size(),
                     space, m.own.scratch(), first, second);
    if (m.team.cancel().check()) return false;
  }
  if (m.index != 0) return true;
  // The log noise has no layer: its gradient comes from shard_noise.
  std::fill_n(first + network_.dim(), dim_ - network_.dim(), T(0));
  std::fill_n(second + network_.dim(), dim_ - network_.dim(), T(0));
  const auto sum = [&](const std::vector<double>& each) {
    return std::accumulate(each.begin(), each.begin() + panels, 0.0);
  };
  s.shard_noise[0] = likelihood.weight * sum(s.panel_noise);
  s.shard_ll[0] = sum(s.panel_ll);
  return true;
}

// Adds one sample's gradients to mean_gradient and scale_gradient. shared.theta holds the drawn
// weights. False when cancelled; ends with a barrier.
template <class T>
bool LogDensity<T>::paired_gradient(const Member& m, PairSpace<T>* space,
                                    const VariationalSteps& steps, std::int64_t i,
                                    std::int64_t sample, const T* mean) const {
  const KernelTable<T>& k = kernels<T>();
  TeamSpace& s = m.shared;
  const bool local = steps.estimator == Estimator::kLocal;
  const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
  const std::uint32_t c1 = counter_step(step), c2 = static_cast<std::uint32_t>(sample),
                      c3 = counter_purpose(kPurposeWeightNoise, 0, step);
  const std::int64_t begin = std::min(dim_, m.first(chunk_count()) * kChunk);
  const std::int64_t end = std::min(dim_, m.last(chunk_count()) * kChunk);
  const T* scale = s.scale.data();
  const std::vector<Layer::Array>& drawn = drawn_[static_cast<std::size_t>(steps.estimator)];
  if (!local || !drawn.empty()) {
    k.fill_normal(s.noise.data() + begin, end - begin, static_cast<std::uint64_t>(begin),
                  steps.seed, c1, c2, c3);
  }
  k.product(scale + begin, (local ? scale : s.noise.data()) + begin, end - begin,
            s.second.data() + begin);
  if (!m.barrier()) return false;
  if (walk_) {
    pack_paired_walk(*paired_walk_, mean, s.second.data(), s.theta.data(), m.index, m.team.size(),
                     s.packed.data(), s.packed_second.data());
  } else {
    pack_weights(plan_, mean, true, m.index, m.team.size(), s.packed.data());
    pack_weights(plan_, s.second.data(), true, m.index, m.team.size(), s.packed_second.data());
  }
  if (!m.barrier()) return false;
  const PairedWeights<T> weights{steps.estimator,
                                 local ? mean : s.theta.data(),
                                 s.second.data(),
                                 s.packed.data(),
                                 s.packed_second.data(),
                                 steps.seed,
                                 step,
                                 c2};
  if (space == nullptr && !spread_pair(m, weights)) return false;
  for (std::int64_t shard = m.first(m.shards); space != nullptr && shard < m.last(m.shards);
       ++shard) {
    paired_shard(m, *space, weights, shard);
  }
  if (!m.barrier()) return false;
  const double prior = steps.closed ? 0.0 : steps.kl_weight[i];
  const bool learned = likelihood_ == Likelihood::kGaussianLearned;
  // The gradients by the two paths: of a single shard where they lie.
  T *all_first = s.pair_grads.data(), *all_second = all_first + dim_;
  if (m.shards > 1) {
    all_first = s.grad.data();
    all_second = s.second_gradient.data();
  }
  for (std::int64_t at = begin; at < end; at += kChunk) {
    const std::int64_t n = std::min(kChunk, end - at);
    T *first = all_first + at, *second = all_second + at;
    if (m.shards > 1) {
      const T* shards = s.pair_grads.data() + at;
      k.tree_sum(shards, 2 * dim_, m.shards, n, first);
      k.tree_sum(shards + dim_, 2 * dim_, m.shards, n, second);
    }
    T *by_mean = s.mean_gradient.data() + at, *by_scale = s.scale_gradient.data() + at;
    if (sample == 0) {
      std::fill_n(by_mean, n, T(0));
      std::fill_n(by_scale, n, T(0));
    }
    for (std::int64_t e = 0; e < n; ++e) by_mean[e] += first[e];
    for (const Layer::Array& array : drawn) {
      const std::int64_t b = std::max(at, array.offset) - at;
      const std::int64_t e = std::min(at + n, array.offset + array.size) - at;
      if (!local || b >= e) continue;  // flipout's second path has the noise for all
      k.add_product(T(1), s.noise.data() + at + b, second + b, nullptr, e - b, by_scale + b);
      std::fill(second + b, second + e, T(0));
    }
    k.add_product(local ? T(2) : T(1), local ? scale + at : s.noise.data() + at, second, nullptr, n,
                  by_scale);
    // What is left goes by the drawn weights: the prior, and the log noise.
    std::fill_n(first, n, T(0));
    double logp = 0;
    for (const PriorSegment& segment : prior_) {
      const std::int64_t b = std::max(at, segment.offset);
      const std::int64_t e = std::min(at + n, segment.offset + segment.size);
      if (prior == 0.0 || b >= e) continue;
      k.prior_segment(segment.kind, segment.a, segment.b, segment.c, s.theta.data() + b, e - b,
                      prior / temperatures_.posterior, &logp, all_first + b);
    }
    s.chunk_prior[static_cast<std::size_t>(at / kChunk)] = logp;
    if (learned && at + n == dim_) {
      for (std::int64_t shard = 0; shard < m.shards; ++shard) {
        first[n - 1] += static_cast<T>(s.shard_noise[shard]);
      }
    }
    if (prior == 0.0 && !(learned && at + n == dim_)) continue;
    k.noise_gradient(first, n, static_cast<std::uint64_t>(at), steps.seed, c1, c2, c3, false,
                     by_mean, by_scale);
  }
  return m.barrier();
}

template <class T>
bool LogDensity<T>::advance_variational(const VariationalSteps& steps,
                                        const VariationalState<T>& state,
                                        StochasticOutcome* outcome, Poll* poll) const {
  const KernelTable<T>& k = kernels<T>();
  const bool paired = steps.estimator != Estimator::kReparam;
  // Where every noise is of rows and the prior is closed, weights are drawn for nobody.
  const bool draws = steps.estimator != Estimator::kLocal || !steps.closed ||
                     likelihood_ == Likelihood::kGaussianLearned ||
                     !drawn_[static_cast<std::size_t>(steps.estimator)].empty();
  if (masked_) throw std::invalid_argument("[advance_variational] expected no masks");
  Pass pass(*this, steps.batch_rows, steps.num_steps * steps.samples, 1);
  // Two paths of a batch of one shard are spread over the team, all of their panels kept at once.
  constexpr std::int64_t kMostWhole = 64;
  const std::int64_t panels = panel_count(pass.rows);
  const bool spread = paired && !walk_ && pass.shards == 1 && panels <= kMostWhole;
  const bool sharded = paired && !spread;
  if (sharded) pass.shards = pair_shards(pass.rows);
  if (paired) {
    // Beside the two products there is noise or signs for every row, so that a thread is worth
    // having for fewer of them than those of Pass (measured: 8-50-1 on 500 rows).
    constexpr double kWorthPair = 2e6;
    const double flops = 2.0 * gradient_flops(pass.rows);
    pass.pieces =
        spread ? std::min(panels, 1 + static_cast<std::int64_t>(flops / kWorthPair)) : pass.shards;
    pass.threads = static_cast<int>(std::min<std::int64_t>(
        threads_for(flops * static_cast<double>(steps.num_steps * steps.samples)), pass.pieces));
  }
  Crew crew(pass.threads);
  std::unique_ptr<CallSpace> space = borrow(crew.size(), 1, pass.shards, pass.rows, sharded);
  TeamSpace& shared = *space->teams[0];
  prepare(shared, pass.rows);
  for (Buffer<T>* buffer :
       {&shared.theta, &shared.scale, &shared.mean_gradient, &shared.scale_gradient}) {
    buffer->resize(dim_);
  }
  if (paired) {
    for (Buffer<T>* buffer : {&shared.noise, &shared.second, &shared.second_gradient}) {
      buffer->resize(dim_);
    }
    shared.packed_second.resize(walk_ ? paired_walk_->packed_size : plan_.packed_size);
    shared.pair_grads.resize(2 * pass.shards * dim_);
    if (pass.all) shared.rows.clear();
    if (spread && (!shared.pair || shared.pair->block() < panels)) {
      shared.pair = std::make_unique<PairSpace<T>>(plan_, panels);
    }
    if (spread) {
      shared.panel_noise.resize(static_cast<std::size_t>(panels));
      shared.panel_ll.resize(static_cast<std::size_t>(panels));
    }
  }
  shared.chunk_log_q.resize(static_cast<std::size_t>(chunk_count()));
  shared.chunk_log_prior.assign(static_cast<std::size_t>(chunk_count()), 0.0);
  const Batch* everything = pass.all ? &full_batch() : nullptr;
  Cancel cancel(poll);
  for_each_chain(crew, 1, cancel, [&](Team& team, int index, int thread, std::int64_t, int) {
    const Member m{team,
                   index,
                   shared,
                   *space->threads[static_cast<std::size_t>(thread)],
                   pass.all ? *everything : shared.batch,
                   pass.shards,
                   shared.grad.data(),
                   space->walk(thread),
                   pass.pieces};
    T *theta = shared.theta.data(), *scale = shared.scale.data();
    const std::int64_t begin = std::min(dim_, m.first(chunk_count()) * kChunk);
    const std::int64_t size = std::min(dim_, m.last(chunk_count()) * kChunk) - begin;
    const auto element = static_cast<std::uint64_t>(begin);
    EpochRows epoch(steps.seed, 0, rows_, steps.batch_rows);
    for (std::int64_t i = 0; i < steps.num_steps; ++i) {
      const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
      if (!pass.all) take_batch(m, epoch, step, false);
      k.softplus(state.rho + begin, scale + begin, size);
      closed_values(m, state.mean, steps.closed);
      const std::uint32_t c1 = counter_step(step),
                          c3 = counter_purpose(kPurposeWeightNoise, 0, step);
      if (index == 0) {
        steps.log_likelihood[i] = 0;
        steps.log_prior[i] = 0;
      }
      for (std::int64_t sample = 0; sample < steps.samples; ++sample) {
        const auto c2 = static_cast<std::uint32_t>(sample);
        if (draws) {
          k.reparameterize(state.mean + begin, scale + begin, theta + begin, size, element,
                           steps.seed, c1, c2, c3);
        }
        if (paired) {
          PairSpace<T>* pair =
              sharded ? space->pairs[static_cast<std::size_t>(thread)].get() : nullptr;
          if (!paired_gradient(m, pair, steps, i, sample, state.mean)) return false;
        } else {
          const Wanted wanted{true, true, steps.closed ? 0.0 : steps.kl_weight[i]};
          if (!run_shards(m, theta, wanted)) return false;
          combine(m, theta, wanted, [&](std::int64_t b, std::int64_t e) {
            k.noise_gradient(m.grad + b, e - b, static_cast<std::uint64_t>(b), steps.seed, c1, c2,
                             c3, sample == 0, shared.mean_gradient.data() + b,
                             shared.scale_gradient.data() + b);
          });
          if (!m.barrier()) return false;
        }
        if (index == 0) {
          double ll = 0, logp = 0;
          sum_terms(m, &ll, &logp);
          steps.log_likelihood[i] += ll / static_cast<double>(steps.samples);
          steps.log_prior[i] += logp / static_cast<double>(steps.samples);
        }
      }
      if (index == 0) {
        steps.log_q[i] = 0;
        for (const double chunk : shared.chunk_log_q) steps.log_q[i] += chunk;
        for (const double chunk : shared.chunk_log_prior) steps.log_prior[i] += chunk;
      }
      if (!move_variational(m, steps, i, state)) {
        shared.failed.store(true, std::memory_order_relaxed);
      }
      if (!m.barrier()) return false;
      if (shared.failed.load(std::memory_order_relaxed)) {
        if (index == 0) *outcome = {i, largest_size(shared.mean_gradient.data(), dim_)};
        return true;
      }
      if (m.team.cancel().check()) return false;
    }
    if (index == 0) *outcome = {-1, 0.0};
    return true;
  });
  give_back(std::move(space));
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T)                                                                      \
  template std::int64_t LogDensity<T>::pair_shards(std::int64_t) const;                            \
  template void LogDensity<T>::paired_shard(const Member&, PairSpace<T>&, const PairedWeights<T>&, \
                                            std::int64_t) const;                                   \
  template bool LogDensity<T>::spread_pair(const Member&, const PairedWeights<T>&) const;          \
  template bool LogDensity<T>::paired_gradient(                                                    \
      const Member&, PairSpace<T>*, const VariationalSteps&, std::int64_t, std::int64_t, const T*) \
      const;                                                                                       \
  template void LogDensity<T>::closed_values(const Member&, const T*, bool) const;                 \
  template bool LogDensity<T>::move_variational(const Member&, const VariationalSteps&,            \
                                                std::int64_t, const VariationalState<T>&) const;   \
  template bool LogDensity<T>::advance_variational(                                                \
      const VariationalSteps&, const VariationalState<T>&, StochasticOutcome*, Poll*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
