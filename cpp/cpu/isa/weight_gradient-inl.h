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

// out[i] += the lanes of v[i], for n <= lanes vectors.
template <class T>
RIBBIT_INLINE void add_lane_sums(const Vec<T>* v, int n, T* out) {
  constexpr int lanes = kLanes<T>;
  Vec<T> sum[lanes];
  // Sums past the end repeat the last one and are dropped.
  RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) sum[i] = v[i < n ? i : n - 1];
  store_first(out, load_first(out, n) + sum_lanes<T>(sum), n);
}

// grad[i, o] += sum over rows for kIns inputs from i0 and kOuts outputs from o0, of which the first
// `skip` inputs and those from `last` on are dropped. Inputs past the end repeat the last (kClamp).
// kBias: bias[o] += sum over rows of the deltas, which are at hand.
template <class T, int kIns, int kOuts, bool kClamp, bool kBias>
RIBBIT_INLINE void lanes_tile(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                              std::int64_t outs, std::int64_t i0, std::int64_t last,
                              std::int64_t o0, int skip, T* grad, T* bias) {
  constexpr int lanes = kLanes<T>;
  constexpr int kSums = kIns * kOuts, kGroups = (kSums + lanes - 1) / lanes;
  const T* x = a + i0 * kPanel;
  const T* deltas = d + o0 * kPanel;
  Vec<T> sum[kGroups * lanes], bias_sum[kOuts];
  RIBBIT_UNROLL for (int s = 0; s < kSums; ++s) sum[s] = Vec<T>{};
  RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) bias_sum[o] = Vec<T>{};
  for (std::int64_t p = 0; p < panels; ++p) {
    RIBBIT_UNROLL for (int lane = 0; lane < kPanel; lane += lanes) {
      Vec<T> delta[kOuts];
      RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) {
        delta[o] = load<T>(deltas + o * kPanel + lane);
        if constexpr (kBias) bias_sum[o] += delta[o];
      }
      RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
        const std::int64_t row = kClamp && i >= ins ? ins - 1 : i;
        const Vec<T> value = load<T>(x + row * kPanel + lane);
        RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) {
          sum[i * kOuts + o] = mul_add(value, delta[o], sum[i * kOuts + o]);
        }
      }
    }
    x += ins * kPanel;
    deltas += outs * kPanel;
  }
  // Sums past the end repeat the last one and are dropped.
  RIBBIT_UNROLL for (int s = kSums; s < kGroups * lanes; ++s) sum[s] = sum[kSums - 1];
  alignas(64) T total[kGroups * lanes];
  RIBBIT_UNROLL for (int g = 0; g < kGroups; ++g) {
    store<T>(total + g * lanes, sum_lanes<T>(sum + g * lanes));
  }
  const int valid = static_cast<int>(i0 + kIns <= last ? kIns : last - i0);
  for (int i = skip; i < valid; ++i) {
    T* out = grad + (i0 + i) * outs + o0;
    RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) out[o] += total[i * kOuts + o];
  }
  RIBBIT_UNROLL for (int o = 0; kBias && o < kOuts; o += lanes) {
    add_lane_sums<T>(bias_sum + o, kOuts - o < lanes ? kOuts - o : lanes, bias + o0 + o);
  }
}

// Inputs first..last-1 for kOuts outputs from o0. The last tile reaches back over inputs that
// others do. bias: null when it is not wanted.
template <class T, int kIns, int kOuts>
static void lanes_columns(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                          std::int64_t outs, std::int64_t first, std::int64_t last, std::int64_t o0,
                          T* grad, T* bias) {
  if (last < kIns) {
    const int skip = static_cast<int>(first);
    if (bias != nullptr)
      lanes_tile<T, kIns, kOuts, true, true>(a, d, panels, ins, outs, 0, last, o0, skip, grad,
                                             bias);
    else
      lanes_tile<T, kIns, kOuts, true, false>(a, d, panels, ins, outs, 0, last, o0, skip, grad,
                                              bias);
    return;
  }
  std::int64_t i = first;
  if (bias != nullptr && i + kIns <= last) {
    lanes_tile<T, kIns, kOuts, false, true>(a, d, panels, ins, outs, i, last, o0, 0, grad, bias);
    i += kIns;
  }
  for (; i < last; i += kIns) {
    const std::int64_t i0 = i + kIns <= last ? i : last - kIns;
    lanes_tile<T, kIns, kOuts, false, false>(a, d, panels, ins, outs, i0, last, o0,
                                             static_cast<int>(i - i0), grad, bias);
  }
}

// The same for three outputs, of which 16 registers hold the sums with four inputs, or three and
// the bias. Tiles are as equal as can be, so that none reaches back.
template <class T, int kIns = 4>
RIBBIT_INLINE void lanes_tile_of(int size, const T* a, const T* d, std::int64_t panels,
                                 std::int64_t ins, std::int64_t outs, std::int64_t i0,
                                 std::int64_t o0, T* grad, T* bias) {
  if (size < kIns) {
    if constexpr (kIns > 1)
      lanes_tile_of<T, kIns - 1>(size, a, d, panels, ins, outs, i0, o0, grad, bias);
  } else if (kIns == 4 || bias == nullptr) {
    lanes_tile<T, kIns, 3, false, false>(a, d, panels, ins, outs, i0, ins, o0, 0, grad, bias);
  } else {
    lanes_tile<T, kIns, 3, false, true>(a, d, panels, ins, outs, i0, ins, o0, 0, grad, bias);
  }
}
template <class T>
static void lanes_threes(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                         std::int64_t outs, std::int64_t first, std::int64_t last, std::int64_t o0,
                         T* grad, T* bias) {
  const Tiling tiling(last - first + (bias != nullptr ? 1 : 0), 4);
  std::int64_t i = first;
  for (std::int64_t t = 0; t < tiling.count; ++t) {
    const int size = tiling.width(t) - (bias != nullptr ? 1 : 0);
    lanes_tile_of<T>(size, a, d, panels, ins, outs, i, o0, grad, bias);
    bias = nullptr;
    i += size;
  }
}

template <class T>
static void weight_gradient_lanes(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                                  std::int64_t outs, std::int64_t first, std::int64_t last,
                                  std::int64_t first_out, T* grad, T* bias) {
  constexpr int kOuts = kRegisters == 32 ? 4 : 2;
  constexpr int kTall = kLanes<T> >= 8 ? kLanes<T> : 8;
  std::int64_t o = first_out;
  // Threes leave none, two or four.
  for (; kOuts == 2 && o + 3 <= outs && outs - o != 4; o += 3) {
    lanes_threes<T>(a, d, panels, ins, outs, first, last, o, grad, bias);
  }
  for (; o + kOuts <= outs; o += kOuts) {
    lanes_columns<T, 4, kOuts>(a, d, panels, ins, outs, first, last, o, grad, bias);
  }
  for (; o < outs; ++o) {
    lanes_columns<T, kTall, 1>(a, d, panels, ins, outs, first, last, o, grad, bias);
  }
}

// bias[o] += sum over rows of d[o] for the first `width` outputs.
template <class T>
static void bias_gradient(const T* d, std::int64_t panels, std::int64_t outs, std::int64_t width,
                          T* bias) {
  constexpr int lanes = kLanes<T>;
  for (std::int64_t o = 0; o < width; o += lanes) {
    const int some = static_cast<int>(width - o < lanes ? width - o : lanes);
    Vec<T> sum[lanes];
    RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) sum[i] = Vec<T>{};
    for (std::int64_t p = 0; p < panels; ++p) {
      const T* rows = d + (p * outs + o) * kPanel;
      RIBBIT_UNROLL for (int lane = 0; lane < kPanel; lane += lanes) {
        // In turns, so that no sum waits for itself; sums past the end repeat the last one.
        RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
          sum[i] += load<T>(rows + (i < some ? i : some - 1) * kPanel + lane);
        }
      }
    }
    add_lane_sums<T>(sum, some, bias + o);
  }
}

// How many vectors of outputs a pass over the rows takes together.
constexpr int kMostVectors = kRegisters == 32 ? 4 : 2;

// Outputs by passes: `width` of them, a multiple of the lanes.
template <class T>
static Tiling output_groups(std::int64_t width, int most = kMostVectors) {
  return Tiling(width / kLanes<T>, most);
}

// delta panels (panels, pixel, kPanel) -> (panels * kPanel, its width) for each group of vectors of
// outputs after the other, so that a pass reads what lies side by side; zeros behind the last of
// outs outputs.
template <class T>
static void transpose_delta(const T* d, std::int64_t panels, std::int64_t pixel, std::int64_t outs,
                            const Tiling& groups, T* transposed) {
  constexpr int lanes = kLanes<T>;
  for (std::int64_t p = 0; p < panels; ++p) {
    for (int lane = 0; lane < kPanel; lane += lanes) {
      for (std::int64_t g = 0; g < groups.count; ++g) {
        const std::int64_t o0 = groups.begin(g) * lanes, width = groups.width(g) * lanes;
        T* out = transposed + o0 * panels * kPanel + (p * kPanel + lane) * width;
        for (std::int64_t o = o0; o < o0 + width; o += lanes, out += lanes) {
          Vec<T> v[lanes];
          RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
            v[i] = o + i < outs ? load<T>(d + (p * pixel + o + i) * kPanel + lane) : Vec<T>{};
          }
          transpose_square<T>(v);
          RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) store<T>(out + i * width, v[i]);
        }
      }
    }
  }
}

// Panels that a sum runs over, rows x columns of them: how far apart they lie, in scalars of the
// activations and in transposed panels (kPanel, its width) of the deltas. Of the last column's
// panels only the first `valid` rows. Of each panel of activations `ahead` scalars that lie `next`
// further on are asked for: what will be needed, and comes from memory.
struct Sites {
  std::int64_t rows, columns;
  std::int64_t row, column;
  std::int64_t delta_row, delta_column;
  int valid = kPanel;
  std::int64_t next = 0, ahead = 0;
};

// grad: (kIns, outs) from its first output on. next: from a panel to the `some` scalars that it
// asks for.
template <class T, int kIns, int kVectors>
RIBBIT_INLINE void outer_tile(const T* a, const T* dt, const Sites& sites, std::int64_t next,
                              std::int64_t some, std::int64_t outs, std::int64_t o0, T* grad) {
  constexpr int lanes = kLanes<T>, width = kVectors * lanes;
  constexpr std::int64_t kLine = 64 / sizeof(T);
  using V = Vec<T>;
  V sum[kIns][kVectors];
  RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
    __builtin_prefetch(grad + i * outs + o0, 1);  // to be there when the sums are
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) sum[i][v] = Vec<T>{};
  }
  for (std::int64_t row = 0; row < sites.rows; ++row) {
    for (std::int64_t column = 0; column < sites.columns; ++column) {
      const T* x = a + row * sites.row + column * sites.column;
      const T* delta = dt + (row * sites.delta_row + column * sites.delta_column) * kPanel * width;
      const int valid = column + 1 < sites.columns ? kPanel : sites.valid;
      for (std::int64_t f = 0; f < some; f += kLine) __builtin_prefetch(x + next + f, 0, 2);
      for (int r = 0; r < valid; ++r) {
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
  }
  const bool whole = outs - o0 >= kVectors * lanes;
  RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
    T* out = grad + i * outs + o0;
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
      const std::int64_t left = outs - o0 - v * lanes;
      const std::int64_t valid = whole || left > lanes ? lanes : left;
      T* at = out + v * lanes;
      store_first(at, load_first(at, valid) + sum[i][v], valid);
    }
  }
}

// The widest tile of inputs whose sums fit in registers beside kVectors deltas.
template <int kVectors>
constexpr int outer_inputs() {
  if constexpr (RIBBIT_NEON) {  // whose values are in registers too
    return kVectors == 4 ? 5 : kVectors == 3 ? 7 : kVectors == 2 ? 10 : 15;
  } else if constexpr (kRegisters == 32) {
    return kVectors == 4 ? 6 : kVectors == 3 ? 8 : kVectors == 2 ? 12 : 16;
  } else {
    return kVectors == 2 ? 6 : 12;
  }
}

template <class T, int kVectors, int kIns>
RIBBIT_INLINE void outer_tile_of(int size, const T* a, const T* dt, const Sites& sites,
                                 std::int64_t next, std::int64_t some, std::int64_t outs,
                                 std::int64_t o0, T* grad) {
  if (size == kIns) {
    outer_tile<T, kIns, kVectors>(a, dt, sites, next, some, outs, o0, grad);
  } else if constexpr (kIns > 1) {
    outer_tile_of<T, kVectors, kIns - 1>(size, a, dt, sites, next, some, outs, o0, grad);
  }
}

// ins inputs from a on and a group's outputs from o0 on; dt: of the group. grad: (ins, outs).
template <class T, int kVectors>
static void outer_columns(const T* a, const T* dt, const Sites& sites, std::int64_t ins,
                          std::int64_t outs, std::int64_t o0, T* grad) {
  constexpr int kMost = outer_inputs<kVectors>();
  const Tiling tiling(ins, kMost);
  // Each tile asks for its part.
  const std::int64_t part = (sites.ahead + tiling.count - 1) / tiling.count;
  for (std::int64_t t = 0; t < tiling.count; ++t) {
    const std::int64_t i0 = tiling.begin(t);
    outer_tile_of<T, kVectors, kMost>(tiling.width(t), a + i0 * kPanel, dt, sites,
                                      sites.next + t * part - i0 * kPanel, part, outs, o0,
                                      grad + i0 * outs);
  }
}

// All groups of outputs: dt has `panels` panels, of which the sites' first is number `first`.
template <class T>
static void outer_gradient(const T* a, const T* dt, std::int64_t panels, std::int64_t first,
                           const Sites& sites, std::int64_t ins, std::int64_t outs,
                           const Tiling& groups, T* grad) {
  constexpr int lanes = kLanes<T>;
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t o0 = groups.begin(g) * lanes;
    const T* group = dt + (o0 * panels + first * groups.width(g) * lanes) * kPanel;
    switch (groups.width(g)) {
      case 1:
        outer_columns<T, 1>(a, group, sites, ins, outs, o0, grad);
        break;
      case 2:
        outer_columns<T, 2>(a, group, sites, ins, outs, o0, grad);
        break;
      case 3:
        if constexpr (kMostVectors >= 3) {
          outer_columns<T, 3>(a, group, sites, ins, outs, o0, grad);
        }
        break;
      case 4:
        if constexpr (kMostVectors >= 4) {
          outer_columns<T, 4>(a, group, sites, ins, outs, o0, grad);
        }
        break;
      default:
        __builtin_unreachable();
    }
  }
}

// grad: (kIns, outs) from its first output on. Rows stay in the lanes: inputs lie `step` scalars
// apart, deltas of neighbouring sites `pixel`.
template <class T, int kIns, int kOuts>
RIBBIT_INLINE void inner_tile(const T* a, std::int64_t step, const T* d, std::int64_t pixel,
                              const Sites& sites, std::int64_t outs, T* grad) {
  constexpr int lanes = kLanes<T>;
  constexpr int kSums = kIns * kOuts, kGroups = (kSums + lanes - 1) / lanes;
  Vec<T> sum[kGroups * lanes];
  RIBBIT_UNROLL for (int s = 0; s < kSums; ++s) sum[s] = Vec<T>{};
  for (std::int64_t row = 0; row < sites.rows; ++row) {
    for (std::int64_t column = 0; column < sites.columns; ++column) {
      const T* x = a + row * sites.row + column * sites.column;
      const T* delta = d + (row * sites.delta_row + column * sites.delta_column) * pixel;
      for (int lane = 0; lane < kPanel; lane += lanes) {
        Vec<T> dv[kOuts];
        RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) dv[o] = load<T>(delta + o * kPanel + lane);
        RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
          const Vec<T> value = load<T>(x + i * step + lane);
          RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) {
            sum[i * kOuts + o] = mul_add(value, dv[o], sum[i * kOuts + o]);
          }
        }
      }
    }
  }
  // Sums past the end repeat the last one and are dropped.
  RIBBIT_UNROLL for (int s = kSums; s < kGroups * lanes; ++s) sum[s] = sum[kSums - 1];
  alignas(64) T total[kGroups * lanes];
  RIBBIT_UNROLL for (int g = 0; g < kGroups; ++g) {
    store<T>(total + g * lanes, sum_lanes<T>(sum + g * lanes));
  }
  RIBBIT_UNROLL for (int i = 0; i < kIns; ++i) {
    RIBBIT_UNROLL for (int o = 0; o < kOuts; ++o) grad[i * outs + o] += total[i * kOuts + o];
  }
}

// Tiles whose sums stay in registers beside their deltas and an input, and fill whole groups of
// sums whose lanes are added up together.
constexpr int kInnerSums = kRegisters == 32 ? 16 : 8, kInnerOuts = kRegisters == 32 ? 4 : 2;

template <class T, int kOuts, int kIns = kInnerSums / kOuts>
RIBBIT_INLINE void inner_tile_of(int size, const T* a, std::int64_t step, const T* d,
                                 std::int64_t pixel, const Sites& sites, std::int64_t outs,
                                 T* grad) {
  if (size == kIns) {
    inner_tile<T, kIns, kOuts>(a, step, d, pixel, sites, outs, grad);
  } else if constexpr (kIns > 1) {
    inner_tile_of<T, kOuts, kIns - 1>(size, a, step, d, pixel, sites, outs, grad);
  }
}

template <class T, int kOuts>
static void inner_columns(const T* a, std::int64_t step, const T* d, std::int64_t pixel,
                          const Sites& sites, std::int64_t ins, std::int64_t outs, T* grad) {
  const Tiling tiling(ins, kInnerSums / kOuts);
  for (std::int64_t t = 0; t < tiling.count; ++t) {
    const std::int64_t i0 = tiling.begin(t);
    inner_tile_of<T, kOuts>(tiling.width(t), a + i0 * step, step, d, pixel, sites, outs,
                            grad + i0 * outs);
  }
}

// ins inputs from a on and `some` outputs; grad: (ins, outs) from its first output on.
template <class T>
static void inner_gradient(const T* a, std::int64_t step, const T* d, std::int64_t pixel,
                           const Sites& sites, std::int64_t ins, std::int64_t some,
                           std::int64_t outs, T* grad) {
  const Tiling tiling(some, kInnerOuts);
  for (std::int64_t t = 0; t < tiling.count; ++t) {
    const std::int64_t o0 = tiling.begin(t);
    const T* delta = d + o0 * kPanel;
    switch (tiling.width(t)) {
      case 1:
        inner_columns<T, 1>(a, step, delta, pixel, sites, ins, outs, grad + o0);
        break;
      case 2:
        inner_columns<T, 2>(a, step, delta, pixel, sites, ins, outs, grad + o0);
        break;
      case 3:
        if constexpr (kInnerOuts >= 3)
          inner_columns<T, 3>(a, step, delta, pixel, sites, ins, outs, grad + o0);
        break;
      case 4:
        if constexpr (kInnerOuts >= 4)
          inner_columns<T, 4>(a, step, delta, pixel, sites, ins, outs, grad + o0);
        break;
      default:
        __builtin_unreachable();
    }
  }
}

template <class T>
static void sum_rows(const T* d, std::int64_t panels, std::int64_t outs, T* out) {
  bias_gradient<T>(d, panels, outs, outs, out);
}

template <class T>
static void weight_gradient(const T* a, const T* d, std::int64_t rows, std::int64_t ins,
                            std::int64_t outs, std::int64_t first, std::int64_t last, T* scratch,
                            T* grad, T* bias) {
  if (first >= last) return;
  const std::int64_t panels = (rows + kPanel - 1) / kPanel;
  if (first > 0) bias = nullptr;  // once among the parts
  constexpr int lanes = kLanes<T>;
  // Per vector of deltas: 4 shuffles against ins FMAs (outer), 3 shuffles per lanes rows and
  // input (lanes). Both shuffle on one port. Decided by all inputs, so that a part of them sums
  // alike.
  const bool outer = outs >= lanes / 2 && 4 * panels * kPanel < 3 * ins * lanes;
  // Few columns past a multiple of the lanes are cheaper as lane sums than as a padded vector.
  const std::int64_t whole = outs / lanes * lanes;
  const std::int64_t width = !outer ? 0 : outs - whole > 4 ? whole + lanes : whole;
  if (width > 0) {
    if (bias != nullptr) bias_gradient<T>(d, panels, outs, width < outs ? width : outs, bias);
    const Tiling groups = output_groups<T>(width);
    transpose_delta<T>(d, panels, outs, outs, groups, scratch);
    const int valid = static_cast<int>(rows - (panels - 1) * kPanel);
    const Sites sites{1, panels, 0, ins * kPanel, 0, 1, valid};
    outer_gradient<T>(a + first * kPanel, scratch, panels, 0, sites, last - first, outs, groups,
                      grad + first * outs);
  }
  if (width < outs)
    weight_gradient_lanes<T>(a, d, panels, ins, outs, first, last, width, grad, bias);
}

// For one output and inputs that stay in the first-level cache: sums[i] += vectors of rows of
// a[i] d, i < ins, and sums[ins] += those of d; done panel by panel, while a is in cache.
template <class T>
static void narrow_accumulate(const T* a, const T* d, std::int64_t panels, std::int64_t ins,
                              T* sums) {
  constexpr int lanes = kLanes<T>;
  constexpr int kVectors = kPanel / lanes;
  for (std::int64_t p = 0; p < panels; ++p) {
    Vec<T> delta[kVectors];
    Vec<T> all = load<T>(sums + ins * lanes);
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
      delta[v] = load<T>(d + p * kPanel + v * lanes);
      all += delta[v];
    }
    store<T>(sums + ins * lanes, all);
    const T* x = a + p * ins * kPanel;
    for (std::int64_t i = 0; i < ins; ++i) {
      Vec<T> sum = load<T>(sums + i * lanes);
      RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
        sum = mul_add(load<T>(x + i * kPanel + v * lanes), delta[v], sum);
      }
      store<T>(sums + i * lanes, sum);
    }
  }
}

// grad[i] += the lanes of sums[i], i < n.
template <class T>
static void narrow_reduce(const T* sums, std::int64_t n, T* grad) {
  constexpr int lanes = kLanes<T>;
  for (std::int64_t i = 0; i < n; i += lanes) {
    const int some = static_cast<int>(n - i < lanes ? n - i : lanes);
    Vec<T> sum[lanes];
    for (int k = 0; k < some; ++k) sum[k] = load<T>(sums + (i + k) * lanes);
    add_lane_sums<T>(sum, some, grad + i);
  }
}

}  // namespace
}  // namespace ribbit::cpu
