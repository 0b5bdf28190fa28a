// Mean-field steps whose rows go along two paths (mlp_row_noise.h): shards of a batch, or a batch
// split over the team.

#include <numeric>

#include "core/permutation_hd.h"
#include "cpu/density/team_evaluation.h"
#include "cpu/density/variational.h"
#include "cpu/network/graph_row_noise.h"

namespace ribbit::cpu {

// Two paths hold two gradients: shards of a panel or two, as long as their sum costs little.
template <class T>
std::int64_t LogDensity<T>::row_noise_shards(std::int64_t rows) const {
  if (graph_) return shard_count(rows);
  constexpr std::int64_t kRows = 2 * kPanel, kScalars = std::int64_t{4} << 20;
  std::int64_t shards = 1;
  while (shards < kMostShards && rows >= 2 * shards * kRows && 4 * shards * dim_ <= kScalars) {
    shards *= 2;
  }
  return shards;
}

template <class T>
void LogDensity<T>::row_noise_shard(const Member& m, RowNoiseSpace<T>& space,
                                    const RowNoiseWeights<T>& weights, std::int64_t shard) const {
  const Batch& batch = m.batch;
  const std::int64_t begin = m.first_panel(shard), end = m.last_panel(shard);
  const PanelLikelihood likelihood(*this, batch, m.shared.theta.data(), true);
  const std::int64_t outputs = network_.output_size();
  T* first = m.shared.row_noise_grads.data() + 2 * shard * dim_;
  T* second = first + dim_;
  std::fill_n(first, 2 * dim_, T(0));
  double ll = 0, noise = 0;
  const auto numbers = [&](std::int64_t p) {
    return m.shared.rows.empty() ? nullptr : m.shared.rows.data() + p * kPanel;
  };
  for (std::int64_t p = begin; graph_ && p < end; ++p) {
    GraphRowNoiseSpace<T>& walk = *space.graph;
    const std::int64_t at = p * kPanel, count = batch.x.rows - at;
    const T *drawn = m.shared.theta.data(), *input = graph_input(batch, p, walk.first);
    const T* f = graph_row_noise_forward(*row_noise_plan_, weights, drawn, input, numbers(p), at,
                                         count, walk);
    likelihood(batch, p, f, walk.first.delta(row_noise_plan_->output), ll, noise);
    graph_row_noise_backward(*row_noise_plan_, weights, drawn, input, numbers(p), at, count, walk,
                             first, second);
    if (m.team.cancel().check()) return;
  }
  for (std::int64_t p = begin; !graph_ && p < end; p += space.block()) {
    const std::int64_t count = std::min(space.block(), end - p), left = batch.x.rows - p * kPanel;
    const T* f = row_noise_forward(plan_, weights, batch.x.panel(p), 0, count, numbers(p),
                                   p * kPanel, left, space);
    T* delta = output_delta(plan_, 0, space.first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = i * outputs * kPanel;
      likelihood(batch, p + i, f + place, delta + place, ll, noise);
    }
    row_noise_backward(plan_, weights, 0, count, space);
    row_noise_gradients(plan_, weights.estimator, batch.x.panel(p), 0,
                        std::min(count * kPanel, left), 0, 1, space, space.first.scratch(), first,
                        second);
    if (m.team.cancel().check()) return;
  }
  // Of what is drawn once for all rows, the gradient by its noise is that by itself.
  for (const Layer::Array& array : drawn_[static_cast<std::size_t>(weights.estimator)]) {
    if (graph_) std::copy_n(first + array.offset, array.size, second + array.offset);
  }
  m.shared.shard_noise[shard] = likelihood.weight * noise;
  m.shared.shard_ll[shard] = ll;
}

// The same for a batch of one shard, every member its panels, then its part of each layer. What
// follows needs a barrier; false when cancelled.
template <class T>
bool LogDensity<T>::split_row_noise(const Member& m, const RowNoiseWeights<T>& weights) const {
  TeamSpace& s = m.shared;
  const Batch& batch = m.batch;
  RowNoiseSpace<T>& space = *s.row_noise;
  const std::int64_t panels = panel_count(batch.x.rows), outputs = network_.output_size();
  const PanelLikelihood likelihood(*this, batch, s.theta.data(), true);
  const std::int64_t last = m.last(panels), block = m.own.block();
  for (std::int64_t p = m.first(panels); p < last; p += block) {
    const std::int64_t count = std::min(block, last - p);
    const T* f = row_noise_forward(plan_, weights, batch.x.panel(p), p, count,
                                   s.rows.empty() ? nullptr : s.rows.data() + p * kPanel,
                                   p * kPanel, batch.x.rows - p * kPanel, space);
    T* delta = output_delta(plan_, p, space.first);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<std::size_t>(p + i);
      const std::int64_t place = i * outputs * kPanel;
      s.panel_noise[number] = s.panel_ll[number] = 0;
      likelihood(batch, p + i, f + place, delta + place, s.panel_ll[number], s.panel_noise[number]);
    }
    row_noise_backward(plan_, weights, p, count, space);
    if (m.team.cancel().check()) return false;
  }
  if (!m.barrier()) return false;
  T *first = s.row_noise_grads.data(), *second = first + dim_;
  clear_part(plan_, m.index, m.team.size(), first);
  clear_part(plan_, m.index, m.team.size(), second);
  for (std::int64_t p = 0; p < panels; p += block) {
    const std::int64_t rows = std::min(block * kPanel, batch.x.rows - p * kPanel);
    row_noise_gradients(plan_, weights.estimator, batch.x.panel(p), p, rows, m.index, m.team.size(),
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
bool LogDensity<T>::row_noise_gradient(const Member& m, RowNoiseSpace<T>* space,
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
  if (graph_) {
    pack_graph_row_noise(*row_noise_plan_, mean, s.second.data(), s.theta.data(), m.index,
                         m.team.size(), s.packed.data(), s.packed_second.data());
  } else {
    pack_weights(plan_, mean, true, m.index, m.team.size(), s.packed.data());
    pack_weights(plan_, s.second.data(), true, m.index, m.team.size(), s.packed_second.data());
  }
  if (!m.barrier()) return false;
  const RowNoiseWeights<T> weights{steps.estimator,
                                   local ? mean : s.theta.data(),
                                   s.second.data(),
                                   s.packed.data(),
                                   s.packed_second.data(),
                                   steps.seed,
                                   step,
                                   c2};
  if (space == nullptr && !split_row_noise(m, weights)) return false;
  for (std::int64_t shard = m.first(m.shards); space != nullptr && shard < m.last(m.shards);
       ++shard) {
    row_noise_shard(m, *space, weights, shard);
  }
  if (!m.barrier()) return false;
  const double prior = steps.closed ? 0.0 : steps.kl_weight[i];
  const bool learned = traits_.learns_noise;
  // The gradients by the two paths: of a single shard where they lie.
  T *all_first = s.row_noise_grads.data(), *all_second = all_first + dim_;
  if (m.shards > 1) {
    all_first = s.grad.data();
    all_second = s.second_gradient.data();
  }
  for (std::int64_t at = begin; at < end; at += kChunk) {
    const std::int64_t n = std::min(kChunk, end - at);
    T *first = all_first + at, *second = all_second + at;
    if (m.shards > 1) {
      const T* shards = s.row_noise_grads.data() + at;
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

#define RIBBIT_INSTANTIATE(T)                                                                   \
  template std::int64_t LogDensity<T>::row_noise_shards(std::int64_t) const;                    \
  template void LogDensity<T>::row_noise_shard(const Member&, RowNoiseSpace<T>&,                \
                                               const RowNoiseWeights<T>&, std::int64_t) const;  \
  template bool LogDensity<T>::split_row_noise(const Member&, const RowNoiseWeights<T>&) const; \
  template bool LogDensity<T>::row_noise_gradient(const Member&, RowNoiseSpace<T>*,             \
                                                  const VariationalSteps&, std::int64_t,        \
                                                  std::int64_t, const T*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
