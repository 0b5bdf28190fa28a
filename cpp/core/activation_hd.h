// Activation functions: value and derivative in one pass that shares the exponential.
#pragma once

#include "core/erf_hd.h"
#include "core/math_hd.h"

namespace ribbit {

enum ActivationCode : int {
  kIdentity = 0,
  kRelu = 1,
  kTanh = 2,
  kSilu = 3,
  kSigmoid = 4,
  kGelu = 5,  // exact: x Phi(x), Phi by erf
  kSoftplus = 6,
  kLeakyRelu = 7,  // slope 0.01 below 0
  kElu = 8,        // exp(z) - 1 below 0
  kActivationCount
};
#if !defined(__CUDACC__)
constexpr const char* kActivationNames[] = {"identity", "relu",     "tanh",       "silu", "sigmoid",
                                            "gelu",     "softplus", "leaky_relu", "elu"};
static_assert(sizeof kActivationNames == kActivationCount * sizeof *kActivationNames);
#endif

// value = f(z), derivative = f'(z). NaN passes into the value. Limits at +-inf: relu, silu, gelu
// and softplus give 0 (magnitude below 1e-35, 1e-296 in double) and inf, elu -1 and inf.
// Errors with fma, in ulp, eps the spacing of T at 1 (check_math.cpp):
//            value                  derivative
//   tanh     3                      4
//   silu     4.5 (z < -10: 8)       3, or 0.75 eps (1 + |z|) absolute
//   sigmoid  4.5 (z < -10: 8)       3, or 0.8 eps absolute
//   gelu     10                     4.2, or eps absolute
//   softplus 3.5                    4.2
//   elu      4                      3.5
// Bounded: the caller has seen to |z| <= kExpLimit (or NaN), which silu and sigmoid can use.
template <int Code, bool Bounded = false, class T>
RIBBIT_HD void activation(T z, T& value, T& derivative) {
  using O = Ops<T>;
  const T zero = O::set(0.0);
  const T one = O::set(1.0);
  if constexpr (Code == kIdentity) {
    value = z;
    derivative = one;
  } else if constexpr (Code == kRelu) {
    value = O::max(zero, z);
    derivative = O::select(z > zero, one, zero);
  } else if constexpr (Code == kTanh) {
    tanh_parts<T>(z, value, derivative);
  } else if constexpr (Code == kSilu) {
    // v = z s and s + v (1 - s), s = sigmoid(z)
    T scale, factor;
    if constexpr (Bounded) {
      exp_parts<T, false, -1>(z, scale, factor);
      const T s = O::reciprocal(O::mul_add(scale, factor, one));
      value = z * s;
      derivative = O::mul_add(value, one - s, s);
    } else {
      const T above = O::max(O::set(-kExpLimit<T>), z);
      const T inside = O::min(O::set(kExpLimit<T>), above);
      exp_parts<T, false, -1>(inside, scale, factor);
      const T s = O::reciprocal(O::mul_add(scale, factor, one));
      value = above * s;
      derivative = O::mul_add(inside * s, one - s, s);
    }
  } else if constexpr (Code == kSigmoid) {
    const T s = sigmoid<T, Bounded>(z);
    value = s;
    derivative = s * (one - s);
  } else if constexpr (Code == kGelu) {
    const double limit = kIsFloat<T> ? 13.0 : 37.0;
    const T above = O::max(O::set(-limit), z);
    T density, tail;
    normal_tail<T>(O::abs(above), density, tail);
    const T phi = O::select(above < zero, tail, one - tail);
    value = above * phi;
    const T inside = O::min(O::set(limit), above);
    derivative = O::mul_add(inside * O::set(0.3989422804014327), density, phi);
  } else if constexpr (Code == kLeakyRelu) {
    derivative = O::select(z > zero, one, O::set(0.01));
    value = z * derivative;
  } else if constexpr (Code == kElu) {
    // z < 0: -E / (E + 1) and 1 / (E + 1), E = exp(-z) - 1
    const T half = O::min(O::set(kExpLimit<T> / 2), O::abs(z) * O::set(0.5));
    const T e = expm1_twice<T>(half);
    const T r = O::reciprocal(e + one);
    value = O::select(z > zero, z, zero - e * r);
    derivative = O::select(z > zero, one, r);
  } else {
    static_assert(Code == kSoftplus);
    const T e = exp_minus_abs<T>(z);
    value = O::mul_add(e, log1p_ratio<T>(e), O::max(zero, z));
    const T r = O::reciprocal(one + e);
    derivative = O::select(z < zero, e * r, r);
  }
}

}  // namespace ribbit
