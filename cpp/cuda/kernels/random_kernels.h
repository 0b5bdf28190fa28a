// Random numbers, with the CPU's words: element e of a row is number e % 4 of the counter block
// e / 4 (core/philox_hd.h), and normals have the CPU's bits.
#pragma once

#include "core/normal_hd.h"
#include "core/philox_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// The keys of the ten rounds, two in each word, the first below. As arguments of a kernel they cost
// neither registers nor additions.
struct RoundKeys {
  Word64 words[10];
  RIBBIT_DEVICE Word first(int round) const { return static_cast<Word>(words[round]); }
  RIBBIT_DEVICE Word second(int round) const { return static_cast<Word>(words[round] >> 32); }
};

RIBBIT_DEVICE RoundKeys round_keys(Word64 seed) {
  RoundKeys keys;
  Word first = static_cast<Word>(seed), second = static_cast<Word>(seed >> 32);
  RIBBIT_UNROLL_ALL for (int round = 0; round < 10; ++round) {
    keys.words[round] = static_cast<Word64>(second) << 32 | first;
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  return keys;
}

// All 64 bits of a product.
RIBBIT_DEVICE Word64 wide_product(Word a, Word b) {
#if defined(__CUDA_ARCH__)
  Word64 product;  // one instruction: the compiler sometimes adds 0 to its high half
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return Word64{a} * b;
#endif
}

// The ten rounds of philox4x32 (core/philox_hd.h) on one counter.
RIBBIT_DEVICE void ten_rounds(Word (&c)[4], const RoundKeys& keys) {
  RIBBIT_UNROLL_ALL for (int round = 0; round < 10; ++round) {
    const Word64 product0 = wide_product(c[0], 0xD2511F53u);
    const Word64 product1 = wide_product(c[2], 0xCD9E8D57u);
    c[0] = static_cast<Word>(product1 >> 32) ^ c[1] ^ keys.first(round);
    c[2] = static_cast<Word>(product0 >> 32) ^ c[3] ^ keys.second(round);
    c[1] = static_cast<Word>(product1);
    c[3] = static_cast<Word>(product0);
  }
}

// A stream less its chain. chains: (rows,) ids, or null for 0, 1, ..
struct Stream {
  Word64 seed;
  Word64 step;
  Word64 purpose_layer;  // purpose << 24 | layer << 8, as in the counter
  const Word* chains;
  RIBBIT_DEVICE Word chain(Index row) const {
    return chains != nullptr ? chains[row] : static_cast<Word>(row);
  }
  // The four words of a block.
  RIBBIT_DEVICE void words(Word64 block, Word chain, Word (&out)[4]) const {
    Word64 c[1][4] = {{block & 0xffffffffull, step & 0xffffffffull, chain,
                       purpose_layer | ((step >> 32) & 0xffu)}};
    philox4x32<1>(c, seed);
    RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) out[i] = static_cast<Word>(c[0][i]);
  }
  // The same, with the keys of its rounds.
  template <class T>
  RIBBIT_DEVICE void normals(Word64 block, Word chain, const RoundKeys& keys, T (&z)[4]) const {
    Word c[4] = {static_cast<Word>(block), static_cast<Word>(step), chain,
                 static_cast<Word>(purpose_layer | ((step >> 32) & 0xffu))};
    ten_rounds(c, keys);
    box_muller<T>(c[0], c[1], z[0], z[1]);
    box_muller<T>(c[2], c[3], z[2], z[3]);
  }
  template <class T>
  RIBBIT_DEVICE void normals(Word64 block, Word chain, T (&z)[4]) const {
    Word w[4];
    words(block, chain, w);
    box_muller<T>(w[0], w[1], z[0], z[1]);
    box_muller<T>(w[2], w[3], z[2], z[3]);
  }
};

// out (rows, n); a thread makes four at a time. Grid: (any, rows).
template <class T>
struct FillNormal {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Stream stream;
  Index n;
  T* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Word chain = stream.chain(block.y());
    T* row = out + block.y() * n;
    block.last([&](int t) {
      const Index blocks = (n + 3) / 4;
      for (Index b = block.x() * kBlock + t; b < blocks; b += block.width() * kBlock) {
        T z[4];
        stream.template normals<T>(static_cast<Word64>(b), chain, z);
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
          if (4 * b + i < n) row[4 * b + i] = z[i];
        }
      }
    });
  }
};

// out (rows, n): element e from words 2e and 2e + 1. Grid: (any, rows).
struct FillUniform {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Stream stream;
  Index n;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Word chain = stream.chain(block.y());
    double* row = out + block.y() * n;
    block.last([&](int t) {
      const Index blocks = (n + 1) / 2;
      for (Index b = block.x() * kBlock + t; b < blocks; b += block.width() * kBlock) {
        Word w[4];
        stream.words(static_cast<Word64>(b), chain, w);
        row[2 * b] = uniform_of(w[0], w[1]);
        if (2 * b + 1 < n) row[2 * b + 1] = uniform_of(w[2], w[3]);
      }
    });
  }
};

}  // namespace ribbit::cuda
