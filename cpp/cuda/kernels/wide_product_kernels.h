// Products of wide float32 matrices: 32 to 256 rows of a block and 16 to 128 columns, 16 terms at a
// time, which are copied to shared memory two steps ahead. Every sum has the terms and the order of
// `Product`'s, so its bits too. `WideFeed` and `wide_steps` bring the tiles of those on tensor cores
// as well.
#pragma once

#include "cuda/kernels/product_kernels.h"

namespace ribbit::cuda {

// A matrix as wide products have it: its lines are rows on the left and columns on the right, its
// terms what is summed over. kStrided: a Matrix, else what has `find`. kOnes: a row of ones is
// below.
template <class Operand>
struct WideOperand {
  using Inner = Operand;
  static constexpr bool kStrided = false, kOnes = false;
  static RIBBIT_DEVICE const Inner& inner(const Operand& operand) { return operand; }
};
template <bool Transposed>
struct WideOperand<Matrix<float, Transposed>> {
  using Inner = Matrix<float, Transposed>;
  static constexpr bool kStrided = true, kOnes = false;
  static RIBBIT_DEVICE const Inner& inner(const Inner& operand) { return operand; }
};
template <class Operand>
struct WideOperand<WithOnes<float, Operand>> {
  using Inner = Operand;
  static constexpr bool kStrided = WideOperand<Operand>::kStrided, kOnes = true;
  static RIBBIT_DEVICE const Inner& inner(const WithOnes<float, Operand>& operand) {
    return operand.operand;
  }
};

// 16 terms of `Count` lines, the lines side by side or, with ByLines, one behind another. The
// padding keeps neighbours on different banks; Padding: behind lines side by side.
template <int Count, bool ByLines, int Padding>
struct WideTile {
  static constexpr int kDepth = 16;
  alignas(16) float value[ByLines ? Count : kDepth][ByLines ? kDepth + 4 : Count + Padding];
  RIBBIT_DEVICE float* at(int line, int term) {
    return ByLines ? &value[line][term] : &value[term][line];
  }
  RIBBIT_DEVICE const float* at(int line, int term) const {
    return ByLines ? &value[line][term] : &value[term][line];
  }
};

// Tiles of products by threads: lines side by side, whose numbers of a term are read at once, but
// on the left by lines where four terms are one copy, or may be of what an operand finds.
struct ThreadTiles {
  template <bool Left, bool Along, bool Strided, int Vector>
  static constexpr bool kByLines = Left && !Along && (!Strided || Vector == 4);
  static constexpr int kPadding = 4;
};

// The fewest copies of a thread with which a block makes `groups` times `group` of them, the same
// for every thread that makes any.
RIBBIT_SIZE int wide_copies(int groups, int group) {
  int copies = 1;
  while (groups % copies != 0 || groups / copies * group > kThreads) ++copies;
  return copies;
}

// How the threads of a block share out the copies of a tile. Along: neighbours in memory are
// neighbouring lines, else terms. Vector: numbers of a copy, side by side in memory and in the
// tile; 4 where they are from a multiple of four on at multiples of 16 bytes. Each of the first
// kSharers threads makes kCopies.
template <bool Along, class Of, int Count, int Vector>
struct WideShares {
  using Tile = Of;
  static constexpr int kGroup = (Along ? Count : Tile::kDepth) / Vector;  // threads side by side
  static constexpr int kGroups = Along ? Tile::kDepth : Count;
  static constexpr int kCopies = wide_copies(kGroups, kGroup);
  static constexpr int kApart = kGroups / kCopies;  // of a thread's copies
  static constexpr int kSharers = kApart * kGroup;
  static_assert(Vector == 1 || Vector == 4);
  static RIBBIT_DEVICE int line(int t, int i) {
    return Along ? t % kGroup * Vector : t / kGroup + i * kApart;
  }
  static RIBBIT_DEVICE int term(int t, int i) {
    return Along ? t / kGroup + i * kApart : t % kGroup * Vector;
  }
};

// Copies tiles of an operand; terms and lines beyond the last are zero. A thread keeps an address
// from tile to tile: start(t), then next(..). Tiles: how they lie.
template <class Operand, bool Left, int Count, int Vector, class Tiles, bool Strided>
struct WideFeed {
  static constexpr bool kAlong = Left != Operand::kAlongColumns;
  static constexpr bool kByLines = Tiles::template kByLines<Left, kAlong, true, Vector>;
  using Tile = WideTile<Count, kByLines, Tiles::kPadding>;
  using Shares = WideShares<kAlong, Tile, Count, Vector>;
  static_assert(Vector == 1 || kAlong != kByLines);
  using Kept = int;  // of its lines: nothing
  static constexpr int kKept = 1;
  RIBBIT_DEVICE void keep(int, Kept (&)[kKept]) const {}
  const float* base;
  int stride;  // from line to line, or from term to term; 16 of them are 32 bits
  int lines;
  RIBBIT_DEVICE WideFeed(const Operand& matrix, Index chain, Index first, Index begin, Index count)
      : base(matrix.base + chain * matrix.chain_stride +
             (kAlong ? begin * matrix.row_stride + first : first * matrix.row_stride + begin)),
        stride(static_cast<int>(matrix.row_stride)),
        lines(static_cast<int>(count - first)) {}
  RIBBIT_DEVICE const float* start(int t) const {
    const int line = Shares::line(t, 0), term = Shares::term(t, 0);
    return kAlong ? base + term * stride + line : base + line * stride + term;
  }
  RIBBIT_DEVICE const float* next(const float* from) const {
    return from + (kAlong ? Tile::kDepth * stride : Tile::kDepth);
  }
  RIBBIT_DEVICE void copy(Block& block, int t, Tile& to, const float* from, const Kept (&)[kKept],
                          Index, int terms) const {
    if (Shares::kSharers < kThreads && t >= Shares::kSharers) return;
    const int apart = Shares::kApart * stride;
    RIBBIT_UNROLL_ALL for (int i = 0; i < Shares::kCopies; ++i) {
      const int line = Shares::line(t, i), term = Shares::term(t, i);
      block.template copy<Vector>(to.at(line, term), from, line < lines && term < terms);
      from += apart;
    }
  }
};

// What a thread keeps of each line that it copies, from tile to tile.
template <class Operand, bool Keeps, bool Steps>
struct WideKept {
  using Type = int;
  static RIBBIT_DEVICE Type of(const Operand&, Index) { return 0; }
  static RIBBIT_DEVICE Type none() { return 0; }
};
template <class Operand>
struct WideKept<Operand, false, true> {
  using Type = decltype(Operand::corner(0));
  static RIBBIT_DEVICE Type of(const Operand& operand, Index line) { return operand.corner(line); }
  static RIBBIT_DEVICE Type none() { return {0, Operand::kNever, Operand::kNever}; }
};
template <class Operand>
struct WideKept<Operand, true, false> {
  using Type = decltype(Operand::entry(0));
  static RIBBIT_DEVICE Type of(const Operand& operand, Index line) { return operand.line(line); }
  static RIBBIT_DEVICE Type none() { return {0, 0}; }
};

// Which steps of 16 terms a tile of an operand has: all, or of one with kSkips those that have a
// number, by the taps that its lines meet.
template <class Operand>
RIBBIT_SIZE auto skips_steps(int) -> decltype(Operand::kSkips) {
  return Operand::kSkips;
}
template <class Operand>
RIBBIT_SIZE bool skips_steps(...) {
  return false;
}
template <class Operand, bool Skips>
struct WideSteps {
  RIBBIT_DEVICE WideSteps(const Operand&, Index, Index) {}
  RIBBIT_DEVICE int from(int step, int) const { return step; }
};
template <class Operand>
struct WideSteps<Operand, true> {
  unsigned taps;
  RIBBIT_DEVICE WideSteps(const Operand& operand, Index first, Index last)
      : taps(operand.taps(first, last)) {}
  RIBBIT_DEVICE int from(int step, int steps) const {
    while (step < steps && !Operand::has(taps, 16 * step)) ++step;
    return step;
  }
};

// The same for an operand that finds its numbers; where it keeps lines or makes steps, by parts. An
// address that is not inside is not read, so it may be anywhere.
template <class Operand, bool Left, int Count, int Vector, class Tiles>
struct WideFeed<Operand, Left, Count, Vector, Tiles, false> {
  static constexpr bool kAlong = Left != Operand::kAlongColumns;
  static constexpr bool kByLines = Tiles::template kByLines<Left, kAlong, false, Vector>;
  using Tile = WideTile<Count, kByLines, Tiles::kPadding>;
  using Shares = WideShares<kAlong, Tile, Count, Vector>;
  static_assert(Vector == 1 || kAlong != kByLines);
  static constexpr bool kKeeps = Left && kByLines && Operand::kKeepsLines;
  static constexpr bool kSteps = Left && kAlong && Operand::kSteps;
  using Keeper = WideKept<Operand, kKeeps, kSteps>;
  using Kept = typename Keeper::Type;
  static constexpr int kKept = kKeeps ? Shares::kCopies : 1;
  RIBBIT_DEVICE void keep(int t, Kept (&kept)[kKept]) const {
    RIBBIT_UNROLL_ALL for (int i = 0; i < kKept; ++i) {
      const int line = Shares::line(t, i);
      kept[i] = line < lines ? Keeper::of(operand, first + line) : Keeper::none();
    }
  }
  const Operand& operand;
  Index chain;
  Index first;
  int lines;
  RIBBIT_DEVICE WideFeed(const Operand& given, Index of, Index from, Index, Index count)
      : operand(given), chain(of), first(from), lines(static_cast<int>(count - from)) {}
  // Of the chain: what numbers are found from.
  RIBBIT_DEVICE const float* start(int) const {
    return as_it_is(operand.base + chain * operand.chain_stride);
  }
  RIBBIT_DEVICE const float* next(const float* from) const { return from; }
  RIBBIT_DEVICE void copy(Block& block, int t, Tile& to, const float* own,
                          const Kept (&kept)[kKept], Index term0, int terms) const {
    if (Shares::kSharers < kThreads && t >= Shares::kSharers) return;
    if constexpr (kKeeps) {
      const int term = Shares::term(t, 0);  // of all copies of the thread
      const auto entry = Operand::entry(term0 + term);
      const unsigned taps = term < terms ? entry.taps : 0u;
      RIBBIT_UNROLL_ALL for (int i = 0; i < Shares::kCopies; ++i) {
        const bool inside = (kept[i].taps & taps) != 0;
        const float* from = own + (inside ? kept[i].first + entry.first : 0);
        block.template copy<Vector>(to.at(Shares::line(t, i), term), from, inside);
      }
    } else if constexpr (kSteps) {
      const auto step = operand.step(term0);
      RIBBIT_UNROLL_ALL for (int i = 0; i < Shares::kCopies; ++i) {
        const int term = Shares::term(t, i);
        bool inside = false;
        const float* from = operand.behind(own, step, kept[0], term, inside);
        block.template copy<Vector>(to.at(Shares::line(t, 0), term), from, inside);
      }
    } else {
      RIBBIT_UNROLL_ALL for (int i = 0; i < Shares::kCopies; ++i) {
        const int line = Shares::line(t, i), term = Shares::term(t, i);
        const float* from = nullptr;
        if (line < lines && term < terms) {
          from = Left ? operand.find(chain, first + line, term0 + term)
                      : operand.find(chain, term0 + term, first + line);
        }
        const bool inside = from != nullptr;
        block.template copy<Vector>(to.at(line, term), inside ? from : operand.base, inside);
      }
    }
  }
};

constexpr int kWideStages = 3;  // of tiles in shared memory

// sum += the terms of a line, one after the other.
template <class Tile>
RIBBIT_DEVICE void add_terms(const Tile& tile, int line, float& sum) {
  float total = sum;
  RIBBIT_UNROLL_ALL for (int term = 0; term < Tile::kDepth; ++term) {
    total = total + *tile.at(line, term);
  }
  sum = total;
}

// Brings 16 terms of both operands after the other, `terms` from `begin` on, two steps ahead, and
// calls compute(tile of A, tile of B) for each step that is sought, between barriers.
template <class FeedA, class FeedB, class Sought, class Compute>
RIBBIT_DEVICE void wide_steps(Block& block, const FeedA& feed_a, const FeedB& feed_b,
                              const Sought& sought, typename FeedA::Tile (&tiles_a)[kWideStages],
                              typename FeedB::Tile (&tiles_b)[kWideStages], Index begin, int terms,
                              const Compute& compute) {
  constexpr int kDepth = FeedA::Tile::kDepth;
  const int steps = (terms + kDepth - 1) / kDepth;
  Registers<const float*, 2> from(block);
  Registers<typename FeedA::Kept, FeedA::kKept> kept_a(block);
  Registers<typename FeedB::Kept, FeedB::kKept> kept_b(block);
  const auto fetch = [&](int step, int stage) {
    if (step < steps) {
      const int more = terms - step * kDepth;
      const Index term = begin + step * kDepth;
      block.last([&](int t) {
        const float*(&at)[2] = from(t);
        feed_a.copy(block, t, tiles_a[stage], at[0], kept_a(t), term, more);
        feed_b.copy(block, t, tiles_b[stage], at[1], kept_b(t), term, more);
        at[0] = feed_a.next(at[0]), at[1] = feed_b.next(at[1]);
      });
    }
    block.commit();
  };
  block.last([&](int t) {
    from(t)[0] = feed_a.start(t), from(t)[1] = feed_b.start(t);
    feed_a.keep(t, kept_a(t)), feed_b.keep(t, kept_b(t));
  });
  int step = sought.from(0, steps), next = sought.from(step + 1, steps);
  fetch(step, 0);
  fetch(next, 1);
  int stage = 0, ahead = 2;  // of this step and of the one that is fetched
  for (; step < steps; step = sought.from(step + 1, steps)) {
    block.template wait<1>();
    block.phase([](int) {});  // what others have asked for is there, and the last stage is read
    next = sought.from(next + 1, steps);
    fetch(next, ahead);
    compute(tiles_a[stage], tiles_b[stage]);
    ahead = stage;
    stage = stage + 1 == kWideStages ? 0 : stage + 1;
  }
}

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
  static constexpr int kAcross = N == 80 ? 4 : M >= 128 && N < 64 ? N / 4 : 16, kDown = kThreads / kAcross;
  static constexpr int kRows = M / kDown, kHeight = FeedA::kByLines ? 1 : kRows < 4 ? kRows : 4;
  static constexpr int kColumns = N / kAcross, kSide = kColumns < 4 ? kColumns : 4;
  static constexpr bool kOnes = OfA::kOnes, kSkips = skips_steps<typename OfA::Inner>(0);
  static_assert(!kSkips || (!OfA::kStrided && !OfB::kStrided));  // these count their steps
  static_assert(!Sink::kJoins && kRows % kHeight == 0 && kColumns % kSide == 0);
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
      float(&sum)[kRows * kColumns] = sums(t);
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
          RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; ++j) {
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
