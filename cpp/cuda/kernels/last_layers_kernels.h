// The last two dense layers of a prediction in TF32: the wide one on tensor cores, as
// `WideTensorProduct`, and the narrow one on what it leaves in registers, in float32. The values
// between them, for which two products go to memory and back, are never written.
#pragma once

#include "cuda/kernels/wide_tensor_product_kernels.h"

namespace ribbit::cuda {

// As WideFeed of a matrix on the right, of N lines. A warp copies two terms of the first lines, 32
// copies wide; those of the others are shared out evenly: so all lanes of a warp copy or none.
template <int N, int Vector>
struct ColumnFeed {
  using Tile = WideTile<N, false, WarpTiles::kPadding>;
  using Kept = int;  // of its lines: nothing
  static constexpr int kKept = 1;
  static constexpr int kApart = kThreads / kWarp;  // terms of a warp
  static constexpr int kWhole = N / Vector / kWarp, kMore = N / Vector % kWarp;
  static constexpr int kFirst = kWhole * kWarp * Vector, kSharers = Tile::kDepth * kMore;
  static_assert(2 * kApart == Tile::kDepth && kSharers % kWarp == 0 && kSharers <= kThreads);
  const float* base;
  int stride;  // from term to term; 16 of them are 32 bits
  int lines;
  RIBBIT_DEVICE ColumnFeed(const Matrix<float, false>& matrix, Index chain, Index count)
      : base(matrix.base + chain * matrix.chain_stride),
        stride(static_cast<int>(matrix.row_stride)),
        lines(static_cast<int>(count)) {}
  RIBBIT_DEVICE void keep(int, Kept (&)[kKept]) const {}
  RIBBIT_DEVICE const float* start(int t) const {
    return base + (t / kWarp * stride + t % kWarp * Vector);
  }
  RIBBIT_DEVICE const float* next(const float* from) const { return from + Tile::kDepth * stride; }
  RIBBIT_DEVICE void copy(Block& block, int thread, Tile& to, const float* from,
                          const Kept (&)[kKept], Index, int terms) const {
    const int t = anew(thread), line = t % kWarp * Vector, term = t / kWarp;
    if constexpr (kMore > 0) {
      const int its_line = kFirst + t % kMore * Vector, its_term = t / kMore;
      const float* its = from + ((its_term - term) * stride + (its_line - line));
      if (kSharers == kThreads || t < kSharers) {
        block.template copy<Vector>(to.at(its_line, its_term), its,
                                    its_line < lines && its_term < terms);
      }
    }
    RIBBIT_UNROLL_ALL for (int r = 0; r < Tile::kDepth; r += kApart) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < kWhole; ++i) {
        const int on = i * kWarp * Vector;
        block.template copy<Vector>(to.at(line + on, term + r), from + on,
                                    line + on < lines && term + r < terms);
      }
      from += kApart * stride;
    }
  }
};

// sink(row, o) = sum over u of f(sum over k of a(row, k) b(k, u) + bias(u)) last(u, o). Tiles of M
// rows and all columns u, N with those beyond the last. A lane adds its columns, fragment by
// fragment; lanes are then added by twos and warps one after the other, so the bits depend on N
// alone. VectorA, VectorB: as WideShares'. Grid: (tiles of rows, 1, chains).
template <int Code, class Sink, int M, int N, int VectorA, int VectorB>
struct LastLayers {
  using Given = Matrix<float, false>;
  using FeedA = WideFeed<Given, true, M, VectorA, WarpTiles, true>;
  using FeedB = ColumnFeed<N, VectorB>;
  using TileA = typename FeedA::Tile;
  using TileB = typename FeedB::Tile;
  static constexpr int kBlock = kThreads, kAcross = 4, kDown = kBlock / kWarp / kAcross;
  static constexpr int kSteps = TileA::kDepth / 8;
  static constexpr int kRows = M / kDown, kColumns = N / kAcross;  // of a warp
  static constexpr int I = kRows / 16, J = kColumns / 8;           // fragments of a warp
  static constexpr int kResident = I * J <= 20 ? 2 : 1;
  static constexpr int kPlanes = 4 * kAcross;  // parts of a sum: of lanes and warps side by side
  static constexpr int kPlane = 2 * M + 8;     // the padding keeps planes on different banks
  static constexpr int kMostOutputs = 16;
  static_assert(I * 16 * kDown == M && J * 8 * kAcross == N);
  static_assert(kMostOutputs * N <= int(sizeof(TileB) / sizeof(float)));
  struct Shared {
    TileB b[kWideStages];  // then `last`
    union {
      TileA a[kWideStages];
      float parts[2][kPlanes][kPlane];  // of two outputs of every row, and of the two before
    };
    alignas(16) float bias[N];
  };
  Given a;
  Given b;
  const float* bias;  // chain c at bias + c bias_stride; null: none
  Index bias_stride;
  Given last;
  Sink sink;
  Index m, n, k, outputs;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, 4 * I * J> sums(block);
    const Index m0 = block.x() * M, chain = block.z();
    const FeedA feed_a(a, chain, m0, 0, m);
    const FeedB feed_b(b, chain, n);
    block.last([&](int t) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I * J; ++i) sums(t)[i] = 0.0f;
      bring_bias(block, t, chain, shared.bias);
    });
    wide_steps(block, feed_a, feed_b, WideSteps<Given, false>(a, 0, 0), shared.a, shared.b, 0,
               static_cast<int>(k), [&](const TileA& tile_a, const TileB& tile_b) {
                 multiply(block, tile_a, tile_b, sums);
               });
    block.phase([](int) {});  // no tile is read any more
    float* const weights = shared.b[0].at(0, 0);
    block.last([&](int t) { bring_last(block, t, chain, weights); });
    block.commit();
    block.last([&](int t) { activate(t, shared.bias, sums(t)); });
    block.template wait<0>();
    block.phase([](int) {});  // the last weights are there
    RIBBIT_UNROLL(1)
    for (int o = 0; o < outputs; o += 2) {
      float (&parts)[kPlanes][kPlane] = shared.parts[o / 2 % 2];
      block.phase([&](int t) { add_columns(t, weights + o * N, sums(t), parts); });
      block.last([&](int t) {
        RIBBIT_UNROLL_ALL for (int q = 0; q < (2 * M + kBlock - 1) / kBlock; ++q) {
          const int i = t + q * kBlock, out = o + i % 2;
          const Index row = m0 + i / 2;
          if (i < 2 * M && row < m && out < outputs) {
            sink.put(chain, 0, row, out, added(parts, i));
          }
        }
      });
    }
  }

 private:
  static RIBBIT_DEVICE int across(int t) { return t / kWarp % kAcross; }
  static RIBBIT_DEVICE int row_of(int t) { return t / kWarp / kAcross * kRows; }

  // Of fragment (i, j) among the sums.
  static RIBBIT_DEVICE int place(int i, int j) { return 4 * (j * I + i); }

  // Copies the bias, with the first tiles.
  RIBBIT_DEVICE void bring_bias(Block& block, int t, Index chain, float (&to)[N]) const {
    RIBBIT_UNROLL_ALL for (int i = 0; i < (N + kBlock - 1) / kBlock; ++i) {
      const int column = t + i * kBlock;
      const float* from = bias + chain * bias_stride + column;
      if (column < N) block.template copy<1>(&to[column], from, bias != nullptr && column < n);
    }
  }

  // Copies `last`, two outputs of all columns before the next two: four numbers that a lane needs
  // of a fragment, two columns by two outputs, are side by side.
  RIBBIT_DEVICE void bring_last(Block& block, int t, Index chain, float* to) const {
    RIBBIT_UNROLL_ALL for (int column = t; column < (N + kBlock - 1) / kBlock * kBlock;
                           column += kBlock) {
      if (column >= N) continue;
      const float* from = last.base + chain * last.chain_stride + column * last.row_stride;
      RIBBIT_UNROLL(1)
      for (int o = 0; o < outputs; o += 2) {
        float* at = to + (o * N + 2 * column);
        block.template copy<1>(at, from + o, column < n);
        block.template copy<1>(at + 1, from + o + 1, column < n && o + 1 < outputs);
      }
    }
  }

  // sums += the 16 terms in TF32.
  static RIBBIT_DEVICE void multiply(Block& block, const TileA& tile_a, const TileB& tile_b,
                                     Registers<float, 4 * I * J>& sums) {
    Registers<float, 4 * I> left(block);
    Registers<float, 2> right(block);
    RIBBIT_UNROLL_ALL for (int s = 0; s < kSteps; ++s) {
      block.last([&](int t) {
        float (&a)[4 * I] = left(t);
        const int row = row_of(t), lane = t % kWarp;
        RIBBIT_UNROLL_ALL for (int i = 0; i < I; ++i) {
          load_matrices<4>(a + 4 * i, lane, [&](int of) {
            return tile_a.at(row + 16 * i + of % 16, 8 * s + of / 16 * 4);
          });
        }
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4 * I; ++i) a[i] = tf32_nearest(a[i]);
      });
      RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
        block.last([&](int t) {
          const int column = across(t) * kColumns + 8 * j + t % kWarp / 4;
          RIBBIT_UNROLL_ALL for (int r = 0; r < 2; ++r) {
            right(t)[r] = tf32_nearest(*tile_b.at(column, 8 * s + t % 4 + 4 * r));
          }
        });
        multiply_in_warps<I, 1>(block, left, right, sums, 4 * j * I);
      }
    }
  }

  // f(sum + bias) in the place of the sums; 0 beyond the last column.
  RIBBIT_DEVICE void activate(int t, const float (&adds)[N], float (&sum)[4 * I * J]) const {
    const int first = across(t) * kColumns + 2 * (t % 4);
    RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
      float add[2];
      load2(add, adds + (first + 8 * j));
      RIBBIT_UNROLL_ALL for (int c = 0; c < 2; ++c) {
        const bool inside = first + 8 * j + c < n;
        RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * I; ++i) {
          float& own = sum[place(i / 2, j) + 2 * (i % 2) + c];
          float value, slope;
          activation<Code, false, float>(own + add[c], value, slope);
          own = inside ? value : 0.0f;
        }
      }
    }
  }

  // What a lane's columns give two outputs of its rows.
  static RIBBIT_DEVICE void add_columns(int t, const float* weights,
                                        const float (&value)[4 * I * J],
                                        float (&parts)[kPlanes][kPlane]) {
    float part[2 * I][2];
    RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * I; ++i) part[i][0] = part[i][1] = 0.0f;
    const int lane = t % kWarp;
    const float* own = weights + (across(t) * (2 * kColumns) + lane % 4 * 4);
    RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
      float w[4];
      load4(w, own + 16 * j);
      RIBBIT_UNROLL_ALL for (int c = 0; c < 2; ++c) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * I; ++i) {
          const float v = value[place(i / 2, j) + 2 * (i % 2) + c];
          part[i][0] = Ops<float>::fma(v, w[2 * c], part[i][0]);
          part[i][1] = Ops<float>::fma(v, w[2 * c + 1], part[i][1]);
        }
      }
    }
    float* to = &parts[across(t) * 4 + lane % 4][2 * (row_of(t) + lane / 4)];
    RIBBIT_UNROLL_ALL for (int i = 0; i < 2 * I; ++i) write2(to + 16 * i, part[i]);
  }

  static RIBBIT_DEVICE float added(const float (&parts)[kPlanes][kPlane], int i) {
    float sum = 0.0f;
    RIBBIT_UNROLL_ALL for (int w = 0; w < kPlanes; w += 4) {
      const float of_warp = (parts[w][i] + parts[w + 1][i]) + (parts[w + 2][i] + parts[w + 3][i]);
      sum = w == 0 ? of_warp : sum + of_warp;
    }
    return sum;
  }
};

}  // namespace ribbit::cuda
