// Convolutions of images (height, width, channels, kPanel). At one site the cells under a row of
// the kernel lie side by side, (taps, channels): so a site is a row of a matrix product whose
// inputs come in as many stretches as the kernel has rows. Taps outside the image shorten them.
// With dilated columns or groups of channels each tap is a stretch of its own.
#pragma once

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/tile-inl.h"
#include "cpu/isa/vec-inl.h"
#include "cpu/isa/weight_gradient-inl.h"

namespace ribbit::cpu {
namespace {

// Indices begin..end-1 of 0..count-1 for which 0 <= at + index spread < size.
struct Span {
  std::int64_t begin, end;
  Span(std::int64_t at, std::int64_t count, std::int64_t size, std::int64_t spread = 1)
      : begin(at < 0 ? -at : 0), end(size > at ? size - at : 0) {
    if (spread > 1) {
      begin = (begin + spread - 1) / spread;
      end = (end + spread - 1) / spread;
    }
    if (end > count) end = count;
  }
  std::int64_t size() const { return end > begin ? end - begin : 0; }
};

// Images that a core's own caches do not hold come from memory: cells are asked for so many sites
// before they are needed, and not many at a time, which the products would wait for.
constexpr std::int64_t kSitesAhead = 4;
template <class T>
static bool is_far(std::int64_t scalars) {
  constexpr std::int64_t kFarBytes = 256 << 10;
  return scalars * static_cast<std::int64_t>(sizeof(T)) >= kFarBytes;
}

// `stretches` times `count` inputs, x_row and w_row scalars apart.
// kFetch: asks for a cell from `next` on with every product, `step` scalars apart.
template <class T, int kOutputs, int kVectors, bool kFetch = false>
RIBBIT_INLINE void convolve_tile(const T* w, const T* init, const T* x, T* y,
                                 std::int64_t stretches, std::int64_t x_row, std::int64_t w_row,
                                 std::int64_t count, bool add, const T* next = nullptr,
                                 std::int64_t step = 0) {
  constexpr int lanes = kLanes<T>;
  using V = Vec<T>;
  V sum[kOutputs][kVectors];
  RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
    const V start = broadcast(init != nullptr ? init[o] : T(0));
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) sum[o][v] = start;
  }
  for (std::int64_t r = 0; r < stretches; ++r) {
    const T* weights = w + r * w_row;
    const T* inputs = x + r * x_row;
    for (std::int64_t k = 0; k < count; ++k) {
      const Weights<T, kOutputs> side_by_side(weights + k * kOutputs);
      if constexpr (kFetch) {
        __builtin_prefetch(next);
        next += step;
      }
      V in[kVectors];
      RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
        in[v] = load<T>(inputs + k * kPanel + v * lanes);
      }
      RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
        const V weight = side_by_side[o];
        RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
          sum[o][v] = mul_add(weight, in[v], sum[o][v]);
        }
      }
    }
  }
  RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
      T* to = y + o * kPanel + v * lanes;
      store<T>(to, add ? sum[o][v] + load<T>(to) : sum[o][v]);
    }
  }
}

// The sites of one row for one tile of outputs. w, init, y: of the tile. far: the image does not
// stay in cache; step: scalars of it to ask for with every product, 0: another tile does.
template <class T, int kOutputs>
static void convolve_row(const T* w, const T* init, const T* source, T* y, const ConvPass& p,
                         std::int64_t top, bool add, bool far, std::int64_t step) {
  const Span taps(top, p.taps_height, p.height, p.spread_height);
  const std::int64_t pixel = p.pixel * kPanel, row = p.width * pixel * p.spread_height;
  const std::int64_t w_tap = p.channels * kOutputs, w_row = p.taps_width * w_tap;
  const bool side_by_side = p.spread_width == 1 && p.pixel == p.channels;
  constexpr int kVectors = tile_vectors(kOutputs, 1), kRows = kVectors * kLanes<T>;
  constexpr int kLine = 64 / sizeof(T);
  const T* lowest = source + (top + (taps.end - 1) * p.spread_height) * p.width * pixel;
  for (std::int64_t j = 0; j < p.columns; ++j) {
    const std::int64_t left = j * p.step_width - p.pad_width;
    const Span across(left, p.taps_width, p.width, p.spread_width);
    const T* later = y + (j + kSitesAhead) * p.column * p.out_pixel * kPanel;  // to be written
    for (int i = 0; far && i < kOutputs * kPanel; i += kLine) __builtin_prefetch(later + i, 1);
    const std::int64_t stretches = across.size() > 0 ? taps.size() : 0;
    const T* x = source + top * p.width * pixel + taps.begin * row +
                 (left + across.begin * p.spread_width) * pixel;
    const T* weights = w + taps.begin * w_row + across.begin * w_tap;
    T* out = y + j * p.column * p.out_pixel * kPanel;
    if (!side_by_side && stretches > 0) {
      for (std::int64_t r = 0; r < stretches; ++r) {
        for (int lane = 0; lane < kPanel; lane += kRows) {
          convolve_tile<T, kOutputs, kVectors>(
              weights + r * w_row, r > 0 ? nullptr : init, x + r * row + lane, out + lane,
              across.size(), p.spread_width * pixel, w_tap, p.channels, add || r > 0);
        }
      }
      continue;
    }
    const std::int64_t count = across.size() * p.channels;
    // What a site further on is the first to read.
    const T* next = lowest + (left + p.taps_width + kSitesAhead * p.step_width) * pixel;
    for (int lane = 0; lane < kPanel; lane += kRows) {
      if (step > 0) {
        convolve_tile<T, kOutputs, kVectors, true>(weights, init, x + lane, out + lane, stretches,
                                                   row, w_row, count, add, next, step);
      } else {
        convolve_tile<T, kOutputs, kVectors>(weights, init, x + lane, out + lane, stretches, row,
                                             w_row, count, add);
      }
    }
  }
}

template <class T>
static void convolve(const T* packed, const T* init, const T* source, T* destination,
                     const ConvPass& p, bool add) {
  const Tiling tiling(p.out_channels);
  const std::int64_t ins = p.taps_height * p.taps_width * p.channels;
  if (add) init = nullptr;
  const std::int64_t pixel = p.pixel * kPanel;
  const bool far = is_far<T>(p.height * p.width * pixel);
  const std::int64_t step = far && ins > 0 ? (p.step_width * pixel + ins - 1) / ins : 0;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const std::int64_t top = i * p.step_height - p.pad_height;
    for (std::int64_t t = 0; t < tiling.count; ++t) {
      const std::int64_t o0 = tiling.begin(t);
      const T* w = packed + o0 * ins;
      const T* start = init != nullptr ? init + o0 : nullptr;
      T* y = destination + ((p.first + i * p.row) * p.out_pixel + o0) * kPanel;
      switch (tiling.width(t)) {
#define RIBBIT_TILE(R)                                                            \
  case R:                                                                         \
    convolve_row<T, R>(w, start, source, y, p, top, add, far, t == 0 ? step : 0); \
    break;
        RIBBIT_TILE(1)
        RIBBIT_TILE(2)
        RIBBIT_TILE(3)
        RIBBIT_TILE(4)
        RIBBIT_TILE(5)
        RIBBIT_TILE(6)
#if defined(__AVX512F__)
        RIBBIT_TILE(7)
        RIBBIT_TILE(8)
        RIBBIT_TILE(9)
        RIBBIT_TILE(10)
        RIBBIT_TILE(11)
        RIBBIT_TILE(12)
        RIBBIT_TILE(13)
#endif
#undef RIBBIT_TILE
        default:
          __builtin_unreachable();
      }
    }
  }
}

// Sites whose transposed deltas and inputs stay in the second-level cache together: rows of them,
constexpr std::int64_t kSitesBytes = 384 << 10;
template <class T>
static std::int64_t convolution_block(const Window& w) {
  const std::int64_t out_row = w.out_width * w.out_channels;
  const std::int64_t in_row = w.width * w.channels * w.stride_height;
  const std::int64_t bytes = (out_row + in_row) * kPanel * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t rows = kSitesBytes / bytes;
  return rows < 1 ? 1 : rows < w.out_height ? rows : w.out_height;
}

// and columns of a row of a group that by itself does not.
template <class T>
static std::int64_t convolution_columns(const Window& w) {
  const std::int64_t bytes = (w.group_outs() + w.group_channels() * w.stride_width) * kPanel *
                             static_cast<std::int64_t>(sizeof(T));
  const std::int64_t columns = kSitesBytes / bytes;
  return columns < 1 ? 1 : columns;
}

template <class T>
static std::int64_t padded_width(std::int64_t outs) {
  return (outs + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// How many outputs of a group ride in the lanes (weight_gradient-inl.h, "outer"): all of them, in
// whole vectors, the last one filled up. Those left over after whole vectors go the other way where
// that is cheaper ("inner", rows in the lanes): no lane is empty, but each sum ends in adding up
// lanes, which costs as much as some kSitesOfEnds sites.
template <class T>
static std::int64_t outer_outputs(const Window& w) {
  constexpr std::int64_t lanes = kLanes<T>, kSitesOfEnds = 32;
  const std::int64_t outs = w.group_outs(), left = outs % lanes;
  const std::int64_t sites = w.out_height * w.out_width;
  return left * (sites + kSitesOfEnds) < lanes * sites ? outs - left : padded_width<T>(outs);
}

template <class T>
static std::int64_t convolution_scratch(const Window& w) {
  return convolution_block<T>(w) * w.out_width * outer_outputs<T>(w) * kPanel;
}

// Of one group. x, d: of its first channel.
template <class T>
static void group_gradient(const T* x, const T* d, const Window& w, std::int64_t y0,
                           std::int64_t y1, T* scratch, T* grad, T* bias) {
  const std::int64_t ins = w.group_channels(), outs = w.group_outs(), width = outer_outputs<T>(w);
  const std::int64_t pixel = w.channels * kPanel, row = w.width * pixel;
  const bool side_by_side = w.dilation_width == 1 && w.groups == 1;
  const bool far = is_far<T>(w.height * row);
  // Sites that see the whole width of the kernel.
  const std::int64_t reach = (w.kernel_width - 1) * w.dilation_width + 1;
  std::int64_t inner = (w.pad_left + w.stride_width - 1) / w.stride_width;
  std::int64_t outer =
      w.width + w.pad_left < reach ? 0 : (w.width + w.pad_left - reach) / w.stride_width + 1;
  if (inner > w.out_width) inner = w.out_width;
  if (outer > w.out_width) outer = w.out_width;
  if (outer < inner) outer = inner;
  const std::int64_t most = convolution_columns<T>(w);
  const T* deltas = d + y0 * w.out_width * w.out_channels * kPanel;
  const std::int64_t sites_here = (y1 - y0) * w.out_width;
  if (bias != nullptr) bias_gradient<T>(deltas, sites_here, w.out_channels, outs, bias);
  const Tiling groups = output_groups<T>(width);
  if (width > 0) transpose_delta<T>(deltas, sites_here, w.out_channels, outs, groups, scratch);
  for (std::int64_t r = 0; r < w.kernel_height; ++r) {
    // Rows of sites y of the block whose tap r lies on the image.
    const std::int64_t down = r * w.dilation_height - w.pad_top;
    std::int64_t first = y0, last = y1;
    while (first < last && first * w.stride_height + down < 0) ++first;
    while (last > first && (last - 1) * w.stride_height + down >= w.height) --last;
    if (first == last) continue;
    const T* image = x + (first * w.stride_height + down) * row;
    for (std::int64_t j = 0; j < w.out_width;) {
      const std::int64_t columns = j == inner && outer > inner ? outer - inner : 1;
      const std::int64_t left = j * w.stride_width - w.pad_left;
      const Span taps(left, w.kernel_width, w.width, w.dilation_width);
      Sites sites{last - first,           columns,     w.stride_height * row,
                  w.stride_width * pixel, w.out_width, 1};
      if (far) {  // what the next block reads, a part with each row of the kernel
        const std::int64_t part = (w.stride_width * pixel + w.kernel_height - 1) / w.kernel_height;
        sites.ahead = part;
        sites.next = (y1 - y0) * w.stride_height * row + r * part;
      }
      // Neighbouring taps together, or one after the other.
      const std::int64_t together = side_by_side && taps.size() > 0 ? taps.size() : 1;
      const Tiling cut(columns, most);
      for (std::int64_t t = 0; width > 0 && t < cut.count; ++t) {
        const std::int64_t some = cut.begin(t), cell = left + some * w.stride_width;
        sites.columns = cut.width(t);
        for (std::int64_t s = taps.begin; s < taps.end; s += together) {
          outer_gradient<T>(image + (cell + s * w.dilation_width) * pixel, scratch, sites_here,
                            (first - y0) * w.out_width + j + some, sites, together * ins, outs,
                            groups, grad + (r * w.kernel_width + s) * ins * outs);
        }
      }
      if (width >= outs) {
        j += columns;
        continue;
      }
      sites.columns = columns;
      // Of a group of one channel taps are inputs, however far apart.
      const bool alike = side_by_side || ins == 1;
      const std::int64_t step = ins == 1 ? w.dilation_width * pixel : kPanel;
      const std::int64_t run = alike && taps.size() > 0 ? taps.size() : 1;
      const T* delta = deltas + ((first - y0) * w.out_width + j) * w.out_channels * kPanel;
      for (std::int64_t s = taps.begin; s < taps.end; s += run) {
        inner_gradient<T>(image + (left + s * w.dilation_width) * pixel, step,
                          delta + width * kPanel, w.out_channels * kPanel, sites, run * ins,
                          outs - width, outs, grad + (r * w.kernel_width + s) * ins * outs + width);
      }
      j += columns;
    }
  }
}

template <class T>
static void convolution_gradient(const T* x, const T* d, const Window& w, std::int64_t first,
                                 std::int64_t last, T* scratch, T* grad, T* bias) {
  for (std::int64_t g = 0; g < w.groups; ++g) {
    const std::int64_t out = g * w.group_outs();
    group_gradient<T>(x + g * w.group_channels() * kPanel, d + out * kPanel, w, first, last,
                      scratch, grad + g * w.weights(), bias != nullptr ? bias + out : nullptr);
  }
}

}  // namespace
}  // namespace ribbit::cpu
