// Sums that teams of threads inside a block make, in an order that shapes alone decide.
#pragma once

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// N sums at a time of one number per thread. Columns: over the threads of equal number mod Lanes,
// left at [t % Lanes]; else over each run of Lanes threads, left at [t - t % Lanes].
template <class T, int N, int Lanes, bool Columns>
struct GroupSum {
  T value[N][kThreads];
  RIBBIT_DEVICE static int home(int t) {
    return Columns ? t % Lanes : Lanes == kThreads ? 0 : t - t % Lanes;
  }
  RIBBIT_DEVICE void reduce(Block& block) {
    for (int half = Columns ? kThreads / 2 : Lanes / 2; half >= (Columns ? Lanes : 1); half /= 2) {
      block.phase([&](int t) {
        if ((Columns ? t : t % Lanes) >= half) return;
        RIBBIT_UNROLL_ALL for (int n = 0; n < N; ++n) value[n][t] += value[n][t + half];
      });
    }
  }
};

// Gradient of parameters that every data row has terms of: columns of terms are summed over rows in
// double and go to grad, plus what is there if `add`. places: of each block the first number of a
// chain's terms, numbers from row to row, columns (up to 32) and where in grad they go. Grid:
// (blocks, C).
template <class T>
struct SumRows {
  static constexpr int kBlock = kThreads, kLanes = 32;
  using Shared = GroupSum<double, 1, kLanes, true>;
  const T* terms;
  Index chain_stride;
  Index rows;
  const Index* places;
  T* grad;
  Index dim;  // from chain to chain of grad
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index* place = places + 4 * block.x();
    const Index first = place[0], apart = place[1], columns = place[2], to = place[3];
    const T* from = terms + block.y() * chain_stride + first;
    block.phase([&](int t) {
      double own = 0.0;
      const Index c = t % kLanes;
      for (Index r = t / kLanes; r < rows && c < columns; r += kBlock / kLanes) {
        own += static_cast<double>(from[r * apart + c]);
      }
      sum.value[0][t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t >= columns) return;
      T* at = grad + block.y() * dim + to + t;
      const T value = static_cast<T>(sum.value[0][t]);
      *at = add != 0 ? *at + value : value;
    });
  }
};

}  // namespace ribbit::cuda
