#pragma once
// Standard deviations of priors. Default lengths and masses of chains use them.

#include <algorithm>
#include <cmath>

#include "core/prior_hd.h"

namespace ribbit {

// d^2 log Gamma(x) / dx^2 for x > 0 (Abramowitz and Stegun 6.4.6 and 6.4.12).
inline double trigamma(double x) {
  constexpr double kFar = 10.0;  // above it the asymptotic series is exact to 1e-15
  constexpr double kBernoulli[] = {1.0 / 6,  -1.0 / 30,     1.0 / 42, -1.0 / 30,
                                   5.0 / 66, -691.0 / 2730, 7.0 / 6};
  double shift = 0.0;
  for (; x < kFar; x += 1.0) shift += 1.0 / x / x;
  const double r = 1.0 / x;
  double series = 0.0, power = r;
  for (const double b : kBernoulli) series += b * (power *= r * r);
  return r + 0.5 * r * r + series + shift;
}

// The standard deviation of a parameter, or its scale if the deviation is infinite. core/prior_hd.h
// defines a, b and c.
inline double prior_sd(PriorKind kind, double a, double b, double c) {
  constexpr double kPi = 3.14159265358979324;
  switch (kind) {
    case PriorKind::kNormal:
      return a;
    case PriorKind::kLaplace:
      return std::sqrt(2.0) * a;
    case PriorKind::kStudentT:
      return (a > 2.0 ? std::sqrt(a / (a - 2.0)) : 1.0) * b;
    case PriorKind::kLogistic:
      return kPi / std::sqrt(3.0) * a;
    case PriorKind::kScaleMixture: {
      const double most = std::max(b, c), first = b / most, second = c / most;
      return most * std::sqrt(a * first * first + (1.0 - a) * second * second);
    }
    // The last kinds are priors of a scale, and the parameter is its log.
    case PriorKind::kGammaPrecision:
      return 0.5 * std::sqrt(trigamma(a));
    case PriorKind::kHalfNormal:
      return kPi / std::sqrt(8.0);
    default:  // half-Cauchy
      return kPi / 2.0;
  }
}

}  // namespace ribbit
