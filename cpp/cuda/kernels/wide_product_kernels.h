// Products of wide float32 matrices: 32 to 256 rows of a block and 16 to 128 columns. Every sum has
// the terms and the order of `Product`'s, so its bits too.
#pragma once

#include "cuda/kernels/wide_feed.h"

namespace ribbit::cuda {

// Tiles of products by threads: lines side by side, whose numbers of a term are read at once, but
// on the left by lines where four terms are one copy, or may be of what an operand finds.
struct ThreadTiles {
  template <bool Left, bool Along, bool Strided, int Vector>
  static constexpr bool kByLines = Left && !Along && (!Strided || Vector == 4);
  static constexpr int kPadding = 4;
};

// As Product, of Matrix<float, ..> or what has `find`, and on the left WithOnes of one. VectorA,
// VectorB: as WideShares'; VectorSink: 4 where the sink has put4 and may be asked for it. Grid:
// (tiles of the rows without the row of ones, tiles of n, chains x slices).
template <class A, class B, class Sink, int M, int N, int VectorA, int VectorB, int VectorSink>
struct WideProduct {
  using OfA = WideOperand<A>;
  using OfB = WideOperand<B>;
  using FeedA = WideFeed<typename OfA::Inner, true, M, VectorA, ThreadTiles, OfA::kStrided>;
  using FeedB = WideFeed<typename OfB::Inner, false, N, VectorB, ThreadTiles, OfB::kStrided>;
  static constexpr int kBlock = kThreads;
  static constexpr int kResident = !OfA::kStrided || (M >= 128 && N >= 64) ? 2 : M == 128 ? 3 : 4;
  static constexpr int kDepth = 16;
  // Threads side by side and one below another; outputs of each, and how many of them are
  // neighbours.
  static constexpr int kAcross = N == 80              ? 4
                                 : M >= 128 && N < 64 ? N / 4
                                                      : 16,
                       kDown = kThreads / kAcross;
  static constexpr int kRows = M / kDown, kHeight = FeedA::kByLines ? 1 : kRows < 4 ? kRows : 4;
  static constexpr int kColumns = N / kAcross, kSide = kColumns < 4 ? kColumns : 4;
  static constexpr bool kOnes = OfA::kOnes, kSkips = skips_steps<typename OfA::Inner>(0);
  static_assert(!kSkips || (!OfA::kStrided && !OfB::kStrided));  // these count their steps
  static_assert(!Sink::kJoins && kRows % kHeight == 0 && kColumns % kSide == 0);
  // Whether every second row is gone through from its end. Registers lie in two banks, each of
  // which gives one number a clock: the order decides how often a factor is still there, and
  // whether factors and sums meet in one bank. It changes no sum.
  static constexpr bool kTurns = kColumns <= 8;
  struct Shared {
    typename FeedA::Tile a[kWideStages];
    typename FeedB::Tile b[kWideStages];
    float ones[kOnes ? N : 1];
  };
  // The thread's first row, of kHeight, and column, of kSide. Bit 0 of a lane changes its rows
  // alone and bit 1 its columns alone: reading 16 bytes then takes half as long.
  static RIBBIT_DEVICE int row_of(int t) {
    return (t / 32 * (32 / kAcross) + t % 32 / 2 / kAcross * 2 + t % 2) * kHeight;
  }
  static RIBBIT_DEVICE int column_of(int t) { return t % 32 / 2 % kAcross * kSide; }

  A a;
  B b;
  Sink sink;
  Index m, n, k;
  Index slices;
  Index slice_length;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, kRows * kColumns> sums(block);
    const Index m0 = block.x() * M, n0 = block.y() * N;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const Index begin = slice * slice_length;
    const Index end = begin + slice_length < k ? begin + slice_length : k;
    const FeedA feed_a(OfA::inner(a), chain, m0, begin, kOnes ? m - 1 : m);
    const FeedB feed_b(OfB::inner(b), chain, n0, begin, n);
    const bool ones = kOnes && block.x() == 0;
    const Index rows = kOnes ? m - 1 : m;
    const WideSteps<typename OfA::Inner, kSkips> sought(OfA::inner(a), m0,
                                                        (m0 + M < rows ? m0 + M : rows) - 1);
    block.last([&](int t) {
      float (&sum)[kRows * kColumns] = sums(t);
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRows * kColumns; ++i) sum[i] = 0.0f;
      if (kOnes && t < N) shared.ones[t] = 0.0f;
    });
    using TileA = typename FeedA::Tile;
    using TileB = typename FeedB::Tile;
    wide_steps(block, feed_a, feed_b, sought, shared.a, shared.b, begin,
               static_cast<int>(end - begin), [&](const TileA& tile_a, const TileB& tile_b) {
                 block.last([&](int t) { multiply(t, tile_a, tile_b, sums(t)); });
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
  // Row i of a thread, from its first one on.
  static RIBBIT_DEVICE int row(int i) { return i / kHeight * (kDown * kHeight) + i % kHeight; }

  template <int Count>
  static RIBBIT_DEVICE void load(float* to, const float* from) {
    if constexpr (Count == 4) {
      load4(to, from);
    } else {
      RIBBIT_UNROLL_ALL for (int i = 0; i < Count; ++i) to[i] = from[i];
    }
  }

  static RIBBIT_DEVICE void multiply(int t, const typename FeedA::Tile& tile_a,
                                     const typename FeedB::Tile& tile_b,
                                     float (&sum)[kRows * kColumns]) {
    // Terms whose factors are read at once.
    constexpr int kTerms = FeedA::kByLines ? 4 : 1;
    const int i0 = row_of(t), j0 = column_of(t);
    RIBBIT_UNROLL_ALL for (int kk = 0; kk < kDepth; kk += kTerms) {
      float left[kTerms][kRows], right[kColumns];
      if constexpr (FeedA::kByLines) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
          float four[4];
          load4(four, &tile_a.value[i0 + row(i)][kk]);
          RIBBIT_UNROLL_ALL for (int c = 0; c < kTerms; ++c) left[c][i] = four[c];
        }
      } else {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; i += kHeight) {
          load<kHeight>(left[0] + i, &tile_a.value[kk][i0 + row(i)]);
        }
      }
      RIBBIT_UNROLL_ALL for (int c = 0; c < kTerms; ++c) {
        RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; j += kSide) {
          load<kSide>(right + j, &tile_b.value[kk + c][j0 + kAcross * j]);
        }
        RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
          RIBBIT_UNROLL_ALL for (int turn = 0; turn < kColumns; ++turn) {
            const int j = kTurns && i % 2 != 0 ? kColumns - 1 - turn : turn;
            sum[i * kColumns + j] = Ops<float>::fma(left[c][i], right[j], sum[i * kColumns + j]);
          }
        }
      }
    }
  }

  RIBBIT_DEVICE void finish(int t, Index chain, Index slice, Index m0, Index n0,
                            const float (&sum)[kRows * kColumns]) const {
    const Index rows = kOnes ? m - 1 : m;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
      const Index mm = m0 + row_of(t) + row(i);
      if (mm >= rows) continue;
      RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; j += kSide) {
        const Index nn = n0 + column_of(t) + kAcross * j;
        const float* side = sum + i * kColumns + j;
        if constexpr (VectorSink == 4 && kSide == 4) {
          if (nn < n) sink.put4(chain, slice, mm, nn, side);
        } else {
          RIBBIT_UNROLL_ALL for (int c = 0; c < kSide; ++c) {
            if (nn + c < n) sink.put(chain, slice, mm, nn + c, side[c]);
          }
        }
      }
    }
  }
};

}  // namespace ribbit::cuda
