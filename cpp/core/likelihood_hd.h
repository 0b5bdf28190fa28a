// Log likelihood terms of one output of one row and their derivatives with respect to the network's
// outputs f. Terms leave out what depends on y alone (Poisson: -log y!) and the Gaussian constant.
#pragma once

#include "core/math_hd.h"

namespace ribbit {

enum LikelihoodKind : int {
  kGaussian = 0,         // known scale
  kGaussianLearned = 1,  // log noise is a parameter
  kHeteroscedastic = 2,  // outputs [:K] mean, [K:] raw; sd = softplus(raw)
  kCategorical = 3,
  kBernoulli = 4,  // logits
  kPoisson = 5,    // log rates
};

constexpr double kHalfLogTwoPi = 0.91893853320467274;

// y log p + (1 - y) log(1 - p), p = sigmoid(f), and its derivative y - p. exp(-|f|) serves both.
template <class T>
RIBBIT_HD void bernoulli_term(T f, T y, T& term, T& derivative) {
  using O = Ops<T>;
  const T zero = O::set(0.0);
  const T one = O::set(1.0);
  const T e = exp_minus_abs<T>(f);
  // y f - max(f, 0) is exact for y = 1, f > 0
  term = O::mul_sub(e, log1p_ratio<T>(e), y * f - O::max(zero, f));
  const T r = O::reciprocal(one + e);
  derivative = y - O::select(f < zero, e * r, r);
}

// y f - exp(f) and y - exp(f).
template <class T>
RIBBIT_HD void poisson_term(T f, T y, T& term, T& derivative) {
  const T rate = exp<T>(f);
  term = y * f - rate;
  derivative = y - rate;
}

// -(y - mean)^2 / (2 sd^2) - log sd with sd = softplus(raw), and both derivatives. For raw << 0,
// sd = e L with e = exp(raw), L = log1p(e) / e -> 1: log sd = raw + log L and sigmoid(raw) / sd
// = 1 / ((1 + e) L) keep their accuracy after e has vanished.
template <class T>
RIBBIT_HD void heteroscedastic_term(T mean, T raw, T y, T& term, T& mean_derivative,
                                    T& raw_derivative) {
  using O = Ops<T>;
  const T zero = O::set(0.0);
  const T one = O::set(1.0);
  const T magnitude = O::min(O::set(kExpLimit<T>), O::abs(raw));
  const T e = exp_bounded<T>(-magnitude);
  const T ratio = log1p_ratio<T>(e);
  const auto negative = raw < zero;
  const T base = O::select(negative, ratio, O::mul_add(e, ratio, raw));  // sd = base * (e or 1)
  const T inverse_base = one / base;
  const T inverse_sd = O::select(negative, inverse_base * exp_bounded<T>(magnitude), inverse_base);
  const T u = (y - mean) * inverse_sd;
  term = O::mul_add(O::set(-0.5) * u, u, -log<T>(base) - O::min(zero, raw));
  mean_derivative = u * inverse_sd;
  raw_derivative = O::mul_add(u, u, -one) * (inverse_base / (one + e));
}

}  // namespace ribbit
