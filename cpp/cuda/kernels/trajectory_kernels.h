// A whole leapfrog trajectory of a small network of dense layers in one launch: one chain per
// block or per cluster of blocks, weights in shared memory, momenta and gradients in registers. No
// launch and no trip to device memory between the steps, which is what a small network on a GPU is
// otherwise bound by.
#pragma once

#include "cuda/kernels/small_network.h"

namespace ribbit::cuda {

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
  using Net = SmallNetwork<T, Kind, Code, Last, R, Units>;
  static constexpr int kBlock = Net::kBlock, kLayers = Net::kLayers, kOwned = Net::kOwned;
  static constexpr int kI = Net::kI, kJ = Net::kJ;
  static constexpr bool kLearned = Net::kLearned;
  // Two blocks hide each other's barriers; more weights of a thread than a tile take more
  // registers.
  static constexpr int kResident = sizeof(T) == 4 && kOwned <= 16 ? 2 : 1;
  struct Shared : Net::Shared, SharedSums<T, Net::kWeights, R, Blocks> {};
  struct State {
    Registers<T, kOwned> momentum, grad;
    Registers<T, Blocks == 1 ? kOwned : 1> part;  // of a section that is not over
    // Of the thread's rows: log likelihood, its slope by log noise, the same of the section.
    Registers<double, 4> terms;
    Registers<T, 2> noise_state;  // momentum and gradient of log noise, of thread 0
    RIBBIT_DEVICE explicit State(Block& block)
        : momentum(block), grad(block), part(block), terms(block), noise_state(block) {}
  };

  Net net;
  T* position;  // (C, P) and so are the next two: start and end
  T* momentum;
  T* grad;
  const T* inverse_mass;  // as in KickDrift
  Index mass_stride;
  const double* step_size;  // (C,)
  const Index* num_steps;   // (C,)
  Index dim;
  double* terms;  // (C, 2): as Program.terms

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& m = block.template shared<Shared>();
    State state(block);
    const Index chain = block.y();
    const T step = static_cast<T>(step_size[chain]);
    net.clear(block, m);
    load<0>(block, m, state, chain);
    kick<0>(block, m, state, chain, step * T(0.5), step);
    const Index steps = num_steps[chain];
    for (Index i = 1; i <= steps; ++i) {
      const bool end = i == steps;
      gradient(block, m, state);
      exchange(block, m, state);
      block.phase([&](int t) { net.template add_prior<0>(m, state.grad(t), t); });
      add_noise_gradient(block, m, state);
      kick<0>(block, m, state, chain, end ? step * T(0.5) : step, end ? T(0) : step);
    }
    if (Blocks > 1 && block.rank() != 0) return;  // they have the same
    store_terms(block, m, state, chain);
    store<0>(block, m, state, chain);
  }

 private:
  template <int L>
  RIBBIT_DEVICE void load(Block& block, Shared& m, State& state, Index chain) const {
    const Index at = chain * dim;
    block.phase([&](int t) {
      net.template for_owned<L>(t, [&](int e, int i, int j) {
        const Index p = at + net.template place<L>(i, j);
        *Net::template weight<L>(m, i, j) = position[p];
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
      net.template for_owned<L>(t, [&](int e, int i, int j) {
        const Index p = at + net.template place<L>(i, j);
        position[p] = *Net::template weight<L>(m, i, j);
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
      net.template for_owned<L>(t, [&](int e, int i, int j) {
        T& p = state.momentum(t)[e];
        T& q = *Net::template weight<L>(m, i, j);
        p = p + kick_size * state.grad(t)[e];
        q += drift * (mass != nullptr ? mass[net.template place<L>(i, j)] * p : p);
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
  RIBBIT_DEVICE Index section() const { return (net.rows + R * kSections - 1) / (R * kSections); }

  // Adds up the sections of this block.
  RIBBIT_DEVICE void gradient(Block& block, Shared& m, State& state) const {
    block.phase([&](int t) {
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) {
        state.grad(t)[e] = T(0);
        if constexpr (Blocks == 1) state.part(t)[e] = T(0);
      }
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) state.terms(t)[i] = 0.0;
    });
    const Index panels = (net.rows + R - 1) / R, each = section();
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
    net.run(block, m, state.terms, first, over);
    block.phase([&](int t) {
      if constexpr (Blocks > 1) {
        net.template weight_gradients<0>(m, state.grad(t), t);
      } else {
        net.template weight_gradients<0>(m, state.part(t), t);
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
      const Index panels = (net.rows + R - 1) / R, each = section();
      const int sections = static_cast<int>((panels + each - 1) / each);
      block.phase([&](int t) {
        show<0>(m, state.grad(t), t);
        if (t < R) m.terms[0][t] = state.terms(t)[0], m.terms[1][t] = state.terms(t)[1];
      });
      block.meet();
      block.phase([&](int t) {
        for (int e = 4 * (block.rank() * kBlock + t); e < Net::kWeights; e += 4 * Blocks * kBlock) {
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
    net.template for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        T line[kJ];
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) line[b] = g[e + a * kJ + b];
        give(m.sums + (Net::template weight<L>(m, i + a, j) - m.weights), line);
      }
    });
    if constexpr (L + 1 < kLayers) show<L + 1>(m, g, t);
  }
  template <int L>
  RIBBIT_DEVICE void fetch(Shared& m, T (&g)[kOwned], int t) const {
    net.template for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        T line[kJ];
        take(line, m.sums + (Net::template weight<L>(m, i + a, j) - m.weights));
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) g[e + a * kJ + b] = line[b];
      }
    });
    if constexpr (L + 1 < kLayers) fetch<L + 1>(m, g, t);
  }

  RIBBIT_DEVICE void add_noise_gradient(Block& block, Shared& m, State& state) const {
    if constexpr (kLearned) {
      block.phase([&](int t) { m.sum.value[t] = state.terms(t)[1]; });
      m.sum.reduce(block);
      block.phase([&](int t) {
        if (t != 0) return;
        const T slope = static_cast<T>(net.likelihood_weight * m.sum.value[0]);
        state.noise_state(t)[1] =
            Ops<T>::fma(static_cast<T>(net.prior_weight),
                        prior_score_of<T>(net.priors[Net::kNoise], m.log_noise), slope);
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
        own = prior_log_density_of(net.priors[Net::kNoise], static_cast<double>(m.log_noise));
      }
      m.sum.value[t] = own + net.template log_prior<0>(m, t);
    });
    m.sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) terms[2 * chain + 1] = m.sum.value[0];
    });
  }
};

// One block of a chain. Grid: (1, C).
template <class T, int Kind, int Code, int Last, int R, class Units>
struct Trajectory {
  using Chain = Trajectories<T, Kind, Code, Last, R, Units, 1>;
  static constexpr int kBlock = kThreads, kResident = Chain::kResident;
  using Shared = typename Chain::Shared;
  Chain chain;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block); }
};

// A cluster of a chain, from sm_90 on. Grid: (kSections, C).
template <class T, int Kind, int Code, int Last, int R, class Units>
struct ClusterTrajectory {
  using Chain = Trajectories<T, Kind, Code, Last, R, Units, kSections>;
  static constexpr int kBlock = kThreads, kResident = Chain::kResident;
  static constexpr int kCluster = kSections;
  using Shared = typename Chain::Shared;
  Chain chain;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block); }
};

}  // namespace ribbit::cuda
