// Embeddings: a row of a table for each token. Tokens are numbers of type T; one outside the table
// is taken for the nearest one inside: the callers refuse it before. Positions: rows x tokens.
#pragma once

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

template <class T>
RIBBIT_DEVICE int row_of_token(T token, Index vocabulary) {
  const T last = static_cast<T>(vocabulary - 1);
  return token > T(0) ? static_cast<int>(token < last ? token : last) : 0;
}

// value (positions, channels) per chain = rows of the table (vocabulary, channels).
// Grid: (any, C).
template <class T>
struct Embedding {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* tokens;
  Index tokens_stride;  // from chain to chain, as all strides here
  const T* table;
  Index table_stride;
  T* value;
  Index stride;
  Index positions;
  Index vocabulary;
  Index channels;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const T* given = tokens + block.y() * tokens_stride;
    const T* from = table + block.y() * table_stride;
    const Small size = static_cast<Small>(positions * channels);
    const Small width = static_cast<Small>(channels);
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small position = static_cast<Small>(i) / width;
        const Index row = row_of_token(given[position], vocabulary);
        value[block.y() * stride + i] = from[row * channels + static_cast<Small>(i) % width];
      }
    });
  }
};

// Gradient of the table: a block owns 64 tokens and 32 channels, walks over all positions of its
// slice in order and adds up the deltas of those tokens; thread (c, g) owns channel c of tokens g,
// g + 8, .. Chain c of slice s at grad + s slice_stride + c chain_stride, plus what is there if
// `add`. Grid: (ceil(vocabulary / 64), ceil(channels / 32), C x slices).
template <class T>
struct EmbeddingGradient {
  static constexpr int kBlock = kThreads;
  static constexpr int kTokens = 64, kLanes = 32, kGroups = kBlock / kLanes;
  struct Shared {
    T sums[kTokens][kLanes];
    int tokens[kBlock];
  };
  const T* tokens;
  Index tokens_stride;
  const T* delta;
  Index stride;
  T* grad;
  Index chain_stride;
  Index slice_stride;
  Index offset;
  Index positions;
  Index vocabulary;
  Index channels;
  Index slices;
  Index slice_length;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const Index token0 = block.x() * kTokens, channel0 = block.y() * kLanes;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const Index begin = slice * slice_length;
    const Index end = begin + slice_length < positions ? begin + slice_length : positions;
    const T* given = tokens + chain * tokens_stride;
    const T* from = delta + chain * stride + channel0;
    block.phase([&](int t) {
      for (int k = t / kLanes; k < kTokens; k += kGroups) shared.sums[k][t % kLanes] = T(0);
    });
    for (Index first = begin; first < end; first += kBlock) {
      const int some = static_cast<int>(end - first < kBlock ? end - first : kBlock);
      block.phase([&](int t) {
        const Index row = t < some ? row_of_token(given[first + t], vocabulary) - token0 : -1;
        shared.tokens[t] = row >= 0 && row < kTokens ? static_cast<int>(row) : -1;
      });
      block.phase([&](int t) {
        const int lane = t % kLanes, group = t / kLanes;
        if (channel0 + lane >= channels) return;
        for (int i = 0; i < some; ++i) {
          const int row = shared.tokens[i];
          if (row < 0 || row % kGroups != group) continue;
          shared.sums[row][lane] += from[(first + i) * channels + lane];
        }
      });
    }
    block.last([&](int t) {
      const Index channel = channel0 + t % kLanes;
      for (int k = t / kLanes; k < kTokens; k += kGroups) {
        if (channel >= channels || token0 + k >= vocabulary) continue;
        const Index place = offset + (token0 + k) * channels + channel;
        T* at = grad + slice * slice_stride + chain * chain_stride + place;
        const T value = shared.sums[k][t % kLanes];
        *at = add != 0 ? *at + value : value;
      }
    });
  }
};

}  // namespace ribbit::cuda
