#pragma once
// Matrix tiles on panels. Rows of data ride in the lanes: a weight is broadcast and multiplies a
// vector of rows, so no width needs padding.
//
// Tile sizes: 2 FMA ports x 4 cycles of latency need 8 independent sums; a tile of R outputs x 2
// vectors loads R + 2 values for 2 R FMAs, and its sums must stay in registers (32 of 512 bits,
// 16 otherwise).

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

#define RIBBIT_UNROLL _Pragma("GCC unroll 32")

#if defined(__AVX512F__)
constexpr int kTileOutputs = 13;
#else
constexpr int kTileOutputs = 6;
#endif

RIBBIT_INLINE std::int64_t tile_count(std::int64_t outs) {
  return (outs + kTileOutputs - 1) / kTileOutputs;
}
// First output of tile t when outs are cut into nearly equal tiles.
RIBBIT_INLINE std::int64_t tile_begin(std::int64_t outs, std::int64_t tiles, std::int64_t t) {
  const std::int64_t base = outs / tiles, extra = outs % tiles;
  return t * base + (t < extra ? t : extra);
}

template <class T>
static void pack_tiles(const T* weight, std::int64_t ins, std::int64_t outs, bool transposed,
                       std::int64_t first, std::int64_t last, T* packed) {
  const std::int64_t tiles = tile_count(outs);
  for (std::int64_t t = first; t < last; ++t) {
    const std::int64_t o0 = tile_begin(outs, tiles, t);
    const std::int64_t width = tile_begin(outs, tiles, t + 1) - o0;
    T* out = packed + o0 * ins;
    if (transposed) {
      // Sixteen columns at a time, so that a cache line of the source is read while it is hot.
      for (std::int64_t k0 = 0; k0 < ins; k0 += 16) {
        const std::int64_t k1 = k0 + 16 < ins ? k0 + 16 : ins;
        for (std::int64_t o = 0; o < width; ++o) {
          const T* row = weight + (o0 + o) * ins;
          for (std::int64_t k = k0; k < k1; ++k) out[k * width + o] = row[k];
        }
      }
    } else {
      for (std::int64_t k = 0; k < ins; ++k) {
        const T* row = weight + k * outs + o0;
        for (std::int64_t o = 0; o < width; ++o) out[k * width + o] = row[o];
      }
    }
  }
}

// kSplit partial sums over k keep narrow tiles from waiting for the latency of one FMA chain.
template <class T, int kOutputs, int kSplit>
RIBBIT_INLINE void multiply_tile(const T* w, const T* init, const T* x, T* y, const T* scale,
                                 std::int64_t ins) {
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
    if (scale != nullptr) {
      r0 *= load<T>(scale + o * kPanel);
      r1 *= load<T>(scale + o * kPanel + lanes);
    }
    store<T>(y + o * kPanel, r0);
    store<T>(y + o * kPanel + lanes, r1);
  }
}

template <class T>
static void multiply(const T* packed, const T* init, const T* x, T* y, const T* scale,
                     std::int64_t ins, std::int64_t outs, std::int64_t panels) {
  constexpr int lanes = kLanes<T>;
  const std::int64_t tiles = tile_count(outs);
  for (std::int64_t p = 0; p < panels; ++p) {
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t o0 = tile_begin(outs, tiles, t);
      const std::int64_t width = tile_begin(outs, tiles, t + 1) - o0;
      const T* w = packed + o0 * ins;
      const T* start = init != nullptr ? init + o0 : nullptr;
      for (int lane = 0; lane < kPanel; lane += 2 * lanes) {
        const T* xs = x + p * ins * kPanel + lane;
        T* ys = y + (p * outs + o0) * kPanel + lane;
        const T* scales = scale != nullptr ? scale + (p * outs + o0) * kPanel + lane : nullptr;
        switch (width) {
#define RIBBIT_TILE(R, S) \
  case R:                 \
    multiply_tile<T, R, S>(w, start, xs, ys, scales, ins); \
    break;
          RIBBIT_TILE(1, 4)
          RIBBIT_TILE(2, 2)
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
  }
}

}  // namespace
}  // namespace ribbit::cpu
