// Filter response normalisation, with the sum and the activation above it, and layer
// normalisation.

#include <algorithm>

#include "cpu/network/graph_pass.h"

namespace ribbit::cpu {
namespace {

constexpr double kResponseEpsilon = 1e-6, kLayerEpsilon = 1e-5;

template <class T>
const T* third(const Layer& layer, const T* array) {
  return layer.third_offset >= 0 ? array + layer.third_offset : nullptr;
}

// State of a filter response norm, (channels, kPanel) each.
template <class T>
struct Response {
  std::int64_t pixel;
  T* r;       // 1 / sqrt(mean of z^2 + epsilon), sums of squares before
  T* scale;   // gamma r
  T* shrink;  // gamma r^3 / places times the sum of d z
  T* sums;    // of d, of d z, of what the threshold cut
  Response(std::int64_t channels, T* state)
      : pixel(channels * kPanel),
        r(state),
        scale(r + pixel),
        shrink(scale + pixel),
        sums(shrink + pixel) {}
};

template <class T>
void response_forward(const Step& step, const T* theta, const T* x, const T* second, T* y,
                      T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  const std::int64_t channels = layer.window.channels, places = step.places();
  const T *gamma = theta + layer.weight_offset, *beta = theta + layer.bias_offset;
  const Response<T> s(channels, state);
  if (step.conv_below < 0) {
    constexpr std::int64_t kRun = 32;  // places
    std::fill_n(s.r, s.pixel, T(0));
    for (std::int64_t p = 0; p < places; p += kRun) {
      k.add_squares(x + p * s.pixel, std::min(kRun, places - p), channels, s.r);
    }
  }
  k.response(places, channels, gamma, static_cast<T>(kResponseEpsilon), s.r, s.scale);
  // Place by place, so that the activation finds its input in cache.
  for (std::int64_t p = 0; p < places; ++p) {
    T* out = y + p * s.pixel;
    k.response_apply(x + p * s.pixel, 1, channels, s.scale, beta, third(layer, theta), out);
    if (second != nullptr) k.accumulate(second + p * s.pixel, s.pixel, out);
    if (step.activation >= 0) k.activation_forward(step.activation, out, s.pixel, out);
  }
}

// dz = gamma r d - shrink z
template <class T>
void response_way_back(const Step& step, const WayBack<T>& way) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  const std::int64_t channels = layer.window.channels, places = step.places();
  const Response<T> s(channels, way.state);
  T *by_z = s.sums + s.pixel, *by_cut = by_z + s.pixel;
  if (step.conv_above < 0) {
    norm_clear_sums(step, way.state);
    norm_delta(step, way, 0, places);
  }
  k.sum_rows(s.sums, 1, channels, way.grad + layer.bias_offset);
  if (layer.third_offset >= 0) k.sum_rows(by_cut, 1, channels, way.grad + layer.third_offset);
  const T share = T(1) / static_cast<T>(places);
  for (std::int64_t e = 0; e < s.pixel; ++e) {
    s.shrink[e] = s.scale[e] * s.r[e] * (s.r[e] * by_z[e] * share);
    by_z[e] *= s.r[e];
  }
  k.sum_rows(by_z, 1, channels, way.grad + layer.weight_offset);
  if (way.delta_in == nullptr || step.conv_below >= 0) return;
  k.response_backward(way.in, way.delta, places, channels, s.scale, s.shrink, step.in_adds,
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

template <class T>
void norm_clear_sums(const Step& step, T* state) {
  const Response<T> s(step.layer().window.channels, state);
  std::fill_n(s.sums, 3 * s.pixel, T(0));
}

template <class T>
void norm_delta(const Step& step, const WayBack<T>& way, std::int64_t first, std::int64_t last) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  const std::int64_t channels = layer.window.channels;
  const T *beta = way.theta + layer.bias_offset, *tau = third(layer, way.theta);
  const Response<T> s(channels, way.state);
  T *given = way.scratch, *value = given + s.pixel, *slope = value + s.pixel;
  for (std::int64_t p = first; p < last; ++p) {
    const T* z = way.in + p * s.pixel;
    T* delta = way.delta + p * s.pixel;
    const T* factor = nullptr;
    if (step.activation >= 0) {
      k.response_apply(z, 1, channels, s.scale, beta, tau, given);
      if (way.second != nullptr) k.accumulate(way.second + p * s.pixel, s.pixel, given);
      k.activation_forward_derivative(step.activation, given, s.pixel, value, slope);
      factor = slope;
    }
    if (way.delta_second != nullptr) {
      if (factor != nullptr) k.multiply_in_place(delta, slope, s.pixel);
      factor = nullptr;
      hand_down(static_cast<const T*>(delta), s.pixel, step.second_adds,
                way.delta_second + p * s.pixel);
    }
    k.response_delta(z, 1, channels, s.scale, beta, tau, factor, delta, s.sums);
  }
}

template <class T>
void norm_input_delta(std::int64_t channels, const T* state, const T* z, std::int64_t first,
                      std::int64_t last, T* delta) {
  const Response<const T> s(channels, state);
  const std::int64_t at = first * s.pixel;
  kernels<T>().response_backward(z + at, delta + at, last - first, channels, s.scale, s.shrink,
                                 false, delta + at);
}

#define RIBBIT_INSTANTIATE(T)                                                                  \
  template void norm_forward(const Step&, const T*, const T*, const T*, T*, T*);               \
  template void norm_clear_sums(const Step&, T*);                                              \
  template void norm_delta(const Step&, const WayBack<T>&, std::int64_t, std::int64_t);        \
  template void norm_input_delta(std::int64_t, const T*, const T*, std::int64_t, std::int64_t, \
                                 T*);                                                          \
  template void norm_backward(const Step&, const WayBack<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
