// Activations that stand alone, sums of two values, and deltas that pass through unchanged.
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// value = f(a), or f(a + b) unless b is null; derivative = f'(..) unless null. `size` numbers per
// chain. Grid: (any, C).
template <class T, int Code>
struct Elementwise {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* a;
  Index a_stride;  // from chain to chain, as all strides here
  const T* b;
  Index b_stride;
  T* value;
  T* derivative;
  Index stride;
  Index size;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const T* left = a + block.y() * a_stride;
    const T* right = b != nullptr ? b + block.y() * b_stride : nullptr;
    const Index at = block.y() * stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        T v, d;
        activation<Code, false, T>(right != nullptr ? left[i] + right[i] : left[i], v, d);
        value[at + i] = v;
        if (derivative != nullptr) derivative[at + i] = d;
      }
    });
  }
};

// below = delta, times derivative unless null, plus what is there if `add`. Grid: (any, C).
template <class T>
struct HandDown {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* delta;
  Index delta_stride;
  T* below;
  const T* derivative;
  Index stride;
  Index size;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const T* from = delta + block.y() * delta_stride;
    const Index at = block.y() * stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const T given = derivative != nullptr ? from[i] * derivative[at + i] : from[i];
        below[at + i] = add != 0 ? below[at + i] + given : given;
      }
    });
  }
};

}  // namespace ribbit::cuda
