// What brings wide products their factors: tiles of 16 terms, which threads copy to shared memory
// two steps ahead.
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
template <bool Along, class Tile, int Count, int Vector>
struct WideShares {
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

}  // namespace ribbit::cuda
