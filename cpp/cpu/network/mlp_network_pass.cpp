#include "cpu/network/mlp_network_pass.h"

#include <algorithm>
#include <vector>

#include "cpu/network/mlp_pass.h"
#include "cpu/network/mlp_row_noise.h"

namespace ribbit::cpu {

namespace {

// The panels [first, last) of a batch, at most a block: where they lie, or packed now.
template <class T>
const T* block_of(const BatchRows<T>& batch, std::int64_t first, std::int64_t last,
                  Workspace<T>& space, std::int64_t block) {
  if (batch.buffer.size() > 0) return batch.panel(first);
  const std::int64_t size = batch.features * kPanel;
  space.input.resize(block * size);
  for (std::int64_t p = first; p < last; ++p) {
    batch.source.pack(batch.features, batch.numbers, p * kPanel, batch.valid(p),
                      space.input.data() + (p - first) * size);
  }
  return space.input.data();
}

}  // namespace

template <class T>
MlpPass<T>::MlpPass(const Network& network, bool masks, bool concrete)
    : plan_(network, masks, concrete),
      inputs_(network.input_size()),
      outputs_(network.output_size()) {}

template <class T>
void MlpPass<T>::pack(const T* theta, bool backward, const Part& part, T* packed) const {
  pack_weights(plan_, theta, backward, part, packed);
}

template <class T>
std::unique_ptr<PassSpace> MlpPass<T>::space(PassUse use) const {
  if (use == PassUse::kRowNoise) return std::make_unique<RowNoiseSpace<T>>(plan_);
  return std::make_unique<Workspace<T>>(plan_, use == PassUse::kGradient);
}

template <class T>
std::int64_t MlpPass<T>::space_bytes(PassUse use) const {
  if (use == PassUse::kRowNoise) return RowNoiseSpace<T>(plan_).bytes();
  return Workspace<T>(plan_, use == PassUse::kGradient).bytes();
}

template <class T>
std::int64_t MlpPass<T>::shard_count(PassUse use, std::int64_t rows, std::int64_t dim) const {
  std::int64_t shards = 1;
  if (use == PassUse::kRowNoise) {
    // Two paths hold two gradients: shards of a panel or two, as long as their sum costs little.
    constexpr std::int64_t kRows = 2 * kPanel, kScalars = std::int64_t{4} << 20;
    while (shards < kMostShards && rows >= 2 * shards * kRows && 4 * shards * dim <= kScalars) {
      shards *= 2;
    }
    return shards;
  }
  // Each shard costs a pass over dim scalars: cheap while they stay in cache, else it needs more
  // rows to be worth it.
  const std::int64_t rows_per_shard =
      dim * static_cast<std::int64_t>(sizeof(T)) > (128 << 10) ? 1024 : 256;
  while (shards < kMostShards && rows >= 2 * shards * rows_per_shard) shards *= 2;
  return shards;
}

template <class T>
void MlpPass<T>::take_rows(const Rows<T>& x, const std::int64_t* numbers, std::int64_t count,
                           BatchRows<T>& out) const {
  pack_rows(x, inputs_, numbers, count, out);
}

template <class T>
typename NetworkPass<T>::Prefix MlpPass<T>::prefix() const {
  std::size_t stages = 0;
  while (stages < plan_.stages.size() && plan_.stages[stages].layer.op != Op::kDropout) ++stages;
  return {stages, stages > 0 ? plan_.stages[stages - 1].layer.out_size : inputs_};
}

template <class T>
const T* MlpPass<T>::forward(const T* theta, const T* packed, const T* input, std::int64_t panels,
                             const Masks* masks, std::int64_t first, std::int64_t rows,
                             StageRange range, PassSpace& space, Cancel& cancel) const {
  return forward_group(plan_, theta, packed, input, 0, panels, false,
                       static_cast<Workspace<T>&>(space), masks, first, rows, range,
                       between(plan_, cancel));
}

template <class T>
void MlpPass<T>::run_shard(const ShardArgs<T>& shard, PassSpace& thread_space, PanelLoss<T>& loss,
                           Cancel& cancel) const {
  const auto& [batch, begin, end, theta, packed, masks, grad, marks] = shard;
  auto& space = static_cast<Workspace<T>&>(thread_space);
  const bool gradient = grad != nullptr;
  if (gradient) clear_narrow_sums(plan_, space);
  std::vector<double> rates(static_cast<std::size_t>(plan_.rates), 0.0);
  std::vector<double> panel_rates(static_cast<std::size_t>(space.group()) * rates.size());
  for (std::int64_t block = begin; block < end; block += space.block()) {
    const std::int64_t stop = std::min(block + space.block(), end);
    const T* const x = block_of(batch, block, stop, space, space.block());
    for (std::int64_t p = block; p < stop; p += space.group()) {
      const std::int64_t at = p - block, count = std::min(space.group(), stop - p);
      const T* const input = x + at * inputs_ * kPanel;
      const T* f = forward_group(plan_, theta, packed, input, at, count, gradient, space, masks,
                                 p * kPanel, batch.rows - p * kPanel, {}, between(plan_, cancel));
      if (f == nullptr) return;
      T* delta = output_delta(plan_, at, space);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t place = i * outputs_ * kPanel;
        loss(p + i, f + place, delta + place);
      }
      if (!gradient) continue;
      std::fill(panel_rates.begin(), panel_rates.end(), 0.0);
      backward_group(plan_, theta, packed, input, at, count, true, space, panel_rates.data(),
                     between(plan_, cancel));
      for (std::size_t i = 0; i < static_cast<std::size_t>(count) * rates.size(); ++i) {
        rates[i % rates.size()] += panel_rates[i];
      }
    }
    if (gradient) {
      const std::int64_t rows = std::min(stop * kPanel, batch.rows) - block * kPanel;
      block_gradient(plan_, x, 0, rows, Part{}, space, space.scratch(), grad,
                     between(plan_, cancel));
    }
    if (cancel.check()) return;
  }
  if (!gradient) return;
  add_narrow_sums(plan_, space, grad);
  for (std::size_t l = 0; l < rates.size(); ++l) {
    grad[masks->logits + static_cast<std::int64_t>(l)] = static_cast<T>(rates[l]);
  }
}

template <class T>
void MlpPass<T>::pack_row_noise(const T* mean, const T* second, const T*, const Part& part,
                                T* packed_first, T* packed_second) const {
  pack_weights(plan_, mean, true, part, packed_first);
  pack_weights(plan_, second, true, part, packed_second);
}

template <class T>
void MlpPass<T>::run_row_noise(const RowNoiseArgs<T>& shard, PassSpace& thread_space,
                               PanelLoss<T>& loss, Cancel& cancel) const {
  const BatchRows<T>& batch = shard.rows;
  auto& space = static_cast<RowNoiseSpace<T>&>(thread_space);
  for (std::int64_t p = shard.first; p < shard.last; p += space.block()) {
    const std::int64_t count = std::min(space.block(), shard.last - p), first = p * kPanel;
    const std::int64_t left = batch.rows - first;
    const T* f = row_noise_forward(plan_, shard.weights, batch.panel(p), 0, count,
                                   shard.numbers != nullptr ? shard.numbers + first : nullptr,
                                   first, left, space, between(plan_, cancel));
    if (f == nullptr) return;
    T* delta = output_delta(plan_, 0, space.first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = i * outputs_ * kPanel;
      loss(p + i, f + place, delta + place);
    }
    row_noise_backward(plan_, shard.weights, 0, count, space, between(plan_, cancel));
    row_noise_gradients(plan_, shard.weights.estimator, batch.panel(p), 0,
                        std::min(count * kPanel, left), Part{}, space, space.first.scratch(),
                        shard.by_first, shard.by_second, between(plan_, cancel));
    if (cancel.check()) return;
  }
}

template class MlpPass<float>;
template class MlpPass<double>;

}  // namespace ribbit::cpu
