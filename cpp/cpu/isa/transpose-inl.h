#pragma once
// Shuffles across vectors: transposed squares and sums over lanes.

#include "cpu/isa/vec-inl.h"

#define RIBBIT_UNROLL _Pragma("GCC unroll 32")

namespace ribbit::cpu {
namespace {

template <class T>
struct IntVecFor {
  using type = VecI32;
};
template <>
struct IntVecFor<double> {
  using type = VecI64;
};
template <class T>
using IntVec = typename IntVecFor<T>::type;

// Interleaves blocks of kBlock lanes: low = {a0, b0, a2, b2, ..}, high = {a1, b1, a3, b3, ..}.
template <class T, int kBlock>
RIBBIT_INLINE void swap_blocks(Vec<T>& a, Vec<T>& b) {
  constexpr int lanes = kLanes<T>;
  IntVec<T> low, high;
  RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
    const bool upper = (i & kBlock) != 0;
    low[i] = upper ? i - kBlock + lanes : i;
    high[i] = upper ? i + lanes : i + kBlock;
  }
#if defined(__clang__)  // knows shuffles by constants alone, and finds them in this
  const Vec<T> from[2] = {a, b};
  RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
    a[i] = from[low[i] / lanes][low[i] % lanes];
    b[i] = from[high[i] / lanes][high[i] % lanes];
  }
#else
  const auto first = __builtin_shuffle(a, b, low);
  b = __builtin_shuffle(a, b, high);
  a = first;
#endif
}

// Transposes the square of lanes x lanes scalars in v.
template <class T, int kBlock = kLanes<T> / 2>
RIBBIT_INLINE void transpose_square(Vec<T>* v) {
  constexpr int lanes = kLanes<T>;
  RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
    if ((i & kBlock) == 0) swap_blocks<T, kBlock>(v[i], v[i + kBlock]);
  }
  if constexpr (kBlock > 1) transpose_square<T, kBlock / 2>(v);
}

// v[0..lanes) -> one vector whose lane i is the sum of the lanes of v[i].
template <class T, int kBlock = kLanes<T> / 2>
RIBBIT_INLINE Vec<T> sum_lanes(Vec<T>* v) {
  // Each round halves the vectors: after the round with block b, v[i] holds v[i] and v[i + b].
  RIBBIT_UNROLL for (int i = 0; i < kBlock; ++i) {
    swap_blocks<T, kBlock>(v[i], v[i + kBlock]);
    v[i] += v[i + kBlock];
  }
  if constexpr (kBlock > 1) {
    return sum_lanes<T, kBlock / 2>(v);
  } else {
    return v[0];
  }
}

}  // namespace
}  // namespace ribbit::cpu
