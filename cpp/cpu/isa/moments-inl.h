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
template <class L, class T>
static void binary_panel(const T* f, int outputs, T* values, double* entropy) {
  for (int v = 0; v < kPanelVecs<T>; ++v) {
    const int lane = v * kLanes<T>;
    Vec<T> total{};
    for (int k = 0; k < outputs; ++k) {
      const int at = k * kPanelRows + lane;
      Vec<T> value, own;
      L::template value<Vec<T>>(load_aligned(f + at), value, own);
      store_aligned(values + at, value);
      total = total + own;
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

// extra[i] += variance of the noise of mean i, in double.
template <class L, class T>
static void add_variances(const LikelihoodConstants& constants, const T* values, const T* raw,
                          std::int64_t n, double scale, double* extra) {
  constexpr int kL = kLanes<double>;
  for (std::int64_t i = 0; i < n; i += kL) {
    VecF64 value, second;
    for (int r = 0; r < kL; ++r) value[r] = static_cast<double>(values[i + r]);
    for (int r = 0; r < kL; ++r) second[r] = static_cast<double>(raw[i + r]);
    const VecF64 variance =
        L::template variance<VecF64>(value, second, broadcast(scale), constants);
    for (int r = 0; r < kL; ++r) extra[i + r] += variance[r];
  }
}

// f: (outputs, 32) of one draw; see the table.
template <class T>
static void moments_panel(LikelihoodKind kind, const LikelihoodConstants& constants, const T* f,
                          int outputs, double scale, bool begin, T* values, double* first,
                          double* sum, double* squares, double* extra) {
  with_likelihood(kind, [=, &constants](auto likelihood) {
    using L = decltype(likelihood);
    const std::int64_t all = static_cast<std::int64_t>(outputs) * kPanelRows;
    const std::int64_t means = means_of(L::kShape, all);
    const T* meant = f;
    if constexpr (L::kShape == LikelihoodShape::kSoftmax) {
      softmax_panel<T>(f, outputs, values, extra);
      meant = values;
    } else if constexpr (L::kClasses) {
      binary_panel<L, T>(f, outputs, values, extra);
      meant = values;
    } else if constexpr (L::kTransforms) {  // in double: exp(40) of floats lies many sds off
      for (std::int64_t i = 0; i < all; i += kPanelRows) {
        alignas(64) double wide[kPanelRows];
        for (int r = 0; r < kPanelRows; r += kLanes<double>) {
          VecF64 own;
          for (int lane = 0; lane < kLanes<double>; ++lane)
            own[lane] = static_cast<double>(f[i + r + lane]);
          store_aligned(wide + r, L::template value<VecF64>(own));
        }
        add_moments<double>(wide, kPanelRows, begin, first + i, sum + i, squares + i);
        add_variances<L, double>(constants, wide, wide, kPanelRows, scale, extra + i);
      }
      return;
    }
    add_moments<T>(meant, means, begin, first, sum, squares);
    if constexpr (!L::kClasses) {
      constexpr bool kRaw = L::kShape == LikelihoodShape::kMeanAndScale;
      add_variances<L, T>(constants, meant, kRaw ? f + means : meant, means, scale, extra);
    }
  });
}

}  // namespace
}  // namespace ribbit::cpu
