// Convolutions. The delta of the input is again a convolution: over the deltas of the output, with
// the kernel turned round. With a stride each residue class of input pixels has its own taps.
// Groups of channels are convolutions side by side, their kernels one behind the other.

#include <algorithm>
#include <numeric>

#include "cpu/layers/layers.h"

namespace ribbit::cpu {
namespace {

// The input pixels class, class + stride, .. of one dimension. Pixel class + stride j is reached by
// kernel taps last_tap - step t from output pixels j - pad + spread t, t = 0 .. taps - 1.
struct Residue {
  std::int64_t taps, last_tap, step, spread, pad, count;
  Residue(std::int64_t number, std::int64_t size, std::int64_t kernel, std::int64_t dilation,
          std::int64_t stride, std::int64_t before) {
    const std::int64_t common = std::gcd(stride, dilation);
    step = stride / common;
    spread = dilation / common;
    std::int64_t first_tap = 0;  // the least that reaches the class
    while (first_tap < step && (number + before - first_tap * dilation) % stride != 0) ++first_tap;
    const bool reached = first_tap < step && first_tap < kernel;
    taps = reached ? (kernel - first_tap + step - 1) / step : 0;
    last_tap = first_tap + step * (taps - 1);
    pad = reached ? (last_tap * dilation - number - before) / stride : 0;
    count = number < size ? (size - number + stride - 1) / stride : 0;
  }
};

// Calls body(rows, columns, class of rows, of columns, offset of the packed weights).
template <class Body>
void each_class(const Window& w, const Body& body) {
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < std::min(w.stride_height, w.height); ++i) {
    const Residue rows(i, w.height, w.kernel_height, w.dilation_height, w.stride_height, w.pad_top);
    for (std::int64_t j = 0; j < std::min(w.stride_width, w.width); ++j) {
      const Residue columns(j, w.width, w.kernel_width, w.dilation_width, w.stride_width,
                            w.pad_left);
      body(rows, columns, i, j, offset);
      offset += rows.taps * columns.taps * w.group_channels() * w.group_outs();
    }
  }
}

}  // namespace

template <class T>
void conv_pack(const Stage& stage, const T* theta, bool backward, const Part& part, T* packed) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = stage.layer.window;
  const T* weights = theta + stage.layer.weight_offset;
  const auto tiles = [&](std::int64_t outs) {
    const std::int64_t count = dense_tiles(outs, k.tile_outputs);
    return Range{part.share(count), part.share_end(count)};
  };
  const std::int64_t channels = w.group_channels(), outs = w.group_outs();
  const std::int64_t ins = w.kernel_height * w.kernel_width * channels;
  const Range own = tiles(outs);
  for (std::int64_t g = 0; g < w.groups; ++g) {
    k.pack_tiles(weights + g * w.weights(), ins, outs, false, own.first, own.last, ins, 0,
                 packed + stage.packed + g * w.weights());
  }
  if (!backward || stage.packed_back < 0) return;
  const auto [first, last] = tiles(channels);
  each_class(w, [&](const Residue& rows, const Residue& columns, std::int64_t, std::int64_t,
                    std::int64_t offset) {
    const std::int64_t all = rows.taps * columns.taps * outs;
    for (std::int64_t g = 0; g < w.groups; ++g) {
      for (std::int64_t t = 0; t < rows.taps * columns.taps; ++t) {
        const std::int64_t r = rows.last_tap - rows.step * (t / columns.taps);
        const std::int64_t s = columns.last_tap - columns.step * (t % columns.taps);
        const T* tap = weights + g * w.weights() + (r * w.kernel_width + s) * channels * outs;
        // The tiles of this tap: rows t * outs onwards of every tile.
        k.pack_tiles(tap, outs, channels, true, first, last, all, t * outs,
                     packed + stage.packed_back + g * w.weights() + offset);
      }
    }
  });
}

template <class T>
void conv_forward(const Stage& stage, const T* theta, const T* packed, const T* x, T* y,
                  T* squares) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = stage.layer.window;
  const std::int64_t channels = w.group_channels(), outs = w.group_outs();
  ConvPass pass{
      w.height,       w.width,   channels,   w.kernel_height,   w.kernel_width,   w.stride_height,
      w.stride_width, w.pad_top, w.pad_left, w.out_height,      w.out_width,      0,
      w.out_width,    1,         outs,       w.dilation_height, w.dilation_width, w.channels,
      w.out_channels};
  const T* bias = stage.layer.bias_offset >= 0 ? theta + stage.layer.bias_offset : nullptr;
  const auto convolve = [&] {
    for (std::int64_t g = 0; g < w.groups; ++g) {
      k.convolve(packed + stage.packed + g * w.weights(),
                 bias != nullptr ? bias + g * outs : nullptr, x + g * channels * kPanel,
                 y + g * outs * kPanel, pass, false);
    }
  };
  if (squares == nullptr) return convolve();
  std::fill_n(squares, w.out_channels * kPanel, T(0));
  pass.rows = 1;
  for (std::int64_t i = 0; i < w.out_height; ++i) {
    convolve();
    k.add_squares(y + pass.first * w.out_channels * kPanel, w.out_width, w.out_channels, squares);
    pass.first += w.out_width;
    pass.pad_height -= w.stride_height;
  }
}

template <class T>
std::int64_t conv_input_delta(const Stage& stage, const T* packed, const T* delta, bool add,
                              std::int64_t first, std::int64_t last, T* delta_below) {
  const Window& w = stage.layer.window;
  const std::int64_t channels = w.group_channels(), outs = w.group_outs();
  std::int64_t done = 0;
  each_class(w, [&](const Residue& rows, const Residue& columns, std::int64_t i, std::int64_t j,
                    std::int64_t offset) {
    // Row r of the class needs rows r - pad .. r - pad + spread (taps - 1) of the deltas.
    const auto ready = [&](std::int64_t given) {
      if (given == 0) return std::int64_t{0};
      if (given == w.out_height) return rows.count;
      const std::int64_t reach = rows.spread * (rows.taps - 1);
      return std::clamp<std::int64_t>(given - reach + rows.pad, 0, rows.count);
    };
    const std::int64_t begin = ready(first), count = ready(last) - begin;
    done = begin + count;
    if (count == 0 || (add && rows.taps * columns.taps == 0)) return;
    const ConvPass pass{w.out_height,
                        w.out_width,
                        outs,
                        rows.taps,
                        columns.taps,
                        1,
                        1,
                        rows.pad - begin,
                        columns.pad,
                        count,
                        columns.count,
                        (i + w.stride_height * begin) * w.width + j,
                        w.stride_height * w.width,
                        w.stride_width,
                        channels,
                        rows.spread,
                        columns.spread,
                        w.out_channels,
                        w.channels};
    for (std::int64_t g = 0; g < w.groups; ++g) {
      kernels<T>().convolve(packed + stage.packed_back + g * w.weights() + offset, nullptr,
                            delta + g * outs * kPanel, delta_below + g * channels * kPanel, pass,
                            add);
    }
  });
  return done;
}

template <class T>
void conv_weight_gradient(const Layer& layer, const T* x, const T* delta, T* scratch, T* weights,
                          T* bias) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = layer.window;
  const std::int64_t block = k.convolution_rows(w);
  for (std::int64_t y = 0; y < w.out_height; y += block) {
    k.convolution_gradient(x, delta, w, y, std::min(y + block, w.out_height), scratch, weights,
                           bias);
  }
}

template <class T>
void conv_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const Window& w = layer.window;
  T* bias = layer.bias_offset >= 0 ? args.grad + layer.bias_offset : nullptr;
  if (args.norm != nullptr) norm_clear_sums(*args.norm, args.below->state);
  const std::int64_t block = k.convolution_rows(w);
  std::int64_t passed = 0;  // rows of the input's deltas
  for (std::int64_t y = 0; y < w.out_height; y += block) {
    const std::int64_t end = std::min(y + block, w.out_height);
    if (args.norm_state != nullptr) {
      norm_input_delta(w.out_channels, static_cast<const T*>(args.norm_state), args.out,
                       y * w.out_width, end * w.out_width, args.delta);
    }
    k.convolution_gradient(args.in, args.delta, w, y, end, args.scratch,
                           args.grad + layer.weight_offset, bias);
    if (args.delta_in == nullptr) continue;
    const std::int64_t done =
        conv_input_delta(node.stage, args.packed, static_cast<const T*>(args.delta), node.in_adds,
                         y, end, args.delta_in);
    if (args.norm != nullptr) norm_delta(*args.norm, *args.below, passed * w.width, done * w.width);
    passed = done;
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                  \
  template void conv_pack(const Stage&, const T*, bool, const Part&, T*);                      \
  template void conv_forward(const Stage&, const T*, const T*, const T*, T*, T*);              \
  template std::int64_t conv_input_delta(const Stage&, const T*, const T*, bool, std::int64_t, \
                                         std::int64_t, T*);                                    \
  template void conv_weight_gradient(const Layer&, const T*, const T*, T*, T*, T*);            \
  template void conv_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
