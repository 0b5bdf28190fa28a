// Which tile a thread has, for test_trajectory.py.
#pragma once

#include "cuda/kernels/trajectory_layout.h"

namespace ribbit::cuda {

// Threads: of a block. out[t + Threads i]: row and column of thread t's i-th tile, -1 for none; of
// the products over the rows that make layer L, or of its weights' gradient.
template <int L, bool Weights, int Rows, class Units, int Threads>
struct TrajectoryPlaces {
  static constexpr int kBlock = Threads;
  using Layout = TrajectoryLayout<float, Rows, kBlock, Units>;
  using Shared = Nothing;
  Index* out;  // (1024, 2)
  RIBBIT_DEVICE void operator()(Block& block) const {
    constexpr int kRows = Weights ? Layout::tile_rows(L) : Rows / Layout::rows(L);
    constexpr int kColumns = Weights ? Layout::tile_columns(L) : Layout::column_tiles(L);
    constexpr int kFirst = Weights ? Layout::first_tile(L) : 0;
    constexpr int kCount = Weights ? Layout::first_tile(L + 1) - kFirst : Layout::product_tiles(L);
    block.last([&](int t) {
      for (int e = t; e < 1024; e += kBlock) {
        const auto at = Layout::template place<kRows, kColumns>(e - kFirst);
        const bool there = e >= kFirst && e < kFirst + kCount;
        const bool has = there && at.row < kRows && at.column < kColumns;
        out[2 * e] = has ? at.row : -1;
        out[2 * e + 1] = has ? at.column : -1;
      }
    });
  }
};

}  // namespace ribbit::cuda
