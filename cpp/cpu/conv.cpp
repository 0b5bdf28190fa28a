// Convolutions. The delta of the input is again a convolution: over the deltas of the output, with
// the kernel turned round. With a stride each residue class of input pixels has its own taps.

#include "cpu/walk.h"

namespace ribbit::cpu {
namespace {

// The input pixels class, class + stride, .. of one dimension. Pixel class + stride j is reached by
// kernel taps last_tap - stride t from output pixels j - pad + t, t = 0 .. taps - 1.
struct Residue {
  std::int64_t taps, last_tap, pad, count;
  Residue(std::int64_t number, std::int64_t size, std::int64_t kernel, std::int64_t stride,
          std::int64_t before) {
    const std::int64_t first_tap = (number + before) % stride;
    taps = first_tap < kernel ? (kernel - first_tap + stride - 1) / stride : 0;
    last_tap = first_tap + stride * (taps - 1);
    pad = taps - 1 - (number + before - first_tap) / stride;
    count = number < size ? (size - number + stride - 1) / stride : 0;
  }
};

// Calls body(rows, columns, class of rows, of columns, offset of the packed weights).
template <class Body>
void each_class(const Window& w, const Body& body) {
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < w.stride_height; ++i) {
    const Residue rows(i, w.height, w.kernel_height, w.stride_height, w.pad_top);
    for (std::int64_t j = 0; j < w.stride_width; ++j) {
      const Residue columns(j, w.width, w.kernel_width, w.stride_width, w.pad_left);
      body(rows, columns, i, j, offset);
      offset += rows.taps * columns.taps * w.channels * w.out_channels;
    }
  }
}

}  // namespace

template <class T>
void conv_pack(const Stage& stage, const T* theta, bool backward, int member, int members,
               T* packed) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = stage.layer.window;
  const T* weight = theta + stage.layer.weight_offset;
  const auto share = [&](std::int64_t outs, int m) {
    return dense_tiles(outs, k.tile_outputs) * m / members;
  };
  const std::int64_t ins = w.kernel_height * w.kernel_width * w.channels;
  k.pack_tiles(weight, ins, w.out_channels, false, share(w.out_channels, member),
               share(w.out_channels, member + 1), ins, 0, packed + stage.packed);
  if (!backward || stage.packed_back < 0) return;
  const std::int64_t tap_size = w.channels * w.out_channels;
  each_class(w, [&](const Residue& rows, const Residue& columns, std::int64_t, std::int64_t,
                    std::int64_t offset) {
    const std::int64_t all = rows.taps * columns.taps * w.out_channels;
    for (std::int64_t t = 0; t < rows.taps * columns.taps; ++t) {
      const std::int64_t r = rows.last_tap - w.stride_height * (t / columns.taps);
      const std::int64_t s = columns.last_tap - w.stride_width * (t % columns.taps);
      // The tiles of this tap: rows t * out_channels onwards of every tile.
      const std::int64_t first = share(w.channels, member), last = share(w.channels, member + 1);
      k.pack_tiles(weight + (r * w.kernel_width + s) * tap_size, w.out_channels, w.channels, true,
                   first, last, all, t * w.out_channels, packed + stage.packed_back + offset);
    }
  });
}

template <class T>
void conv_forward(const Stage& stage, const T* theta, const T* packed, const T* x, T* y) {
  const Window& w = stage.layer.window;
  const ConvPass pass{
      w.height,       w.width,   w.channels,    w.kernel_height, w.kernel_width, w.stride_height,
      w.stride_width, w.pad_top, w.pad_left,    w.out_height,    w.out_width,    0,
      w.out_width,    1,         w.out_channels};
  const T* bias = stage.layer.bias_offset >= 0 ? theta + stage.layer.bias_offset : nullptr;
  kernels<T>().convolve(packed + stage.packed, bias, x, y, pass, false);
}

template <class T>
void conv_input_delta(const Stage& stage, const T* packed, const T* delta, bool add,
                      T* delta_below) {
  const Window& w = stage.layer.window;
  each_class(w, [&](const Residue& rows, const Residue& columns, std::int64_t i, std::int64_t j,
                    std::int64_t offset) {
    if (add && rows.taps * columns.taps == 0) return;
    const ConvPass pass{w.out_height,
                        w.out_width,
                        w.out_channels,
                        rows.taps,
                        columns.taps,
                        1,
                        1,
                        rows.pad,
                        columns.pad,
                        rows.count,
                        columns.count,
                        i * w.width + j,
                        w.stride_height * w.width,
                        w.stride_width,
                        w.channels};
    kernels<T>().convolve(packed + stage.packed_back + offset, nullptr, delta, delta_below, pass,
                          add);
  });
}

template <class T>
void conv_backward(const Step& step, const WayBack<T>& way) {
  const Layer& layer = step.layer();
  kernels<T>().convolution_gradient(
      way.in, way.delta, layer.window, way.scratch, way.grad + layer.weight_offset,
      layer.bias_offset >= 0 ? way.grad + layer.bias_offset : nullptr);
  if (way.delta_in != nullptr) {
    conv_input_delta(step.stage, way.packed, way.delta, step.in_adds, way.delta_in);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                 \
  template void conv_pack(const Stage&, const T*, bool, int, int, T*);        \
  template void conv_forward(const Stage&, const T*, const T*, const T*, T*); \
  template void conv_input_delta(const Stage&, const T*, const T*, bool, T*); \
  template void conv_backward(const Step&, const WayBack<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
