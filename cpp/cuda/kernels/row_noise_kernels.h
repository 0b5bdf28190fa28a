// Bayes by Backprop with noise for each row (mlp_row_noise.h has the formulas): dense layers and
// convolutions send each row along two paths. With inputs x, means M, sds S:
//   local: z = x M + sqrt(x^2 S^2) e, e normal for each row, place and unit;
//   flipout: z = x M + ((x s) (S e)) t, e normal for each weight, signs s and t for each row and
//     channel.
// Both paths are products (product_kernels.h); here is what makes the second one. Noise has the
// CPU's words: the normal of (row, unit) is element row * 4 ceil(units / 4) + unit of its stream,
// the sign of (row, unit) bit unit % 32 of element row * 4 ceil(units / 128) + unit / 32. Signs are
// kept as bits from the way forward to the way back, normals as the slope that they give.
#pragma once

#include "cuda/kernels/dropout_kernels.h"
#include "cuda/kernels/product_kernels.h"
#include "cuda/kernels/variational_kernels.h"

namespace ribbit::cuda {

// The squares of an operand's elements.
template <class T, class Operand>
struct Squared {
  static constexpr bool kAlongColumns = Operand::kAlongColumns;
  Operand operand;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T value = operand.get(chain, i, j);
    return value * value;
  }
};

// Signs of rows and channels: bit channel % 32 of word channel / 32 of a row, 1 for -1.
struct Signs {
  const Word* words;
  Index chain_stride;  // words from chain to chain
  Index row_words;     // and from row to row
  template <class T>
  RIBBIT_DEVICE T flip(Index chain, Small row, Small channel, T value) const {
    const Small place = row * static_cast<Small>(row_words) + channel / 32;
    const Word word = (words + chain * chain_stride)[place];
    return (word >> (channel % 32) & 1u) != 0 ? -value : value;
  }
};

// An operand (rows x sites, taps x Channels) with a sign for each row and channel; transposed:
// (taps x Channels, rows x sites). Channels 0: as many as there are columns.
template <class T, class Operand, int Sites, int Channels, bool Transposed>
struct Flipped {
  static constexpr bool kAlongColumns = Operand::kAlongColumns;
  Operand operand;
  Signs signs;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const Small row = static_cast<Small>(Transposed ? j : i) / Sites;
    Small channel = static_cast<Small>(Transposed ? i : j);
    if constexpr (Channels > 0) channel %= Channels;
    return signs.flip<T>(chain, row, channel, operand.get(chain, i, j));
  }
};

// variance (rows, width) per chain = sum + scale^2; scale (width,): sds of a bias, or null.
template <class T>
struct VarianceSink {
  static constexpr bool kJoins = false;
  const T* scale;
  T* variance;
  Index chain_stride;
  Index width;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const T own = scale != nullptr ? scale[n] * scale[n] : T(0);
    variance[chain * chain_stride + m * width + n] = sum + own;
  }
};

// value = f(z), z = what is there + t sum, and derivative = f'(z) unless null; (rows x Sites,
// width) per chain.
template <class T, int Code, int Sites>
struct FlipoutSink {
  static constexpr bool kJoins = false;
  Signs signs;  // t
  T* value;
  T* derivative;
  Index chain_stride;
  Index width;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const Index at = chain * chain_stride + m * width + n;
    const Small row = static_cast<Small>(m) / Sites;
    T v, d;
    activation<Code, false, T>(value[at] + signs.flip<T>(chain, row, static_cast<Small>(n), sum), v,
                               d);
    value[at] = v;
    if (derivative != nullptr) derivative[at] = d;
  }
};

// delta (rows, width) per chain += 2 x sum, times derivative unless null: d(x^2) / dx = 2 x.
template <class T>
struct LocalDeltaSink {
  static constexpr bool kJoins = false;
  T* delta;
  const T* derivative;
  const T* value;  // x
  Index chain_stride;
  Index width;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const Index at = chain * chain_stride + m * width + n;
    T given = T(2) * value[at] * sum;
    if (derivative != nullptr) given *= derivative[at];
    delta[at] += given;
  }
};

// delta (rows x Sites, width) per chain += s sum, times derivative unless null: d(x s) / dx = s.
template <class T, int Sites>
struct FlipoutDeltaSink {
  static constexpr bool kJoins = false;
  Signs signs;  // s
  T* delta;
  const T* derivative;
  Index chain_stride;
  Index width;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const Index at = chain * chain_stride + m * width + n;
    T given = signs.flip<T>(chain, static_cast<Small>(m) / Sites, static_cast<Small>(n), sum);
    if (derivative != nullptr) given *= derivative[at];
    delta[at] += given;
  }
};

// value = f(z), z = what is there + sqrt(v) e, v in `slope`; derivative = f'(z) unless null; slope
// = dz / dv = e / (2 sqrt(v)), 0 where v is. (rows, units) per chain; a thread makes the four units
// of a counter block. Grid: (any, C).
template <class T, int Code>
struct LocalNoise {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  RowAddress address;
  T* value;
  T* derivative;
  T* slope;
  Index chain_stride;  // of all three
  Index count;         // rows
  Index units;
  RIBBIT_DEVICE void operator()(Block& block) const {
    using O = Ops<T>;
    const Small blocks = static_cast<Small>((units + 3) / 4), width = static_cast<Small>(units);
    const Small size = static_cast<Small>(count) * blocks;
    const RowWords noise(address, block.y());
    const Index chain = block.y() * chain_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small row = static_cast<Small>(i) / blocks, four = static_cast<Small>(i) % blocks;
        Word64 words[1][4];
        noise.words(row, four, blocks, words);
        T e[4];
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; j += 2) {
          box_muller<T>(static_cast<Word>(words[0][j]), static_cast<Word>(words[0][j + 1]), e[j],
                        e[j + 1]);
        }
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          const Small unit = 4 * four + static_cast<Small>(j);
          if (unit >= width) continue;
          const Index at = chain + row * width + unit;
          const T variance = slope[at], sd = O::sqrt(variance);
          T v, d;
          activation<Code, false, T>(O::fma(sd, e[j], value[at]), v, d);
          value[at] = v;
          if (derivative != nullptr) derivative[at] = d;
          slope[at] = variance > T(0) ? O::divide(T(0.5) * e[j], sd) : T(0);
        }
      }
    });
  }
};

// words (rows, blocks, 4) per chain: the signs of rows. A thread makes a counter block, 128 signs.
// Grid: (any, C).
struct RowSigns {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  RowAddress address;
  Word* words;
  Index chain_stride;
  Index count;   // rows
  Index blocks;  // ceil(channels / 128)
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Small each = static_cast<Small>(blocks), size = static_cast<Small>(count) * each;
    const RowWords noise(address, block.y());
    Word* to = words + block.y() * chain_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small at = static_cast<Small>(i);
        Word64 made[1][4];
        noise.words(at / each, at % each, each, made);
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) to[4 * i + j] = static_cast<Word>(made[0][j]);
      }
    });
  }
};

// values (rows, sites, width) per chain, each times the sign of its row and channel. Grid: (any,
// C).
template <class T>
struct FlipRows {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Signs signs;
  T* values;
  Index chain_stride;
  Index count;  // rows
  Index sites;
  Index width;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Small channels = static_cast<Small>(width), all = static_cast<Small>(sites) * channels;
    const Small size = static_cast<Small>(count) * all;
    T* own = values + block.y() * chain_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small at = static_cast<Small>(i);
        own[at] = signs.flip<T>(block.y(), at / all, at % channels, own[at]);
      }
    });
  }
};

// Weights of samples first, first + 1, .. as Reparameterize draws them, out (samples, 2 P):
// mean + sd z, and for flipout sd z behind it. Notes where these samples are for the noise of
// rows: seed, step, first. Grid: (any, samples).
template <class T, bool Flipout>
struct DrawPaths {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  Stream stream;
  StepClock clock;
  Index first;
  const T* mean;
  const T* scale;
  Index n;  // P
  T* out;
  Word64* where;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Stream at = clock.address(stream);
    const Word sample = static_cast<Word>(first + block.y());
    T* row = out + block.y() * 2 * n;
    block.last([&](int t) {
      if (t == 0 && block.x() == 0 && block.y() == 0) {
        where[0] = at.seed;
        where[1] = at.step;
        where[2] = static_cast<Word64>(first);
      }
      const Index blocks = (n + 3) / 4;
      for (Index b = block.x() * kBlock + t; b < blocks; b += block.width() * kBlock) {
        T z[4];
        at.template normals<T>(static_cast<Word64>(b), sample, z);
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) {
          const Index e = 4 * b + i;
          if (e >= n) continue;
          row[e] = Ops<T>::fma(scale[e], z[i], mean[e]);
          if constexpr (Flipout) row[n + e] = scale[e] * z[i];
        }
      }
    });
  }
};

// As DrawnGradient, for parameters with two paths: the gradient by the mean is that of the first
// path; the one by the sd d S^2 / d S = 2 S (local) or d (S z) / d S = z (flipout) times that of
// the second.
template <class T, bool Local>
struct PathGradients {
  const T* grad;  // (count, 2 P): by the first path or by what is drawn, then by the second
  const T* scale;
  const unsigned char* has_row_noise;  // (P,): 1 for parameters with two paths
  Index half;                          // P
  RIBBIT_DEVICE T drawn(Index e, Index at, T z, T& by_mean, T& by_scale) const {
    if (has_row_noise[e] == 0) return grad[at];
    by_mean += grad[at];
    by_scale = Ops<T>::fma(Local ? T(2) * scale[e] : z, grad[at + half], by_scale);
    return T(0);
  }
};

}  // namespace ribbit::cuda
