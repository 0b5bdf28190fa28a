// Products of wide float32 matrices: 64 or 128 rows and columns of a block, 16 terms at a time,
// which are copied to shared memory two steps ahead. Every sum has the terms and the order of
// `Product`'s, so its bits too. The form: ../shared/GPU2.md, section 2.
#pragma once

#include "cuda/kernels/product_kernels.h"

namespace ribbit::cuda {

// What an operand on the left has for lines: its rows, and whether a row of ones is below them.
template <class Operand>
struct LeftOf;
template <bool Transposed>
struct LeftOf<Matrix<float, Transposed>> {
  static constexpr bool kOnes = false;
  static RIBBIT_DEVICE const Matrix<float, Transposed>& matrix(
      const Matrix<float, Transposed>& operand) {
    return operand;
  }
};
template <bool Transposed>
struct LeftOf<WithOnes<float, Matrix<float, Transposed>>> {
  static constexpr bool kOnes = true;
  static RIBBIT_DEVICE const Matrix<float, Transposed>& matrix(
      const WithOnes<float, Matrix<float, Transposed>>& operand) {
    return operand.operand;
  }
};

// 16 terms of `Count` lines.
template <int Count>
struct WideTile {
  static constexpr int kDepth = 16;
  alignas(16) float value[kDepth][Count + 4];
};

// Copies tiles of a matrix of lines and terms. Along: neighbours in memory are neighbouring lines,
// else terms. Vector: numbers of a copy, 4 where lines lie together, their number is a multiple of
// 4 and they begin at multiples of 16 bytes; else 1.
template <bool Along, int Count, int Vector>
struct WideCopy {
  static constexpr int kDepth = WideTile<Count>::kDepth;
  static constexpr int kGroup = Along ? Count / Vector : kDepth;  // threads side by side
  static constexpr int kApart = kThreads / kGroup;                // of a thread's copies
  static constexpr int kCopies = Count * kDepth / Vector / kThreads;
  static_assert(Vector == 1 || (Vector == 4 && Along));
  const float* base;
  int stride;  // from line to line, or from term to term; 16 of them are 32 bits
  int lines;   // from the tile's first one on

  static RIBBIT_DEVICE int line_of(int t) { return Along ? t % kGroup * Vector : t / kGroup; }
  static RIBBIT_DEVICE int term_of(int t) { return Along ? t / kGroup : t % kGroup; }
  // Where a thread begins, at the tile's first term.
  RIBBIT_DEVICE const float* start(int t) const {
    return Along ? base + term_of(t) * stride + line_of(t)
                 : base + line_of(t) * stride + term_of(t);
  }
  // Terms from `terms` on and lines beyond the last are zero.
  RIBBIT_DEVICE void tile(Block& block, int t, WideTile<Count>& to, const float* from,
                          int terms) const {
    const int line = line_of(t), term = term_of(t);
    const int apart = kApart * stride;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kCopies; ++i) {
      const int up = i * kApart;
      float* at = Along ? &to.value[term + up][line] : &to.value[term][line + up];
      const bool inside =
          Along ? line < lines && term + up < terms : line + up < lines && term < terms;
      block.template copy<Vector>(at, from, inside);
      from += apart;
    }
  }
  RIBBIT_DEVICE const float* next(const float* from) const {
    return from + (Along ? kDepth * stride : kDepth);
  }
};

// As Product, of Matrix<float, ..> and, on the left, WithOnes of one. VectorA, VectorB: as
// WideCopy's; VectorSink: 4 where the sink has put4 and may be asked for it. Grid: (tiles of the
// rows without the row of ones, tiles of n, chains x slices).
template <class A, class B, class Sink, int M, int N, int VectorA, int VectorB, int VectorSink>
struct WideProduct {
  static constexpr int kBlock = kThreads;
  static constexpr int kResident = M + N < 192 ? 4 : 2;
  static constexpr int kDepth = WideTile<M>::kDepth, kStages = 3;
  static constexpr int kRows = M / 16, kColumns = N / 16;
  static constexpr bool kOnes = LeftOf<A>::kOnes;
  static_assert(!Sink::kJoins);
  struct Shared {
    WideTile<M> a[kStages];
    WideTile<N> b[kStages];
    float ones[kOnes ? N : 1];
  };
  // The thread's first row and column of 4. Bit 0 of a lane changes its rows alone and bit 1 its
  // columns alone: reading 16 bytes then takes half as long.
  static RIBBIT_DEVICE int row_of(int t) { return (t / 32 * 2 + t % 2) * 4; }
  static RIBBIT_DEVICE int column_of(int t) { return t % 32 / 2 * 4; }

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
    const int terms = static_cast<int>(end - begin);
    const int steps = (terms + kDepth - 1) / kDepth;
    const auto& left = LeftOf<A>::matrix(a);
    const Index rows = kOnes ? m - 1 : m;
    const WideCopy<!A::kAlongColumns, M, VectorA> copy_a{
        A::kAlongColumns ? left.base + chain * left.chain_stride + m0 * left.row_stride + begin
                         : left.base + chain * left.chain_stride + begin * left.row_stride + m0,
        static_cast<int>(left.row_stride), static_cast<int>(rows - m0)};
    const WideCopy<B::kAlongColumns, N, VectorB> copy_b{
        B::kAlongColumns ? b.base + chain * b.chain_stride + begin * b.row_stride + n0
                         : b.base + chain * b.chain_stride + n0 * b.row_stride + begin,
        static_cast<int>(b.row_stride), static_cast<int>(n - n0)};
    const bool ones = kOnes && block.x() == 0;

    Registers<const float*, 2> from(block);
    const auto fetch = [&](int step) {
      if (step < steps) {
        const int stage = step % kStages, more = terms - step * kDepth;
        block.last([&](int t) {
          const float*(&at)[2] = from(t);
          copy_a.tile(block, t, shared.a[stage], at[0], more);
          copy_b.tile(block, t, shared.b[stage], at[1], more);
          at[0] = copy_a.next(at[0]), at[1] = copy_b.next(at[1]);
        });
      }
      block.commit();
    };
    block.last([&](int t) { from(t)[0] = copy_a.start(t), from(t)[1] = copy_b.start(t); });
    fetch(0);
    fetch(1);
    block.last([&](int t) {
      float (&sum)[kRows * kColumns] = sums(t);
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRows * kColumns; ++i) sum[i] = 0.0f;
      if (kOnes && t < N) shared.ones[t] = 0.0f;
    });
    for (int step = 0; step < steps; ++step) {
      block.template wait<1>();
      block.phase([](int) {});  // what others have asked for is there, and the last stage is read
      fetch(step + 2);
      const int stage = step % kStages;
      block.last([&](int t) { multiply(t, shared.a[stage], shared.b[stage], sums(t)); });
      if (ones) {
        block.last([&](int t) {
          if (t >= N) return;
          float sum = shared.ones[t];
          RIBBIT_UNROLL_ALL for (int kk = 0; kk < kDepth; ++kk) {
            sum = sum + shared.b[stage].value[kk][t];
          }
          shared.ones[t] = sum;
        });
      }
    }
    block.last([&](int t) { finish(t, chain, slice, m0, n0, sums(t)); });
    if (ones) {
      block.last([&](int t) {
        if (t < N && n0 + t < n) sink.put(chain, slice, m - 1, n0 + t, shared.ones[t]);
      });
    }
  }

 private:
  static RIBBIT_DEVICE void multiply(int t, const WideTile<M>& tile_a, const WideTile<N>& tile_b,
                                     float (&sum)[kRows * kColumns]) {
    const int i0 = row_of(t), j0 = column_of(t);
    RIBBIT_UNROLL_ALL for (int kk = 0; kk < kDepth; ++kk) {
      float left[kRows], right[kColumns];
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; i += 4) {
        load4(left + i, &tile_a.value[kk][i0 + 16 * i]);
      }
      RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; j += 4) {
        load4(right + j, &tile_b.value[kk][j0 + 16 * j]);
      }
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
        RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; ++j) {
          sum[i * kColumns + j] = Ops<float>::fma(left[i], right[j], sum[i * kColumns + j]);
        }
      }
    }
  }

  RIBBIT_DEVICE void finish(int t, Index chain, Index slice, Index m0, Index n0,
                            const float (&sum)[kRows * kColumns]) const {
    const Index rows = kOnes ? m - 1 : m;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
      const Index mm = m0 + row_of(t) + i / 4 * 64 + i % 4;
      if (mm >= rows) continue;
      RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; j += 4) {
        const Index nn = n0 + column_of(t) + 16 * j;
        const float* four = sum + i * kColumns + j;
        if constexpr (VectorSink == 4) {
          if (nn < n) sink.put4(chain, slice, mm, nn, four);
        } else {
          RIBBIT_UNROLL_ALL for (int c = 0; c < 4; ++c) {
            if (nn + c < n) sink.put(chain, slice, mm, nn + c, four[c]);
          }
        }
      }
    }
  }
};

}  // namespace ribbit::cuda
