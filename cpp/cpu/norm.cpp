// Filter response normalisation, with the sum and the activation above it, and layer
// normalisation.

#include <algorithm>

#include "cpu/walk.h"

namespace ribbit::cpu {
namespace {

constexpr double kResponseEpsilon = 1e-6, kLayerEpsilon = 1e-5;

template <class T>
const T* third(const Layer& layer, const T* array) {
  return layer.third_offset >= 0 ? array + layer.third_offset : nullptr;
}

template <class T>
void response_forward(const Step& step, const T* theta, const T* x, const T* second, T* y,
                      T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  const std::int64_t channels = layer.window.channels, pixel = channels * kPanel;
  const T *gamma = theta + layer.weight_offset, *beta = theta + layer.bias_offset;
  T *r = state, *scale = state + pixel;
  k.response(x, step.places(), channels, gamma, static_cast<T>(kResponseEpsilon), r, scale);
  // Place by place, so that the activation finds its input in cache.
  for (std::int64_t p = 0; p < step.places(); ++p) {
    T* out = y + p * pixel;
    k.response_apply(x + p * pixel, 1, channels, scale, beta, third(layer, theta), out);
    if (second != nullptr) k.accumulate(second + p * pixel, pixel, out);
    if (step.activation >= 0) k.activation_forward(step.activation, out, pixel, out);
  }
}

// With S = sum of d z and M places: dz = gamma r d - gamma r^3 S / M z.
template <class T>
void response_way_back(const Step& step, const WayBack<T>& way) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  const std::int64_t channels = layer.window.channels, pixel = channels * kPanel;
  const T *r = way.state, *scale = way.state + pixel;
  const T *beta = way.theta + layer.bias_offset, *tau = third(layer, way.theta);
  T *sums = way.scratch, *by_z = sums + pixel, *by_cut = by_z + pixel, *shrink = by_cut + pixel;
  T *cut_off = shrink + pixel, *value = cut_off + pixel, *slope = value + pixel;
  std::fill_n(sums, 3 * pixel, T(0));
  for (std::int64_t p = 0; p < step.places(); ++p) {
    const T* z = way.in + p * pixel;
    T* delta = way.delta + p * pixel;
    const T* factor = nullptr;
    if (step.activation >= 0) {
      k.response_apply(z, 1, channels, scale, beta, tau, cut_off);
      if (way.second != nullptr) k.accumulate(way.second + p * pixel, pixel, cut_off);
      k.activation_forward_derivative(step.activation, cut_off, pixel, value, slope);
      factor = slope;
    }
    if (way.delta_second != nullptr) {
      if (factor != nullptr) k.multiply_in_place(delta, slope, pixel);
      factor = nullptr;
      hand_down(static_cast<const T*>(delta), pixel, step.second_adds,
                way.delta_second + p * pixel);
    }
    k.response_delta(z, 1, channels, scale, beta, tau, factor, delta, sums);
  }
  k.sum_rows(sums, 1, channels, way.grad + layer.bias_offset);
  if (tau != nullptr) k.sum_rows(by_cut, 1, channels, way.grad + layer.third_offset);
  const T share = T(1) / static_cast<T>(step.places());
  for (std::int64_t e = 0; e < pixel; ++e) {
    shrink[e] = scale[e] * r[e] * (r[e] * by_z[e] * share);
    by_z[e] *= r[e];
  }
  k.sum_rows(by_z, 1, channels, way.grad + layer.weight_offset);
  if (way.delta_in == nullptr) return;
  k.response_backward(way.in, way.delta, step.places(), channels, scale, shrink, step.in_adds,
                      way.delta_in);
}

}  // namespace

template <class T>
void norm_forward(const Step& step, const T* theta, const T* x, const T* second, T* y, T* state) {
  const Layer& layer = step.layer();
  if (layer.op == Op::kFilterResponseNorm)
    return response_forward(step, theta, x, second, y, state);
  kernels<T>().layer_norm(x, step.places(), layer.window.channels, theta + layer.weight_offset,
                          theta + layer.bias_offset, static_cast<T>(kLayerEpsilon), y);
}

template <class T>
void norm_backward(const Step& step, const WayBack<T>& way) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  if (layer.op == Op::kFilterResponseNorm) return response_way_back(step, way);
  const std::int64_t channels = layer.window.channels;
  T *sums = way.scratch, *along = sums + channels * kPanel;
  std::fill_n(sums, 2 * channels * kPanel, T(0));
  k.layer_norm_backward(way.in, way.delta, step.places(), channels, way.theta + layer.weight_offset,
                        static_cast<T>(kLayerEpsilon), step.in_adds, way.delta_in, sums);
  k.sum_rows(sums, 1, channels, way.grad + layer.bias_offset);
  k.sum_rows(along, 1, channels, way.grad + layer.weight_offset);
}

#define RIBBIT_INSTANTIATE(T)                                                    \
  template void norm_forward(const Step&, const T*, const T*, const T*, T*, T*); \
  template void norm_backward(const Step&, const WayBack<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
