// Products of few rows, too few for blocks that each have a tile and all terms of its sums: the
// warps of a block share out the terms.
#pragma once

#include "cuda/kernels/product_kernels.h"

namespace ribbit::cuda {

// 16 terms of `Count` lines, as one warp has them: lines one behind another, or with Along, which
// is how they lie in memory then, side by side.
template <int Count, bool Along>
struct WarpTile {
  static constexpr int kTerms = 16;
  alignas(16) float value[Along ? kTerms : Count][(Along ? Count : kTerms) + 4];
};

// How the lanes of a warp share out the copies of its tile: those of a thread are lines apart, or
// terms with Along. Vector: numbers of a copy.
template <int Count, bool Along, int Vector>
struct WarpFeed {
  using Tile = WarpTile<Count, Along>;
  static constexpr int kAcross = (Along ? Count : Tile::kTerms) / Vector, kApart = 32 / kAcross;
  static constexpr int kCopies = (Along ? Tile::kTerms : Count) / kApart;
  static_assert(kAcross <= 32 && kCopies > 0);
  // The first of thread t: line, and term of the turn.
  static RIBBIT_DEVICE int line(int t) { return Along ? t % kAcross * Vector : t % 32 / kAcross; }
  static RIBBIT_DEVICE int term(int t) {
    return t / 32 * Tile::kTerms + (Along ? t % 32 / kAcross : t % kAcross * Vector);
  }
  // stride: from line to line, or from term to term. Lines and terms beyond `lines` and `terms` are
  // zero.
  static RIBBIT_DEVICE void copy(Block& block, int t, Tile& to, const float* from, int stride,
                                 int lines, int terms) {
    const int at = t / 32 * Tile::kTerms;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kCopies; ++i) {
      const int line_ = line(t) + (Along ? 0 : i * kApart);
      const int term_ = term(t) + (Along ? i * kApart : 0);
      float* place = Along ? &to.value[term_ - at][line_] : &to.value[line_][term_ - at];
      block.template copy<Vector>(place, from, line_ < lines && term_ < terms);
      from += kApart * stride;
    }
  }
};

// C(m, n) = sum over k of A(m, k) B(k, n), float32 matrices in memory, A by rows: sum s of each of
// the eight warps has the terms 16 s to 16 s + 15, 16 (s + 8), .., added up in order by a fused
// multiply-add each; then the sums are added in order. VectorA, VectorB: 4 where lines begin at
// multiples of 16 bytes, and k, or with B by rows n, is a multiple of 4; else 1. VectorSink as of
// WideProduct. Grid: (ceil(m / 32), ceil(n / 16), chains).
template <class B, class Sink, int VectorA, int VectorB, int VectorSink>
struct FewRowsProduct {
  using A = Matrix<float, false>;
  static constexpr int kBlock = kThreads, kResident = 2;
  static constexpr int kM = 32, kN = 16, kWarps = kThreads / 32, kStages = 2, kSide = 4;
  static constexpr bool kAlong = B::kAlongColumns;
  using TileA = WarpTile<kM, false>;
  using TileB = WarpTile<kN, kAlong>;
  using FeedA = WarpFeed<kM, false, VectorA>;
  using FeedB = WarpFeed<kN, kAlong, VectorB>;
  static constexpr int kTerms = TileA::kTerms, kTurn = kWarps * kTerms;  // terms of all warps
  struct Shared {
    TileA a[kStages][kWarps];
    TileB b[kStages][kWarps];
    alignas(16) float sums[kWarps][kM][kN];
  };

  A a;
  B b;
  Sink sink;
  Index m, n, k;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, kSide * kSide> sums(block);
    const Index m0 = block.x() * kM, n0 = block.y() * kN, chain = block.z();
    const int rows = static_cast<int>(m - m0), columns = static_cast<int>(n - n0);
    const int terms = static_cast<int>(k), turns = (terms + kTurn - 1) / kTurn;
    const int down = static_cast<int>(a.row_stride), across = static_cast<int>(b.row_stride);
    // Where a thread's copies of the next turn begin.
    Registers<const float*, 2> from(block);
    block.last([&](int t) {
      const float* left = a.base + (chain * a.chain_stride + m0 * a.row_stride);
      const float* right = b.base + (chain * b.chain_stride + (kAlong ? n0 : n0 * b.row_stride));
      from(t)[0] = left + (FeedA::line(t) * down + FeedA::term(t));
      from(t)[1] = right + (kAlong ? FeedB::term(t) * across + FeedB::line(t)
                                   : FeedB::line(t) * across + FeedB::term(t));
    });
    const auto fetch = [&](int turn, int stage) {
      const int left = terms - turn * kTurn;
      block.last([&](int t) {
        const float*(&at)[2] = from(t);
        FeedA::copy(block, t, shared.a[stage][t / 32], at[0], down, rows, left);
        FeedB::copy(block, t, shared.b[stage][t / 32], at[1], across, columns, left);
        at[0] += kTurn, at[1] += kAlong ? kTurn * across : kTurn;
      });
      block.commit();
    };
    fetch(0, 0);
    block.last([&](int t) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < kSide * kSide; ++i) sums(t)[i] = 0.0f;
    });
    for (int turn = 0; turn < turns; ++turn) {
      const int stage = turn % kStages;
      block.template wait<0>();
      block.phase([](int) {});  // all copies are there, and the other stage is read
      if (turn + 1 < turns) fetch(turn + 1, 1 - stage);
      block.last([&](int t) {
        multiply(t % 32, shared.a[stage][t / 32], shared.b[stage][t / 32], sums(t));
      });
    }
    block.phase([&](int t) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < kSide; ++i) {
        float* to = shared.sums[t / 32][row_of(t % 32, i)];
        RIBBIT_UNROLL_ALL for (int j = 0; j < kSide; ++j) {
          to[column_of(t % 32, j)] = sums(t)[i * kSide + j];
        }
      }
    });
    block.last([&](int t) { finish(shared, t, chain, m0, n0); });
  }

 private:
  // Rows and columns of a lane. Bit 0 of it changes rows alone and bit 1 columns alone: reading 16
  // bytes then takes half as long.
  static RIBBIT_DEVICE int row_of(int lane, int i) {
    return (lane % 2 + lane / 8 * 2) + i * (kM / kSide);
  }
  static RIBBIT_DEVICE int column_of(int lane, int j) {
    const int group = lane / 2 % 4;
    return kAlong ? group * kSide + j : group + j * (kN / kSide);
  }

  static RIBBIT_DEVICE void multiply(int lane, const TileA& tile_a, const TileB& tile_b,
                                     float (&sum)[kSide * kSide]) {
    RIBBIT_UNROLL_ALL for (int kk = 0; kk < kTerms; kk += 4) {
      float left[kSide][4], right[4][kSide];
      RIBBIT_UNROLL_ALL for (int i = 0; i < kSide; ++i) {
        load4(left[i], &tile_a.value[row_of(lane, i)][kk]);
      }
      RIBBIT_UNROLL_ALL for (int c = 0; c < 4; ++c) {
        if constexpr (kAlong) {
          load4(right[c], &tile_b.value[kk + c][column_of(lane, 0)]);
        } else {  // line c, of four terms
          float four[4];
          load4(four, &tile_b.value[column_of(lane, c)][kk]);
          RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) right[i][c] = four[i];
        }
      }
      RIBBIT_UNROLL_ALL for (int c = 0; c < 4; ++c) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kSide; ++i) {
          RIBBIT_UNROLL_ALL for (int j = 0; j < kSide; ++j) {
            sum[i * kSide + j] = Ops<float>::fma(left[i][c], right[c][j], sum[i * kSide + j]);
          }
        }
      }
    }
  }

  RIBBIT_DEVICE void finish(const Shared& shared, int t, Index chain, Index m0, Index n0) const {
    if (t >= kM * kN / 4) return;
    const int row = t / (kN / 4), column = t % (kN / 4) * 4;
    float sum[4];
    load4(sum, &shared.sums[0][row][column]);
    RIBBIT_UNROLL_ALL for (int warp = 1; warp < kWarps; ++warp) {
      float part[4];
      load4(part, &shared.sums[warp][row][column]);
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) sum[i] += part[i];
    }
    const Index mm = m0 + row, nn = n0 + column;
    if (mm >= m) return;
    if constexpr (VectorSink == 4) {
      if (nn < n) sink.put4(chain, 0, mm, nn, sum);
    } else {
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
        if (nn + i < n) sink.put(chain, 0, mm, nn + i, sum[i]);
      }
    }
  }
};

}  // namespace ribbit::cuda
