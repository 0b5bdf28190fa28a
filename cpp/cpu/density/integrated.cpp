// Gradients where the last layer is integrated out, in three parts: the products of all features,
// shard by shard; what follows from their sum, by one member; and the layers below once more, with
// the deltas that this gives to the features.

#include <cmath>

#include "cpu/density/evaluator.h"

namespace ribbit::cpu {
namespace {

template <class T>
struct Products final : PanelLoss<T> {
  const LastLayer& layer;
  const Batch<T>& batch;
  double *scratch, *sums;

  Products(const LastLayer& last, const Batch<T>& rows, double* space, double* products)
      : layer(last), batch(rows), scratch(space), sums(products) {}
  void operator()(std::int64_t p, const T* f, T*) override {
    kernels<T>().gram(f, layer.inputs, layer.bias, batch.y.panel(p), layer.outputs,
                      batch.x.valid(p), scratch, sums);
  }
};

template <class T>
struct Deltas final : PanelLoss<T> {
  const LastLayer& layer;
  const Batch<T>& batch;
  const LastLayerSpace<T>& space;

  Deltas(const LastLayer& last, const Batch<T>& rows, const LastLayerSpace<T>& shared)
      : layer(last), batch(rows), space(shared) {}
  void operator()(std::int64_t p, const T* f, T* delta) override {
    last_layer_delta(layer, space, f, batch.y.panel(p), batch.x.valid(p), delta);
  }
};

}  // namespace

template <class T>
LastLayerNoise Evaluator<T>::last_layer_noise(const T* theta) const {
  const double posterior = temperatures_.posterior;
  const double log_scale =
      traits_.learns_noise ? static_cast<double>(theta[noise_at()]) : std::log(constants_.scale);
  return {log_scale, temperatures_.likelihood * posterior, posterior};
}

template <class T>
bool Evaluator<T>::sum_products(const Member<T>& m, const T* theta, bool gradient) const {
  LastLayerSpace<T>& s = m.shared.last;
  const std::int64_t size = last_->products();
  if (!last_->alone && packs(m)) {
    if (!pack_weights(m, theta, gradient)) return false;
  } else if (!m.barrier()) {  // theta is written
    return false;
  }
  const T* packed = packs(m) ? m.shared.packed.data() : nullptr;
  double* scratch =
      s.scratch.data() + m.index * (last_->columns() + last_->width()) * std::int64_t{kPanel};
  for (std::int64_t shard = m.first(m.shards); shard < m.last(m.shards); ++shard) {
    if (m.team.cancel().cancelled()) return false;
    double* sums = s.shard_products.data() + shard * size;
    std::fill_n(sums, size, 0.0);
    Products<T> products(*last_, m.batch, scratch, sums);
    const std::int64_t first = m.first_panel(shard), end = m.last_panel(shard);
    if (last_->alone) {
      for (std::int64_t p = first; p < end; ++p) products(p, m.batch.x.panel(p), nullptr);
    } else {
      pass_->run_shard({m.batch.x, first, end, theta, packed, nullptr, nullptr}, m.own, products,
                       m.team.cancel());
    }
  }
  if (!m.barrier()) return false;
  if (m.index == 0) {
    kernels<double>().tree_sum(s.shard_products.data(), size, m.shards, size, s.products.data());
  }
  return true;
}

template <class T>
bool Evaluator<T>::integrated_shards(const Member<T>& m, const T* theta, Wanted wanted) const {
  LastLayerSpace<T>& s = m.shared.last;
  if (!sum_products(m, theta, wanted.gradient)) return false;
  if (m.index == 0) {
    integrate(*last_, last_layer_noise(theta), rows_, wanted.gradient, s);
    // Untempered, as all terms here.
    std::fill_n(m.shared.shard_ll, m.shards, 0.0);
    m.shared.shard_ll[0] = s.value * (temperatures_.likelihood * temperatures_.posterior);
  }
  if (!m.barrier()) return false;
  if (!wanted.gradient) return true;
  const T* packed = packs(m) ? m.shared.packed.data() : nullptr;
  Deltas<T> deltas(*last_, m.batch, s);
  for (std::int64_t shard = m.first(m.shards); shard < m.last(m.shards); ++shard) {
    if (m.team.cancel().cancelled()) return false;
    T* grad = m.shard_grad(shard, dim_);
    std::fill(grad, grad + dim_, T(0));
    if (!last_->alone) {
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
  return m.barrier();
}

#define RIBBIT_INSTANTIATE(T)                                                              \
  template LastLayerNoise Evaluator<T>::last_layer_noise(const T*) const;                  \
  template bool Evaluator<T>::sum_products(const Member<T>&, const T*, bool) const;        \
  template bool Evaluator<T>::integrated_shards(const Member<T>&, const T*, Wanted) const; \
  template bool Evaluator<T>::draw_last(const Member<T>&, const T*, const double*, T*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
