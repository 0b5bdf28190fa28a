// The passes of a small network of dense layers over a panel of rows, weights and values in shared
// memory; see `TrajectoryLayout`.
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/density_kernels.h"
#include "cuda/kernels/trajectory_layout.h"

namespace ribbit::cuda {

// What one array of parameters needs: where it lies and its prior.
struct PriorOf {
  PriorConstants constants;
  Index kind;
  Index offset;  // -1: there is no such array
};

template <class T>
RIBBIT_DEVICE T prior_score_of(const PriorOf& prior, T theta) {
  return with_prior(static_cast<PriorKind>(prior.kind),
                    [&](auto p) { return decltype(p)::template score<T>(theta, prior.constants); });
}

RIBBIT_DEVICE double prior_log_density_of(const PriorOf& prior, double theta) {
  const double value = with_prior(static_cast<PriorKind>(prior.kind), [&](auto p) {
    return decltype(p)::template log_density<double>(theta, prior.constants);
  });
  return value + prior.constants.log_norm;
}

// T: scalar; Kind: likelihood; Code: activation of hidden layers, Last: of the outputs; R: rows of
// a panel, a multiple of 16; Threads: of a block.
template <class T, int Kind, int Code, int Last, int R, class Units, int Threads = kThreads>
struct SmallNetwork {
  static constexpr int kBlock = Threads;
  using Layout = TrajectoryLayout<T, R, kBlock, Units>;
  static constexpr int kLayers = Units::kLayers;
  static constexpr int kNoise = 2 * kLayers;  // place of log noise in `priors`
  static constexpr int kOwned = Layout::kOwned;
  static constexpr int kI = Layout::kTileRows, kJ = Layout::kTileColumns;
  using Likelihood = Likelihoods::At<Kind>;
  static constexpr bool kLearned = Likelihood::kLearnsNoise;
  static constexpr int kWeights = Layout::weights_at(kLayers);
  struct Shared {
    alignas(16) T weights[kWeights];
    T values[Layout::values_at(kLayers + 1)];
    T deltas[Layout::deltas_at(kLayers + 1)];  // first derivatives of activations, then deltas
    BlockSum<kBlock> sum;
    T log_noise;
  };

  const T* x;  // (N, inputs)
  const T* y;  // (N, targets)
  Index rows;
  Index targets;
  LikelihoodConstants constants;
  double likelihood_weight;
  double prior_weight;
  PriorOf priors[2 * kLayers + 1];  // weight and bias of each layer, log noise

  // Places in constants: the compilers do not evaluate loops over layers by themselves.
  template <int L>
  static RIBBIT_DEVICE T* weight(Shared& m, int i, int j) {
    constexpr int kAt = Layout::weights_at(L), kStride = Layout::stride(L + 1);
    return m.weights + kAt + i * kStride + j;
  }
  template <int L>
  static RIBBIT_DEVICE T* value(Shared& m, int r, int j) {
    constexpr int kAt = Layout::values_at(L), kStride = Layout::stride(L);
    return m.values + kAt + r * kStride + j;
  }
  template <int L>
  static RIBBIT_DEVICE T* delta(Shared& m, int r, int j) {
    constexpr int kAt = Layout::deltas_at(L), kStride = Layout::stride(L);
    return m.deltas + kAt + r * kStride + j;
  }

  // Tiles of weights go to threads from the first on, those of products over rows from the last on.
  //
  // body(first element of the thread, row, column) for the tiles of a layer that a thread owns.
  template <int L, class Body>
  RIBBIT_DEVICE void for_tiles(int t, const Body& body) const {
    constexpr int kRows = Layout::tile_rows(L), kColumns = Layout::tile_columns(L);
    constexpr int kFirst = Layout::first_tile(L);
    constexpr int kCount = Layout::first_tile(L + 1) - kFirst;
    constexpr int kFrom = kFirst / kBlock, kTo = (kFirst + kCount - 1) / kBlock;
    RIBBIT_UNROLL_ALL for (int s = kFrom; s <= kTo; ++s) {
      const int tile = t + s * kBlock - kFirst;
      if (tile < 0 || tile >= kCount) continue;
      const auto at = Layout::template place<kRows, kColumns>(tile);
      if (at.row < kRows && at.column < kColumns) body(s * kI * kJ, at.row * kI, at.column * kJ);
    }
  }
  // body(element of the thread, row, column) for the weights that a thread owns; row == inputs is
  // the bias.
  template <int L, class Body>
  RIBBIT_DEVICE void for_owned(int t, const Body& body) const {
    const int rows = Units::at(L) + (priors[2 * L + 1].offset >= 0 ? 1 : 0);
    for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) {
          if (i + a < rows && j + b < Units::at(L + 1)) body(e + a * kJ + b, i + a, j + b);
        }
      }
    });
  }
  template <int L>
  RIBBIT_DEVICE Index place(int i, int j) const {
    return i < Units::at(L) ? priors[2 * L].offset + i * Units::at(L + 1) + j
                            : priors[2 * L + 1].offset + j;
  }

  // Zeros, which the pads stay, and so does the bias of a layer without one; ones behind the values
  // of each layer but the outputs.
  RIBBIT_DEVICE void clear(Block& block, Shared& m) const {
    block.phase([&](int t) {
      for (int e = t; e < kWeights; e += kBlock) m.weights[e] = T(0);
      if (t < R) clear_row<0>(m, t);
    });
  }

  // All weights and log noise from a chain's parameters.
  template <int L>
  RIBBIT_DEVICE void fetch(Shared& m, const T* from, int t) const {
    constexpr int kInputs = Units::at(L), kUnits = Units::at(L + 1);
    for (int e = t; e < kInputs * kUnits; e += kBlock) {
      *weight<L>(m, e / kUnits, e % kUnits) = from[priors[2 * L].offset + e];
    }
    if (priors[2 * L + 1].offset >= 0) {
      for (int j = t; j < kUnits; j += kBlock) {
        *weight<L>(m, kInputs, j) = from[priors[2 * L + 1].offset + j];
      }
    }
    if constexpr (L + 1 < kLayers) {
      fetch<L + 1>(m, from, t);
    } else if (kLearned && t == 0) {
      m.log_noise = from[priors[kNoise].offset];
    }
  }

  // Values and deltas of the R rows from `first` on. To the first two of a thread's terms its row's
  // log likelihood and its slope by log noise are added.
  template <class Terms>
  RIBBIT_DEVICE void run(Block& block, Shared& m, Terms& terms, Index first) const {
    const T* from = x + first * Units::at(0);
    const int there = static_cast<int>(rows - first < R ? rows - first : R) * Units::at(0);
    block.phase([&](int t) {
      RIBBIT_UNROLL(4)
      for (int e = t; e < R * Units::at(0); e += kBlock) {
        const int r = e / Units::at(0), k = e % Units::at(0);
        *value<0>(m, r, k) = e < there ? from[e] : T(0);
      }
    });
    forward<0>(block, m);
    outputs(block, m, terms, first);
    if constexpr (kLayers > 1) deltas_before<kLayers - 1>(block, m);
  }

  // Adds the part of rows begin to end - 1 of the panel, row by row.
  template <int L>
  RIBBIT_DEVICE void weight_gradients(Shared& m, T (&g)[kOwned], int t, int begin = 0,
                                      int end = R) const {
    constexpr int kColumns = Units::at(L + 1) < kJ ? Units::at(L + 1) : kJ;  // the others are pads
    for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL(1)
      for (int four = begin; four < end; four += 4) {
        RIBBIT_UNROLL_ALL for (int r = four; r < four + 4; ++r) {
          T left[kI], right[kJ];
          take(left, value<L>(m, r, i));
          take(right, delta<L + 1>(m, r, j));
          RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
            RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
              T& sum = g[e + a * kJ + b];
              sum = Ops<T>::fma(left[a], right[b], sum);
            }
          }
        }
      }
    });
    if constexpr (L + 1 < kLayers) weight_gradients<L + 1>(m, g, t, begin, end);
  }

  // Adds the prior's part for the thread's weights.
  template <int L>
  RIBBIT_DEVICE void add_prior(Shared& m, T (&g)[kOwned], int t) const {
    for_tiles<L>(t, [&](int e, int i, int j) {
      add_score<L>(priors[2 * L], m, g, e, i, j, 0, Units::at(L));
      if (i + kI > Units::at(L) && priors[2 * L + 1].offset >= 0) {
        add_score<L>(priors[2 * L + 1], m, g, e, i, j, Units::at(L), Units::at(L) + 1);
      }
    });
    if constexpr (L + 1 < kLayers) add_prior<L + 1>(m, g, t);
  }
  // Of a tile's weights in rows [begin, end): asks once which prior they have.
  template <int L>
  RIBBIT_DEVICE void add_score(const PriorOf& prior, Shared& m, T (&g)[kOwned], int e, int i, int j,
                               int begin, int end) const {
    const T factor = static_cast<T>(prior_weight);
    with_prior(static_cast<PriorKind>(prior.kind), [&](auto p) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) {
          if (i + a < begin || i + a >= end) continue;
          T& sum = g[e + a * kJ + b];
          const T q = *weight<L>(m, i + a, j + b);
          sum = Ops<T>::fma(factor, decltype(p)::template score<T>(q, prior.constants), sum);
        }
      }
      return T(0);
    });
  }

  template <int L>
  RIBBIT_DEVICE double log_prior(Shared& m, int t) const {
    double sum = 0.0;
    const int rows = Units::at(L) + (priors[2 * L + 1].offset >= 0 ? 1 : 0);
    RIBBIT_UNROLL(1)
    for (int e = t; e < rows * Units::at(L + 1); e += kBlock) {
      const int i = e / Units::at(L + 1), j = e % Units::at(L + 1);
      const T q = *weight<L>(m, i, j);
      sum +=
          prior_log_density_of(priors[2 * L + (i < Units::at(L) ? 0 : 1)], static_cast<double>(q));
    }
    if constexpr (L + 1 < kLayers) sum += log_prior<L + 1>(m, t);
    return sum;
  }

 private:
  template <int L>
  RIBBIT_DEVICE void clear_row(Shared& m, int r) const {
    RIBBIT_UNROLL_ALL for (int j = Units::at(L); j < Layout::stride(L); ++j) {
      *value<L>(m, r, j) = L < kLayers && j == Units::at(L) ? T(1) : T(0);
      if constexpr (L > 0) *delta<L>(m, r, j) = T(0);
    }
    if constexpr (L < kLayers) clear_row<L + 1>(m, r);
  }

  template <int L>
  RIBBIT_DEVICE void forward(Block& block, Shared& m) const {
    constexpr int kTiles = Layout::product_tiles(L + 1);
    block.phase([&](int t) {
      for (int e = kBlock - 1 - t; e < kTiles; e += kBlock) forward_tile<L>(m, e);
    });
    if constexpr (L + 1 < kLayers) forward<L + 1>(block, m);
  }
  template <int L>
  RIBBIT_DEVICE void forward_tile(Shared& m, int tile) const {
    constexpr int kInputs = Units::at(L), kUnits = Units::at(L + 1);
    constexpr int kRows = Layout::rows(L + 1), kApart = R / kRows;
    constexpr int kColumns = Layout::columns(L + 1), kTiles = Layout::column_tiles(L + 1);
    const auto at = Layout::template place<kApart, kTiles>(tile);
    if (at.row >= kApart || at.column >= kTiles) return;
    const int r = at.row, j = at.column * kColumns;
    T sum[kRows][kColumns];
    // The bias is the last weight, times the column of 1, or where that is beyond a four the start.
    RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
      const T start = kInputs % 4 == 0 ? *weight<L>(m, kInputs, j + b) : T(0);
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) sum[a][b] = start;
    }
    RIBBIT_UNROLL(2)
    for (int k = 0; k < kInputs; k += 4) {
      T left[kRows][4];
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a)
          take(left[a], value<L>(m, r + a * kApart, k));
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
        T right[kColumns];
        take(right, weight<L>(m, k + i, j));
        RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
          RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
            sum[a][b] = Ops<T>::fma(left[a][i], right[b], sum[a][b]);
          }
        }
      }
    }
    RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
      T f[kColumns], slope[kColumns];
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
        activation<L + 1 < kLayers ? Code : Last, false, T>(sum[a][b], f[b], slope[b]);
        if (kUnits % kColumns != 0 && j + b >= kUnits) {
          f[b] = j + b == kUnits ? T(1) : T(0);
          slope[b] = T(0);
        }
      }
      give(value<L + 1>(m, r + a * kApart, j), f);
      give(delta<L + 1>(m, r + a * kApart, j), slope);
    }
  }

  template <class Terms>
  RIBBIT_DEVICE void outputs(Block& block, Shared& m, Terms& terms, Index first) const {
    constexpr int kOutputs = Units::at(kLayers);
    const double parameter = kLearned ? static_cast<double>(m.log_noise) : constants.scale;
    block.phase([&](int t) {
      if (t >= R) return;
      T* slope = delta<kLayers>(m, t, 0);
      T own[kOutputs];
      double noise = 0.0;
      if (first + t < rows) {
        terms(t)[0] += likelihood_row<Likelihood, T>(constants, value<kLayers>(m, t, 0),
                                                     y + (first + t) * targets, kOutputs, parameter,
                                                     static_cast<T>(likelihood_weight), own, noise);
        terms(t)[1] += noise;
      } else {
        for (int k = 0; k < kOutputs; ++k) own[k] = T(0);
      }
      for (int k = 0; k < kOutputs; ++k) slope[k] *= own[k];
    });
  }

  // Deltas of a layer's inputs and of all before it, each times the derivative in its place.
  template <int L>
  RIBBIT_DEVICE void deltas_before(Block& block, Shared& m) const {
    constexpr int kTiles = Layout::product_tiles(L);
    block.phase([&](int t) {
      for (int e = kBlock - 1 - t; e < kTiles; e += kBlock) delta_tile<L>(m, e);
    });
    if constexpr (L > 1) deltas_before<L - 1>(block, m);
  }
  template <int L>
  RIBBIT_DEVICE void delta_tile(Shared& m, int tile) const {
    constexpr int kRows = Layout::rows(L), kApart = R / kRows;
    constexpr int kColumns = Layout::columns(L), kTiles = Layout::column_tiles(L);
    constexpr int kAtOnce = Units::at(L + 1) < 3 ? Units::at(L + 1) : 4;
    const auto at = Layout::template place<kApart, kTiles>(tile);
    if (at.row >= kApart || at.column >= kTiles) return;
    const int r = at.row, j = at.column;  // and columns j + kTiles, ..: other banks
    T sum[kRows][kColumns];
    RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) sum[a][b] = T(0);
    }
    RIBBIT_UNROLL(2)
    for (int k = 0; k < Units::at(L + 1); k += kAtOnce) {
      T left[kRows][kAtOnce];
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        take(left[a], delta<L + 1>(m, r + a * kApart, k));
      }
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
        T right[kAtOnce];
        take(right, weight<L>(m, j + b * kTiles, k));
        RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
          RIBBIT_UNROLL_ALL for (int i = 0; i < kAtOnce; ++i) {
            sum[a][b] = Ops<T>::fma(left[a][i], right[i], sum[a][b]);
          }
        }
      }
    }
    RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
      if (j + b * kTiles >= Units::at(L)) continue;
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        *delta<L>(m, r + a * kApart, j + b * kTiles) *= sum[a][b];
      }
    }
  }
};

}  // namespace ribbit::cuda
