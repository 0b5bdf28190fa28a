// What outputs mean, and running moments of it over weight samples, added in the order of the
// samples. Shapes: S samples, R rows of a panel, K outputs, N rows in all, M means per row (K, or
// K / 2 for a heteroscedastic likelihood). Formulas as in cpu/isa/moments-inl.h.
#pragma once

#include "core/likelihood_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Probabilities or rates in place of outputs f (S, R, K), and of classes the entropy (S, R). One
// thread per row and sample. Grid: (ceil(R / kBlock), S).
template <class T, int Kind>
struct PredictiveValues {
  using L = Likelihoods::At<Kind>;
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  T* f;
  Index sample_stride;
  Index rows;
  Index outputs;
  T* entropies;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      const Index r = block.x() * kBlock + t;
      if (r >= rows) return;
      T* row = f + block.y() * sample_stride + r * outputs;
      if constexpr (L::kShape == LikelihoodShape::kSoftmax) {
        entropies[block.y() * rows + r] = softmax(row);
      } else if constexpr (L::kClasses) {
        T total = T(0);
        for (Index k = 0; k < outputs; ++k) {
          T value, entropy;
          L::template value<T>(row[k], value, entropy);
          row[k] = value;
          total += entropy;
        }
        entropies[block.y() * rows + r] = total;
      } else if constexpr (L::kTransforms) {
        for (Index k = 0; k < outputs; ++k) row[k] = L::template value<T>(row[k]);
      }
    });
  }

 private:
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
};

// first, sum, squares (N, M) of values (S, R, K), relative to the first sample of all, and for
// regression and counts the summed variance of the noise, noise (N, M). begin: these are the first
// samples. log_noise: sample s's at s noise_stride (learned only). One thread per row and mean.
// Grid: (any).
template <class T, int Kind>
struct AddMoments {
  using L = Likelihoods::At<Kind>;
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* values;
  Index sample_stride;
  Index samples;
  Index rows;
  Index outputs;
  Index begin;
  Index first_row;
  const T* log_noise;
  Index noise_stride;
  LikelihoodConstants constants;
  double* first;
  double* sum;
  double* squares;
  double* noise;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Index means = means_of(L::kShape, outputs);
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < rows * means; i += block.width() * kBlock) {
        const T* at = values + i / means * outputs + i % means;
        const Index to = first_row * means + i;
        Index s = 0;
        if (begin != 0) {
          first[to] = static_cast<double>(at[0]);
          sum[to] = squares[to] = 0.0;
          s = 1;
        }
        double total = sum[to], total_squares = squares[to];
        for (; s < samples; ++s) {
          const double delta = static_cast<double>(at[s * sample_stride]) - first[to];
          total += delta;
          total_squares += delta * delta;
        }
        sum[to] = total;
        squares[to] = total_squares;
        if constexpr (!L::kClasses) {
          double variance = begin != 0 ? 0.0 : noise[to];
          for (s = 0; s < samples; ++s) variance += noise_variance(at, means, s);
          noise[to] = variance;
        }
      }
    });
  }

 private:
  RIBBIT_DEVICE double noise_variance(const T* at, Index means, Index s) const {
    const T* own = at + s * sample_stride;
    const bool second = L::kShape == LikelihoodShape::kMeanAndScale;
    const double scale = L::kLearnsNoise
                             ? exp<double>(static_cast<double>(log_noise[s * noise_stride]))
                             : constants.scale;
    return L::template variance<double>(static_cast<double>(own[0]),
                                        static_cast<double>(second ? own[means] : own[0]), scale,
                                        constants);
  }
};

// out (N,) += entropies (S, R), sample by sample. Grid: (any).
template <class T>
struct AddEntropies {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const T* entropies;
  Index samples;
  Index rows;
  Index begin;
  Index first_row;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      for (Index r = block.x() * kBlock + t; r < rows; r += block.width() * kBlock) {
        double total = begin != 0 ? 0.0 : out[first_row + r];
        for (Index s = 0; s < samples; ++s) total += static_cast<double>(entropies[s * rows + r]);
        out[first_row + r] = total;
      }
    });
  }
};

}  // namespace ribbit::cuda
