// A whole leapfrog trajectory of a small network of dense layers in one launch: one chain per
// block, weights in shared memory, momenta and gradients in registers. No launch and no trip to
// device memory between the steps, which is what a small network on a GPU is otherwise bound by.
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/density_kernels.h"

namespace ribbit::cuda {

// Inputs, units of each hidden layer, outputs.
template <int... Units>
struct UnitsOf {
  static constexpr int kLayers = static_cast<int>(sizeof...(Units)) - 1;
  static RIBBIT_SIZE int at(int i) {
    const int units[] = {Units...};
    return units[i];
  }
};

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
// a panel, a multiple of 16. All threads stand in a square of 16 x 16: thread (i, j) owns outputs
// (i mod 16, j mod 16) of every product and the weights (row i mod 16, column j mod 16) of every
// layer, the bias being a weight's last row. Grid: (1, C).
template <class T, int Kind, int Code, int Last, int R, class Units>
struct Trajectory {
  static constexpr int kBlock = kThreads;
  static constexpr int kSide = 16;
  static constexpr int kLayers = Units::kLayers;
  static constexpr int kNoise = 2 * kLayers;  // place of log noise in `priors`
  using Likelihood = Likelihoods::At<Kind>;
  static constexpr bool kLearned = Likelihood::kLearnsNoise;
  // Odd lengths of rows: threads that walk down a column then meet different banks.
  static RIBBIT_SIZE int stride(int layer) { return Units::at(layer) | 1; }
  static RIBBIT_SIZE int weights_at(int layer) {
    int sum = 0;
    for (int l = 0; l < layer; ++l) sum += (Units::at(l) + 1) * stride(l + 1);
    return sum;
  }
  static RIBBIT_SIZE int values_at(int layer) {
    int sum = 0;
    for (int l = 0; l < layer; ++l) sum += R * stride(l);
    return sum;
  }
  static RIBBIT_SIZE int tile_rows(int layer) { return (Units::at(layer) + kSide) / kSide; }
  static RIBBIT_SIZE int tile_columns(int layer) {
    return (Units::at(layer + 1) + kSide - 1) / kSide;
  }
  static RIBBIT_SIZE int owned_before(int layer) {
    int sum = 0;
    for (int l = 0; l < layer; ++l) sum += tile_rows(l) * tile_columns(l);
    return sum;
  }
  static constexpr int kOwned = owned_before(kLayers);
  struct Shared {
    T weights[weights_at(kLayers)];
    T values[values_at(kLayers + 1)];
    T deltas[values_at(kLayers + 1)];  // first derivatives of activations, then deltas
    BlockSum<kBlock> sum;
    T log_noise;
  };
  struct State {
    Registers<T, kOwned> momentum, grad;
    Registers<double, 2> terms;   // of the thread's rows: log likelihood, its slope by log noise
    Registers<T, 2> noise_state;  // momentum and gradient of log noise, of thread 0
    RIBBIT_DEVICE explicit State(Block& block)
        : momentum(block), grad(block), terms(block), noise_state(block) {}
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
    load<0>(block, m, state, chain);
    kick<0>(block, m, state, chain, step * T(0.5), step);
    const Index steps = num_steps[chain];
    for (Index i = 1; i <= steps; ++i) {
      const bool end = i == steps;
      gradient(block, m, state);
      add_noise_gradient(block, m, state);
      kick<0>(block, m, state, chain, end ? step * T(0.5) : step, end ? T(0) : step);
    }
    store_terms(block, m, state, chain);
    store<0>(block, m, state, chain);
  }

 private:
  // body(element of the thread, row, column) for the weights that a thread owns; row == inputs is
  // the bias.
  template <int L, class Body>
  RIBBIT_DEVICE void for_owned(int t, const Body& body) const {
    constexpr int kRows = Units::at(L) + 1, kColumns = Units::at(L + 1);
    RIBBIT_UNROLL_ALL for (int a = 0; a < tile_rows(L); ++a) {
      RIBBIT_UNROLL_ALL for (int b = 0; b < tile_columns(L); ++b) {
        const int i = t / kSide + a * kSide, j = t % kSide + b * kSide;
        if (i < kRows && j < kColumns && (i < Units::at(L) || priors[2 * L + 1].offset >= 0)) {
          body(owned_before(L) + a * tile_columns(L) + b, i, j);
        }
      }
    }
  }
  template <int L>
  RIBBIT_DEVICE Index place(int i, int j) const {
    return i < Units::at(L) ? priors[2 * L].offset + i * Units::at(L + 1) + j
                            : priors[2 * L + 1].offset + j;
  }

  template <int L>
  RIBBIT_DEVICE void load(Block& block, Shared& m, State& state, Index chain) const {
    const Index at = chain * dim;
    block.phase([&](int t) {
      constexpr int kRows = Units::at(L) + 1;
      if (priors[2 * L + 1].offset < 0) {  // no bias: a row of zeros that nobody moves
        for (int j = t; j < Units::at(L + 1); j += kBlock) {
          m.weights[weights_at(L) + (kRows - 1) * stride(L + 1) + j] = T(0);
        }
      }
      for_owned<L>(t, [&](int e, int i, int j) {
        const Index p = at + place<L>(i, j);
        m.weights[weights_at(L) + i * stride(L + 1) + j] = position[p];
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
        position[p] = m.weights[weights_at(L) + i * stride(L + 1) + j];
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
        T& q = m.weights[weights_at(L) + i * stride(L + 1) + j];
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

  RIBBIT_DEVICE void gradient(Block& block, Shared& m, State& state) const {
    block.phase([&](int t) {
      T(&g)[kOwned] = state.grad(t);
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) g[e] = T(0);
      state.terms(t)[0] = state.terms(t)[1] = 0.0;
    });
    for (Index first = 0; first < rows; first += R) {
      block.phase([&](int t) {
        for (int e = t; e < R * Units::at(0); e += kBlock) {
          const int r = e / Units::at(0), k = e % Units::at(0);
          m.values[r * stride(0) + k] = first + r < rows ? x[(first + r) * Units::at(0) + k] : T(0);
        }
      });
      forward<0>(block, m);
      outputs(block, m, state, first);
      backward<kLayers - 1>(block, m, state);
    }
    add_prior<0>(block, m, state);
  }

  template <int L>
  RIBBIT_DEVICE void forward(Block& block, Shared& m) const {
    block.phase([&](int t) {
      constexpr int kRows = R / kSide, kColumns = tile_columns(L);
      const T* from = m.values + values_at(L);
      const T* w = m.weights + weights_at(L);
      const int i0 = t / kSide, j0 = t % kSide;
      T sum[kRows][kColumns];
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
        const int j = column<L>(j0, b);
        const T bias = w[Units::at(L) * stride(L + 1) + j];
        RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) sum[a][b] = bias;
      }
      for (int k = 0; k < Units::at(L); ++k) {
        T left[kRows], right[kColumns];
        RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
          left[a] = from[(i0 + a * kSide) * stride(L) + k];
        }
        RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
          right[b] = w[k * stride(L + 1) + column<L>(j0, b)];
        }
        RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
          RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
            sum[a][b] = Ops<T>::fma(left[a], right[b], sum[a][b]);
          }
        }
      }
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
          const int j = j0 + b * kSide;
          if (j >= Units::at(L + 1)) continue;
          const int at = values_at(L + 1) + (i0 + a * kSide) * stride(L + 1) + j;
          activation<L + 1 < kLayers ? Code : Last, false, T>(sum[a][b], m.values[at],
                                                              m.deltas[at]);
        }
      }
    });
    if constexpr (L + 1 < kLayers) forward<L + 1>(block, m);
  }
  // A column that exists: threads beyond the last one repeat it and drop the result.
  template <int L>
  static RIBBIT_DEVICE int column(int j0, int b) {
    const int j = j0 + b * kSide;
    return j < Units::at(L + 1) ? j : Units::at(L + 1) - 1;
  }

  RIBBIT_DEVICE void outputs(Block& block, Shared& m, State& state, Index first) const {
    constexpr int kOutputs = Units::at(kLayers), kStride = stride(kLayers);
    const double parameter = kLearned ? static_cast<double>(m.log_noise) : constants.scale;
    block.phase([&](int t) {
      if (t >= R) return;
      const int at = values_at(kLayers) + t * kStride;
      T delta[kOutputs];
      double noise = 0.0;
      if (first + t < rows) {
        state.terms(t)[0] += likelihood_row<Likelihood, T>(
            constants, m.values + at, y + (first + t) * targets, kOutputs, parameter,
            static_cast<T>(likelihood_weight), delta, noise);
        state.terms(t)[1] += noise;
      } else {
        for (int k = 0; k < kOutputs; ++k) delta[k] = T(0);
      }
      for (int k = 0; k < kOutputs; ++k) m.deltas[at + k] *= delta[k];
    });
  }

  template <int L>
  RIBBIT_DEVICE void backward(Block& block, Shared& m, State& state) const {
    block.phase([&](int t) {
      weight_gradient<L>(m, state.grad(t), t);
      if constexpr (L > 0) delta_before<L>(m, t);
    });
    if constexpr (L > 0) backward<L - 1>(block, m, state);
  }

  template <int L>
  RIBBIT_DEVICE void weight_gradient(const Shared& m, T (&g)[kOwned], int t) const {
    constexpr int kRows = tile_rows(L), kColumns = tile_columns(L), kInputs = Units::at(L);
    const T* from = m.values + values_at(L);
    const T* delta = m.deltas + values_at(L + 1);
    const int i0 = t / kSide, j0 = t % kSide;
    for (int r = 0; r < R; ++r) {
      T left[kRows], right[kColumns];
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        const int i = i0 + a * kSide;
        left[a] = i < kInputs ? from[r * stride(L) + i] : T(1);
      }
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
        right[b] = delta[r * stride(L + 1) + column<L>(j0, b)];
      }
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
          T& sum = g[owned_before(L) + a * kColumns + b];
          sum = Ops<T>::fma(left[a], right[b], sum);
        }
      }
    }
  }

  // delta of the layer's inputs, times the derivative that stands in its place.
  template <int L>
  RIBBIT_DEVICE void delta_before(Shared& m, int t) const {
    constexpr int kRows = R / kSide, kInputs = Units::at(L);
    constexpr int kColumns = (kInputs + kSide - 1) / kSide;
    const T* delta = m.deltas + values_at(L + 1);
    const T* w = m.weights + weights_at(L);
    const int i0 = t / kSide, j0 = t % kSide;
    T sum[kRows][kColumns];
    RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) sum[a][b] = T(0);
    }
    for (int k = 0; k < Units::at(L + 1); ++k) {
      T left[kRows], right[kColumns];
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        left[a] = delta[(i0 + a * kSide) * stride(L + 1) + k];
      }
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
        const int i = j0 + b * kSide;
        right[b] = w[(i < kInputs ? i : kInputs - 1) * stride(L + 1) + k];
      }
      RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
        RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
          sum[a][b] = Ops<T>::fma(left[a], right[b], sum[a][b]);
        }
      }
    }
    RIBBIT_UNROLL_ALL for (int a = 0; a < kRows; ++a) {
      RIBBIT_UNROLL_ALL for (int b = 0; b < kColumns; ++b) {
        const int i = j0 + b * kSide;
        if (i < kInputs) m.deltas[values_at(L) + (i0 + a * kSide) * stride(L) + i] *= sum[a][b];
      }
    }
  }

  template <int L>
  RIBBIT_DEVICE void add_prior(Block& block, Shared& m, State& state) const {
    const T weight = static_cast<T>(prior_weight);
    block.phase([&](int t) {
      for_owned<L>(t, [&](int e, int i, int j) {
        const PriorOf& prior = priors[2 * L + (i < Units::at(L) ? 0 : 1)];
        const T q = m.weights[weights_at(L) + i * stride(L + 1) + j];
        T& g = state.grad(t)[e];
        g = Ops<T>::fma(weight, prior_score_of<T>(prior, q), g);
      });
    });
    if constexpr (L + 1 < kLayers) add_prior<L + 1>(block, m, state);
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
      m.sum.value[t] = own + owned_log_prior<0>(m, t);
    });
    m.sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) terms[2 * chain + 1] = m.sum.value[0];
    });
  }
  template <int L>
  RIBBIT_DEVICE double owned_log_prior(const Shared& m, int t) const {
    double sum = 0.0;
    for_owned<L>(t, [&](int, int i, int j) {
      const T q = m.weights[weights_at(L) + i * stride(L + 1) + j];
      sum +=
          prior_log_density_of(priors[2 * L + (i < Units::at(L) ? 0 : 1)], static_cast<double>(q));
    });
    if constexpr (L + 1 < kLayers) sum += owned_log_prior<L + 1>(m, t);
    return sum;
  }
};

}  // namespace ribbit::cuda
