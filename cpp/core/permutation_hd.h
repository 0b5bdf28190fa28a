// A keyed bijection of [0, n): the order of an epoch's rows without a stored shuffle.
//
// A Feistel network on the smallest even number of bits that holds n - 1, walked along its cycle
// until it is back below n (Black and Rogaway 2002, "Ciphers with arbitrary finite domains",
// CT-RSA, sections 3 and 4). Round keys are Philox words of the address (seed, chain, epoch).
#pragma once

#include "core/philox_hd.h"

namespace ribbit {

struct Permutation {
  static constexpr int kRounds = 8;
  Word64 size;
  int half_bits;
  Word mask;
  Word keys[kRounds];
};

RIBBIT_HD Permutation make_permutation(Word64 size, Word64 seed, Word chain, Word64 epoch) {
  Permutation p{size, 1, 0, {}};
  while (p.half_bits < 31 && (1ull << (2 * p.half_bits)) < size) ++p.half_bits;
  p.mask = (1u << p.half_bits) - 1u;
  for (int block = 0; block < Permutation::kRounds / 4; ++block) {
    Word64 c[1][4] = {{static_cast<Word64>(block), counter_step(epoch), chain,
                       counter_purpose(kPurposeBatchOrder, 0, epoch)}};
    philox4x32<1, Word64>(c, seed);
    for (int i = 0; i < 4; ++i) p.keys[4 * block + i] = static_cast<Word>(c[0][i]);
  }
  return p;
}

// Where batch `number` of an epoch lies in its order. `batches` share N rows so that they differ by
// one at most: each counts N / count times in its step, which makes a short one a noisy one.
struct BatchPlaces {
  Word64 begin, count;
};

RIBBIT_HD BatchPlaces batch_places(Word64 rows, Word64 batches, Word64 number) {
  const Word64 base = rows / batches, longer = rows % batches;
  return {number * base + (number < longer ? number : longer), base + (number < longer ? 1 : 0)};
}

// Which batch of which order a step takes: an epoch goes through an order of its own, or there and
// back again through one, so that the noise of its batches is the same read backwards.
struct BatchTurn {
  Word64 epoch, number;
};

RIBBIT_HD BatchTurn batch_turn(Word64 step, Word64 batches, bool and_back) {
  const Word64 length = and_back ? 2 * batches : batches, place = step % length;
  return {step / length, place < batches ? place : length - 1 - place};
}

// Two rounds of multiply and fold: every bit of the half and of the key reaches every bit. L:
// 64-bit lanes with a half in the low word each.
template <class L>
RIBBIT_HD L mix_half(L half, Word key) {
  L h = (half ^ key) * 0x9E3779B97F4A7C15ull;
  h ^= h >> 32;
  h *= 0xD1342543DE82EF95ull;
  return h >> 32;
}

// Where row number i < size goes; each result occurs once.
RIBBIT_HD Word64 permute(const Permutation& p, Word64 i) {
  do {
    Word left = static_cast<Word>(i >> p.half_bits), right = static_cast<Word>(i) & p.mask;
    for (int round = 0; round < Permutation::kRounds; ++round) {
      const Word next = left ^ (static_cast<Word>(mix_half<Word64>(right, p.keys[round])) & p.mask);
      left = right;
      right = next;
    }
    i = static_cast<Word64>(left) << p.half_bits | right;
  } while (i >= p.size);
  return i;
}

}  // namespace ribbit
