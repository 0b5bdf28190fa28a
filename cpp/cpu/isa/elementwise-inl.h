// Loops of the elementwise formulas over arrays.
#pragma once

#include "core/activation_hd.h"
#include "cpu/isa/interleave-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <int Code, bool WithDerivative, class T>
static void activation_loop(const T* z, std::int64_t n, T* value, T* derivative) {
  constexpr int kL = kLanes<T>;
  std::int64_t i = 0;
  for (; i + 4 * kL <= n; i += 4 * kL) {
    const Quad<Vec<T>> in = load_quad(z + i);
    Quad<Vec<T>> v, d;
    constexpr bool kTry = kCheapRangeCheck && (Code == kSilu || Code == kSigmoid);
    if (kTry && all_below(in, static_cast<T>(kExpLimit<Vec<T>>)))
      activation<Code, true>(in, v, d);
    else
      activation<Code>(in, v, d);
    store_quad(value + i, v);
    if constexpr (WithDerivative) store_quad(derivative + i, d);
  }
  for (; i < n; i += kL) {
    const std::int64_t rest = n - i < kL ? n - i : kL;
    Vec<T> v, d;
    activation<Code>(load_first(z + i, rest), v, d);
    store_first(value + i, v, rest);
    if constexpr (WithDerivative) store_first(derivative + i, d, rest);
  }
}

template <bool WithDerivative, class T>
static void activation_dispatch(int code, const T* z, std::int64_t n, T* value, T* derivative) {
  switch (static_cast<ActivationCode>(code)) {
    case kIdentity:
      return activation_loop<kIdentity, WithDerivative, T>(z, n, value, derivative);
    case kRelu:
      return activation_loop<kRelu, WithDerivative, T>(z, n, value, derivative);
    case kTanh:
      return activation_loop<kTanh, WithDerivative, T>(z, n, value, derivative);
    case kSilu:
      return activation_loop<kSilu, WithDerivative, T>(z, n, value, derivative);
    case kSigmoid:
      return activation_loop<kSigmoid, WithDerivative, T>(z, n, value, derivative);
    case kGelu:
      return activation_loop<kGelu, WithDerivative, T>(z, n, value, derivative);
    case kSoftplus:
      return activation_loop<kSoftplus, WithDerivative, T>(z, n, value, derivative);
    case kLeakyRelu:
      return activation_loop<kLeakyRelu, WithDerivative, T>(z, n, value, derivative);
    case kElu:
      return activation_loop<kElu, WithDerivative, T>(z, n, value, derivative);
    case kActivationCount:
      break;
  }
  unreachable();
}

// value may alias z.
template <class T>
static void activation_forward(int code, const T* z, std::int64_t n, T* value) {
  activation_dispatch<false, T>(code, z, n, value, nullptr);
}
template <class T>
static void activation_forward_derivative(int code, const T* z, std::int64_t n, T* value,
                                          T* derivative) {
  activation_dispatch<true, T>(code, z, n, value, derivative);
}

template <class T>
static void softplus_array(const T* rho, T* out, std::int64_t n) {
  activation_dispatch<false, T>(kSoftplus, rho, n, out, nullptr);
}

// ---- sums in double of a shape that does not depend on the instruction set ----------------------
// Element i belongs to partial sum i % 16; the 16 partial sums are added by halving.
constexpr int kPartials = 16;
constexpr int kPartialVecs = kPartials / kLanes<double>;

struct Partials {
  VecF64 sum[kPartialVecs];
  RIBBIT_INLINE_MEMBER void clear() {
    for (int j = 0; j < kPartialVecs; ++j) sum[j] = VecF64{};
  }
  RIBBIT_INLINE_MEMBER double total() const { return halving_sum<kPartialVecs>(sum); }
};

// Sixteen (float or double) numbers as double vectors.
RIBBIT_INLINE void load_partials(const float* p, VecF64 (&out)[kPartialVecs]) {
  for (int j = 0; j < kPartialVecs / 2; ++j) {
    const VecF32 v = load(p + j * kLanes<float>);
    out[2 * j] = widen_low(v);
    out[2 * j + 1] = widen_high(v);
  }
}
RIBBIT_INLINE void load_partials(const double* p, VecF64 (&out)[kPartialVecs]) {
  for (int j = 0; j < kPartialVecs; ++j) out[j] = load(p + j * kLanes<double>);
}
// The last n < 16 numbers, zeros behind.
template <class T>
RIBBIT_INLINE void load_partials_first(const T* p, std::int64_t n, VecF64 (&out)[kPartialVecs]) {
  alignas(64) T padded[kPartials] = {};
  for (std::int64_t i = 0; i < n; ++i) padded[i] = p[i];
  load_partials(padded, out);
}

// sum p^2 m (m null: 1), in double.
template <class T>
static double dot_weighted(const T* p, const T* m, std::int64_t n) {
  Partials partials;
  partials.clear();
  for (std::int64_t i = 0; i < n; i += kPartials) {
    VecF64 value[kPartialVecs], weight[kPartialVecs];
    const bool whole = i + kPartials <= n;
    if (whole)
      load_partials(p + i, value);
    else
      load_partials_first(p + i, n - i, value);
    for (int j = 0; j < kPartialVecs; ++j) value[j] = value[j] * value[j];
    if (m != nullptr) {
      if (whole)
        load_partials(m + i, weight);
      else
        load_partials_first(m + i, n - i, weight);
      for (int j = 0; j < kPartialVecs; ++j) value[j] = value[j] * weight[j];
    }
    for (int j = 0; j < kPartialVecs; ++j) partials.sum[j] += value[j];
  }
  return partials.total();
}

}  // namespace
}  // namespace ribbit::cpu
