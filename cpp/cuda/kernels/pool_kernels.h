// Max and average pools; cells outside the image do not count. S: a Sliding window, whose images
// lie as (height, width, channels).
#pragma once

#include "cuda/kernels/conv_kernels.h"

namespace ribbit::cuda {

// Where the window at a site meets the image.
template <class S>
RIBBIT_DEVICE int covered(int site) {
  int count = 0;
  for (int tap = 0; tap < S::kTaps; ++tap) count += S::cell(site, tap) >= 0 ? 1 : 0;
  return count;
}

// Grid: (any, C).
template <class T, class S, bool Max>
struct Pool {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* x;
  Index x_stride;  // from chain to chain, as all strides here
  T* value;
  Index stride;
  Index rows;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index size = rows * S::kSites * S::kChannels;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small at = static_cast<Small>(i) / S::kChannels;
        const Small channel = static_cast<Small>(i) % S::kChannels, row = at / S::kSites;
        const int site = static_cast<int>(at % S::kSites);
        const T* image = x + block.y() * x_stride + Index(row) * S::kCells * S::kChannels + channel;
        T most = T(0);
        int count = 0;
        for (int tap = 0; tap < S::kTaps; ++tap) {
          const int cell = S::cell(site, tap);
          if (cell < 0) continue;
          const T v = image[cell * S::kChannels];
          if constexpr (Max) {
            // NaN stays, whichever cell it is in.
            if (count == 0 || !(v <= most || most != most)) most = v;
          } else {
            most += v;
          }
          ++count;
        }
        value[block.y() * stride + i] = Max ? most : most * (T(1) / static_cast<T>(count));
      }
    });
  }
};

// delta of the input = sum over the sites whose window covers a cell: of those where it is the
// first of the largest, or of their means' shares; times derivative unless null, plus what is there
// if `add`. x, value are read for the largest alone. Grid: (any, C).
template <class T, class S, bool Max>
struct PoolBackward {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* x;
  Index x_stride;
  const T* value;
  const T* delta;
  Index stride;  // of value and delta
  T* below;
  const T* derivative;
  Index below_stride;
  Index rows;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index size = rows * S::kCells * S::kChannels;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small at = static_cast<Small>(i) / S::kChannels;
        const Small channel = static_cast<Small>(i) % S::kChannels, row = at / S::kCells;
        const int cell = static_cast<int>(at % S::kCells);
        const T* image = x + block.y() * x_stride + Index(row) * S::kCells * S::kChannels + channel;
        const Index out = block.y() * stride + Index(row) * S::kSites * S::kChannels + channel;
        T sum = T(0);
        if constexpr (S::kWhole && !Max) sum += delta[out] * (T(1) / static_cast<T>(S::kCells));
        for (int tap = 0; tap < S::kTaps && (Max || !S::kWhole); ++tap) {
          const int site = S::site(cell, tap);
          if (site < 0) continue;
          const T given = delta[out + site * S::kChannels];
          if constexpr (Max) {
            const T most = value[out + site * S::kChannels];
            bool first = image[cell * S::kChannels] == most;
            for (int before = 0; first && before < tap; ++before) {
              const int other = S::cell(site, before);
              if (other >= 0) first = image[other * S::kChannels] != most;
            }
            if (first) sum += given;
          } else {
            sum += given * (T(1) / static_cast<T>(covered<S>(site)));
          }
        }
        const Index into = block.y() * below_stride + i;
        if (derivative != nullptr) sum *= derivative[into];
        below[into] = add != 0 ? below[into] + sum : sum;
      }
    });
  }
};

}  // namespace ribbit::cuda
