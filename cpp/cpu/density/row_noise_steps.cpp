#include "cpu/density/row_noise_steps.h"

#include <numeric>

#include "cpu/density/minibatch.h"

namespace ribbit::cpu {

template <class T>
void row_noise_shard(const Evaluator<T>& evaluator, const Member<T>& m,
                     const RowNoiseWeights<T>& weights, std::int64_t shard) {
  const T* drawn = m.shared.theta.data();
  ShardLikelihood<T> likelihood(evaluator, m.batch, drawn, true);
  T* first = m.shared.row_noise_grads.data() + 2 * shard * evaluator.dim();
  T* second = first + evaluator.dim();
  std::fill_n(first, 2 * evaluator.dim(), T(0));
  const std::int64_t* numbers = m.shared.rows.empty() ? nullptr : m.shared.rows.data();
  evaluator.network_pass().run_row_noise({m.batch.x, m.first_panel(shard), m.last_panel(shard),
                                          weights, drawn, numbers, first, second},
                                         m.own, likelihood, m.team.cancel());
  // Of what is drawn once for all rows, the gradient by its noise is that by itself.
  for (const Layer::Array& array : evaluator.drawn(weights.estimator)) {
    std::copy_n(first + array.offset, array.size, second + array.offset);
  }
  for (std::size_t k = 0; k < likelihood.noise.size(); ++k) {
    m.shared.shard_noise[static_cast<std::size_t>(shard) * likelihood.noise.size() + k] =
        likelihood.panel.weight * likelihood.noise[k];
  }
  m.shared.shard_ll[shard] = likelihood.ll;
}

// The same for a batch of one shard, every member its panels, then its part of each layer. What
// follows needs a barrier; false when cancelled.
template <class T>
bool split_row_noise(const Evaluator<T>& evaluator, const Member<T>& m,
                     const RowNoiseWeights<T>& weights) {
  const MlpPlan& plan = *evaluator.network_pass().mlp_plan();
  TeamSpace<T>& s = m.shared;
  const Batch<T>& batch = m.batch;
  RowNoiseSpace<T>& space = *s.row_noise;
  auto& own = static_cast<Workspace<T>&>(m.own);
  Cancel* const asked = between(plan, m.team.cancel());
  const std::int64_t panels = panel_count(batch.x.rows),
                     outputs = evaluator.network().output_size();
  const PanelLikelihood<T> likelihood(evaluator, batch, s.theta.data(), true);
  const std::int64_t last = m.last(panels), block = own.block();
  for (std::int64_t p = m.first(panels); p < last; p += block) {
    const std::int64_t count = std::min(block, last - p);
    const T* f = row_noise_forward(plan, weights, batch.x.panel(p), p, count,
                                   s.rows.empty() ? nullptr : s.rows.data() + p * kPanel,
                                   p * kPanel, batch.x.rows - p * kPanel, space, asked);
    if (f == nullptr) return false;
    T* delta = output_delta(plan, p, space.first);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto number = static_cast<std::size_t>(p + i);
      const std::int64_t place = i * outputs * kPanel;
      double* const noise = s.panel_noise.data() + (p + i) * likelihood.learned;
      s.panel_ll[number] = 0;
      std::fill_n(noise, likelihood.learned, 0.0);
      likelihood(p + i, f + place, delta + place, s.panel_ll[number], noise);
    }
    row_noise_backward(plan, weights, p, count, space, asked);
    if (m.team.cancel().check()) return false;
  }
  if (!m.barrier()) return false;
  T *first = s.row_noise_grads.data(), *second = first + evaluator.dim();
  const Part part = evaluator.part(m);
  clear_part(plan, part, first);
  clear_part(plan, part, second);
  for (std::int64_t p = 0; p < panels; p += block) {
    const std::int64_t rows = std::min(block * kPanel, batch.x.rows - p * kPanel);
    row_noise_gradients(plan, weights.estimator, batch.x.panel(p), p, rows, part, space,
                        own.scratch(), first, second, asked);
    if (m.team.cancel().check()) return false;
  }
  if (m.index != 0) return true;
  // The log noise has no layer: its gradient comes from shard_noise.
  std::fill_n(first + evaluator.network().dim(), evaluator.dim() - evaluator.network().dim(), T(0));
  std::fill_n(second + evaluator.network().dim(), evaluator.dim() - evaluator.network().dim(),
              T(0));
  for (std::int64_t k = 0; k < likelihood.learned; ++k) {
    s.shard_noise[static_cast<std::size_t>(k)] =
        likelihood.noise_gradient(s.panel_noise, panels, k);
  }
  s.shard_ll[0] = std::accumulate(s.panel_ll.begin(), s.panel_ll.begin() + panels, 0.0);
  return true;
}

// Adds one sample's gradients to mean_gradient and scale_gradient. shared.theta holds the drawn
// weights. False when cancelled; ends with a barrier.
template <class T>
bool row_noise_gradient(const Evaluator<T>& evaluator, const Member<T>& m, bool split,
                        const VariationalSteps& steps, std::int64_t i, std::int64_t sample,
                        const T* mean, double prior) {
  const KernelTable<T>& k = kernels<T>();
  TeamSpace<T>& s = m.shared;
  const bool local = steps.estimator == Estimator::kLocal;
  const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
  const std::uint32_t c1 = counter_step(step), c2 = static_cast<std::uint32_t>(sample),
                      c3 = counter_purpose(kPurposeWeightNoise, 0, step);
  const std::int64_t begin = std::min(evaluator.dim(), m.first(evaluator.chunk_count()) * kChunk);
  const std::int64_t end = std::min(evaluator.dim(), m.last(evaluator.chunk_count()) * kChunk);
  const T* scale = s.scale.data();
  const std::vector<Layer::Array>& drawn = evaluator.drawn(steps.estimator);
  if (!local || !drawn.empty()) {
    k.fill_normal(s.noise.data() + begin, end - begin, static_cast<std::uint64_t>(begin),
                  steps.seed, c1, c2, c3);
  }
  if (!split) m.own_pieces(m.shards);
  k.product(scale + begin, (local ? scale : s.noise.data()) + begin, end - begin,
            s.second.data() + begin);
  if (!m.barrier()) return false;
  evaluator.network_pass().pack_row_noise(mean, s.second.data(), s.theta.data(), evaluator.part(m),
                                          s.packed.data(), s.packed_second.data());
  if (!m.barrier()) return false;
  const RowNoiseWeights<T> weights{steps.estimator,
                                   local ? mean : s.theta.data(),
                                   s.second.data(),
                                   s.packed.data(),
                                   s.packed_second.data(),
                                   steps.seed,
                                   step,
                                   c2};
  const auto run = [&](std::int64_t shard) { row_noise_shard(evaluator, m, weights, shard); };
  if (split ? !split_row_noise(evaluator, m, weights) : !m.each_piece(m.shards, run)) return false;
  if (!m.barrier()) return false;
  const std::int64_t learned = evaluator.learned_noises();
  // The gradients by the two paths: of a single shard where they lie.
  T away[kChunk];  // of the drawn weights from the prior's centre
  T *all_first = s.row_noise_grads.data(), *all_second = all_first + evaluator.dim();
  if (m.shards > 1) {
    all_first = s.grad.data();
    all_second = s.second_gradient.data();
  }
  for (std::int64_t at = begin; at < end; at += kChunk) {
    const std::int64_t n = std::min(kChunk, end - at);
    T *first = all_first + at, *second = all_second + at;
    if (m.shards > 1) {
      const T* shards = s.row_noise_grads.data() + at;
      k.tree_sum(shards, 2 * evaluator.dim(), m.shards, n, first);
      k.tree_sum(shards + evaluator.dim(), 2 * evaluator.dim(), m.shards, n, second);
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
    for (const PriorSegment& segment : evaluator.prior()) {
      const std::int64_t b = std::max(at, segment.offset);
      const std::int64_t e = std::min(at + n, segment.offset + segment.size);
      if (prior == 0.0 || b >= e) continue;
      k.prior_segment(segment.kind, segment.constants,
                      evaluator.from_centre(s.theta.data(), b, e, away), e - b,
                      prior / evaluator.temperatures().posterior, &logp, all_first + b);
    }
    s.chunk_prior[static_cast<std::size_t>(at / kChunk)] = logp;
    const std::int64_t noise_begin = std::max(at, evaluator.noise_at());
    const std::int64_t noise_end = std::min(at + n, evaluator.noise_at() + learned);
    for (std::int64_t e = noise_begin; e < noise_end; ++e) {
      for (std::int64_t shard = 0; shard < m.shards; ++shard) {
        const std::int64_t place = shard * learned + e - evaluator.noise_at();
        first[e - at] += static_cast<T>(s.shard_noise[static_cast<std::size_t>(place)]);
      }
    }
    if (prior == 0.0 && noise_begin >= noise_end) continue;
    k.noise_gradient(first, n, static_cast<std::uint64_t>(at), steps.seed, c1, c2, c3, false,
                     by_mean, by_scale);
  }
  return m.barrier();
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template bool row_noise_gradient(const Evaluator<T>&, const Member<T>&, bool,                   \
                                   const VariationalSteps&, std::int64_t, std::int64_t, const T*, \
                                   double);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
