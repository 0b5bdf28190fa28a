// What ends a gradient, in one launch: partial sums are added up, the prior's part is added, and
// where the gradient is one of a leapfrog trajectory, momenta and positions move. Shapes: C chains,
// P parameters.
#pragma once

#include "cuda/kernels/density_kernels.h"

namespace ribbit::cuda {

// Neighbouring parameters of one prior whose gradients have the same partial sums.
template <class T>
struct JoinSegment {
  Index offset, size;
  const T* partials;   // of the first chain's first parameter; null: of the logarithm of the noise
  Index chain_stride;  // from chain to chain
  Index slice_stride;  // from one partial sum to the next
  Index slices;
  Index kind;  // of the prior; -1: none, or its part is another kernel's
  PriorConstants constants;
};

// body(prior) of a kind: Kind, or where that is -1 the one that a segment has.
template <int Kind, class Body>
RIBBIT_DEVICE auto with_kind(Index kind, const Body& body) {
  if constexpr (Kind >= 0) {
    return body(typename Priors::template At<Kind>{});
  } else {
    return with_prior(static_cast<PriorKind>(kind), body);
  }
}

// Partial sums are added in double: up to kMany of them in order, of more those that are equal mod
// kLanes in order, then these. So sums are a function of the number of their terms. kAhead of them
// are on their way to a thread at once; zeros in the place of those that are not there change no
// sum, which is never -0.
//
// The first `totals` blocks of a chain, none or two, make its terms: log likelihood and log prior
// at theta. Of the others each has the segment and the first of kEach or, of many partial sums,
// kBlock / kLanes parameters of it that `places` say. Then nothing moves theta. Kind: of all
// segments that have a prior, -1: several. Grid: (totals + blocks, C).
template <class T, int Kind>
struct Join {
  static constexpr int kBlock = kThreads, kLanes = 8, kMany = 64, kAhead = 16;
  static constexpr int kEach = 4 * kBlock;
  using Shared = BlockSum<kBlock>;
  const JoinSegment<T>* segments;
  Index num_segments;
  const Index* places;  // (blocks, 2)
  Index totals;
  T* theta;
  const T* centre;      // (P,) or null
  T* grad;              // null: it is not kept
  Index dim;            // P
  double prior_weight;  // of the log prior in the gradient
  // Momenta (C, P), or null: nothing moves. p += step g, q += step inverse_mass p.
  T* momentum;
  const T* inverse_mass;  // as in KickDrift
  Index mass_stride;
  const double* step_size;  // (C,)
  // Sums of the likelihood: of its slope by log noise, of the likelihood itself. (C, slots)
  const double* noise;
  const double* rows;
  Index slots;
  double noise_factor, rows_factor;
  const double* others;  // (C, num_others): what other kernels made of the log prior
  Index num_others;
  double* terms;  // (C, 2)

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index chain = block.y();
    if (block.x() < totals) {
      if (block.x() == 0) {
        add_slots(block, sum, rows + chain * slots);
      } else {
        add_prior(block, sum, chain);
      }
      block.last([&](int t) {
        if (t != 0) return;
        terms[2 * chain + block.x()] = block.x() == 0 ? rows_factor * sum.value[0] : sum.value[0];
      });
      return;
    }
    const Index* place = places + 2 * (block.x() - totals);
    const JoinSegment<T>& segment = segments[place[0]];
    const Index first = place[1];
    if (segment.partials == nullptr) {
      add_slots(block, sum, noise + chain * slots);
      block.last([&](int t) {
        const T g = static_cast<T>(noise_factor * sum.value[0]);
        if (t == 0) finish<1>(segment, chain, 0, {g});
      });
    } else if (segment.slices > kMany) {
      many(block, sum, segment, chain, first);
    } else {
      block.last([&](int t) { few(segment, chain, first + t); });
    }
  }

 private:
  // Leaves the sum of a chain's slots in sum.value[0].
  RIBBIT_DEVICE void add_slots(Block& block, Shared& sum, const double* from) const {
    block.phase([&](int t) {
      double own = 0.0;
      for (Index i = t; i < slots; i += kBlock) own += from[i];
      sum.value[t] = own;
    });
    sum.reduce(block);
  }

  RIBBIT_DEVICE void add_prior(Block& block, Shared& sum, Index chain) const {
    block.phase([&](int t) {
      double own = 0.0;
      for (Index e = t; e < num_others; e += kBlock) own += others[chain * num_others + e];
      for (Index s = 0; s < num_segments; ++s) {
        const JoinSegment<T>& segment = segments[s];
        if (segment.kind < 0) continue;
        const T* at = theta + chain * dim + segment.offset;
        own += with_kind<Kind>(segment.kind, [&](auto prior) {
          double part = 0.0;
          for (Index i = t; i < segment.size; i += kBlock) {
            const double away = static_cast<double>(from_centre(at[i], centre, segment.offset + i));
            part += decltype(prior)::template log_density<double>(away, segment.constants);
          }
          return part;
        });
        if (t == 0) own += static_cast<double>(segment.size) * segment.constants.log_norm;
      }
      sum.value[t] = own;
    });
    sum.reduce(block);
  }

  // Four parameters, kBlock apart.
  RIBBIT_DEVICE void few(const JoinSegment<T>& segment, Index chain, Index first) const {
    constexpr int kOwn = kEach / kBlock;
    const T* from = segment.partials + (chain * segment.chain_stride + first);
    const Index left = segment.size - first, slices = segment.slices;
    T g[kOwn] = {};
    if (slices == 1) {
      RIBBIT_UNROLL_ALL for (int j = 0; j < kOwn; ++j) {
        if (j * kBlock < left) g[j] = from[j * kBlock];
      }
    } else {
      double sums[kOwn] = {};
      for (Index s = 0; s < slices; s += kAhead / kOwn) {
        T part[kAhead / kOwn][kOwn];
        RIBBIT_UNROLL_ALL for (int k = 0; k < kAhead / kOwn; ++k) {
          RIBBIT_UNROLL_ALL for (int j = 0; j < kOwn; ++j) {
            part[k][j] = s + k < slices && j * kBlock < left ? from[j * kBlock] : T(0);
          }
          from += segment.slice_stride;
        }
        RIBBIT_UNROLL_ALL for (int k = 0; k < kAhead / kOwn; ++k) {
          RIBBIT_UNROLL_ALL for (int j = 0; j < kOwn; ++j) {
            sums[j] += static_cast<double>(part[k][j]);
          }
        }
      }
      RIBBIT_UNROLL_ALL for (int j = 0; j < kOwn; ++j) g[j] = static_cast<T>(sums[j]);
    }
    finish<kOwn>(segment, chain, first, g);
  }

  RIBBIT_DEVICE void many(Block& block, Shared& sum, const JoinSegment<T>& segment, Index chain,
                          Index first) const {
    constexpr int kAcross = kBlock / kLanes;
    block.phase([&](int t) {
      const Index i = first + t % kAcross, lane = t / kAcross;
      const T* from = segment.partials + (chain * segment.chain_stride + i);
      const Index slices = segment.slices, apart = kLanes * segment.slice_stride;
      from += lane * segment.slice_stride;
      double own = 0.0;
      if (i < segment.size) {
        for (Index s = lane; s < slices; s += kAhead * kLanes) {
          T part[kAhead];
          RIBBIT_UNROLL_ALL for (int k = 0; k < kAhead; ++k) {
            part[k] = s + k * kLanes < slices ? *from : T(0);
            from += apart;
          }
          RIBBIT_UNROLL_ALL for (int k = 0; k < kAhead; ++k) own += static_cast<double>(part[k]);
        }
      }
      sum.value[t] = own;
    });
    block.last([&](int t) {
      if (t >= kAcross || first + t >= segment.size) return;
      double all = sum.value[t];
      RIBBIT_UNROLL_ALL for (int lane = 1; lane < kLanes; ++lane) {
        all += sum.value[t + lane * kAcross];
      }
      finish<1>(segment, chain, first + t, {static_cast<T>(all)});
    });
  }

  // Parameters first, first + kBlock, .. of a segment, whose data have the gradients g.
  template <int N>
  RIBBIT_DEVICE void finish(const JoinSegment<T>& segment, Index chain, Index first,
                            const T (&g)[N]) const {
    const Index inside = segment.offset + first, at = chain * dim + inside;
    const Index left = segment.size - first;
    const T w = static_cast<T>(prior_weight);
    T q[N], slope[N];
    RIBBIT_UNROLL_ALL for (int j = 0; j < N; ++j) {
      q[j] = j * kBlock < left ? theta[at + j * kBlock] : T(0);
      slope[j] = g[j];
    }
    if (segment.kind >= 0 && prior_weight != 0.0) {
      with_kind<Kind>(segment.kind, [&](auto prior) {
        RIBBIT_UNROLL_ALL for (int j = 0; j < N; ++j) {
          if (j * kBlock >= left) continue;
          const T away = from_centre(q[j], centre, inside + j * kBlock);
          const T score = decltype(prior)::template score<T>(away, segment.constants);
          slope[j] = Ops<T>::fma(w, score, g[j]);
        }
        return T(0);
      });
    }
    if (grad != nullptr) {
      RIBBIT_UNROLL_ALL for (int j = 0; j < N; ++j) {
        if (j * kBlock < left) grad[at + j * kBlock] = slope[j];
      }
    }
    if (momentum == nullptr) return;
    const T step = static_cast<T>(step_size[chain]);
    const T* mass =
        inverse_mass != nullptr ? inverse_mass + (chain * mass_stride + inside) : nullptr;
    RIBBIT_UNROLL_ALL for (int j = 0; j < N; ++j) {
      if (j * kBlock >= left) continue;
      const T p = momentum[at + j * kBlock] + step * slope[j];
      momentum[at + j * kBlock] = p;
      theta[at + j * kBlock] = q[j] + step * (mass != nullptr ? mass[j * kBlock] * p : p);
    }
  }
};

}  // namespace ribbit::cuda
