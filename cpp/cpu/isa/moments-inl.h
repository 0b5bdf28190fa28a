// What a panel of outputs means, and its running moments over draws: lane = row, feature-major.
#pragma once

#include "cpu/isa/likelihood-inl.h"

namespace ribbit::cpu {
namespace {

template <class T>
RIBBIT_INLINE void sum_entropies(Vec<T> entropy, int lane, double* sums) {
  T one[kLanes<T>];
  __builtin_memcpy(one, &entropy, sizeof one);
  for (int r = 0; r < kLanes<T>; ++r) sums[lane + r] += static_cast<double>(one[r]);
}

// Probabilities of one panel into `values`; adds the entropies of its rows.
template <class T>
static void softmax_panel(const T* f, int outputs, T* values, double* entropy) {
  using O = Ops<Vec<T>>;
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const int lane = v * kLanes<T>;
    Vec<T> largest = load_aligned(f + lane);
    for (int k = 1; k < outputs; ++k)
      largest = max(load_aligned(f + k * kPanelRows + lane), largest);
    Vec<T> sum{}, weighted{};  // of e, and of e times the distance to the largest
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + lane;
      const Vec<T> shifted = load_aligned(f + at) - largest;
      const Vec<T> bounded = max(O::set(-kExpLimit<Vec<T>>), shifted);
      const Vec<T> e = exp_bounded<Vec<T>>(bounded);
      sum = sum + e;
      weighted = O::mul_add(e, bounded, weighted);
      store_aligned(values + at, e);
    }
    const Vec<T> inverse = O::set(1.0) / sum;
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + lane;
      store_aligned(values + at, load_aligned(values + at) * inverse);
    }
    // -sum p log p with log p = shifted - log(sum)
    sum_entropies<T>(log<Vec<T>>(sum) - weighted * inverse, lane, entropy);
  }
}

// As softmax_panel, of independent binary outputs.
template <class T>
static void sigmoid_panel(const T* f, int outputs, T* values, double* entropy) {
  using O = Ops<Vec<T>>;
  const Vec<T> zero{}, one = O::set(1.0), limit = O::set(kExpLimit<Vec<T>>);
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const int lane = v * kLanes<T>;
    Vec<T> total{};
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + lane;
      const Vec<T> logit = load_aligned(f + at);
      const Vec<T> e = exp_minus_abs<Vec<T>>(logit);
      const Vec<T> r = O::reciprocal(one + e);  // probability of the likelier outcome
      store_aligned(values + at, O::select(logit < zero, e * r, r));
      // With p = e r: -(1 - p) log(1 - p) - p log p = log(1 + e) + |logit| p
      const Vec<T> distance = O::min(limit, O::abs(logit));
      total = total + O::mul_add(e, log1p_ratio<Vec<T>>(e), distance * (e * r));
    }
    sum_entropies<T>(total, lane, entropy);
  }
}

// first, sum, squares: of the values, relative to the first draw, (outputs, 32) each.
template <class T>
static void add_moments(const T* values, std::int64_t n, bool begin, double* first, double* sum,
                        double* squares) {
  if (begin) {
    for (std::int64_t i = 0; i < n; ++i) {
      first[i] = static_cast<double>(values[i]);
      sum[i] = squares[i] = 0.0;
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const double delta = static_cast<double>(values[i]) - first[i];
    sum[i] += delta;
    squares[i] += delta * delta;
  }
}

// f: (outputs, 32) of one draw; see the table.
template <class T>
static void moments_panel(int kind, const T* f, int outputs, double sd, bool begin, T* values,
                          double* first, double* sum, double* squares, double* extra) {
  const std::int64_t all = static_cast<std::int64_t>(outputs) * kPanelRows;
  switch (kind) {
    case kGaussian:
    case kGaussianLearned:
      add_moments<T>(f, all, begin, first, sum, squares);
      for (std::int64_t i = 0; i < all; ++i) extra[i] += sd * sd;
      return;
    case kHeteroscedastic: {
      const std::int64_t half = all / 2;
      add_moments<T>(f, half, begin, first, sum, squares);
      for (std::int64_t i = 0; i < half; i += kLanes<double>) {
        VecF64 raw;
        for (int r = 0; r < kLanes<double>; ++r) raw[r] = static_cast<double>(f[half + i + r]);
        const VecF64 spread = softplus<VecF64>(raw);  // in double: float underflows at -104
        for (int r = 0; r < kLanes<double>; ++r) extra[i + r] += spread[r] * spread[r];
      }
      return;
    }
    case kCategorical:
      softmax_panel<T>(f, outputs, values, extra);
      return add_moments<T>(values, all, begin, first, sum, squares);
    case kBernoulli:
      sigmoid_panel<T>(f, outputs, values, extra);
      return add_moments<T>(values, all, begin, first, sum, squares);
    default:  // Poisson: mean and variance are the rate
      for (std::int64_t i = 0; i < all; i += kLanes<T>) {
        store_aligned(values + i, exp<Vec<T>>(load_aligned(f + i)));
      }
      add_moments<T>(values, all, begin, first, sum, squares);
      for (std::int64_t i = 0; i < all; ++i) extra[i] += static_cast<double>(values[i]);
  }
}

}  // namespace
}  // namespace ribbit::cpu
