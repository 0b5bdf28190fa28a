// A whole leapfrog trajectory of a small network of dense layers in one launch: one chain per
// block or per cluster of blocks, weights in shared memory, momenta and gradients in registers. No
// launch and no trip to device memory between the steps, which is what a small network on a GPU is
// otherwise bound by.
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

// Parts of a gradient: of a cluster each block makes one and all of them add them up.
constexpr int kSections = 8;

// What blocks of a cluster show each other: sums of a section, where the weights lie; log
// likelihood and its slope by log noise.
template <class T, int Weights, int R, int Blocks>
struct SharedSums {
  alignas(16) T sums[Weights];
  double terms[2][R];
};
template <class T, int Weights, int R>
struct SharedSums<T, Weights, R, 1> {};

// What a chain's one or several blocks run. T: scalar; Kind: likelihood; Code: activation of hidden
// layers, Last: of the outputs; R: rows of a panel, a multiple of 16; Blocks: of a chain. Grid:
// (Blocks, C).
//
// Rows are cut into at most kSections sections of whole panels, by their number alone. A section's
// gradient is added up row by row, sections one after the other: the bits are those of any Blocks.
template <class T, int Kind, int Code, int Last, int R, class Units, int Blocks>
struct Trajectories {
  static_assert(Blocks == 1 || Blocks == kSections);
  static constexpr int kBlock = kThreads;
  using Layout = TrajectoryLayout<T, R, kBlock, Units>;
  static constexpr int kLayers = Units::kLayers;
  static constexpr int kNoise = 2 * kLayers;  // place of log noise in `priors`
  static constexpr int kOwned = Layout::kOwned;
  // Two blocks hide each other's barriers; more weights of a thread than a tile take more
  // registers.
  static constexpr int kResident = sizeof(T) == 4 && kOwned <= 16 ? 2 : 1;
  using Likelihood = Likelihoods::At<Kind>;
  static constexpr bool kLearned = Likelihood::kLearnsNoise;
  static constexpr int kWeights = Layout::weights_at(kLayers);
  struct Shared : SharedSums<T, kWeights, R, Blocks> {
    alignas(16) T weights[kWeights];
    T values[Layout::values_at(kLayers + 1)];
    T deltas[Layout::deltas_at(kLayers + 1)];  // first derivatives of activations, then deltas
    BlockSum<kBlock> sum;
    T log_noise;
  };
  struct State {
    Registers<T, kOwned> momentum, grad;
    Registers<T, Blocks == 1 ? kOwned : 1> part;  // of a section that is not over
    // Of the thread's rows: log likelihood, its slope by log noise, the same of the section.
    Registers<double, 4> terms;
    Registers<T, 2> noise_state;  // momentum and gradient of log noise, of thread 0
    RIBBIT_DEVICE explicit State(Block& block)
        : momentum(block), grad(block), part(block), terms(block), noise_state(block) {}
  };

  const T* x;  // (N, inputs)
  const T* y;  // (N, targets)
  Index rows;
  Index targets;
  T* position;  // (C, P) and so are the next two: start and end
  T* momentum;
  T* grad;
  const T* inverse_mass;  // as in KickDrift
  Index mass_stride;
  const double* step_size;  // (C,)
  const Index* num_steps;   // (C,)
  Index dim;
  LikelihoodConstants constants;
  double likelihood_weight;
  double prior_weight;
  double* terms;                    // (C, 2): as Program.terms
  PriorOf priors[2 * kLayers + 1];  // weight and bias of each layer, log noise

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& m = block.template shared<Shared>();
    State state(block);
    const Index chain = block.y();
    const T step = static_cast<T>(step_size[chain]);
    clear(block, m);
    load<0>(block, m, state, chain);
    kick<0>(block, m, state, chain, step * T(0.5), step);
    const Index steps = num_steps[chain];
    for (Index i = 1; i <= steps; ++i) {
      const bool end = i == steps;
      gradient(block, m, state);
      exchange(block, m, state);
      add_prior<0>(block, m, state);
      add_noise_gradient(block, m, state);
      kick<0>(block, m, state, chain, end ? step * T(0.5) : step, end ? T(0) : step);
    }
    if (Blocks > 1 && block.rank() != 0) return;  // they have the same
    store_terms(block, m, state, chain);
    store<0>(block, m, state, chain);
  }

 private:
  static constexpr int kI = Layout::kTileRows, kJ = Layout::kTileColumns;
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

  // Zeros, which the pads stay, and so does the bias of a layer without one.
  RIBBIT_DEVICE void clear(Block& block, Shared& m) const {
    constexpr int kValues = Layout::values_at(kLayers + 1);
    constexpr int kDeltas = Layout::deltas_at(kLayers + 1);
    block.phase([&](int t) {
      for (int e = t; e < kWeights; e += kBlock) m.weights[e] = T(0);
      for (int e = t; e < kValues; e += kBlock) m.values[e] = T(0);
      for (int e = t; e < kDeltas; e += kBlock) m.deltas[e] = T(0);
    });
  }

  template <int L>
  RIBBIT_DEVICE void load(Block& block, Shared& m, State& state, Index chain) const {
    const Index at = chain * dim;
    block.phase([&](int t) {
      if (t < R) *value<L>(m, t, Units::at(L)) = T(1);
      for_owned<L>(t, [&](int e, int i, int j) {
        const Index p = at + place<L>(i, j);
        *weight<L>(m, i, j) = position[p];
        state.momentum(t)[e] = momentum[p];
        state.grad(t)[e] = grad[p];
      });
      if (L == 0 && kLearned && t == 0) {
        m.log_noise = position[at + dim - 1];
        state.noise_state(t)[0] = momentum[at + dim - 1];
        state.noise_state(t)[1] = grad[at + dim - 1];
      }
    });
    if constexpr (L + 1 < kLayers) load<L + 1>(block, m, state, chain);
  }

  template <int L>
  RIBBIT_DEVICE void store(Block& block, Shared& m, State& state, Index chain) const {
    const Index at = chain * dim;
    block.last([&](int t) {
      for_owned<L>(t, [&](int e, int i, int j) {
        const Index p = at + place<L>(i, j);
        position[p] = *weight<L>(m, i, j);
        momentum[p] = state.momentum(t)[e];
        grad[p] = state.grad(t)[e];
      });
      if (L == 0 && kLearned && t == 0) {
        position[at + dim - 1] = m.log_noise;
        momentum[at + dim - 1] = state.noise_state(t)[0];
        grad[at + dim - 1] = state.noise_state(t)[1];
      }
    });
    if constexpr (L + 1 < kLayers) store<L + 1>(block, m, state, chain);
  }

  // p += kick g, q += drift p; products and sums rounded one by one.
  template <int L>
  RIBBIT_DEVICE void kick(Block& block, Shared& m, State& state, Index chain, T kick_size,
                          T drift) const {
    const T* mass = inverse_mass != nullptr ? inverse_mass + chain * mass_stride : nullptr;
    block.phase([&](int t) {
      for_owned<L>(t, [&](int e, int i, int j) {
        T& p = state.momentum(t)[e];
        T& q = *weight<L>(m, i, j);
        p = p + kick_size * state.grad(t)[e];
        q += drift * (mass != nullptr ? mass[place<L>(i, j)] * p : p);
      });
      if (L == 0 && kLearned && t == 0) {
        T& p = state.noise_state(t)[0];
        p = p + kick_size * state.noise_state(t)[1];
        m.log_noise += drift * (mass != nullptr ? mass[dim - 1] * p : p);
      }
    });
    if constexpr (L + 1 < kLayers) kick<L + 1>(block, m, state, chain, kick_size, drift);
  }

  // Panels of a section.
  RIBBIT_DEVICE Index section() const { return (rows + R * kSections - 1) / (R * kSections); }

  // Adds up the sections of this block.
  RIBBIT_DEVICE void gradient(Block& block, Shared& m, State& state) const {
    block.phase([&](int t) {
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) {
        state.grad(t)[e] = T(0);
        if constexpr (Blocks == 1) state.part(t)[e] = T(0);
      }
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) state.terms(t)[i] = 0.0;
    });
    const Index panels = (rows + R - 1) / R, each = section();
    Index begin = 0, end = panels;
    if (Blocks > 1) {
      begin = block.rank() * each;
      end = begin + each < panels ? begin + each : panels;
    }
    Index left = each;  // panels of the section
    for (Index p = begin; p < end; ++p) {
      --left;
      const bool over = left == 0 || p + 1 == end;
      add_panel(block, m, state, p * R, over);
      if (over) left = each;
    }
  }
  RIBBIT_DEVICE void add_panel(Block& block, Shared& m, State& state, Index first,
                               bool over) const {
    block.phase([&](int t) {
      for (int e = t; e < R * Units::at(0); e += kBlock) {
        const int r = e / Units::at(0), k = e % Units::at(0);
        *value<0>(m, r, k) = first + r < rows ? x[(first + r) * Units::at(0) + k] : T(0);
      }
    });
    forward<0>(block, m);
    outputs(block, m, state, first, over);
    if constexpr (kLayers > 1) deltas_before<kLayers - 1>(block, m);
    block.phase([&](int t) {
      if constexpr (Blocks > 1) {
        weight_gradients<0>(m, state.grad(t), t);
      } else {
        weight_gradients<0>(m, state.part(t), t);
        if (!over) return;
        RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) {
          state.grad(t)[e] += state.part(t)[e];
          state.part(t)[e] = T(0);
        }
      }
    });
  }

  // Makes sums of sections of this block those of all: each block adds up a share of the weights
  // and writes it to the others.
  RIBBIT_DEVICE void exchange(Block& block, Shared& m, State& state) const {
    if constexpr (Blocks > 1) {
      const Index panels = (rows + R - 1) / R, each = section();
      const int sections = static_cast<int>((panels + each - 1) / each);
      block.phase([&](int t) {
        show<0>(m, state.grad(t), t);
        if (t < R) m.terms[0][t] = state.terms(t)[0], m.terms[1][t] = state.terms(t)[1];
      });
      block.meet();
      block.phase([&](int t) {
        for (int e = 4 * (block.rank() * kBlock + t); e < kWeights; e += 4 * Blocks * kBlock) {
          T sum[4] = {};
          for (int s = 0; s < sections; ++s) {
            T part[4];
            take(part, block.peer(m.sums + e, s));
            RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) sum[i] += part[i];
          }
          RIBBIT_UNROLL_ALL for (int s = 0; s < Blocks; ++s) give(block.peer(m.sums + e, s), sum);
        }
        if (t >= R) return;
        RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) {
          double sum = 0.0;
          for (int s = 0; s < sections; ++s) sum += *block.peer(&m.terms[i][t], s);
          state.terms(t)[i] = sum;
        }
      });
      block.meet();
      block.phase([&](int t) { fetch<0>(m, state.grad(t), t); });
    }
  }
  template <int L>
  RIBBIT_DEVICE void show(Shared& m, T (&g)[kOwned], int t) const {
    for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        T line[kJ];
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) line[b] = g[e + a * kJ + b];
        give(m.sums + (weight<L>(m, i + a, j) - m.weights), line);
      }
    });
    if constexpr (L + 1 < kLayers) show<L + 1>(m, g, t);
  }
  template <int L>
  RIBBIT_DEVICE void fetch(Shared& m, T (&g)[kOwned], int t) const {
    for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        T line[kJ];
        take(line, m.sums + (weight<L>(m, i + a, j) - m.weights));
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) g[e + a * kJ + b] = line[b];
      }
    });
    if constexpr (L + 1 < kLayers) fetch<L + 1>(m, g, t);
  }

  template <int L>
  RIBBIT_DEVICE void forward(Block& block, Shared& m) const {
    constexpr int kTiles = Layout::product_tiles(L + 1);
    block.phase([&](int t) {
      for (int e = t; e < kTiles; e += kBlock) forward_tile<L>(m, e);
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

  RIBBIT_DEVICE void outputs(Block& block, Shared& m, State& state, Index first, bool over) const {
    constexpr int kOutputs = Units::at(kLayers);
    const double parameter = kLearned ? static_cast<double>(m.log_noise) : constants.scale;
    block.phase([&](int t) {
      if (t >= R) return;
      T* slope = delta<kLayers>(m, t, 0);
      T own[kOutputs];
      double noise = 0.0;
      if (first + t < rows) {
        state.terms(t)[2] += likelihood_row<Likelihood, T>(
            constants, value<kLayers>(m, t, 0), y + (first + t) * targets, kOutputs, parameter,
            static_cast<T>(likelihood_weight), own, noise);
        state.terms(t)[3] += noise;
      } else {
        for (int k = 0; k < kOutputs; ++k) own[k] = T(0);
      }
      for (int k = 0; k < kOutputs; ++k) slope[k] *= own[k];
      if (!over) return;
      RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) {
        state.terms(t)[i] += state.terms(t)[2 + i];
        state.terms(t)[2 + i] = 0.0;
      }
    });
  }

  // Deltas of a layer's inputs and of all before it, each times the derivative in its place.
  template <int L>
  RIBBIT_DEVICE void deltas_before(Block& block, Shared& m) const {
    constexpr int kTiles = Layout::product_tiles(L);
    block.phase([&](int t) {
      for (int e = t; e < kTiles; e += kBlock) delta_tile<L>(m, e);
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

  // Adds the panel's part, row by row.
  template <int L>
  RIBBIT_DEVICE void weight_gradients(Shared& m, T (&g)[kOwned], int t) const {
    for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL(4)
      for (int r = 0; r < R; ++r) {
        T left[kI], right[kJ];
        take(left, value<L>(m, r, i));
        take(right, delta<L + 1>(m, r, j));
        RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
          RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) {
            T& sum = g[e + a * kJ + b];
            sum = Ops<T>::fma(left[a], right[b], sum);
          }
        }
      }
    });
    if constexpr (L + 1 < kLayers) weight_gradients<L + 1>(m, g, t);
  }

  template <int L>
  RIBBIT_DEVICE void add_prior(Block& block, Shared& m, State& state) const {
    block.phase([&](int t) {
      T(&g)[kOwned] = state.grad(t);
      for_tiles<L>(t, [&](int e, int i, int j) {
        add_score<L>(priors[2 * L], m, g, e, i, j, 0, Units::at(L));
        if (i + kI > Units::at(L) && priors[2 * L + 1].offset >= 0) {
          add_score<L>(priors[2 * L + 1], m, g, e, i, j, Units::at(L), Units::at(L) + 1);
        }
      });
    });
    if constexpr (L + 1 < kLayers) add_prior<L + 1>(block, m, state);
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

  RIBBIT_DEVICE void add_noise_gradient(Block& block, Shared& m, State& state) const {
    if constexpr (kLearned) {
      block.phase([&](int t) { m.sum.value[t] = state.terms(t)[1]; });
      m.sum.reduce(block);
      block.phase([&](int t) {
        if (t != 0) return;
        const T slope = static_cast<T>(likelihood_weight * m.sum.value[0]);
        state.noise_state(t)[1] = Ops<T>::fma(
            static_cast<T>(prior_weight), prior_score_of<T>(priors[kNoise], m.log_noise), slope);
      });
    }
  }

  RIBBIT_DEVICE void store_terms(Block& block, Shared& m, State& state, Index chain) const {
    block.phase([&](int t) { m.sum.value[t] = state.terms(t)[0]; });
    m.sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) terms[2 * chain] = m.sum.value[0];
    });
    block.phase([&](int t) {
      double own = 0.0;
      if (kLearned && t == 0) {
        own = prior_log_density_of(priors[kNoise], static_cast<double>(m.log_noise));
      }
      m.sum.value[t] = own + log_prior<0>(m, t);
    });
    m.sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) terms[2 * chain + 1] = m.sum.value[0];
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
};

// One block of a chain. Grid: (1, C).
template <class T, int Kind, int Code, int Last, int R, class Units>
struct Trajectory {
  using Chain = Trajectories<T, Kind, Code, Last, R, Units, 1>;
  static constexpr int kBlock = Chain::kBlock, kResident = Chain::kResident;
  using Shared = typename Chain::Shared;
  Chain chain;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block); }
};

// A cluster of a chain, from sm_90 on. Grid: (kSections, C).
template <class T, int Kind, int Code, int Last, int R, class Units>
struct ClusterTrajectory {
  using Chain = Trajectories<T, Kind, Code, Last, R, Units, kSections>;
  static constexpr int kBlock = Chain::kBlock, kResident = Chain::kResident;
  static constexpr int kCluster = kSections;
  using Shared = typename Chain::Shared;
  Chain chain;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block); }
};

}  // namespace ribbit::cuda
