// A leapfrog step on whole positions, energies and the accept step. Shapes: C chains, P parameters.
#pragma once

#include "core/math_hd.h"
#include "cuda/kernels/block.h"
#include "cuda/kernels/random_kernels.h"

namespace ribbit::cuda {

// p += kick g, then q += drift p, for chains 0 .. grid.y - 1: one pass over memory, 20 bytes per
// float parameter. step_size (C,): kick = kick_factor * step, drift = drift_factor * step; products
// and sums are rounded one by one, as on the CPU. inverse_mass: (P,) with stride 0, (C, P) with
// stride P, or null. N: numbers moved at once, of which P is a multiple; a thread asks for those of
// kAhead places before it computes, so that enough of them are on their way. Grid: (any, C).
template <class T, int N>
struct KickDrift {
  static constexpr int kBlock = kThreads;
  static constexpr int kAhead = 8 / N;
  using Shared = Nothing;
  T* q;
  T* p;
  const T* grad;
  const T* inverse_mass;
  Index mass_stride;
  const double* step_size;
  double kick_factor;
  double drift_factor;
  Index dim;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index at = block.y() * dim;
    const T step = static_cast<T>(step_size[block.y()]);
    const T kick = step * static_cast<T>(kick_factor), drift = step * static_cast<T>(drift_factor);
    const T* mass = inverse_mass != nullptr ? inverse_mass + block.y() * mass_stride : nullptr;
    block.last([&](int t) {
      const Index places = dim / N, apart = block.width() * kBlock;
      for (Index first = block.x() * kBlock + t; first < places; first += kAhead * apart) {
        T position[kAhead][N], momentum[kAhead][N], force[kAhead][N], scale[kAhead][N];
        RIBBIT_UNROLL_ALL for (int k = 0; k < kAhead; ++k) {
          const Index i = (first + k * apart) * N;
          if (i >= dim) break;
          load_at_once<N>(momentum[k], p + at + i);
          load_at_once<N>(force[k], grad + at + i);
          load_at_once<N>(position[k], q + at + i);
          if (mass != nullptr) load_at_once<N>(scale[k], mass + i);
        }
        RIBBIT_UNROLL_ALL for (int k = 0; k < kAhead; ++k) {
          const Index i = (first + k * apart) * N;
          if (i >= dim) break;
          RIBBIT_UNROLL_ALL for (int j = 0; j < N; ++j) {
            const T moved = momentum[k][j] + kick * force[k][j];
            momentum[k][j] = moved;
            position[k][j] += drift * (mass != nullptr ? scale[k][j] * moved : moved);
          }
          put_at_once<N>(p + at + i, momentum[k]);
          put_at_once<N>(q + at + i, position[k]);
        }
      }
    });
  }
};

// out[c] = 0.5 sum p^2 inverse_mass, in double: every thread adds its elements in order, then a
// tree. Grid: (1, C).
template <class T>
struct KineticEnergy {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  const T* p;
  const T* inverse_mass;  // as in KickDrift
  Index mass_stride;
  Index dim;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const T* momentum = p + block.y() * dim;
    const T* mass = inverse_mass != nullptr ? inverse_mass + block.y() * mass_stride : nullptr;
    block.phase([&](int t) {
      double own = 0.0;
      for (Index i = t; i < dim; i += kBlock) {
        const double value = static_cast<double>(momentum[i]);
        own += mass != nullptr ? value * value * static_cast<double>(mass[i]) : value * value;
      }
      sum.value[t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) out[block.y()] = 0.5 * sum.value[0];
    });
  }
};

// out[c] = 1 where all of first and second (C, P) is finite, else 0. Grid: (1, C).
template <class T>
struct FiniteRows {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  const T* first;
  const T* second;
  Index dim;
  bool* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index at = block.y() * dim;
    block.phase([&](int t) {
      // x - x is 0 for what is finite and NaN otherwise
      double bad = 0.0;
      for (Index i = t; i < dim; i += kBlock) {
        const T a = first[at + i], b = second[at + i];
        bad += static_cast<double>((a - a) + (b - b));
      }
      sum.value[t] = bad;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) out[block.y()] = sum.value[0] == 0.0;
    });
  }
};

// Metropolis: accepted where error is finite and log u < -error; rate = min(1, exp(-error)), 0
// where it is not finite. One thread per chain. Grid: (ceil(C / kBlock)).
struct Accept {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Stream stream;
  const double* error;
  Index chains;
  bool* accepted;
  double* rate;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      const Index c = block.x() * kBlock + t;
      if (c >= chains) return;
      Word w[4];
      stream.words(0, stream.chain(c), w);
      const double drop = -error[c];
      const bool finite = drop - drop == 0.0;
      accepted[c] = finite && log<double>(uniform_of(w[0], w[1])) < drop;
      rate[c] = finite ? exp<double>(drop < 0.0 ? drop : 0.0) : 0.0;
    });
  }
};

// out = proposal where accepted, else old, rows of n numbers. Grid: (any, C).
template <class T>
struct Select {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const bool* accepted;
  const T* proposal;
  const T* old;
  Index n;
  T* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index at = block.y() * n;
    const T* from = accepted[block.y()] ? proposal : old;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < n; i += block.width() * kBlock) {
        out[at + i] = from[at + i];
      }
    });
  }
};

}  // namespace ribbit::cuda
