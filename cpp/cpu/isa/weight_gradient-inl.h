#pragma once
// Gradients of dense parameters: sums over rows, which ride in the lanes.
//
// Two ways, decided by shape. "Lanes": a tile of sums over vectors of rows, reduced across lanes at
// the end; costs about 3 shuffles per sum. "Outer": the delta panel is transposed (4 shuffles per
// vector), then outputs ride in the lanes and activations are broadcast row by row; worth it when
// the transposed delta serves many inputs.

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/tile-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <class T>
struct IntVecFor {
  using type = VecI32;
};
template <>
struct IntVecFor<double> {
  using type = VecI64;
};
template <class T>
using IntVec = typename IntVecFor<T>::type;

// Interleaves blocks of kBlock lanes: low = {a0, b0, a2, b2, ..}, high = {a1, b1, a3, b3, ..}.
template <class T, int kBlock>
RIBBIT_INLINE void swap_blocks(Vec<T>& a, Vec<T>& b) {
  constexpr int lanes = kLanes<T>;
  IntVec<T> low, high;
  RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
    const bool upper = (i & kBlock) != 0;
    low[i] = upper ? i - kBlock + lanes : i;
    high[i] = upper ? i + lanes : i + kBlock;
  }
  const auto first = __builtin_shuffle(a, b, low);
  b = __builtin_shuffle(a, b, high);
  a = first;
}

// Transposes the square of lanes x lanes scalars in v.
template <class T, int kBlock = kLanes<T> / 2>
RIBBIT_INLINE void transpose_square(Vec<T>* v) {
  constexpr int lanes = kLanes<T>;
  RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
    if ((i & kBlock) == 0) swap_blocks<T, kBlock>(v[i], v[i + kBlock]);
  }
  if constexpr (kBlock > 1) transpose_square<T, kBlock / 2>(v);
}

// v[0..lanes) -> one vector whose lane i is the sum of the lanes of v[i].
template <class T, int kBlock = kLanes<T> / 2>
RIBBIT_INLINE Vec<T> sum_lanes(Vec<T>* v) {
  // Each round halves the vectors: after the round with block b, v[i] holds v[i] and v[i + b].
  RIBBIT_UNROLL for (int i = 0; i < kBlock; ++i) {
    swap_blocks<T, kBlock>(v[i], v[i + kBlock]);
    v[i] += v[i + kBlock];
  }
  if constexpr (kBlock > 1) {
    return sum_lanes<T, kBlock / 2>(v);
  } else {
    return v[0];
  }
}

// grad[i0 + i, o0 + o] += sum over rows; inputs past the end repeat the last one and are dropped.
template <class T, int kIns, int kOuts>
RIBBIT_INLINE void lanes_tile(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                              std::int64_t outs, std::int64_t i0, std::int64_t o0, T* grad) {
  constexpr int lanes = kLanes<T>;
  constexpr int kSums = kIns * kOuts;
  static_assert(kSums % lanes == 0);
  using V = Vec<T>;
  const T* rows[kIns];
  RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
    rows[i] = a + (i0 + i < ins ? i0 + i : ins - 1) * kPanel;
  }
  const T* deltas = d + o0 * kPanel;
  V sum[kSums];
  RIBBIT_UNROLL for (int s = 0; s < kSums; ++s) sum[s] = Vec<T>{};
  for (std::int64_t p = 0; p < panels; ++p) {
    RIBBIT_UNROLL for (int lane = 0; lane < kPanel; lane += lanes) {
      V delta[kOuts];
      RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) {
        delta[o] = load<T>(deltas + (p * outs + o) * kPanel + lane);
      }
      RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
        const V x = load<T>(rows[i] + p * ins * kPanel + lane);
        RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) {
          sum[i * kOuts + o] = mul_add(x, delta[o], sum[i * kOuts + o]);
        }
      }
    }
  }
  alignas(64) T total[kSums];
  RIBBIT_UNROLL for (int s = 0; s < kSums; s += lanes) store<T>(total + s, sum_lanes<T>(sum + s));
  const int valid = static_cast<int>(i0 + kIns <= ins ? kIns : ins - i0);
  for (int i = 0; i < valid; ++i) {
    for (int o = 0; o < kOuts; ++o) grad[(i0 + i) * outs + o0 + o] += total[i * kOuts + o];
  }
}

template <class T>
static void weight_gradient_lanes(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                                  std::int64_t outs, std::int64_t first_out, T* grad) {
  constexpr int kOuts = kLanes<T> >= 16 ? 4 : 2;
  constexpr int kTall = kLanes<T> >= 8 ? kLanes<T> : 8;
  std::int64_t o = first_out;
  for (; o + kOuts <= outs; o += kOuts) {
    for (std::int64_t i = 0; i < ins; i += 4) {
      lanes_tile<T, 4, kOuts>(a, d, panels, ins, outs, i, o, grad);
    }
  }
  for (; o < outs; ++o) {
    for (std::int64_t i = 0; i < ins; i += kTall) {
      lanes_tile<T, kTall, 1>(a, d, panels, ins, outs, i, o, grad);
    }
  }
}

// delta panels (panels, outs, kPanel) -> (panels * kPanel, width), the first width outputs.
template <class T>
static void transpose_delta(const T* d, std::int64_t panels, std::int64_t outs, std::int64_t width,
                            T* transposed) {
  constexpr int lanes = kLanes<T>;
  for (std::int64_t p = 0; p < panels; ++p) {
    for (int lane = 0; lane < kPanel; lane += lanes) {
      for (std::int64_t o = 0; o < width; o += lanes) {
        Vec<T> v[lanes];
        RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
          v[i] = load<T>(d + (p * outs + o + i) * kPanel + lane);
        }
        transpose_square<T>(v);
        T* out = transposed + (p * kPanel + lane) * width + o;
        RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) store<T>(out + i * width, v[i]);
      }
    }
  }
}

template <class T, int kIns, int kVectors>
RIBBIT_INLINE void outer_tile(const T* a, const T* dt, std::int64_t panels, std::int64_t ins,
                              std::int64_t outs, std::int64_t width, std::int64_t i0,
                              std::int64_t o0, T* grad) {
  constexpr int lanes = kLanes<T>;
  using V = Vec<T>;
  V sum[kIns][kVectors];
  RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) sum[i][v] = Vec<T>{};
  }
  for (std::int64_t p = 0; p < panels; ++p) {
    const T* x = a + (p * ins + i0) * kPanel;
    const T* delta = dt + p * kPanel * width + o0;
    for (int r = 0; r < kPanel; ++r) {
      V dv[kVectors];
      RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
        dv[v] = load<T>(delta + r * width + v * lanes);
      }
      RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
        const V value = broadcast(x[i * kPanel + r]);
        RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
          sum[i][v] = mul_add(value, dv[v], sum[i][v]);
        }
      }
    }
  }
  RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
    T* out = grad + (i0 + i) * outs + o0;
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
      store<T>(out + v * lanes, load<T>(out + v * lanes) + sum[i][v]);
    }
  }
}

// The widest tile of inputs whose sums fit in registers beside kVectors deltas.
template <int kVectors>
constexpr int outer_inputs() {
#if defined(__AVX512F__)
  return kVectors == 4 ? 6 : kVectors == 3 ? 8 : kVectors == 2 ? 12 : 16;
#else
  return kVectors == 2 ? 6 : 12;
#endif
}

template <class T, int kVectors, int kIns>
RIBBIT_INLINE void outer_tile_of(int size, const T* a, const T* dt, std::int64_t panels,
                                 std::int64_t ins, std::int64_t outs, std::int64_t width,
                                 std::int64_t i0, std::int64_t o0, T* grad) {
  if (size == kIns) {
    outer_tile<T, kIns, kVectors>(a, dt, panels, ins, outs, width, i0, o0, grad);
  } else if constexpr (kIns > 1) {
    outer_tile_of<T, kVectors, kIns - 1>(size, a, dt, panels, ins, outs, width, i0, o0, grad);
  }
}

template <class T, int kVectors>
static void outer_columns(const T* a, const T* dt, std::int64_t panels, std::int64_t ins,
                          std::int64_t outs, std::int64_t width, std::int64_t o0, T* grad) {
  constexpr int kMost = outer_inputs<kVectors>();
  const std::int64_t tiles = (ins + kMost - 1) / kMost;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t i0 = tile_begin(ins, tiles, t);
    const int size = static_cast<int>(tile_begin(ins, tiles, t + 1) - i0);
    outer_tile_of<T, kVectors, kMost>(size, a, dt, panels, ins, outs, width, i0, o0, grad);
  }
}

template <class T>
static void weight_gradient(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                            std::int64_t outs, T* scratch, T* grad) {
  constexpr int lanes = kLanes<T>;
  constexpr int kMostVectors = lanes * static_cast<int>(sizeof(T)) == 64 ? 4 : 2;
  // Per vector of deltas: 4 shuffles against ins FMAs (outer), 3 shuffles per lanes rows and
  // input (lanes). Both shuffle on one port.
  const bool outer = outs >= lanes && 4 * panels * kPanel < 3 * ins * lanes;
  const std::int64_t width = outer ? outs / lanes * lanes : 0;
  if (width > 0) {
    transpose_delta<T>(d, panels, outs, width, scratch);
    const std::int64_t vectors = width / lanes;
    const std::int64_t groups = (vectors + kMostVectors - 1) / kMostVectors;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t v0 = tile_begin(vectors, groups, g);
      const std::int64_t o0 = v0 * lanes;
      switch (tile_begin(vectors, groups, g + 1) - v0) {
        case 1:
          outer_columns<T, 1>(a, scratch, panels, ins, outs, width, o0, grad);
          break;
        case 2:
          outer_columns<T, 2>(a, scratch, panels, ins, outs, width, o0, grad);
          break;
#if defined(__AVX512F__)
        case 3:
          outer_columns<T, 3>(a, scratch, panels, ins, outs, width, o0, grad);
          break;
        case 4:
          outer_columns<T, 4>(a, scratch, panels, ins, outs, width, o0, grad);
          break;
#endif
        default:
          __builtin_unreachable();
      }
    }
  }
  if (width < outs) weight_gradient_lanes<T>(a, d, panels, ins, outs, width, grad);
}

template <class T>
static void bias_gradient(const T* d, std::int64_t panels, std::int64_t outs, T* grad) {
  constexpr int lanes = kLanes<T>;
  using V = Vec<T>;
  for (std::int64_t o0 = 0; o0 < outs; o0 += lanes) {
    const int valid = static_cast<int>(o0 + lanes <= outs ? lanes : outs - o0);
    V sum[lanes];
    RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) sum[i] = Vec<T>{};
    for (std::int64_t p = 0; p < panels; ++p) {
      for (int i = 0; i < valid; ++i) {
        const T* row = d + (p * outs + o0 + i) * kPanel;
        V s = sum[i];
        RIBBIT_UNROLL for (int lane = 0; lane < kPanel; lane += lanes) s += load<T>(row + lane);
        sum[i] = s;
      }
    }
    alignas(64) T total[lanes];
    store<T>(total, sum_lanes<T>(sum));
    for (int i = 0; i < valid; ++i) grad[o0 + i] += total[i];
  }
}

}  // namespace
}  // namespace ribbit::cpu
