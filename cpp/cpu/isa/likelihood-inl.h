// Log likelihood and its gradient for a panel of 32 rows: lane = row, feature-major.
#pragma once

#include "core/likelihood_hd.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

constexpr int kPanelRows = 32;
template <class T>
constexpr int kPanelVecs = kPanelRows / kLanes<T>;

// Lane masks: rows of vector v that are in use.
alignas(64) constexpr int kRowIndex32[kPanelRows] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                     11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                     22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
alignas(64) constexpr long long kRowIndex64[kPanelRows] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

template <class T>
struct RowMask;
template <>
struct RowMask<float> {
  RIBBIT_INLINE VecI32 make(int v, int rows) {
    VecI32 index;
    __builtin_memcpy(&index, kRowIndex32 + v * kLanes<float>, sizeof index);
    return index < rows;
  }
};
template <>
struct RowMask<double> {
  RIBBIT_INLINE VecI64 make(int v, int rows) {
    VecI64 index;
    __builtin_memcpy(&index, kRowIndex64 + v * kLanes<double>, sizeof index);
    return index < static_cast<long long>(rows);
  }
};

// Which rows of a panel count, and how much: the first ones, once each.
template <class T>
struct EqualRows {
  static constexpr bool kWeighted = false;
  int count;
  RIBBIT_INLINE_MEMBER auto used(int v) const { return RowMask<T>::make(v, count); }
  RIBBIT_INLINE_MEMBER Vec<T> times(int, Vec<T> x) const { return x; }
  RIBBIT_INLINE_MEMBER double total() const { return static_cast<double>(count); }
};

// Each as often as its weight says; one of weight 0 does not, whatever its numbers.
template <class T>
struct WeightedRows {
  static constexpr bool kWeighted = true;
  const T* weights;  // (32,), 0 in unused lanes
  RIBBIT_INLINE_MEMBER Vec<T> of(int v) const { return load_aligned(weights + v * kLanes<T>); }
  RIBBIT_INLINE_MEMBER auto used(int v) const { return of(v) > Vec<T>{}; }
  RIBBIT_INLINE_MEMBER Vec<T> times(int v, Vec<T> x) const { return of(v) * x; }
  RIBBIT_INLINE_MEMBER double total() const {
    double sum = 0;
    for (int r = 0; r < kPanelRows; ++r) sum += static_cast<double>(weights[r]);
    return sum;
  }
};

// One double sum per row, then a fixed tree over the 32 rows, whatever the vector width.
struct RowSums {
  VecF64 sum[kPanelVecs<double>];
  RIBBIT_INLINE_MEMBER void clear() {
    for (int j = 0; j < kPanelVecs<double>; ++j) sum[j] = VecF64{};
  }
  RIBBIT_INLINE_MEMBER void add(int v, VecF32 x) {
    sum[2 * v] += widen_low(x);
    sum[2 * v + 1] += widen_high(x);
  }
  RIBBIT_INLINE_MEMBER void add(int v, VecF64 x) { sum[v] += x; }
  RIBBIT_INLINE_MEMBER void add_square(int v, VecF32 x) {
    const VecF64 low = widen_low(x), high = widen_high(x);
    sum[2 * v] += low * low;
    sum[2 * v + 1] += high * high;
  }
  RIBBIT_INLINE_MEMBER void add_square(int v, VecF64 x) { sum[v] += x * x; }
  RIBBIT_INLINE_MEMBER void add_square(int v, VecF32 x, VecF32 weight) {
    const VecF64 low = widen_low(x), high = widen_high(x);
    sum[2 * v] += widen_low(weight) * (low * low);
    sum[2 * v + 1] += widen_high(weight) * (high * high);
  }
  RIBBIT_INLINE_MEMBER void add_square(int v, VecF64 x, VecF64 weight) {
    sum[v] += weight * (x * x);
  }
  RIBBIT_INLINE_MEMBER double total() const { return halving_sum<kPanelVecs<double>>(sum); }
};

// delta, and the sum of squares when Squares.
template <bool Squares, class T, class R>
static double gaussian_residuals(const T* f, const T* y, int outputs, const R& rows, T factor,
                                 T* delta) {
  const Vec<T> scale = broadcast(factor);
  RowSums squares;
  squares.clear();
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const auto valid = rows.used(v);
    const Vec<T> own = rows.times(v, scale);
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + v * kLanes<T>;
      const Vec<T> difference = load_aligned(y + at) - load_aligned(f + at);
      const Vec<T> residual = valid ? difference : Vec<T>{};
      store_aligned(delta + at, own * residual);
      if constexpr (Squares && R::kWeighted) squares.add_square(v, residual, rows.of(v));
      if constexpr (Squares && !R::kWeighted) squares.add_square(v, residual);
    }
  }
  return Squares ? squares.total() : 0.0;
}

// noise: the scale, or its logarithm where it is learned.
template <class L, class T, class R>
static void quadratic_panel(const T* f, const T* y, int outputs, const R& rows, double noise,
                            double weight, T* delta, double* ll, double* noise_grad) {
  const double precision = L::template precision<LibraryFunctions>(noise);
  const T factor = static_cast<T>(weight * precision);
  if (ll == nullptr && noise_grad == nullptr) {
    gaussian_residuals<false, T, R>(f, y, outputs, rows, factor, delta);
    return;
  }
  const double quadratic =
      precision * gaussian_residuals<true, T, R>(f, y, outputs, rows, factor, delta);
  const double count = rows.total() * outputs;
  if (ll != nullptr) {
    *ll += L::total(quadratic, count, L::template log_scale<LibraryFunctions>(noise));
  }
  if (noise_grad != nullptr) *noise_grad += L::noise_derivative(quadratic, count);
}

// Terms of u = residual / (scale unit); d term / d log scale = u slope - 1.
template <class L, class T, class R>
static void location_scale_panel(const LikelihoodConstants& constants, const T* f, const T* y,
                                 int outputs, const R& rows, double noise, double weight, T* delta,
                                 double* ll, double* noise_grad) {
  const double unit = L::template scale<LibraryFunctions>(noise) * L::unit(constants);
  const Vec<T> factor = broadcast(static_cast<T>(1.0 / unit));
  const Vec<T> w = broadcast(static_cast<T>(weight / unit));
  RowSums terms, slopes;
  terms.clear();
  slopes.clear();
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const auto valid = rows.used(v);
    const Vec<T> own = rows.times(v, w);
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + v * kLanes<T>;
      const Vec<T> u = (load_aligned(y + at) - load_aligned(f + at)) * factor;
      Vec<T> term, slope;
      L::template term<Vec<T>>(u, constants, term, slope);
      store_aligned(delta + at, valid ? own * slope : Vec<T>{});
      terms.add(v, valid ? rows.times(v, term) : Vec<T>{});
      slopes.add(v, valid ? rows.times(v, u * slope) : Vec<T>{});
    }
  }
  const double count = rows.total() * outputs;
  if (ll != nullptr) {
    const double log_scale = L::template log_scale<LibraryFunctions>(noise);
    *ll += terms.total() + count * (constants.log_norm - log_scale);
  }
  if (noise_grad != nullptr) *noise_grad += slopes.total() - count;
}

template <class L, class T, class R>
static void mean_and_scale_panel(const LikelihoodConstants& constants, const T* f, const T* y,
                                 int outputs, const R& rows, double weight, T* delta, double* ll) {
  const int targets = outputs / 2;
  const Vec<T> w = broadcast(static_cast<T>(weight));
  RowSums terms;
  terms.clear();
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const auto valid = rows.used(v);
    const Vec<T> own = rows.times(v, w);
    for (int k = 0; k < targets; ++k) {
      const int at = k * kPanelRows + v * kLanes<T>;
      const int raw_at = at + targets * kPanelRows;
      Vec<T> term, mean_derivative, raw_derivative;
      L::template term<Vec<T>>(load_aligned(f + at), load_aligned(f + raw_at), load_aligned(y + at),
                               constants, term, mean_derivative, raw_derivative);
      store_aligned(delta + at, valid ? own * mean_derivative : Vec<T>{});
      store_aligned(delta + raw_at, valid ? own * raw_derivative : Vec<T>{});
      terms.add(v, valid ? rows.times(v, term) : Vec<T>{});
    }
  }
  if (ll != nullptr) *ll += terms.total() - L::kLogNorm * rows.total() * targets;
}

// Softmax with the maximum taken off; a NaN anywhere in a row reaches its sum.
template <class T, class R>
static void categorical_panel(const T* f, const T* y, int outputs, const R& rows, double weight,
                              T* delta, double* ll) {
  using O = Ops<Vec<T>>;
  const Vec<T> w = broadcast(static_cast<T>(weight));
  RowSums terms;
  terms.clear();
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const int lane = v * kLanes<T>;
    const auto valid = rows.used(v);
    const Vec<T> own = rows.times(v, w);
    const Vec<T> label = load_aligned(y + lane);
    Vec<T> largest = load_aligned(f + lane);
    for (int k = 1; k < outputs; ++k)
      largest = max(load_aligned(f + k * kPanelRows + lane), largest);
    Vec<T> sum{}, at_label{};
    for (int k = 0; k < outputs; ++k) {
      const Vec<T> shifted = load_aligned(f + k * kPanelRows + lane) - largest;
      const Vec<T> e = exp_bounded<Vec<T>>(max(O::set(-kExpLimit<Vec<T>>), shifted));
      at_label = (label == O::set(k)) ? shifted : at_label;
      sum = sum + e;
      store_aligned(delta + k * kPanelRows + lane, e);
    }
    if (ll != nullptr) {
      const Vec<T> term = at_label - log<Vec<T>>(sum);
      terms.add(v, valid ? rows.times(v, term) : Vec<T>{});
    }
    const Vec<T> factor = -own / sum;
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + lane;
      const Vec<T> there = (label == O::set(k)) ? own : Vec<T>{};
      const Vec<T> d = mul_add(load_aligned(delta + at), factor, there);
      store_aligned(delta + at, valid ? d : Vec<T>{});
    }
  }
  if (ll != nullptr) *ll += terms.total();
}

template <class L, class T, class R>
static void elementwise_panel(const T* f, const T* y, int outputs, const R& rows, double weight,
                              T* delta, double* ll) {
  const Vec<T> w = broadcast(static_cast<T>(weight));
  RowSums terms;
  terms.clear();
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const auto valid = rows.used(v);
    const Vec<T> own = rows.times(v, w);
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + v * kLanes<T>;
      Vec<T> term, derivative;
      L::template term<Vec<T>>(load_aligned(f + at), load_aligned(y + at), term, derivative);
      store_aligned(delta + at, valid ? own * derivative : Vec<T>{});
      terms.add(v, valid ? rows.times(v, term) : Vec<T>{});
    }
  }
  if (ll != nullptr) *ll += terms.total();
}

// f, delta: (outputs, 32); y: (Ky, 32); rows of them in use. delta = weight * d ll / d f, 0 in
// unused lanes; *ll += the rows' log likelihood without what depends on y alone (null: skip);
// *noise_grad += sum of d ll / d log_noise (where noise is learned; null: skip).
template <class T, class R>
RIBBIT_INLINE void panel_of(LikelihoodKind kind, const LikelihoodConstants& constants, const T* f,
                            const T* y, int outputs, const R& rows, T scale_or_log_noise,
                            double weight, T* delta, double* ll, double* noise_grad) {
  with_likelihood(kind, [=, &constants](auto likelihood) {
    using L = decltype(likelihood);
    if constexpr (L::kShape == LikelihoodShape::kQuadratic) {
      quadratic_panel<L, T, R>(f, y, outputs, rows, static_cast<double>(scale_or_log_noise), weight,
                               delta, ll, L::kLearnsNoise ? noise_grad : nullptr);
    } else if constexpr (L::kShape == LikelihoodShape::kLocationScale) {
      location_scale_panel<L, T, R>(constants, f, y, outputs, rows,
                                    static_cast<double>(scale_or_log_noise), weight, delta, ll,
                                    L::kLearnsNoise ? noise_grad : nullptr);
    } else if constexpr (L::kShape == LikelihoodShape::kMeanAndScale) {
      mean_and_scale_panel<L, T, R>(constants, f, y, outputs, rows, weight, delta, ll);
    } else if constexpr (L::kShape == LikelihoodShape::kSoftmax) {
      categorical_panel<T, R>(f, y, outputs, rows, weight, delta, ll);
    } else {
      static_assert(L::kShape == LikelihoodShape::kElementwise);
      elementwise_panel<L, T, R>(f, y, outputs, rows, weight, delta, ll);
    }
  });
}

template <class T>
static void likelihood_panel(LikelihoodKind kind, const LikelihoodConstants& constants, const T* f,
                             const T* y, int outputs, int rows, T scale_or_log_noise, double weight,
                             T* delta, double* ll, double* noise_grad) {
  panel_of<T>(kind, constants, f, y, outputs, EqualRows<T>{rows}, scale_or_log_noise, weight, delta,
              ll, noise_grad);
}

// The same with the terms of each row times its weight, (32,) with 0 in unused lanes.
template <class T>
static void weighted_likelihood_panel(LikelihoodKind kind, const LikelihoodConstants& constants,
                                      const T* f, const T* y, const T* weights, int outputs,
                                      T scale_or_log_noise, double weight, T* delta, double* ll,
                                      double* noise_grad) {
  panel_of<T>(kind, constants, f, y, outputs, WeightedRows<T>{weights}, scale_or_log_noise, weight,
              delta, ll, noise_grad);
}

}  // namespace
}  // namespace ribbit::cpu
