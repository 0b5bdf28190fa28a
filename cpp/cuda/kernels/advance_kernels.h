// What ends a step along a stochastic gradient, in one launch: partial sums are added up, the
// prior's part is added, parameters move.
#pragma once

#include "cuda/kernels/join_kernels.h"
#include "cuda/kernels/update_kernels.h"

namespace ribbit::cuda {

// Arguments and members as of Update and Join; partial sums are added in order, in double. Kind: of
// all segments that have a prior, -1: several. The gradient is kept. Grid: (ceil(P / 1024), C).
template <class T, class Rule, int Kind>
struct Advance {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Mover<T, Rule> mover;
  const JoinSegment<T>* segments;
  const Index* starts;  // of each block: the segment of its first parameter
  const T* centre;
  double prior_weight;
  const double* noise;
  Index slots;
  double noise_factor;

  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index chain = block.y(), dim = mover.dim;
    if (mover.records.stopped(chain)) return;
    const auto step = mover.begin(chain);
    const Index start = starts[block.x()];
    block.last([&](int t) {
      const Index b = block.x() * kBlock + t, e = 4 * b, left = dim - e;
      if (left <= 0) return;
      Four<T> q = load_four(mover.theta + (chain * dim + e), left, mover.aligned());
      Four<T> g{};
      const JoinSegment<T>* segment = segments + start;
      while (segment->offset + segment->size <= e) ++segment;
      if (segment->offset + segment->size >= e + 4) {
        add<4>(*segment, chain, e, q.v, g.v);
      } else {
        RIBBIT_UNROLL(1)
        for (int i = 0; i < 4 && i < left; ++i) {
          while (segment->offset + segment->size <= e + i) ++segment;
          add<1>(*segment, chain, e + i, q.v + i, g.v + i);
        }
      }
      store_four(mover.grad + (chain * dim + e), g, left, mover.aligned());
      mover.note(chain, mover.move(step, chain, b, g, q));
    });
  }

 private:
  // The gradient of N neighbours at q.
  template <int N>
  RIBBIT_DEVICE void add(const JoinSegment<T>& segment, Index chain, Index e, const T* q,
                         T* g) const {
    double sum[N] = {};
    if (segment.partials == nullptr) {
      for (Index i = 0; i < slots; ++i) sum[0] += noise[chain * slots + i];
      sum[0] *= noise_factor;
    } else {
      const T* from = segment.partials + (chain * segment.chain_stride + (e - segment.offset));
      for (Index s = 0; s < segment.slices; ++s) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) sum[i] += static_cast<double>(from[i]);
        from += segment.slice_stride;
      }
    }
    RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) g[i] = static_cast<T>(sum[i]);
    if (segment.kind < 0 || prior_weight == 0.0) return;
    const T w = static_cast<T>(prior_weight);
    with_kind<Kind>(segment.kind, [&](auto prior) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) {
        const T away = from_centre(q[i], centre, e + i);
        const T score = decltype(prior)::template score<T>(away, segment.constants);
        g[i] = Ops<T>::fma(w, score, g[i]);
      }
      return T(0);
    });
  }
};

}  // namespace ribbit::cuda
