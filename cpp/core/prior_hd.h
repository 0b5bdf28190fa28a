// Prior densities: normalised log density and its derivative (the score), per parameter.
#pragma once

#include "core/math_hd.h"

namespace ribbit {

enum PriorKind : int {
  kNormal = 0,        // a = scale
  kLaplace = 1,       // a = scale
  kStudentT = 2,      // a = degrees of freedom, b = scale
  kLogistic = 3,      // a = scale
  kScaleMixture = 4,  // a N(0, b^2) + (1 - a) N(0, c^2)
};

// What a segment needs, made once per segment; p[] by kind:
//   normal     1 / s, 1 / s^2            laplace   1 / s
//   student-t  1 / (df s^2), df s^2, df + 1          logistic  1 / s, 1 / (2 s)
//   mixture    1 / (2 s1^2), 1 / (2 s2^2), log(w / s1), log((1 - w) / s2)
// log_norm is the part of the log density that does not depend on theta.
struct PriorConstants {
  double p[4];
  double log_norm;
};

#if !defined(__CUDACC_RTC__)
static inline PriorConstants prior_constants(int kind, double a, double b, double c) {
  constexpr double kHalfLog2Pi = 0.91893853320467274;
  switch (kind) {
    case kNormal:
      return {{1.0 / a, 1.0 / (a * a), 0, 0}, -__builtin_log(a) - kHalfLog2Pi};
    case kLaplace:
      return {{1.0 / a, 0, 0, 0}, -__builtin_log(2.0 * a)};
    case kStudentT: {
      int sign = 0;
      const double gammas =
          __builtin_lgamma_r(0.5 * (a + 1.0), &sign) - __builtin_lgamma_r(0.5 * a, &sign);
      return {{1.0 / (a * b * b), a * b * b, a + 1.0, 0},
              gammas - 0.5 * __builtin_log(a * 3.14159265358979324) - __builtin_log(b)};
    }
    case kLogistic:
      return {{1.0 / a, 0.5 / a, 0, 0}, -__builtin_log(a)};
    default:
      return {{0.5 / (b * b), 0.5 / (c * c), __builtin_log(a) - __builtin_log(b),
               __builtin_log(1.0 - a) - __builtin_log(c)},
              -kHalfLog2Pi};
  }
}
#endif

// log density less log_norm.
template <int Kind, class T>
RIBBIT_HD T prior_log_density(T theta, const PriorConstants& k) {
  using O = Ops<T>;
  if constexpr (Kind == kNormal) {
    const T u = theta * O::set(k.p[0]);
    return O::set(-0.5) * u * u;
  } else if constexpr (Kind == kLaplace) {
    return O::abs(theta) * O::set(-k.p[0]);
  } else if constexpr (Kind == kStudentT) {
    return O::set(-0.5 * k.p[2]) * log1p<T>(theta * theta * O::set(k.p[0]));
  } else if constexpr (Kind == kLogistic) {
    const T u = O::abs(theta) * O::set(k.p[0]);
    return O::mul_add(O::set(-2.0), softplus<T>(-u), -u);
  } else {
    const T square = theta * theta;
    const T first = O::mul_add(square, O::set(-k.p[0]), O::set(k.p[2]));
    const T second = O::mul_add(square, O::set(-k.p[1]), O::set(k.p[3]));
    return O::max(first, second) + softplus<T>(-O::abs(first - second));
  }
}

// d log density / d theta. Laplace: 0 at 0. Relative error a few ulp.
template <int Kind, class T>
RIBBIT_HD T prior_score(T theta, const PriorConstants& k) {
  using O = Ops<T>;
  if constexpr (Kind == kNormal) {
    return theta * O::set(-k.p[1]);
  } else if constexpr (Kind == kLaplace) {
    const T zero = O::set(0.0);
    const T slope = O::set(k.p[0]);
    // theta itself in the last arm: 0 stays 0, NaN stays NaN
    return O::select(theta > zero, -slope, O::select(theta < zero, slope, theta));
  } else if constexpr (Kind == kStudentT) {
    return (O::set(-k.p[2]) * theta) / O::mul_add(theta, theta, O::set(k.p[1]));
  } else if constexpr (Kind == kLogistic) {
    return O::set(-k.p[0]) * tanh<T>(theta * O::set(k.p[1]));
  } else {
    // responsibilities, the smaller one as exp(-|d|) / (1 + exp(-|d|)) so that both are accurate
    const T one = O::set(1.0);
    const T d = O::mul_add(theta * theta, O::set(k.p[1] - k.p[0]), O::set(k.p[2] - k.p[3]));
    const T e = exp_minus_abs<T>(d);
    const auto first = d > O::set(0.0);
    const T weighted = O::mul_add(O::select(first, e, one), O::set(2.0 * k.p[1]),
                                  O::select(first, one, e) * O::set(2.0 * k.p[0]));
    const T precision = weighted / (one + e);
    return -theta * precision;
  }
}

}  // namespace ribbit
