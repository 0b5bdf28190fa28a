// Products of wide float32 matrices on tensor cores: the steps and copies of `WideProduct`, the
// fragments and, without a row of ones, the bits of `TensorProduct`.
#pragma once

#include "cuda/kernels/tensor_product_kernels.h"
#include "cuda/kernels/wide_feed.h"

namespace ribbit::cuda {

// Tiles of products by warps: as numbers lie in memory. The lanes that read a fragment, 8 lines by
// 4 terms, meet 32 banks both ways.
struct WarpTiles {
  template <bool Left, bool Along, bool Strided, int Vector>
  static constexpr bool kByLines = !Along;
  static constexpr int kPadding = 8;
};

// As WideProduct; a row of ones is summed outside of the tensor cores. Passes, Across: as
// TensorProduct's. VectorSink: 2 where the sink has put2 and may be asked for it.
template <class A, class B, class Sink, int Passes, int M, int N, int Across, int VectorA,
          int VectorB, int VectorSink>
struct WideTensorProduct {
  using OfA = WideOperand<A>;
  using OfB = WideOperand<B>;
  using FeedA = WideFeed<typename OfA::Inner, true, M, VectorA, WarpTiles, OfA::kStrided>;
  using FeedB = WideFeed<typename OfB::Inner, false, N, VectorB, WarpTiles, OfB::kStrided>;
  using TileA = typename FeedA::Tile;
  using TileB = typename FeedB::Tile;
  static constexpr int kBlock = kThreads;
  static constexpr int kSteps = TileA::kDepth / 8, kDown = kBlock / kWarp / Across;
  static constexpr int kRows = M / kDown, kColumns = N / Across;  // of a warp
  static constexpr int I = kRows / 16, J = kColumns / 8;          // fragments of a warp
  // Fragments with room for two blocks: fewer where A's numbers are read one by one.
  static constexpr int kMost = Passes == 3 ? 8 : FeedA::kByLines ? 20 : 16;
  static constexpr int kResident = I * J <= kMost ? 2 : 1;
  static constexpr bool kOnes = OfA::kOnes, kSkips = skips_steps<typename OfA::Inner>(0);
  static_assert(Passes == 1 || Passes == 3);
  static_assert(I * 16 * kDown == M && J * 8 * Across == N && N <= kBlock);
  static_assert(!kSkips || (!OfA::kStrided && !OfB::kStrided));  // these count their steps
  static_assert(!Sink::kJoins);
  struct Shared {
    TileA a[kWideStages];
    TileB b[kWideStages];
    float ones[kOnes ? N : 1];
  };
  A a;
  B b;
  Sink sink;
  Index m, n, k;
  Index slices;
  Index slice_length;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, 4 * I * J> sums(block);
    const Index m0 = block.x() * M, n0 = block.y() * N;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const Index begin = slice * slice_length;
    const Index end = begin + slice_length < k ? begin + slice_length : k;
    const Index rows = kOnes ? m - 1 : m;
    const FeedA feed_a(OfA::inner(a), chain, m0, begin, rows);
    const FeedB feed_b(OfB::inner(b), chain, n0, begin, n);
    const WideSteps<typename OfA::Inner, kSkips> sought(OfA::inner(a), m0,
                                                        (m0 + M < rows ? m0 + M : rows) - 1);
    const bool ones = kOnes && block.x() == 0;
    block.last([&](int t) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I * J; ++i) sums(t)[i] = 0.0f;
      if (kOnes && t < N) shared.ones[t] = 0.0f;
    });
    wide_steps(block, feed_a, feed_b, sought, shared.a, shared.b, begin,
               static_cast<int>(end - begin), [&](const TileA& tile_a, const TileB& tile_b) {
                 if constexpr (Passes == 1) {
                   multiply(block, tile_a, tile_b, sums);
                 } else {
                   multiply_thrice(block, tile_a, tile_b, sums);
                 }
                 if (!ones) return;
                 block.last([&](int t) {
                   if (t < N) add_terms(tile_b, t, shared.ones[t]);
                 });
               });
    block.last([&](int t) { finish(t, chain, slice, m0, n0, sums(t)); });
    if (ones) {
      block.last([&](int t) {
        if (t < N && n0 + t < n) sink.put(chain, slice, m - 1, n0 + t, shared.ones[t]);
      });
    }
  }

 private:
  // First output of the thread's warp.
  static RIBBIT_DEVICE int row_of(int t) { return t / kWarp / Across * kRows; }
  static RIBBIT_DEVICE int column_of(int t) { return t / kWarp % Across * kColumns; }

  // Of fragment (i, j) among the sums.
  static RIBBIT_DEVICE int place(int i, int j) { return 4 * (j * I + i); }

  // sums += the 16 terms in TF32; a column of fragments of B at a time, so that they take no room.
  static RIBBIT_DEVICE void multiply(Block& block, const TileA& tile_a, const TileB& tile_b,
                                     Registers<float, 4 * I * J>& sums) {
    Registers<float, 4 * I> left(block);
    Registers<float, 2> right(block);
    RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
      block.last([&](int t) {
        float (&a)[4 * I] = left(t);
        RIBBIT_UNROLL_ALL for (int i = 0; i < I; ++i) read_left(t, 8 * s, i, tile_a, a + 4 * i);
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I; ++i) a[i] = tf32_factor(a[i]);
      });
      RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
        block.last([&](int t) {
          float (&b)[2] = right(t);
          read_right(t, 8 * s, j, tile_b, b);
          b[0] = tf32_factor(b[0]), b[1] = tf32_factor(b[1]);
        });
        multiply_in_warps<I, 1>(block, left, right, sums, 4 * j * I);
      }
    }
  }

  // sums += the 16 terms by three products in TF32, which a part of their own adds up: the small
  // ones first, so that only the last ones are truncated to a part of full size. By 16 rows, whose
  // part and factors are all that lies beside the sums.
  static RIBBIT_DEVICE void multiply_thrice(Block& block, const TileA& tile_a, const TileB& tile_b,
                                            Registers<float, 4 * I * J>& sums) {
    using Left = Registers<float, 4>;
    using Right = Registers<float, 2 * J>;
    Left left[kSteps] = {Left(block), Left(block)};
    Left small_left[kSteps] = {Left(block), Left(block)};
    Right right[kSteps] = {Right(block), Right(block)};
    Right small_right[kSteps] = {Right(block), Right(block)};
    Registers<float, 4 * J> parts(block);
    block.last([&](int t) {
      RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
        float (&b)[2 * J] = right[s](t);
        RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) read_right(t, 8 * s, j, tile_b, b + 2 * j);
        RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * J; ++i) {
          split_tf32(b[i], small_right[s](t)[i]);
        }
      }
    });
    RIBBIT_UNROLL_ALL for (int i = 0; i < I; ++i) {
      block.last([&](int t) {
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4 * J; ++j) parts(t)[j] = 0.0f;
        RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
          read_left(t, 8 * s, i, tile_a, left[s](t));
          RIBBIT_UNROLL_ALL for (int r = 0; r < 4; ++r)
              split_tf32(left[s](t)[r], small_left[s](t)[r]);
        }
      });
      RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
        multiply_in_warps<1, J>(block, small_left[s], right[s], parts);
        multiply_in_warps<1, J>(block, left[s], small_right[s], parts);
      }
      RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
        multiply_in_warps<1, J>(block, left[s], right[s], parts);
      }
      block.last([&](int t) {
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4 * J; ++j) {
          sums(t)[place(i, j / 4) + j % 4] += parts(t)[j];
        }
      });
    }
  }

  // The fragment of terms kk .. kk + 7 and rows 16 i .. 16 i + 15 of the thread's warp; the layout
  // is that of multiply_fragments.
  static RIBBIT_DEVICE void read_left(int t, int kk, int i, const TileA& tile, float* to) {
    const int row = row_of(t) + 16 * i, lane = t % kWarp;
    if constexpr (FeedA::kByLines) {
      load_matrices<4>(to, lane, [&](int of) {
        return tile.at(row + of % 16, kk + of / 16 * 4);  // rows 8 on before terms 4 on
      });
    } else {
      RIBBIT_UNROLL_ALL for (int r = 0; r < 4; ++r) {
        to[r] = *tile.at(row + lane / 4 + r % 2 * 8, kk + lane % 4 + r / 2 * 4);
      }
    }
  }

  // The fragment of terms kk .. kk + 7 and columns 8 j .. 8 j + 7 of the thread's warp.
  static RIBBIT_DEVICE void read_right(int t, int kk, int j, const TileB& tile, float* to) {
    const int column = column_of(t) + 8 * j, lane = t % kWarp;
    if constexpr (FeedB::kByLines) {
      load_matrices<2>(to, lane,
                       [&](int of) { return tile.at(column + of % 8, kk + of / 8 % 2 * 4); });
    } else {
      RIBBIT_UNROLL_ALL for (int r = 0; r < 2; ++r) {
        to[r] = *tile.at(column + lane / 4, kk + lane % 4 + 4 * r);
      }
    }
  }

  RIBBIT_DEVICE void finish(int t, Index chain, Index slice, Index m0, Index n0,
                            const float (&sum)[4 * I * J]) const {
    const Index row = m0 + row_of(t) + t % kWarp / 4, column = n0 + column_of(t) + 2 * (t % 4);
    if constexpr (VectorSink == 2 && has_bias<Sink>(0)) {
      finish_columns(chain, row, column, sum);
    } else {
      finish_rows(chain, slice, row, column, sum);
    }
  }

  // Outputs 8 rows and 8 columns apart; of a column the bias is read once.
  RIBBIT_DEVICE void finish_columns(Index chain, Index row, Index column,
                                    const float (&sum)[4 * I * J]) const {
    const Index rows = kOnes ? m - 1 : m;
    RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
      const Index nn = column + 8 * j;
      if (nn >= n) continue;
      float add[2];
      sink.template bias_of<2>(chain, nn, add);
      RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * I; ++i) {
        const Index mm = row + 8 * i;
        const float* pair = sum + place(i / 2, j) + 2 * (i % 2);
        if (mm < rows) sink.template put_side<2>(chain, mm, nn, pair, add);
      }
    }
  }
  RIBBIT_DEVICE void finish_rows(Index chain, Index slice, Index row, Index column,
                                 const float (&sum)[4 * I * J]) const {
    const Index rows = kOnes ? m - 1 : m;
    RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * I; ++i) {
      const Index mm = row + 8 * i;
      if (mm >= rows) continue;
      RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
        const Index nn = column + 8 * j;
        const float* pair = sum + place(i / 2, j) + 2 * (i % 2);
        if constexpr (VectorSink == 2) {
          if (nn < n) sink.put2(chain, slice, mm, nn, pair);
        } else {
          RIBBIT_UNROLL_ALL for (int c = 0; c < 2; ++c) {
            if (nn + c < n) sink.put(chain, slice, mm, nn + c, pair[c]);
          }
        }
      }
    }
  }
};

}  // namespace ribbit::cuda
