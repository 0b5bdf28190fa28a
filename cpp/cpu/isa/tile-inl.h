#pragma once
// Matrix tiles on panels. Rows of data ride in the lanes: a weight is broadcast and multiplies a
// vector of rows, so no width needs padding.
//
// Tile sizes: 2 FMA ports x 4 cycles of latency need 8 independent sums; a tile of R outputs x 2
// vectors loads R + 2 values for 2 R FMAs, and its sums must stay in registers (32 of 512 bits,
// 16 otherwise). The 32 registers of NEON, with up to 4 ports, hold the tile of AVX2 in vectors of
// half the width: R outputs x 4 vectors. Which sums are split depends on R alone, so that products
// forward have the bits of AVX2.

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

// Vectors of rows that a tile of so many outputs takes at once, with so many partial sums.
constexpr int tile_vectors(int outputs, int splits) {
  return RIBBIT_NEON && outputs * splits <= 6 ? 4 : 2;
}

// outs cut into the fewest tiles of at most `most`, as equal as can be. Divides once: an integer
// division costs as much as a small tile.
struct Tiling {
  std::int64_t count, base, extra;
  explicit Tiling(std::int64_t outs, std::int64_t most = kTileOutputs)
      : count((outs + most - 1) / most),
        base(count > 0 ? outs / count : 0),
        extra(outs - base * count) {}
  std::int64_t begin(std::int64_t t) const { return t * base + (t < extra ? t : extra); }
  int width(std::int64_t t) const { return static_cast<int>(base + (t < extra ? 1 : 0)); }
};

// Rows k0 .. k1 - 1 of `some` outputs from o0 on, no more than lanes: out (ins, width). kOver: what
// lies behind them in a row, and all of the rows behind, is still to be written.
template <class T, bool kOver>
RIBBIT_INLINE void pack_outputs(const T* weight, std::int64_t ins, std::int64_t outs,
                                bool transposed, std::int64_t o0, int some, int width,
                                std::int64_t k0, std::int64_t k1, T* out) {
  constexpr int lanes = kLanes<T>;
  // A whole vector where it ends before the last row does; AVX-512 stores a part of one as fast.
  const std::int64_t last = kOver && RIBBIT_VEC_BYTES < 64 ? k1 * width - lanes : -1;
  const auto put = [&](std::int64_t k, Vec<T> v) __attribute__((always_inline)) {
    const std::int64_t at = k * width;
    store_first(out + at, v, at <= last ? lanes : some);
  };
  if (!transposed) {
    for (std::int64_t k = k0; k < k1; ++k) put(k, load_first(weight + k * outs + o0, some));
  } else {
    for (std::int64_t k = k0; k < k1; k += lanes) {
      const std::int64_t rows = k1 - k < lanes ? k1 - k : lanes;
      Vec<T> square[lanes];
      RIBBIT_UNROLL for (int o = 0; o < lanes; ++o) {
        square[o] = o < some ? load_first(weight + (o0 + o) * ins + k, rows) : Vec<T>{};
      }
      transpose_square<T>(square);
      for (int r = 0; r < rows; ++r) put(k + r, square[r]);
    }
  }
}

// Rows k0 .. k1 - 1 of a tile, that of outputs o0 .. o0 + width - 1: out (ins, width).
template <class T>
RIBBIT_INLINE void pack_rows_of_tile(const T* weight, std::int64_t ins, std::int64_t outs,
                                     bool transposed, std::int64_t o0, int width, std::int64_t k0,
                                     std::int64_t k1, T* out) {
  constexpr int lanes = kLanes<T>;
  if (width <= lanes) {
    pack_outputs<T, true>(weight, ins, outs, transposed, o0, width, width, k0, k1, out);
  } else if (RIBBIT_NEON) {
    for (int o = 0; o < width; o += lanes) {
      const int some = width - o < lanes ? width - o : lanes;
      pack_outputs<T, false>(weight, ins, outs, transposed, o0 + o, some, width, k0, k1, out + o);
    }
  } else {
    for (std::int64_t k = k0; k < k1; ++k) {
      for (int o = 0; o < width; ++o) {
        out[k * width + o] = transposed ? weight[(o0 + o) * ins + k] : weight[k * outs + o0 + o];
      }
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

// N weights that lie side by side, each to be multiplied by vectors. A multiply of NEON takes its
// factor from a lane, so that a load brings as many weights as there are lanes.
template <class T, int N>
struct Weights {
#if RIBBIT_NEON
  static constexpr int kL = kLanes<T>;
  Vec<T> v[(N + kL - 1) / kL];
  RIBBIT_INLINE_MEMBER explicit Weights(const T* w) {
    RIBBIT_UNROLL for (int j = 0; j < N / kL; ++j) v[j] = load<T>(w + j * kL);
    if constexpr (N % kL != 0) v[N / kL] = load_few<N % kL>(w + N / kL * kL);
  }
  RIBBIT_INLINE_MEMBER Vec<T> operator[](int i) const { return broadcast(v[i / kL][i % kL]); }
#else
  const T* w;
  RIBBIT_INLINE_MEMBER explicit Weights(const T* at) : w(at) {}
  RIBBIT_INLINE_MEMBER Vec<T> operator[](int i) const { return broadcast(w[i]); }
#endif
};

// kSplit partial sums over k keep narrow tiles from waiting for the latency of one FMA chain.
template <class T, int kOutputs, int kSplit, int kVectors>
RIBBIT_INLINE void multiply_tile(const T* w, const T* init, const T* x, T* y, const T* scale,
                                 Finish finish, std::int64_t ins) {
  constexpr int lanes = kLanes<T>;
  using V = Vec<T>;
  V sum[kSplit][kOutputs][kVectors];
  RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
    const V start = broadcast(init != nullptr ? init[o] : T(0));
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
      sum[0][o][v] = start;
      RIBBIT_UNROLL for (int s = 1; s < kSplit; ++s) sum[s][o][v] = Vec<T>{};
    }
  }
  std::int64_t k = 0;
  for (; k + kSplit <= ins; k += kSplit) {
    const Weights<T, kSplit * kOutputs> weights(w + k * kOutputs);
    RIBBIT_UNROLL for (int s = 0; s < kSplit; ++s) {
      V in[kVectors];
      RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
        in[v] = load<T>(x + (k + s) * kPanel + v * lanes);
      }
      RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
        const V weight = weights[s * kOutputs + o];
        RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
          sum[s][o][v] = mul_add(weight, in[v], sum[s][o][v]);
        }
      }
    }
  }
  for (; kSplit > 1 && k < ins; ++k) {
    V in[kVectors];
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) in[v] = load<T>(x + k * kPanel + v * lanes);
    RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
      const V weight = broadcast(w[k * kOutputs + o]);
      RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
        sum[0][o][v] = mul_add(weight, in[v], sum[0][o][v]);
      }
    }
  }
  RIBBIT_UNROLL for (int o = 0; o < kOutputs; ++o) {
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
      V result = sum[0][o][v];
      RIBBIT_UNROLL for (int s = 1; s < kSplit; ++s) result += sum[s][o][v];
      const int at = o * kPanel + v * lanes;
      if (finish == kFinishRelu) {
        result = Ops<V>::max(V{}, result);
      } else if (finish == kFinishStep) {
        result = load<T>(scale + at) > V{} ? result : V{};
      } else if (finish == kFinishAdd) {
        result += load<T>(y + at);
      } else if (scale != nullptr) {
        result *= load<T>(scale + at);
      }
      store<T>(y + at, result);
    }
  }
}

template <class T>
RIBBIT_INLINE void multiply_panel(const T* w, const T* init, const T* x, T* y, const T* scale,
                                  Finish finish, std::int64_t ins, int width) {
  switch (width) {
#define RIBBIT_TILE(R, S)                                                                       \
  case R: {                                                                                     \
    constexpr int kVectors = tile_vectors(R, S);                                                \
    for (int lane = 0; lane < kPanel; lane += kVectors * kLanes<T>) {                           \
      multiply_tile<T, R, S, kVectors>(w, init, x + lane, y + lane,                             \
                                       scale != nullptr ? scale + lane : nullptr, finish, ins); \
    }                                                                                           \
    break;                                                                                      \
  }
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
