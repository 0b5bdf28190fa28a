// Dropout masks by address, with the CPU's words (cpu/isa/dropout-inl.h): element
// row * 4 ceil(units / 4) + unit of a stream decides one unit of one row. They are made again on
// the way back and never stored. Masks of predictions have a purpose of their own, and may be
// shared by all rows: those of row 0.
#pragma once

#include "core/math_hd.h"
#include "core/philox_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Which words: seed, step and sample in device memory, rows by number.
struct RowAddress {
  const Word64* where;  // seed, step and the sample of chain 0
  const Index* rows;    // numbers of the data rows; null: first_row, first_row + 1, ..
  Index rows_stride;    // from chain to chain
  Index first_row;
  Index shared;    // every row takes the words of row 0
  Word64 purpose;  // of core/philox_hd.h
  Word64 layer;    // and its layer: the index of one, for masks
};

// The words of one chain.
class RowWords {
 public:
  RIBBIT_DEVICE RowWords(const RowAddress& address, Index chain)
      : first_row_(address.first_row),
        shared_(address.shared != 0),
        rows_(address.rows),
        seed_(address.where[0]),
        step_(counter_step(address.where[1])),
        sample_(static_cast<Word>(address.where[2]) + static_cast<Word>(chain)),
        last_(counter_purpose(static_cast<Word>(address.purpose), static_cast<Word>(address.layer),
                              address.where[1])) {
    if (rows_ != nullptr) rows_ += chain * address.rows_stride;
  }
  // The words of four units of row r of the panel; a row has `blocks` times four.
  RIBBIT_DEVICE void words(Small r, Small four, Small blocks, Word64 (&out)[1][4]) const {
    const Index listed = first_row_ + r;
    const Index own = rows_ != nullptr ? rows_[listed] : listed;
    const Word64 number = static_cast<Word64>(shared_ ? 0 : own) * blocks + four;
    out[0][0] = number & 0xffffffffull;
    out[0][1] = step_;
    out[0][2] = sample_;
    out[0][3] = last_;
    philox4x32<1>(out, seed_);
  }

 private:
  Index first_row_;
  bool shared_;
  const Index* rows_;
  Word64 seed_;
  Word step_, sample_, last_;
};

// to = from times its masks, times derivative unless null, plus what is there if `add`: values on
// the way forward, deltas on the way back. Values are (rows, sites, units) per chain, and all
// sites of a row share a mask. A thread makes the four units of a counter block. Grid: (any, C).
template <class T>
struct DropUnits {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  RowAddress address;
  Word64 threshold;  // rate 2^32: smaller words drop the unit
  double keep;       // what a kept unit is multiplied by
  const T* from;
  Index from_stride;  // from chain to chain
  T* to;
  const T* derivative;
  Index to_stride;  // from chain to chain, of both
  Index count;      // rows
  Index sites;
  Index units;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Small blocks = static_cast<Small>((units + 3) / 4), width = static_cast<Small>(units);
    const Small size = static_cast<Small>(count * sites) * blocks;
    const RowWords masks(address, block.y());
    const T* source = from + block.y() * from_stride;
    const Index out = block.y() * to_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small four = static_cast<Small>(i) % blocks, at = static_cast<Small>(i) / blocks;
        Word64 words[1][4];
        masks.words(at / static_cast<Small>(sites), four, blocks, words);
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          const Small unit = 4 * four + static_cast<Small>(j);
          if (unit >= width) continue;
          const bool kept = static_cast<Word>(words[0][j]) >= static_cast<Word>(threshold);
          const Small place = at * width + unit;
          T value = source[place] * (kept ? static_cast<T>(keep) : T(0));
          if (derivative != nullptr) value *= derivative[out + place];
          to[out + place] = add != 0 ? to[out + place] + value : value;
        }
      }
    });
  }
};

// Concrete dropout (Gal, Hron and Kendall 2017, eq. 5): masks that are relaxed at temperature 0.1,
// so that they have a derivative by the rate. Formulas as in cpu/isa/concrete-inl.h.

// log(u / (1 - u)) of a word, u = (word + 1/2) / 2^32.
template <class T>
RIBBIT_DEVICE T logit_of_word(Word word) {
  if constexpr (sizeof(T) == sizeof(float)) {
    // From the nearer end, so that neither logarithm loses its digits.
    const int w = static_cast<int>(word), folded = w < 0 ? ~w : w;
    const T near = Ops<T>::fma(static_cast<T>(folded), T(0x1p-32), T(0x1p-33));
    const T value = log<T>(near) - log<T>(T(1) - near);
    return w < 0 ? -value : value;
  } else {
    const T u = Ops<T>::fma(static_cast<T>(word), T(0x1p-32), T(0x1p-33));
    return log<T>(u) - log<T>(T(1) - u);
  }
}

template <class T>
struct RelaxedMask {
  static constexpr double kSharpness = 10.0;  // 1 / temperature
  T logit, rate, keep;
  RIBBIT_DEVICE explicit RelaxedMask(T given)
      : logit(given), rate(sigmoid<T>(given)), keep(T(1) / (T(1) - rate)) {}
  RIBBIT_DEVICE T sharpened(Word word) const {
    return (logit + logit_of_word<T>(word)) * static_cast<T>(kSharpness);
  }
  RIBBIT_DEVICE T factor(T sharpened) const { return keep * sigmoid<T>(-sharpened); }
  // d log factor / d logit
  RIBBIT_DEVICE T ratio(T sharpened) const {
    return rate - static_cast<T>(kSharpness) * sigmoid<T>(sharpened);
  }
};

// to = from times its relaxed masks, (rows, units) per chain. Grid: (any, C).
template <class T>
struct RelaxUnits {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  RowAddress address;
  const T* logit;  // of the rate, chain c's at c logit_stride
  Index logit_stride;
  Index count;  // rows
  Index units;
  const T* from;
  Index from_stride;  // from chain to chain
  T* to;
  Index to_stride;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Small blocks = static_cast<Small>((units + 3) / 4), width = static_cast<Small>(units);
    const Small size = static_cast<Small>(count) * blocks;
    const RowWords masks(address, block.y());
    const RelaxedMask<T> mask(logit[block.y() * logit_stride]);
    const T* source = from + block.y() * from_stride;
    T* out = to + block.y() * to_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small four = static_cast<Small>(i) % blocks, r = static_cast<Small>(i) / blocks;
        Word64 words[1][4];
        masks.words(r, four, blocks, words);
        for (int j = 0; j < 4; ++j) {
          const Small unit = 4 * four + static_cast<Small>(j);
          if (unit >= width) continue;
          const Small place = r * width + unit;
          out[place] = source[place] * mask.factor(mask.sharpened(static_cast<Word>(words[0][j])));
        }
      }
    });
  }
};

// The way back: below = delta times the masks, times derivative unless null, plus what is there if
// `add`; null: nobody needs it. sums[c slots + slot + b]: the block's part of the gradient by the
// logit, delta value d log factor / d logit over its rows and units. Grid: (any, C).
template <class T>
struct RelaxedBackward {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  RowAddress address;
  const T* logit;
  Index logit_stride;
  Index count;
  Index units;
  const T* delta;
  const T* value;  // what RelaxUnits made
  Index stride;    // from chain to chain, of both
  T* below;
  const T* derivative;
  Index below_stride;  // of both
  Index add;
  double* sums;
  Index slots;
  Index slot;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Small blocks = static_cast<Small>((units + 3) / 4), width = static_cast<Small>(units);
    const Small size = static_cast<Small>(count) * blocks;
    const RowWords masks(address, block.y());
    const RelaxedMask<T> mask(logit[block.y() * logit_stride]);
    const Index given = block.y() * stride, out = block.y() * below_stride;
    block.phase([&](int t) {
      double own = 0.0;
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small four = static_cast<Small>(i) % blocks, r = static_cast<Small>(i) / blocks;
        Word64 words[1][4];
        masks.words(r, four, blocks, words);
        for (int j = 0; j < 4; ++j) {
          const Small unit = 4 * four + static_cast<Small>(j);
          if (unit >= width) continue;
          const Small place = r * width + unit;
          const T d = delta[given + place];
          const T sharpened = mask.sharpened(static_cast<Word>(words[0][j]));
          own += static_cast<double>(d) * static_cast<double>(value[given + place]) *
                 static_cast<double>(mask.ratio(sharpened));
          if (below == nullptr) continue;
          T back = d * mask.factor(sharpened);
          if (derivative != nullptr) back *= derivative[out + place];
          below[out + place] = add != 0 ? below[out + place] + back : back;
        }
      }
      sum.value[t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) sums[block.y() * slots + slot + block.x()] = sum.value[0];
    });
  }
};

// grad += weight * score of weights behind a learned rate p: normal of precision p1 / (1 - p), p1
// the prior's own. Grid: (any, C).
template <class T>
struct LearnedScore {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  double precision;  // p1
  const T* logit;
  const T* theta;
  Index dim;  // P, of theta, grad and logit
  Index offset;
  Index size;
  double weight;
  T* grad;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index at = block.y() * dim + offset;
    const double odds = exp<double>(static_cast<double>(logit[block.y() * dim]));
    const T w = static_cast<T>(weight), scaled = static_cast<T>(-precision * (1.0 + odds));
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        grad[at + i] = Ops<T>::fma(w, theta[at + i] * scaled, grad[at + i]);
      }
    });
  }
};

// What goes by a learned rate p of `units` units below weights (size,): units H(p) - |weights|^2
// precision / (2 (1 - p)), into out[c slots + slot]; or, by_logit, weight times its derivative by
// the logit. Grid: (1, C).
template <class T>
struct LearnedRate {
  static constexpr int kBlock = kThreads;
  using Shared = BlockSum<kBlock>;
  double precision;
  const T* logit;
  const T* theta;
  Index dim;
  Index offset;
  Index size;
  Index units;
  Index by_logit;
  double weight;
  double* out;
  Index slots;
  Index slot;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const T* at = theta + block.y() * dim + offset;
    block.phase([&](int t) {
      double own = 0.0;
      for (Index i = t; i < size; i += kBlock) {
        own += static_cast<double>(at[i]) * static_cast<double>(at[i]);
      }
      sum.value[t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t != 0) return;
      const double l = static_cast<double>(logit[block.y() * dim]), odds = exp<double>(l);
      const double rate = odds / (1.0 + odds), half = 0.5 * precision * sum.value[0];
      const double count = static_cast<double>(units);
      // H(p) = log(1 + e^l) - p l; 1 / (1 - p) = 1 + e^l
      out[block.y() * slots + slot] =
          by_logit != 0 ? weight * (-count * l * rate * (1.0 - rate) - half * odds)
                        : count * (softplus<double>(l) - rate * l) - half * (1.0 + odds);
    });
  }
};

}  // namespace ribbit::cuda
