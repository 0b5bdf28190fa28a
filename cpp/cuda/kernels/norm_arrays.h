// What the kernels of norms read and write: of every chain, values (rows, sites, channels).
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// An array of every chain.
template <class T>
struct PerChain {
  T* first;
  Index stride;  // from chain to chain
  RIBBIT_DEVICE T* of(Index chain) const { return first + chain * stride; }
};

// Where the parameters of a norm lie; tau is null without a threshold.
template <class T>
struct NormParameters {
  const T* gamma;
  const T* beta;
  const T* tau;
  Index stride;  // from chain to chain
};

// Where values f(v) go, and f'(v) unless that is null; f(v + other) unless other is null.
template <class T>
struct NormOutput {
  T* value;
  T* derivative;
  Index stride;  // from chain to chain
  PerChain<const T> other;
  template <int Code>
  RIBBIT_DEVICE void put(Index chain, Index at, T v) const {
    T f, d;
    if (other.first != nullptr) v += other.of(chain)[at];
    activation<Code, false, T>(v, f, d);
    const Index here = chain * stride + at;
    value[here] = f;
    if (derivative != nullptr) derivative[here] = d;
  }
};

// Where deltas go: times derivative unless that is null, plus what is there if `add`.
template <class T>
struct NormBelow {
  T* delta;  // null: not wanted
  const T* derivative;
  Index stride;  // from chain to chain
  RIBBIT_DEVICE void put(Index chain, Index at, T value, Index add) const {
    const Index here = chain * stride + at;
    if (derivative != nullptr) value *= derivative[here];
    delta[here] = add != 0 ? delta[here] + value : value;
  }
};

}  // namespace ribbit::cuda
