// What outputs mean, and running moments of it over weight samples, added in the order of the
// samples. Shapes: S samples, R rows of a panel, K outputs, N rows in all, M means per row (K, or
// K / 2 for a heteroscedastic likelihood). Formulas as in cpu/isa/moments-inl.h.
#pragma once

#include "core/likelihood_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Probabilities or rates in place of outputs f (S, R, K), and of classes the entropy (S, R), whose
// sums over samples are `more` (N,). Then first, sum, squares (N, M) of what is there, relative to
// the first sample of all, and for regression and counts the summed variance of the noise, `more`
// (N, M). begin: these are the first samples. scales (noises,): as in LikelihoodRows, sample s's at
// s noise_stride. A block has kRows rows, a thread one of them and a sample, then one and a mean.
// Grid: (ceil(R / kRows)).
template <class T, int Kind>
struct AddMoments {
  using L = Likelihoods::At<Kind>;
  static constexpr int kBlock = kThreads, kRows = 16;
  using Shared = Nothing;
  T* f;
  Index sample_stride;
  Index samples;
  Index rows;
  Index outputs;
  Index begin;
  Index first_row;
  T* entropies;
  const T* scales;
  Index noise_stride;
  Index noises;
  LikelihoodConstants constants;
  double* first;
  double* sum;
  double* squares;
  double* more;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index row0 = block.x() * kRows, own = rows - row0 < kRows ? rows - row0 : kRows;
    const Index means = means_of(L::kShape, outputs);
    if constexpr (L::kClasses) {
      block.phase([&](int t) {
        for (Index i = t; i < own * samples; i += kBlock) transform(i / own, row0 + i % own);
      });
    }
    block.last([&](int t) {
      for (Index i = t; i < own * means; i += kBlock) add(row0 + i / means, i % means, means);
      if constexpr (L::kClasses) {
        if (t < own) add_entropies(row0 + t);
      }
    });
  }

 private:
  // Of a sample and a row.
  RIBBIT_DEVICE void transform(Index s, Index r) const {
    T* row = f + s * sample_stride + r * outputs;
    if constexpr (L::kShape == LikelihoodShape::kSoftmax) {
      entropies[s * rows + r] = softmax(row);
    } else {
      T total = T(0);
      for (Index k = 0; k < outputs; ++k) {
        T value, entropy;
        L::template value<T>(row[k], value, entropy);
        row[k] = value;
        total += entropy;
      }
      entropies[s * rows + r] = total;
    }
  }

  RIBBIT_DEVICE T softmax(T* row) const {
    T largest = row[0];
    for (Index k = 1; k < outputs; ++k) largest = Ops<T>::max(row[k], largest);
    T sum = T(0), weighted = T(0);  // of e, and of e times the distance to the largest
    for (Index k = 0; k < outputs; ++k) {
      const T bounded = Ops<T>::max(-T(kExpLimit<T>), row[k] - largest);
      const T e = exp_bounded<T>(bounded);
      sum += e;
      weighted = Ops<T>::fma(e, bounded, weighted);
      row[k] = e;
    }
    const T inverse = T(1) / sum;
    for (Index k = 0; k < outputs; ++k) row[k] *= inverse;
    return log<T>(sum) - weighted * inverse;  // -sum p log p
  }

  // In double: exp(40) of floats lies many sds off.
  RIBBIT_DEVICE double mean_of(T value) const {
    const double wide = static_cast<double>(value);
    if constexpr (L::kTransforms && !L::kClasses) return L::template value<double>(wide);
    return wide;
  }

  // To the sums of a row and a mean.
  RIBBIT_DEVICE void add(Index r, Index k, Index means) const {
    const T* at = f + r * outputs + k;
    const Index to = (first_row + r) * means + k;
    Index s = 0;
    if (begin != 0) {
      first[to] = mean_of(at[0]);
      sum[to] = squares[to] = 0.0;
      s = 1;
    }
    double total = sum[to], total_squares = squares[to];
    const double origin = first[to];
    for (; s < samples; ++s) {
      const double delta = mean_of(at[s * sample_stride]) - origin;
      total += delta;
      total_squares += delta * delta;
    }
    sum[to] = total;
    squares[to] = total_squares;
    if constexpr (!L::kClasses) {
      double variance = begin != 0 ? 0.0 : more[to];
      for (s = 0; s < samples; ++s) variance += noise_variance(at, means, s, k);
      more[to] = variance;
    }
  }

  RIBBIT_DEVICE void add_entropies(Index r) const {
    double total = begin != 0 ? 0.0 : more[first_row + r];
    for (Index s = 0; s < samples; ++s) total += static_cast<double>(entropies[s * rows + r]);
    more[first_row + r] = total;
  }

  RIBBIT_DEVICE double noise_variance(const T* at, Index means, Index s, Index k) const {
    const T* own = at + s * sample_stride;
    const bool second = L::kShape == LikelihoodShape::kMeanAndScale;
    double scale = constants.scale;
    if (scales != nullptr) {
      scale = static_cast<double>(scales[s * noise_stride + (noises > 1 ? k : 0)]);
      if constexpr (L::kLearnsNoise) scale = exp<double>(scale);
    }
    return L::template variance<double>(
        mean_of(own[0]), static_cast<double>(second ? own[means] : own[0]), scale, constants);
  }
};

}  // namespace ribbit::cuda
