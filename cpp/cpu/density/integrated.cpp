// Gradients where the last layer is integrated out, in three parts: the products of all features,
// shard by shard; what follows from their sum, by one member; and the layers below once more, with
// the deltas that this gives to the features. What the way forwards leaves is kept where it fits in
// a core's cache: then the third part is the way back alone.

#include <algorithm>
#include <cmath>

#include "cpu/density/evaluator.h"
#include "cpu/network/mlp_pass.h"

namespace ribbit::cpu {
// Of a shard, from start() to finish(); scratch: (layer.scratch(),).
template <class T>
struct Products final : PanelLoss<T> {
  const LastLayer& layer;
  const Batch<T>& batch;
  double *const scratch, *const sums;

  Products(const LastLayer& last, const Batch<T>& rows, double* space, double* products)
      : layer(last), batch(rows), scratch(space), sums(products) {
    std::fill_n(layer.few() ? scratch : sums, layer.few() ? layer.lanes() : layer.products(), 0.0);
  }
  void operator()(std::int64_t p, const T* f, T*) override { add(p, 1, f); }
  // f: (panels, H, kPanel), of panels p and on, at most kGroupPanels.
  void add(std::int64_t p, std::int64_t panels, const T* f) {
    const KernelTable<T>& k = kernels<T>();
    if (layer.few()) {
      const std::int64_t rows = std::min(panels * kPanel, batch.x.rows - p * kPanel);
      k.gram_lanes(f, layer.inputs, layer.bias, batch.y.panel(p), layer.outputs, panels, rows,
                   batch.row_weights(p), scratch + layer.lanes(), scratch);
      return;
    }
    for (std::int64_t i = 0; i < panels; ++i) {
      k.gram(f + i * layer.inputs * kPanel, layer.inputs, layer.bias, batch.y.panel(p + i),
             layer.outputs, batch.x.valid(p + i), batch.row_weights(p + i), scratch, sums);
    }
  }
  void finish() {
    if (layer.few()) kernels<T>().gram_finish(scratch, layer.columns(), layer.width, sums);
  }
};

namespace {

template <class T>
struct Deltas final : PanelLoss<T> {
  const LastLayer& layer;
  const Batch<T>& batch;
  const LastLayerSpace<T>& space;

  Deltas(const LastLayer& last, const Batch<T>& rows, const LastLayerSpace<T>& shared)
      : layer(last), batch(rows), space(shared) {}
  void operator()(std::int64_t p, const T* f, T* delta) override {
    last_layer_delta(layer, space, f, batch.y.panel(p), batch.row_weights(p), 1, batch.x.valid(p),
                     delta);
  }
};

}  // namespace

template <class T>
LastLayerNoise Evaluator<T>::last_layer_noise(const T* theta) const {
  const double log_scale =
      traits_.learns_noise ? static_cast<double>(theta[noise_at()]) : std::log(constants_.scale);
  return {log_scale, temperatures_.likelihood * temperatures_.posterior};
}

// Room for what the way forwards leaves, of all shards of a chain or of none.
template <class T>
void Evaluator<T>::keep_shards(TeamSpace<T>& space, std::int64_t rows, std::int64_t shards) const {
  constexpr std::int64_t kCacheBytes = 8 << 20;  // a share of the last-level cache
  const MlpPlan* plan = pass_->mlp_plan();
  const std::int64_t panels = panel_count(rows);
  if (plan == nullptr || last_->alone || plan->kept_bytes(panels, sizeof(T)) > kCacheBytes) {
    space.kept.clear();
    return;
  }
  space.kept.resize(static_cast<std::size_t>(shards));
  for (std::int64_t s = 0; s < shards; ++s) {
    KeptShard<T>& kept = space.kept[static_cast<std::size_t>(s)];
    const std::int64_t own = panels * (s + 1) / shards - panels * s / shards;
    if (kept.space && kept.space->block() == own) continue;
    kept.space = std::make_unique<Workspace<T>>(*plan, own);
    kept.features.resize(static_cast<std::size_t>(own));
  }
}

// As NetworkPass::run_shard, as far as the loss; false when cancelled.
template <class T>
bool Evaluator<T>::kept_forward(const Member<T>& m, std::int64_t shard, const T* theta,
                                const T* packed, Products<T>& products) const {
  const MlpPlan& plan = *pass_->mlp_plan();
  KeptShard<T>& kept = m.shared.kept[static_cast<std::size_t>(shard)];
  const std::int64_t first = m.first_panel(shard), panels = m.last_panel(shard) - first;
  const std::int64_t width = last_->inputs * kPanel;
  for (std::int64_t at = 0; at < panels; at += kGroupPanels) {
    const std::int64_t count = std::min(kGroupPanels, panels - at);
    const T* f = forward_group(plan, theta, packed, m.batch.x.panel(first + at), at, count, true,
                               *kept.space, nullptr, 0, 0, {}, between(plan, m.team.cancel()));
    if (f == nullptr) return false;
    for (std::int64_t i = 0; i < count; ++i) {
      kept.features[static_cast<std::size_t>(at + i)] = f + i * width;
    }
    products.add(first + at, count, f);
  }
  return true;
}

// The rest of it, its sums in the same order.
template <class T>
void Evaluator<T>::kept_backward(const Member<T>& m, std::int64_t shard, const T* theta,
                                 const T* packed, T* grad) const {
  const MlpPlan& plan = *pass_->mlp_plan();
  const KeptShard<T>& kept = m.shared.kept[static_cast<std::size_t>(shard)];
  Workspace<T>& space = *kept.space;
  Cancel* const asked = between(plan, m.team.cancel());
  const std::int64_t first = m.first_panel(shard), panels = m.last_panel(shard) - first;
  const std::int64_t step = plan.block_panels(sizeof(T));
  clear_narrow_sums(plan, space);
  for (std::int64_t block = 0; block < panels; block += step) {
    const std::int64_t stop = std::min(panels, block + step);
    for (std::int64_t at = block; at < stop; at += kGroupPanels) {
      const std::int64_t count = std::min(kGroupPanels, stop - at);
      last_layer_delta(*last_, m.shared.last, kept.features[static_cast<std::size_t>(at)],
                       m.batch.y.panel(first + at), m.batch.row_weights(first + at), count,
                       std::min(count * kPanel, rows_ - (first + at) * kPanel),
                       output_delta(plan, at, space));
      backward_group<T>(plan, theta, packed, m.batch.x.panel(first + at), at, count, true, space,
                        nullptr, asked);
    }
    const std::int64_t begin = (first + block) * kPanel;
    const std::int64_t rows = std::min((first + stop) * kPanel, m.batch.x.rows) - begin;
    block_gradient(plan, m.batch.x.panel(first + block), block, rows, Part{}, space,
                   space.scratch(), grad, asked);
  }
  add_narrow_sums(plan, space, grad);
}

template <class T>
bool Evaluator<T>::sum_products(const Member<T>& m, const T* theta, bool gradient) const {
  LastLayerSpace<T>& s = m.shared.last;
  const std::int64_t size = last_->products();
  const bool single = m.shards == 1;
  if (!last_->alone && packs(m)) {
    if (!pack_weights(m, theta, gradient)) return false;
  } else if (!m.barrier()) {  // theta is written
    return false;
  }
  const T* packed = packs(m) ? m.shared.packed.data() : nullptr;
  double* scratch = s.scratch.data() + m.index * last_->scratch();
  for (std::int64_t shard = m.first(m.shards); shard < m.last(m.shards); ++shard) {
    if (m.team.cancel().cancelled()) return false;
    double* sums = single ? s.products.data() : s.shard_products.data() + shard * size;
    Products<T> products(*last_, m.batch, scratch, sums);
    const std::int64_t first = m.first_panel(shard), end = m.last_panel(shard);
    if (last_->alone) {
      for (std::int64_t p = first; p < end; ++p) products(p, m.batch.x.panel(p), nullptr);
    } else if (gradient && !m.shared.kept.empty()) {
      if (!kept_forward(m, shard, theta, packed, products)) return false;
    } else {
      pass_->run_shard({m.batch.x, first, end, theta, packed, nullptr, nullptr}, m.own, products,
                       m.team.cancel());
    }
    products.finish();
  }
  if (!m.barrier()) return false;
  if (m.index == 0 && !single) {
    kernels<double>().tree_sum(s.shard_products.data(), size, m.shards, size, s.products.data());
  }
  return true;
}

template <class T>
bool Evaluator<T>::integrated_shards(const Member<T>& m, const T* theta, Wanted wanted) const {
  LastLayerSpace<T>& s = m.shared.last;
  if (!sum_products(m, theta, wanted.gradient)) return false;
  if (m.index == 0) {
    integrate(*last_, last_layer_noise(theta), total_rows_, wanted.values, wanted.gradient, s);
    // Untempered, as all terms here.
    std::fill_n(m.shared.shard_ll, m.shards, 0.0);
    if (wanted.values) {
      m.shared.shard_ll[0] = s.value * (temperatures_.likelihood * temperatures_.posterior);
    }
  }
  if (!m.team.gather()) return false;
  if (!wanted.gradient) return true;
  const T* packed = packs(m) ? m.shared.packed.data() : nullptr;
  Deltas<T> deltas(*last_, m.batch, s);
  for (std::int64_t shard = m.first(m.shards); shard < m.last(m.shards); ++shard) {
    if (m.team.cancel().cancelled()) return false;
    T* grad = m.shard_grad(shard, dim_);
    std::fill(grad, grad + dim_, T(0));
    if (!m.shared.kept.empty()) {
      kept_backward(m, shard, theta, packed, grad);
    } else if (!last_->alone) {
      pass_->run_shard(
          {m.batch.x, m.first_panel(shard), m.last_panel(shard), theta, packed, nullptr, grad},
          m.own, deltas, m.team.cancel());
    }
    if (shard == 0 && traits_.learns_noise) grad[noise_at()] = static_cast<T>(s.noise_gradient);
  }
  return m.barrier();
}

template <class T>
bool Evaluator<T>::draw_last(const Member<T>& m, const T* theta, const double* normals,
                             T* weights) const {
  if (!sum_products(m, theta, false)) return false;
  if (m.index == 0) {
    draw_last_layer(*last_, last_layer_noise(theta), normals, m.shared.last, weights);
  }
  return m.team.gather();
}

#define RIBBIT_INSTANTIATE(T)                                                                   \
  template LastLayerNoise Evaluator<T>::last_layer_noise(const T*) const;                       \
  template void Evaluator<T>::keep_shards(TeamSpace<T>&, std::int64_t, std::int64_t) const;     \
  template bool Evaluator<T>::kept_forward(const Member<T>&, std::int64_t, const T*, const T*,  \
                                           Products<T>&) const;                                 \
  template void Evaluator<T>::kept_backward(const Member<T>&, std::int64_t, const T*, const T*, \
                                            T*) const;                                          \
  template bool Evaluator<T>::sum_products(const Member<T>&, const T*, bool) const;             \
  template bool Evaluator<T>::integrated_shards(const Member<T>&, const T*, Wanted) const;      \
  template bool Evaluator<T>::draw_last(const Member<T>&, const T*, const double*, T*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
