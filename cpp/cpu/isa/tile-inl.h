#pragma once
// Matrix tiles on panels. Rows of data ride in the lanes: a weight is broadcast and multiplies a
// vector of rows, so no width needs padding.
//
// Tile sizes: 2 FMA ports x 4 cycles of latency need 8 independent sums; a tile of R outputs x 2
// vectors loads R + 2 values for 2 R FMAs, and its sums must stay in registers (32 of 512 bits,
// 16 otherwise).

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/transpose-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kTileOutputs = 13;
#else
constexpr int kTileOutputs = 6;
#endif

// outs cut into the fewest tiles of at most `most`, as equal as can be. Divides once: an integer
// division costs as much as a small tile.
struct Tiling {
  std::int64_t count, base, extra;
  explicit Tiling(std::int64_t outs, std::int64_t most = kTileOutputs)
      : count((outs + most - 1) / most), base(outs / count), extra(outs - base * count) {}
  std::int64_t begin(std::int64_t t) const { return t * base + (t < extra ? t : extra); }
  int width(std::int64_t t) const { return static_cast<int>(base + (t < extra ? 1 : 0)); }
};

// Rows k0 .. k1 - 1 of a tile, that of outputs o0 .. o0 + width - 1: out (ins, width).
template <class T>
RIBBIT_INLINE void pack_rows_of_tile(const T* weight, std::int64_t ins, std::int64_t outs,
                                     bool transposed, std::int64_t o0, int width, std::int64_t k0,
                                     std::int64_t k1, T* out) {
  constexpr int lanes = kLanes<T>;
  if (width > lanes) {
    for (std::int64_t k = k0; k < k1; ++k) {
      for (int o = 0; o < width; ++o) {
        out[k * width + o] = transposed ? weight[(o0 + o) * ins + k] : weight[k * outs + o0 + o];
      }
    }
  } else if (!transposed) {
    for (std::int64_t k = k0; k < k1; ++k) {
      store_first(out + k * width, load_first(weight + k * outs + o0, width), width);
    }
  } else {
    for (std::int64_t k = k0; k < k1; k += lanes) {
      const std::int64_t some = k1 - k < lanes ? k1 - k : lanes;
      Vec<T> square[lanes];
      RIBBIT_UNROLL for (int o = 0; o < lanes; ++o) {
        square[o] = o < width ? load_first(weight + (o0 + o) * ins + k, some) : Vec<T>{};
      }
      transpose_square<T>(square);
      for (int r = 0; r < some; ++r) store_first(out + (k + r) * width, square[r], width);
    }
  }
}

template <class T>
static void pack_tiles(const T* weight, std::int64_t ins, std::int64_t outs, bool transposed,
                       std::int64_t first, std::int64_t last, std::int64_t all_ins,
                       std::int64_t skip, T* packed) {
  // A few rows of all tiles after the other: a row is read as it lies, where one tile after the
  // other would come back for the rest of every cache line.
  constexpr std::int64_t kRows = 8;
  const std::int64_t rows = transposed ? ins : kRows;
  const Tiling tiling(outs);
  for (std::int64_t k = 0; k < ins; k += rows) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t o0 = tiling.begin(t);
      const int width = tiling.width(t);
      pack_rows_of_tile(weight, ins, outs, transposed, o0, width, k,
                        k + rows < ins ? k + rows : ins, packed + o0 * all_ins + skip * width);
    }
  }
}

// kSplit partial sums over k keep narrow tiles from waiting for the latency of one FMA chain.
template <class T, int kOutputs, int kSplit>
RIBBIT_INLINE void multiply_tile(const T* w, const T* init, const T* x, T* y, const T* scale,
                                 Finish finish, std::int64_t ins) {
  constexpr int lanes = kLanes<T>;
  using V = Vec<T>;
  V sum[kSplit][kOutputs][2];
  RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
    const V start = broadcast(init != nullptr ? init[o] : T(0));
    sum[0][o][0] = start;
    sum[0][o][1] = start;
    RIBBIT_UNROLL for (int s = 1; s < kSplit; ++s) sum[s][o][0] = sum[s][o][1] = Vec<T>{};
  }
  std::int64_t k = 0;
  for (; k + kSplit <= ins; k += kSplit) {
    RIBBIT_UNROLL for (int s = 0; s < kSplit; ++s) {
      const V x0 = load<T>(x + (k + s) * kPanel);
      const V x1 = load<T>(x + (k + s) * kPanel + lanes);
      RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
        const V weight = broadcast(w[(k + s) * kOutputs + o]);
        sum[s][o][0] = mul_add(weight, x0, sum[s][o][0]);
        sum[s][o][1] = mul_add(weight, x1, sum[s][o][1]);
      }
    }
  }
  for (; kSplit > 1 && k < ins; ++k) {
    const V x0 = load<T>(x + k * kPanel);
    const V x1 = load<T>(x + k * kPanel + lanes);
    RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
      const V weight = broadcast(w[k * kOutputs + o]);
      sum[0][o][0] = mul_add(weight, x0, sum[0][o][0]);
      sum[0][o][1] = mul_add(weight, x1, sum[0][o][1]);
    }
  }
  RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
    V r0 = sum[0][o][0], r1 = sum[0][o][1];
    RIBBIT_UNROLL for (int s = 1; s < kSplit; ++s) {
      r0 += sum[s][o][0];
      r1 += sum[s][o][1];
    }
    if (finish == kFinishRelu) {
      r0 = Ops<V>::max(V{}, r0);
      r1 = Ops<V>::max(V{}, r1);
    } else if (finish == kFinishStep) {
      r0 = load<T>(scale + o * kPanel) > V{} ? r0 : V{};
      r1 = load<T>(scale + o * kPanel + lanes) > V{} ? r1 : V{};
    } else if (finish == kFinishAdd) {
      r0 += load<T>(y + o * kPanel);
      r1 += load<T>(y + o * kPanel + lanes);
    } else if (scale != nullptr) {
      r0 *= load<T>(scale + o * kPanel);
      r1 *= load<T>(scale + o * kPanel + lanes);
    }
    store<T>(y + o * kPanel, r0);
    store<T>(y + o * kPanel + lanes, r1);
  }
}

template <class T>
RIBBIT_INLINE void multiply_panel(const T* w, const T* init, const T* x, T* y, const T* scale,
                                  Finish finish, std::int64_t ins, int width) {
  for (int lane = 0; lane < kPanel; lane += 2 * kLanes<T>) {
    const T* scales = scale != nullptr ? scale + lane : nullptr;
    switch (width) {
#define RIBBIT_TILE(R, S)                                                     \
  case R:                                                                     \
    multiply_tile<T, R, S>(w, init, x + lane, y + lane, scales, finish, ins); \
    break;
      RIBBIT_TILE(1, 4)
      RIBBIT_TILE(2, 4)
      RIBBIT_TILE(3, 2)
      RIBBIT_TILE(4, 1)
      RIBBIT_TILE(5, 1)
      RIBBIT_TILE(6, 1)
#if defined(__AVX512F__)
      RIBBIT_TILE(7, 1)
      RIBBIT_TILE(8, 1)
      RIBBIT_TILE(9, 1)
      RIBBIT_TILE(10, 1)
      RIBBIT_TILE(11, 1)
      RIBBIT_TILE(12, 1)
      RIBBIT_TILE(13, 1)
#endif
#undef RIBBIT_TILE
      default:
        __builtin_unreachable();
    }
  }
}

template <class T>
static void multiply(const T* packed, const T* init, const T* x, T* y, const T* scale,
                     Finish finish, std::int64_t ins, std::int64_t outs, std::int64_t panels) {
  const Tiling tiling(outs);
  const auto run = [&](std::int64_t p, std::int64_t t) __attribute__((always_inline)) {
    const std::int64_t o0 = tiling.begin(t);
    const std::int64_t at = (p * outs + o0) * kPanel;
    multiply_panel<T>(packed + o0 * ins, init != nullptr ? init + o0 : nullptr,
                      x + p * ins * kPanel, y + at, scale != nullptr ? scale + at : nullptr, finish,
                      ins, tiling.width(t));
  };
  // Weights that leave the first-level cache between panels are read once per block instead.
  constexpr std::int64_t kHot = (16 << 10) / static_cast<std::int64_t>(sizeof(T));
  if (ins * outs <= kHot) {
    for (std::int64_t p = 0; p < panels; ++p) {
      for (std::int64_t t = 0; t < tiling.count; ++t) run(p, t);
    }
  } else {
    for (std::int64_t t = 0; t < tiling.count; ++t) {
      for (std::int64_t p = 0; p < panels; ++p) run(p, t);
    }
  }
}

// The same on weights that are not packed: for a few panels a tile is packed when it is needed, and
// never leaves the first-level cache.
template <class T>
static void multiply_unpacked(const T* weight, bool transposed, const T* init, const T* x, T* y,
                              const T* scale, Finish finish, std::int64_t ins, std::int64_t outs,
                              std::int64_t panels, T* tile) {
  const Tiling tiling(outs);
  for (std::int64_t t = 0; t < tiling.count; ++t) {
    const std::int64_t o0 = tiling.begin(t);
    const int width = tiling.width(t);
    pack_rows_of_tile(weight, ins, outs, transposed, o0, width, 0, ins, tile);
    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t at = (p * outs + o0) * kPanel;
      multiply_panel<T>(tile, init != nullptr ? init + o0 : nullptr, x + p * ins * kPanel, y + at,
                        scale != nullptr ? scale + at : nullptr, finish, ins, width);
    }
  }
}

}  // namespace
}  // namespace ribbit::cpu
