// Products of `Product` on tensor cores, in float32: the same operands and sinks.
#pragma once

#include "cuda/kernels/product_kernels.h"
#include "cuda/kernels/tensor_core.h"

namespace ribbit::cuda {

// Lines (rows of A, columns of B) of Depth terms in shared memory, neighbours as they are in
// global memory. The 32 threads that read a fragment, 8 lines by 4 terms, meet 32 banks.
template <int Lines, int Depth, bool AlongDepth>
struct TensorTile {
  static constexpr int kStride = AlongDepth ? Depth + 4 : Lines + 8;
  static_assert(AlongDepth ? kStride % 8 == 4 : kStride % 16 == 8);
  float value[(AlongDepth ? Lines : Depth) * kStride];
  RIBBIT_DEVICE float& at(int line, int term) {
    return value[AlongDepth ? line * kStride + term : term * kStride + line];
  }
  static RIBBIT_DEVICE int line_of(int i) { return AlongDepth ? i / Depth : i % Lines; }
  static RIBBIT_DEVICE int term_of(int i) { return AlongDepth ? i % Depth : i / Lines; }
};

// Tiles of M x N outputs, 16 terms at a time. Passes: 1, plain TF32; 3, 3xTF32, whose 16 terms are
// added to float32 sums outside of the tensor cores. Across: warps side by side along n; each owns
// M / (8 / Across) x N / Across outputs. An output has the same bits whatever M is. Grid: (tiles of
// m, tiles of n, chains x slices).
template <class A, class B, class Sink, int Passes, int M, int N, int Across>
struct TensorProduct {
  static constexpr int kBlock = kThreads;
  static constexpr int kDepth = 16, kSteps = kDepth / 8, kDown = kBlock / kWarp / Across;
  static constexpr int kRows = M / kDown, kColumns = N / Across;  // of a warp
  static constexpr int I = kRows / 16, J = kColumns / 8;          // fragments of a warp
  static constexpr int kLeft = M * kDepth / kBlock, kRight = N * kDepth / kBlock;
  static_assert(Passes == 1 || Passes == 3);
  static_assert(I * 16 * kDown == M && J * 8 * Across == N);
  static_assert(!Sink::kJoins || kColumns == 64);  // all gates of a unit in one thread
  using TileA = TensorTile<M, kDepth, A::kAlongColumns>;
  using TileB = TensorTile<N, kDepth, !B::kAlongColumns>;
  struct Shared {
    TileA a[2];  // one is read while the other is filled
    TileB b[2];
  };
  A a;
  B b;
  Sink sink;
  Index m, n, k;
  Index slices;
  Index slice_length;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, kLeft> next_a(block);
    Registers<float, kRight> next_b(block);
    Registers<float, 4 * I * J> sums(block);
    const Index m0 = block.x() * M, n0 = block.y() * N;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const Index begin = slice * slice_length;
    const Index end = begin + slice_length < k ? begin + slice_length : k;
    const auto fetch = [&](Index k0) {
      block.last([&](int t) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kLeft; ++i) {
          const Index mm = m0 + TileA::line_of(t + i * kBlock);
          const Index kk = k0 + TileA::term_of(t + i * kBlock);
          next_a(t)[i] = mm < m && kk < end ? a.get(chain, mm, kk) : 0.0f;
        }
        RIBBIT_UNROLL_ALL for (int i = 0; i < kRight; ++i) {
          const Index nn = n0 + TileB::line_of(t + i * kBlock);
          const Index kk = k0 + TileB::term_of(t + i * kBlock);
          next_b(t)[i] = nn < n && kk < end ? b.get(chain, kk, nn) : 0.0f;
        }
      });
    };
    const auto store = [&](int turn) {
      block.phase([&](int t) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kLeft; ++i) {
          const int at = t + i * kBlock;
          const float x = next_a(t)[i];
          shared.a[turn].at(TileA::line_of(at), TileA::term_of(at)) =
              Passes == 1 ? tf32_factor(x) : x;
        }
        RIBBIT_UNROLL_ALL for (int i = 0; i < kRight; ++i) {
          const int at = t + i * kBlock;
          const float x = next_b(t)[i];
          shared.b[turn].at(TileB::line_of(at), TileB::term_of(at)) =
              Passes == 1 ? tf32_factor(x) : x;
        }
      });
    };
    fetch(begin);
    block.last(
        [&](int t) { RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I * J; ++i) sums(t)[i] = 0.0f; });
    store(0);
    int turn = 0;
    for (Index k0 = begin; k0 < end; k0 += kDepth) {
      const bool more = k0 + kDepth < end;
      if (more) fetch(k0 + kDepth);
      multiply(block, shared.a[turn], shared.b[turn], sums);
      turn = 1 - turn;
      if (more) store(turn);
    }
    block.last([&](int t) { finish(t, chain, slice, m0, n0, sums(t)); });
  }

 private:
  // First output of the thread's warp, and the thread's row and columns within a fragment.
  static RIBBIT_DEVICE int row_of(int t) { return t / kWarp / Across * kRows; }
  static RIBBIT_DEVICE int column_of(int t) { return t / kWarp % Across * kColumns; }
  static RIBBIT_DEVICE int group_of(int t) { return t % kWarp / 4; }

  static RIBBIT_DEVICE void multiply(Block& block, TileA& tile_a, TileB& tile_b,
                                     Registers<float, 4 * I * J>& sums) {
    Registers<float, 4 * I> left[kSteps] = {Registers<float, 4 * I>(block),
                                            Registers<float, 4 * I>(block)};
    Registers<float, 2 * J> right[kSteps] = {Registers<float, 2 * J>(block),
                                             Registers<float, 2 * J>(block)};
    if constexpr (Passes == 1) {
      RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
        block.last([&](int t) { read(t, 8 * s, tile_a, tile_b, left[s](t), right[s](t)); });
        multiply_in_warps<I, J>(block, left[s], right[s], sums);
      }
    } else {
      Registers<float, 4 * I> small_left(block);
      Registers<float, 2 * J> small_right(block);
      Registers<float, 4 * I * J> parts(block);
      block.last(
          [&](int t) { RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I * J; ++i) parts(t)[i] = 0.0f; });
      // Small products first: only the last ones are truncated to a part of full size.
      RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
        block.last([&](int t) {
          float (&a)[4 * I] = left[s](t);
          float (&b)[2 * J] = right[s](t);
          read(t, 8 * s, tile_a, tile_b, a, b);
          RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I; ++i) split_tf32(a[i], small_left(t)[i]);
          RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * J; ++i) split_tf32(b[i], small_right(t)[i]);
        });
        multiply_in_warps<I, J>(block, small_left, right[s], parts);
        multiply_in_warps<I, J>(block, left[s], small_right, parts);
      }
      RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
        multiply_in_warps<I, J>(block, left[s], right[s], parts);
      }
      block.last([&](int t) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I * J; ++i) sums(t)[i] += parts(t)[i];
      });
    }
  }

  // The fragments of terms kk .. kk + 7; the layout is that of multiply_fragments.
  static RIBBIT_DEVICE void read(int t, int kk, TileA& tile_a, TileB& tile_b, float (&left)[4 * I],
                                 float (&right)[2 * J]) {
    const int row = row_of(t) + group_of(t), column = column_of(t) + group_of(t);
    const int term = kk + t % 4;
    RIBBIT_UNROLL_ALL for (int i = 0; i < I; ++i) {
      left[4 * i] = tile_a.at(row + 16 * i, term);
      left[4 * i + 1] = tile_a.at(row + 16 * i + 8, term);
      left[4 * i + 2] = tile_a.at(row + 16 * i, term + 4);
      left[4 * i + 3] = tile_a.at(row + 16 * i + 8, term + 4);
    }
    RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
      right[2 * j] = tile_b.at(column + 8 * j, term);
      right[2 * j + 1] = tile_b.at(column + 8 * j, term + 4);
    }
  }

  RIBBIT_DEVICE void finish(int t, Index chain, Index slice, Index m0, Index n0,
                            const float (&sum)[4 * I * J]) const {
    const int pair = 2 * (t % 4);
    RIBBIT_UNROLL_ALL for (int i = 0; i < I; ++i) {
      RIBBIT_UNROLL_ALL for (int half = 0; half < 2; ++half) {
        const Index mm = m0 + row_of(t) + 16 * i + 8 * half + group_of(t);
        if (mm >= m) continue;
        const float* line = sum + 4 * i * J + 2 * half;
        if constexpr (Sink::kJoins) {
          RIBBIT_UNROLL_ALL for (int unit = 0; unit < 4; ++unit) {
            const int j = unit / 2, c = unit % 2;
            const float gates[4] = {line[4 * j + c], line[4 * (j + 2) + c], line[4 * (j + 4) + c],
                                    line[4 * (j + 6) + c]};
            sink.put(chain, mm, n0 + column_of(t) + 8 * j + pair + c, gates);
          }
        } else {
          RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
            RIBBIT_UNROLL_ALL for (int c = 0; c < 2; ++c) {
              const Index nn = n0 + column_of(t) + 8 * j + pair + c;
              if (nn < n) sink.put(chain, slice, mm, nn, line[4 * j + c]);
            }
          }
        }
      }
    }
  }
};

}  // namespace ribbit::cuda
