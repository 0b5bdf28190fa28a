// A whole leapfrog trajectory of a small network of dense layers in one launch: one chain per
// block or per group of blocks, weights in shared memory, momenta and gradients in registers. No
// launch and no trip to device memory between the steps, which is what a small network on a GPU is
// otherwise bound by.
#pragma once

#include "cuda/kernels/small_network.h"
#include "cuda/kernels/trajectory_exchange.h"

namespace ribbit::cuda {

// What a chain's one or several blocks run. T: scalar; Kind: likelihood; Code: activation of hidden
// layers, Last: of the outputs; Lanes: a multiple of 16, rows of a panel, or with kSections blocks
// twice as many; Way: how they add up. Grid: (Blocks, C).
//
// Rows are cut into at most kSections sections, by their number alone: halves of panels of `Lanes`
// rows where these are enough, else several panels. A section's gradient is added up row by row,
// sections one after the other. The log likelihood is added up in lanes, that of a row being its
// number modulo Lanes: in a section row by row, then sections one after the other. So the bits are
// those of any Blocks.
//
// A launch makes the steps after `begin` up to `end` of each trajectory: more of them make it
// whole, with the same bits.
template <class T, int Kind, int Code, int Last, int Lanes, class Units, int Blocks,
          template <class, int, int, int> class Way>
struct Trajectories {
  static constexpr int kEach = kSections / Blocks;  // sections of a block of a cluster
  static_assert(Blocks == 1 || kEach == 1 || kEach == 2);
  static constexpr int R = Blocks == kSections ? Lanes / 2 : Lanes;
  using Net = SmallNetwork<T, Kind, Code, Last, R, Units>;
  static constexpr int kBlock = Net::kBlock, kLayers = Net::kLayers, kOwned = Net::kOwned;
  static constexpr int kI = Net::kI, kJ = Net::kJ;
  static constexpr bool kLearned = Net::kLearned;
  static constexpr int kTerms = 1 < Blocks && Blocks < kSections ? 2 : 4;
  // Two blocks hide each other's barriers, where chains are many; more weights of a thread than a
  // tile take more registers.
  static constexpr int kResident = sizeof(T) == 4 && kOwned <= 16 && Blocks < kSections ? 2 : 1;
  using Exchange = Way<T, Net::kWeights, Lanes, Blocks>;
  struct Shared : Net::Shared, Exchange::Shared {};
  struct State {
    Registers<T, kOwned> momentum, grad;
    Registers<T, Blocks == 1 ? kOwned : 1> part;  // of a section that is not over
    // Of the thread's lane, log likelihood and its slope by log noise, of the section; with
    // kSections blocks of the lane R further, too.
    Registers<double, kTerms> terms;
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
  Index begin, end;

  RIBBIT_DEVICE void operator()(Block& block, const Exchange& way) const {
    Shared& m = block.template shared<Shared>();
    State state(block);
    const Index chain = block.y();
    const int steps = static_cast<int>(num_steps[chain]), start = static_cast<int>(begin);
    if (start > 0 && steps <= start) return;
    const T step = static_cast<T>(step_size[chain]);
    net.clear(block, m);
    load<0>(block, m, state, chain);
    if (start == 0) kick<0>(block, m, state, chain, step * T(0.5), step);
    const int last = steps < end ? steps : static_cast<int>(end);
    for (int i = start + 1; i <= last; ++i) {
      const bool over = i == steps;
      gradient(block, m, state, way);
      exchange(block, m, state, way);
      block.phase([&](int t) { net.template add_prior<0>(m, state.grad(t), t); });
      add_noise_gradient(block, m, state);
      kick<0>(block, m, state, chain, over ? step * T(0.5) : step, over ? T(0) : step);
    }
    if (way.rank(block) != 0) return;  // they have the same
    if (last == steps) store_terms(block, m, state, chain);
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

  // Rows of a section.
  RIBBIT_DEVICE Index section() const {
    constexpr int kHalf = Lanes / 2, kAll = kSections * Lanes;
    return net.rows <= kSections * kHalf ? kHalf : (net.rows + kAll - 1) / kAll * Lanes;
  }

  // Adds up the sections of this block.
  RIBBIT_DEVICE void gradient(Block& block, Shared& m, State& state, const Exchange& way) const {
    block.phase([&](int t) {
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) {
        state.grad(t)[e] = T(0);
        if constexpr (Blocks == 1) state.part(t)[e] = T(0);
      }
      RIBBIT_UNROLL_ALL for (int i = 0; i < kTerms; ++i) state.terms(t)[i] = 0.0;
    });
    const Index each = section();
    Index from = 0, to = net.rows;
    if (Blocks > 1) {
      from = way.rank(block) * kEach * each;
      to = from + kEach * each < to ? from + kEach * each : to;
    }
    const int parts = Blocks < kSections && each < R ? 2 : 1;  // sections of a panel
    Index left = each;                                         // rows of the section
    int which = 0;
    for (Index first = from; first < to; first += R) {
      net.run(block, m, state.terms, first);
      left -= R;
      const bool over = left <= 0 || first + R >= to;
      block.phase([&](int t) {
        RIBBIT_UNROLL(1)
        for (int part = 0; part < parts; ++part) {
          const int begin_row = part * (R / 2), end_row = parts == 1 ? R : begin_row + R / 2;
          net.template weight_gradients<0>(m, accumulated(state, t), t, begin_row, end_row);
          if constexpr (Blocks == kSections) swap_lanes(state, t);
          if (over) close(block, m, state, way, t, which + part);
        }
        if (over) close_terms(block, m, state, way, t, which, parts);
      });
      if (over) left = each, which += parts;
    }
    if constexpr (Blocks == 1) {
      block.phase([&](int t) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) state.terms(t)[i] = state.terms(t)[2 + i];
      });
    } else if constexpr (Blocks == kSections) {
      show_terms(block, m, state, way, from, (to - from + R - 1) / R % 2 == 1);
    }
  }
  RIBBIT_DEVICE static T (&accumulated(State& state, int t)) [kOwned] {
    if constexpr (Blocks == 1) {
      return state.part(t);
    } else {
      return state.grad(t);
    }
  }
  // Ends a section, the block's number `which`.
  RIBBIT_DEVICE void close(Block& block, Shared& m, State& state, const Exchange& way, int t,
                           int which) const {
    if constexpr (Blocks == 1) {
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) {
        state.grad(t)[e] += state.part(t)[e];
        state.part(t)[e] = T(0);
      }
    } else {
      show<0>(m, way.sums(block, m, which), state.grad(t), t);
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) state.grad(t)[e] = T(0);
    }
  }
  // Of a panel with two sections each lane has rows of one.
  RIBBIT_DEVICE void close_terms(Block& block, Shared& m, State& state, const Exchange& way, int t,
                                 int which, int parts) const {
    if (Blocks == kSections || t >= Lanes) return;
    double (&own)[kTerms] = state.terms(t);
    RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) {
      if constexpr (Blocks == 1) {
        own[2 + i] += own[i];  // of all sections
      } else {
        way.terms(block, m, which, i)[t] = own[i];
        if (parts == 2) way.terms(block, m, which + 1, i)[t] = 0.0;
      }
      own[i] = 0.0;
    }
  }
  // The terms of the block's one section: of each second panel lie behind the others.
  RIBBIT_DEVICE void show_terms(Block& block, Shared& m, State& state, const Exchange& way,
                                Index from, bool odd) const {
    const int lane = static_cast<int>(from / R % 2) * R;
    block.phase([&](int t) {
      if (t >= R) return;
      const double (&own)[kTerms] = state.terms(t);
      RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) {
        double* to = way.terms(block, m, 0, i);
        to[lane + t] = odd ? own[2 + i] : own[i];
        to[R - lane + t] = odd ? own[i] : own[2 + i];
      }
    });
  }
  RIBBIT_DEVICE static void swap_lanes(State& state, int t) {
    double (&own)[kTerms] = state.terms(t);
    RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) {
      const double other = own[i];
      own[i] = own[2 + i], own[2 + i] = other;
    }
  }

  // Makes sums of sections of this block those of all: each block adds up a share of the weights
  // and writes it to the others.
  RIBBIT_DEVICE void exchange(Block& block, Shared& m, State& state, const Exchange& way) const {
    if constexpr (Blocks > 1) {
      const int sections = static_cast<int>((net.rows + section() - 1) / section());
      way.meet(block);
      block.phase([&](int t) {
        const int first = 4 * (way.rank(block) * kBlock + t);
        for (int e = first; e < Net::kWeights; e += 4 * Blocks * kBlock) {
          T sum[4] = {};
          way.add(block, m, sections, e, sum);
          way.give_all(block, m, e, sum);
        }
        if (t >= Lanes) return;
        RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) {
          state.terms(t)[i] = way.add_terms(block, m, sections, i, t);
        }
      });
      way.meet(block);
      block.phase([&](int t) { fetch<0>(block, m, state.grad(t), way, t); });
    }
  }
  template <int L>
  RIBBIT_DEVICE void show(Shared& m, T* sums, T (&g)[kOwned], int t) const {
    net.template for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        T line[kJ];
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) line[b] = g[e + a * kJ + b];
        give(sums + (Net::template weight<L>(m, i + a, j) - m.weights), line);
      }
    });
    if constexpr (L + 1 < kLayers) show<L + 1>(m, sums, g, t);
  }
  template <int L>
  RIBBIT_DEVICE void fetch(Block& block, Shared& m, T (&g)[kOwned], const Exchange& way,
                           int t) const {
    net.template for_tiles<L>(t, [&](int e, int i, int j) {
      RIBBIT_UNROLL_ALL for (int a = 0; a < kI; ++a) {
        T line[kJ];
        way.take_all(block, m, static_cast<int>(Net::template weight<L>(m, i + a, j) - m.weights),
                     line);
        RIBBIT_UNROLL_ALL for (int b = 0; b < kJ; ++b) g[e + a * kJ + b] = line[b];
      }
    });
    if constexpr (L + 1 < kLayers) fetch<L + 1>(block, m, g, way, t);
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
template <class T, int Kind, int Code, int Last, int Lanes, class Units>
struct Trajectory {
  using Chain = Trajectories<T, Kind, Code, Last, Lanes, Units, 1, Alone>;
  static constexpr int kBlock = kThreads, kResident = Chain::kResident;
  using Shared = typename Chain::Shared;
  Chain chain;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block, {}); }
};

// A cluster of Blocks of a chain, from sm_90 on. Grid: (Blocks, C).
template <class T, int Kind, int Code, int Last, int Lanes, class Units, int Blocks>
struct ClusterTrajectory {
  using Chain = Trajectories<T, Kind, Code, Last, Lanes, Units, Blocks, InCluster>;
  static constexpr int kBlock = kThreads, kResident = Chain::kResident;
  static constexpr int kCluster = Blocks;
  using Shared = typename Chain::Shared;
  Chain chain;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block, {}); }
};

// Blocks of a chain that run at once, a cooperative launch. Grid: (Blocks, C).
template <class T, int Kind, int Code, int Last, int Lanes, class Units, int Blocks>
struct GridTrajectory {
  using Chain = Trajectories<T, Kind, Code, Last, Lanes, Units, Blocks, InGrid>;
  static constexpr int kBlock = kThreads, kResident = Chain::kResident;
  static constexpr int kTogether = Blocks;
  using Shared = typename Chain::Shared;
  Chain chain;
  typename Chain::Exchange way;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block, way); }
};

}  // namespace ribbit::cuda
