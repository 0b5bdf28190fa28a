// Filter response normalisation, with the sum and the activation above it, layer normalisation, and
// group normalisation.

#include <algorithm>

#include "core/norm_hd.h"
#include "cpu/layers/layers.h"

namespace ribbit::cpu {
namespace {

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
  T* shrink;  // gamma r^3 / sites times the sum of d z
  T* sums;    // of d, of d z, of what the threshold cut
  Response(std::int64_t channels, T* state)
      : pixel(channels * kPanel),
        r(state),
        scale(r + pixel),
        shrink(scale + pixel),
        sums(shrink + pixel) {}
};

template <class T>
void response_forward(const GraphNode& node, const T* theta, const T* x, const T* second, T* y,
                      T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const std::int64_t channels = layer.window.channels, sites = node.sites();
  const T *gamma = theta + layer.weight_offset, *beta = theta + layer.bias_offset;
  const Response<T> s(channels, state);
  if (node.conv_below < 0) {
    constexpr std::int64_t kRun = 32;  // sites
    std::fill_n(s.r, s.pixel, T(0));
    for (std::int64_t p = 0; p < sites; p += kRun) {
      k.add_squares(x + p * s.pixel, std::min(kRun, sites - p), channels, s.r);
    }
  }
  k.response(sites, channels, gamma, static_cast<T>(layer.number), s.r, s.scale);
  // Place by place, so that the activation finds its input in cache.
  for (std::int64_t p = 0; p < sites; ++p) {
    T* out = y + p * s.pixel;
    k.response_apply(x + p * s.pixel, 1, channels, s.scale, beta, third(layer, theta), out);
    if (second != nullptr) k.accumulate(second + p * s.pixel, s.pixel, out);
    if (node.activation >= 0) k.activation_forward(node.activation, out, s.pixel, out);
  }
}

// dz = gamma r d - shrink z
template <class T>
void response_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const std::int64_t channels = layer.window.channels, sites = node.sites();
  const Response<T> s(channels, args.state);
  T *by_z = s.sums + s.pixel, *by_cut = by_z + s.pixel;
  if (node.conv_above < 0) {
    norm_clear_sums(node, args.state);
    norm_delta(node, args, 0, sites);
  }
  k.sum_rows(s.sums, 1, channels, args.grad + layer.bias_offset);
  if (layer.third_offset >= 0) k.sum_rows(by_cut, 1, channels, args.grad + layer.third_offset);
  const T share = T(1) / static_cast<T>(sites);
  for (std::int64_t e = 0; e < s.pixel; ++e) {
    by_z[e] = response_by_gamma<T>(s.r[e], by_z[e]);
    s.shrink[e] = response_shrink<T>(s.scale[e], s.r[e], by_z[e], share);
  }
  k.sum_rows(by_z, 1, channels, args.grad + layer.weight_offset);
  if (args.delta_in == nullptr || node.conv_below >= 0) return;
  k.response_backward(args.in, args.delta, sites, channels, s.scale, s.shrink, node.in_adds,
                      args.delta_in);
}

// State of a group norm, (channels, kPanel) each.
template <class T>
struct Grouped {
  std::int64_t pixel;
  T* away;   // minus the mean of the channel's group
  T* r;      // 1 / sqrt(variance of the channel's group + epsilon)
  T* scale;  // gamma r
  Grouped(std::int64_t channels, T* state)
      : pixel(channels * kPanel), away(state), r(away + pixel), scale(r + pixel) {}
};

// Each of values (channels, kPanel) becomes factor times their sum over the channels of its group.
template <class T>
void sum_groups(const Layer& layer, T factor, T* values) {
  const std::int64_t width = layer.window.channels / layer.argument;
  for (std::int64_t g = 0; g < layer.argument; ++g) {
    T* group = values + g * width * kPanel;
    for (std::int64_t c = 1; c < width; ++c) {
      kernels<T>().accumulate(group + c * kPanel, kPanel, group);
    }
    for (std::int64_t e = 0; e < kPanel; ++e) group[e] *= factor;
    for (std::int64_t c = 1; c < width; ++c) std::copy_n(group, kPanel, group + c * kPanel);
  }
}

// Centred, a group norm is a response norm whose squares a whole group shares. Sums over a run of
// sites join the sum of all, which keeps rounding near that of its square root.
template <class T>
void group_forward(const GraphNode& node, const T* theta, const T* x, T* y, T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const std::int64_t channels = layer.window.channels, sites = node.sites();
  const std::int64_t count = sites * (channels / layer.argument);  // numbers of a group
  const Grouped<T> s(channels, state);
  constexpr std::int64_t kRun = 32;  // sites
  T* run = s.scale;                  // until scale is known
  std::fill_n(s.away, s.pixel, T(0));
  std::fill_n(s.r, s.pixel, T(0));
  for (std::int64_t first = 0; first < sites; first += kRun) {
    std::fill_n(run, s.pixel, T(0));
    for (std::int64_t p = first; p < std::min(first + kRun, sites); ++p) {
      k.accumulate(x + p * s.pixel, s.pixel, run);
    }
    k.accumulate(run, s.pixel, s.away);
  }
  sum_groups(layer, T(-1) / static_cast<T>(count), s.away);
  for (std::int64_t p = 0; p < sites; ++p) {
    k.add(x + p * s.pixel, s.away, s.pixel, y + p * s.pixel);
  }
  for (std::int64_t p = 0; p < sites; p += kRun) {
    k.add_squares(y + p * s.pixel, std::min(kRun, sites - p), channels, s.r);
  }
  sum_groups(layer, T(1), s.r);
  k.response(count, channels, theta + layer.weight_offset, static_cast<T>(layer.number), s.r,
             s.scale);
  k.response_apply(y, sites, channels, s.scale, theta + layer.bias_offset, nullptr, y);
}

// dz = gamma r d - shrink (z - mean) - mean of gamma r d over the group
template <class T>
void group_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const std::int64_t channels = layer.window.channels, sites = node.sites();
  const T share = T(1) / static_cast<T>(sites * (channels / layer.argument));
  const Grouped<T> s(channels, args.state);
  T *sums = args.scratch, *by_z = sums + s.pixel, *shrink = by_z + s.pixel;
  T* centred = shrink + s.pixel;  // one site
  std::fill_n(sums, 2 * s.pixel, T(0));
  for (std::int64_t p = 0; p < sites; ++p) {
    k.add(args.in + p * s.pixel, s.away, s.pixel, centred);
    k.response_delta(centred, 1, channels, s.scale, args.theta + layer.bias_offset, nullptr,
                     nullptr, args.delta + p * s.pixel, sums);
  }
  k.sum_rows(sums, 1, channels, args.grad + layer.bias_offset);
  for (std::int64_t e = 0; e < s.pixel; ++e) {
    by_z[e] = response_by_gamma<T>(s.r[e], by_z[e]);
    sums[e] *= s.scale[e];
    shrink[e] = s.scale[e] * by_z[e];
  }
  k.sum_rows(by_z, 1, channels, args.grad + layer.weight_offset);
  if (args.delta_in == nullptr) return;
  sum_groups(layer, share, shrink);
  sum_groups(layer, -share, sums);
  for (std::int64_t e = 0; e < s.pixel; ++e) shrink[e] *= s.r[e];
  for (std::int64_t p = 0; p < sites; ++p) {
    const std::int64_t at = p * s.pixel;
    k.add(args.in + at, s.away, s.pixel, centred);
    k.response_backward(centred, args.delta + at, 1, channels, s.scale, shrink, node.in_adds,
                        args.delta_in + at);
    k.accumulate(sums, s.pixel, args.delta_in + at);
  }
}

}  // namespace

std::int64_t norm_state(const Layer& layer) {
  if (layer.op == Op::kGroupNorm) return 3 * layer.window.channels;
  // r, gamma r, shrink, and three sums
  return layer.op == Op::kFilterResponseNorm ? 6 * layer.window.channels : 0;
}

std::int64_t norm_scratch(const Layer& layer) {
  if (layer.op == Op::kGroupNorm) return 4 * layer.window.channels * kPanel;
  // a place with its value and slope; sums of d and of d (z - mean) r
  return (layer.op == Op::kFilterResponseNorm ? 3 : 2) * layer.window.channels * kPanel;
}

template <class T>
void norm_forward(const GraphNode& node, const T* theta, const T* x, const T* second, T* y,
                  T* state) {
  const Layer& layer = node.layer();
  if (layer.op == Op::kFilterResponseNorm)
    return response_forward(node, theta, x, second, y, state);
  if (layer.op == Op::kGroupNorm) return group_forward(node, theta, x, y, state);
  kernels<T>().layer_norm(x, node.sites(), layer.window.channels, theta + layer.weight_offset,
                          theta + layer.bias_offset, static_cast<T>(layer.number), y);
}

template <class T>
void norm_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  if (layer.op == Op::kFilterResponseNorm) return response_backward(node, args);
  if (layer.op == Op::kGroupNorm) return group_backward(node, args);
  const std::int64_t channels = layer.window.channels;
  T *sums = args.scratch, *along = sums + channels * kPanel;
  std::fill_n(sums, 2 * channels * kPanel, T(0));
  k.layer_norm_backward(args.in, args.delta, node.sites(), channels,
                        args.theta + layer.weight_offset, static_cast<T>(layer.number),
                        node.in_adds, args.delta_in, sums);
  k.sum_rows(sums, 1, channels, args.grad + layer.bias_offset);
  k.sum_rows(along, 1, channels, args.grad + layer.weight_offset);
}

template <class T>
void norm_clear_sums(const GraphNode& node, T* state) {
  const Response<T> s(node.layer().window.channels, state);
  std::fill_n(s.sums, 3 * s.pixel, T(0));
}

template <class T>
void norm_delta(const GraphNode& node, const BackwardArgs<T>& args, std::int64_t first,
                std::int64_t last) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const std::int64_t channels = layer.window.channels;
  const T *beta = args.theta + layer.bias_offset, *tau = third(layer, args.theta);
  const Response<T> s(channels, args.state);
  T *given = args.scratch, *value = given + s.pixel, *slope = value + s.pixel;
  for (std::int64_t p = first; p < last; ++p) {
    const T* z = args.in + p * s.pixel;
    T* delta = args.delta + p * s.pixel;
    const T* factor = nullptr;
    if (node.activation >= 0) {
      k.response_apply(z, 1, channels, s.scale, beta, tau, given);
      if (args.second != nullptr) k.accumulate(args.second + p * s.pixel, s.pixel, given);
      k.activation_forward_derivative(node.activation, given, s.pixel, value, slope);
      factor = slope;
    }
    if (args.delta_second != nullptr) {
      if (factor != nullptr) k.multiply_in_place(delta, slope, s.pixel);
      factor = nullptr;
      hand_down(static_cast<const T*>(delta), s.pixel, node.second_adds,
                args.delta_second + p * s.pixel);
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

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template void norm_forward(const GraphNode&, const T*, const T*, const T*, T*, T*);             \
  template void norm_clear_sums(const GraphNode&, T*);                                            \
  template void norm_delta(const GraphNode&, const BackwardArgs<T>&, std::int64_t, std::int64_t); \
  template void norm_input_delta(std::int64_t, const T*, const T*, std::int64_t, std::int64_t,    \
                                 T*);                                                             \
  template void norm_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
