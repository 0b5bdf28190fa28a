// The gradient of a small network on many rows: weights in shared memory, panels of rows one after
// the other, gradients of weights in registers over all panels of a block.
#pragma once

#include "cuda/kernels/small_network.h"

namespace ribbit::cuda {

// Arguments as of SmallNetwork. A block has `panels` panels of R rows and makes one partial sum of
// the gradient, row by row; by the number of rows alone. Grid: (groups of panels, C).
template <class T, int Kind, int Code, int Last, int R, class Units, int Threads>
struct RowGradient {
  using Net = SmallNetwork<T, Kind, Code, Last, R, Units, Threads>;
  static constexpr int kBlock = Threads;
  static constexpr int kLayers = Net::kLayers, kOwned = Net::kOwned;
  static constexpr int kResident = sizeof(T) == 4 && kOwned <= 16 ? 512 / kBlock : 1;
  using Shared = typename Net::Shared;

  Net net;
  Index panels;
  const T* theta;  // (C, P)
  Index dim;
  T* partials;  // (groups, C, P)
  Index slice_stride;
  // (C, groups): sums over the rows of a block of the log likelihood and of its slope by log noise
  double* terms;
  double* noise;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& m = block.template shared<Shared>();
    Registers<T, kOwned> grad(block);
    Registers<double, 2> sums(block);
    const Index chain = block.y(), group = block.x();
    net.clear(block, m);
    block.phase([&](int t) {
      net.template fetch<0>(m, theta + chain * dim, t);
      RIBBIT_UNROLL_ALL for (int e = 0; e < kOwned; ++e) grad(t)[e] = T(0);
      RIBBIT_UNROLL_ALL for (int i = 0; i < 2; ++i) sums(t)[i] = 0.0;
    });
    const Index all = (net.rows + R - 1) / R, begin = group * panels;
    const Index end = begin + panels < all ? begin + panels : all;
    for (Index p = begin; p < end; ++p) {
      net.run(block, m, sums, p * R);
      block.phase([&](int t) { net.template weight_gradients<0>(m, grad(t), t); });
    }
    block.last([&](int t) { store<0>(partials + group * slice_stride + chain * dim, grad(t), t); });
    add(block, m, sums, 0, terms);
    if constexpr (Net::kLearned) add(block, m, sums, 1, noise);
  }

 private:
  template <int L>
  RIBBIT_DEVICE void store(T* to, const T (&g)[kOwned], int t) const {
    net.template for_owned<L>(t,
                              [&](int e, int i, int j) { to[net.template place<L>(i, j)] = g[e]; });
    if constexpr (L + 1 < kLayers) store<L + 1>(to, g, t);
  }

  RIBBIT_DEVICE void add(Block& block, Shared& m, Registers<double, 2>& sums, int which,
                         double* to) const {
    block.phase([&](int t) { m.sum.value[t] = sums(t)[which]; });
    m.sum.reduce(block);
    block.phase([&](int t) {
      if (t == 0) to[block.y() * block.width() + block.x()] = m.sum.value[0];
    });
  }
};

}  // namespace ribbit::cuda
