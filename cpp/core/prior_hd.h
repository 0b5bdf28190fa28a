// Prior densities: normalised log density and its derivative (the score), per parameter. A prior is
// one functor below, an enumerator, a line of `Priors` and one of with_prior.
#pragma once

#include "core/kinds_hd.h"
#include "core/math_hd.h"

namespace ribbit {

// A number never changes: it stands in prior tables and in names of kernels.
enum class PriorKind : int {
  kNormal = 0,
  kLaplace = 1,
  kStudentT = 2,
  kLogistic = 3,
  kScaleMixture = 4,
  // of u = log of a scale, the density of the scale with its Jacobian
  kGammaPrecision = 5,
  kHalfNormal = 6,
  kHalfCauchy = 7,
  kCount
};

// What a segment needs, made once per segment by constants(a, b, c); p[] as each functor says.
// log_norm is the part of the log density that does not depend on theta.
struct PriorConstants {
  double p[4];
  double log_norm;
};

// Every functor has
//   constants(a, b, c)     from the parameters of the prior
//   log_density(theta, k)  less log_norm
//   score(theta, k)        d log density / d theta; relative error a few ulp

// N(0, a^2); p: 1 / s, 1 / s^2
struct NormalPrior {
  static constexpr PriorKind kKind = PriorKind::kNormal;
  static constexpr const char* kName = "Normal";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double, double) {
    return {{1.0 / a, 1.0 / (a * a), 0, 0}, -library_log(a) - kHalfLogTwoPi};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    const T u = theta * O::set(k.p[0]);
    return O::set(-0.5) * u * u;
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T theta, const PriorConstants& k) {
    return theta * Ops<T>::set(-k.p[1]);
  }
};

// Scale a; p: 1 / s
struct LaplacePrior {
  static constexpr PriorKind kKind = PriorKind::kLaplace;
  static constexpr const char* kName = "Laplace";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double, double) {
    return {{1.0 / a, 0, 0, 0}, -library_log(2.0 * a)};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T theta, const PriorConstants& k) {
    return Ops<T>::abs(theta) * Ops<T>::set(-k.p[0]);
  }
  // 0 at 0
  template <class T>
  RIBBIT_HD_MEMBER T score(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    const T zero = O::set(0.0);
    const T slope = O::set(k.p[0]);
    // theta itself in the last arm: 0 stays 0, NaN stays NaN
    return O::select(theta > zero, -slope, O::select(theta < zero, slope, theta));
  }
};

// a degrees of freedom, scale b; p: 1 / (df s^2), df s^2, df + 1
struct StudentTPrior {
  static constexpr PriorKind kKind = PriorKind::kStudentT;
  static constexpr const char* kName = "StudentT";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double b, double) {
    const double gammas = library_lgamma(0.5 * (a + 1.0)) - library_lgamma(0.5 * a);
    return {{1.0 / (a * b * b), a * b * b, a + 1.0, 0},
            gammas - 0.5 * library_log(a * 3.14159265358979324) - library_log(b)};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    return O::set(-0.5 * k.p[2]) * log1p<T>(theta * theta * O::set(k.p[0]));
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    return (O::set(-k.p[2]) * theta) / O::mul_add(theta, theta, O::set(k.p[1]));
  }
};

// Scale a; p: 1 / s, 1 / (2 s)
struct LogisticPrior {
  static constexpr PriorKind kKind = PriorKind::kLogistic;
  static constexpr const char* kName = "Logistic";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double, double) {
    return {{1.0 / a, 0.5 / a, 0, 0}, -library_log(a)};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    const T u = O::abs(theta) * O::set(k.p[0]);
    return O::mul_add(O::set(-2.0), softplus<T>(-u), -u);
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    return O::set(-k.p[0]) * tanh<T>(theta * O::set(k.p[1]));
  }
};

// a N(0, b^2) + (1 - a) N(0, c^2); p: 1 / (2 s1^2), 1 / (2 s2^2), log(w / s1), log((1 - w) / s2)
struct ScaleMixturePrior {
  static constexpr PriorKind kKind = PriorKind::kScaleMixture;
  static constexpr const char* kName = "ScaleMixture";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double b, double c) {
    return {{0.5 / (b * b), 0.5 / (c * c), library_log(a) - library_log(b),
             library_log(1.0 - a) - library_log(c)},
            -kHalfLogTwoPi};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T theta, const PriorConstants& k) {
    using O = Ops<T>;
    const T square = theta * theta;
    const T first = O::mul_add(square, O::set(-k.p[0]), O::set(k.p[2]));
    const T second = O::mul_add(square, O::set(-k.p[1]), O::set(k.p[3]));
    return O::max(first, second) + softplus<T>(-O::abs(first - second));
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T theta, const PriorConstants& k) {
    using O = Ops<T>;
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
};

// exp(-2 u), a precision, ~ Gamma(concentration a, rate b); p: 2 a, b, 2 b
struct GammaPrecisionPrior {
  static constexpr PriorKind kKind = PriorKind::kGammaPrecision;
  static constexpr const char* kName = "GammaPrecision";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double b, double) {
    return {{2.0 * a, b, 2.0 * b, 0}, a * library_log(b) - library_lgamma(a) + library_log(2.0)};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T u, const PriorConstants& k) {
    using O = Ops<T>;
    return O::mul_add(O::set(-k.p[1]), exp<T>(O::set(-2.0) * u), O::set(-k.p[0]) * u);
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T u, const PriorConstants& k) {
    using O = Ops<T>;
    return O::mul_add(O::set(k.p[2]), exp<T>(O::set(-2.0) * u), O::set(-k.p[0]));
  }
};

// exp(u) ~ N(0, a^2) where that is positive; p: 1 / a^2, 1 / (2 a^2)
struct HalfNormalPrior {
  static constexpr PriorKind kKind = PriorKind::kHalfNormal;
  static constexpr const char* kName = "HalfNormal";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double, double) {
    return {{1.0 / (a * a), 0.5 / (a * a), 0, 0},
            library_log(2.0) - library_log(a) - kHalfLogTwoPi};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T u, const PriorConstants& k) {
    using O = Ops<T>;
    return O::mul_add(O::set(-k.p[1]), exp<T>(O::set(2.0) * u), u);
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T u, const PriorConstants& k) {
    using O = Ops<T>;
    return O::mul_add(O::set(-k.p[0]), exp<T>(O::set(2.0) * u), O::set(1.0));
  }
};

// exp(u) half-Cauchy of scale a: u - log a has the density 1 / (pi cosh); p: log a
struct HalfCauchyPrior {
  static constexpr PriorKind kKind = PriorKind::kHalfCauchy;
  static constexpr const char* kName = "HalfCauchy";
  RIBBIT_HD_MEMBER PriorConstants constants(double a, double, double) {
    return {{library_log(a), 0, 0, 0}, library_log(2.0) - library_log(3.14159265358979324)};
  }
  template <class T>
  RIBBIT_HD_MEMBER T log_density(T u, const PriorConstants& k) {
    using O = Ops<T>;
    const T v = O::abs(u - O::set(k.p[0]));
    return -v - softplus<T>(O::set(-2.0) * v);
  }
  template <class T>
  RIBBIT_HD_MEMBER T score(T u, const PriorConstants& k) {
    return -tanh<T>(u - Ops<T>::set(k.p[0]));
  }
};

// A parameter as its prior sees it: its distance from the centre. centre: (P,), or null for 0.
template <class T, class Place>
RIBBIT_HD T from_centre(T theta, const T* centre, Place i) {
  return centre != nullptr ? theta - centre[i] : theta;
}

using Priors = Kinds<NormalPrior, LaplacePrior, StudentTPrior, LogisticPrior, ScaleMixturePrior,
                     GammaPrecisionPrior, HalfNormalPrior, HalfCauchyPrior>;
static_assert(Priors::kCount == static_cast<int>(PriorKind::kCount) && Priors::kInOrder);

// body(functor of the kind)
template <class Body>
RIBBIT_HD auto with_prior(PriorKind kind, const Body& body) {
  switch (kind) {
    case PriorKind::kNormal:
      return body(NormalPrior{});
    case PriorKind::kLaplace:
      return body(LaplacePrior{});
    case PriorKind::kStudentT:
      return body(StudentTPrior{});
    case PriorKind::kLogistic:
      return body(LogisticPrior{});
    case PriorKind::kScaleMixture:
      return body(ScaleMixturePrior{});
    case PriorKind::kGammaPrecision:
      return body(GammaPrecisionPrior{});
    case PriorKind::kHalfNormal:
      return body(HalfNormalPrior{});
    case PriorKind::kHalfCauchy:
      return body(HalfCauchyPrior{});
    case PriorKind::kCount:
      break;
  }
#if defined(__CUDA_ARCH__)
  return nan_of<decltype(body(NormalPrior{}))>();  // a trap takes registers from trajectories
#else
  unreachable();
#endif
}

#if !defined(__CUDACC__)
RIBBIT_HD PriorConstants prior_constants(PriorKind kind, double a, double b, double c) {
  return with_prior(kind, [=](auto prior) { return prior.constants(a, b, c); });
}
#endif

}  // namespace ribbit
