// Likelihoods: log likelihood terms of the outputs f of a row and their derivatives, and what
// outputs mean when predicting. Terms leave out what depends on y alone (Poisson: -log y!). A
// likelihood is one functor below, an enumerator, a line of `Likelihoods` and one of
// with_likelihood.
#pragma once

#include "core/kinds_hd.h"
#include "core/math_hd.h"

namespace ribbit {

// A number never changes: it crosses from Python and stands in names of kernels.
enum class LikelihoodKind : int {
  kGaussian = 0,         // known scale
  kGaussianLearned = 1,  // log noise is a parameter
  kHeteroscedastic = 2,
  kCategorical = 3,
  kBernoulli = 4,
  kPoisson = 5,
  kStudentT = 6,         // known scale
  kStudentTLearned = 7,  // log noise is a parameter
  kHeteroscedasticFloored = 8,
  kCount
};

// Which outputs make a term, and how terms are made. Kernels have one loop for each.
enum class LikelihoodShape : int {
  kQuadratic,      // one output per column of y; precision times squares, summed in double
  kElementwise,    // one output per column of y; a term each
  kLocationScale,  // one output per column of y; a term each, of the residual over a noise scale
  kMeanAndScale,   // outputs [:J] and [J:] belong to column j of y together
  kSoftmax,        // all outputs belong to one label
  kCount
};

// Columns of y, and means per row of a prediction, of a network with K outputs.
template <class Size>
RIBBIT_HD Size columns_of(LikelihoodShape shape, Size outputs) {
  return shape == LikelihoodShape::kSoftmax        ? Size(1)
         : shape == LikelihoodShape::kMeanAndScale ? outputs / 2
                                                   : outputs;
}
template <class Size>
RIBBIT_HD Size means_of(LikelihoodShape shape, Size outputs) {
  return shape == LikelihoodShape::kMeanAndScale ? outputs / 2 : outputs;
}

// What a likelihood is told in addition to outputs and y: the known scale of its noise, else 1, and
// what else its functor has a constant for, such as degrees of freedom.
struct LikelihoodParameters {
  double scale = 1.0;
  double shape = 0.0;
  // Scales of the noise: 1 for all outputs, or one for each. Known ones are (noises,), or null:
  // `scale` for all.
  int noises = 1;
  const double* scales = nullptr;
};

// Made of these once, on the host; p[] as each functor says.
struct LikelihoodConstants {
  double scale;
  double p[2];
  double log_norm;  // of one term, at scale 1
};

// Functions for constants: of the C library, or of this project, which a device has too.
struct LibraryFunctions {
  RIBBIT_HD_MEMBER double exp(double a) { return library_exp(a); }
  RIBBIT_HD_MEMBER double log(double a) { return library_log(a); }
};
struct OwnFunctions {
  RIBBIT_HD_MEMBER double exp(double a) { return ribbit::exp<double>(a); }
  RIBBIT_HD_MEMBER double log(double a) { return ribbit::log<double>(a); }
};

// Every functor has, by its shape,
//   quadratic      precision, log_scale, total, noise_derivative
//   elementwise    term(f, y, term, derivative)
//   location scale scale, log_scale, unit(constants): residuals count in scale times unit;
//                  term(u, constants, term, slope): of such a residual u, and -d term / d u
//   mean and scale term(mean, raw, y, constants, term, mean_derivative, raw_derivative), kLogNorm
//   of
//                  a term
// and for predictions
//   kClasses       outputs mean probabilities. Else variance(value, raw, scale, constants): of the
//                  noise, in double; raw is the second output of a mean and scale
//   kTransforms    values are not the outputs themselves: elementwise value(f), or of classes
//                  value(f, value, entropy)
// kLearnsNoise: log noise is one more parameter. kHasConstants: constant(y) is what a term leaves
// out. constants(parameters): as the functor wants them.
struct LikelihoodBase {
  static constexpr bool kLearnsNoise = false;
  static constexpr bool kClasses = false;
  static constexpr bool kTransforms = false;
  static constexpr bool kHasConstants = false;
  RIBBIT_HD_MEMBER double constant(double) { return 0.0; }
  RIBBIT_HD_MEMBER LikelihoodConstants constants(const LikelihoodParameters& parameters) {
    return {parameters.scale, {0.0, 0.0}, 0.0};
  }
};

// Noise of one scale; noise: the scale, or its logarithm where that is learned.
template <bool Learned>
struct NoiseBase : LikelihoodBase {
  static constexpr bool kLearnsNoise = Learned;
  template <class Functions>
  RIBBIT_HD_MEMBER double scale(double noise) {
    return Learned ? Functions::exp(noise) : noise;
  }
  template <class Functions>
  RIBBIT_HD_MEMBER double log_scale(double noise) {
    return Learned ? noise : Functions::log(noise);
  }
};

// N(f, scale^2); a sum of squares of residuals makes the terms of any number of outputs.
template <bool Learned>
struct GaussianBase : NoiseBase<Learned> {
  static constexpr LikelihoodShape kShape = LikelihoodShape::kQuadratic;
  template <class Functions>
  RIBBIT_HD_MEMBER double precision(double noise) {
    return Learned ? Functions::exp(-2.0 * noise) : 1.0 / (noise * noise);
  }
  // Of `count` outputs with quadratic = precision times their squares: the log likelihood, and its
  // derivative by the log noise.
  RIBBIT_HD_MEMBER double total(double quadratic, double count, double log_scale) {
    return -0.5 * quadratic - count * (log_scale + kHalfLogTwoPi);
  }
  RIBBIT_HD_MEMBER double noise_derivative(double quadratic, double count) {
    return quadratic - count;
  }
  template <class V>
  RIBBIT_HD_MEMBER V variance(V, V, V sd, const LikelihoodConstants&) {
    return sd * sd;
  }
};
struct GaussianLikelihood : GaussianBase<false> {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kGaussian;
  static constexpr const char* kName = "Gaussian";
};
struct LearnedGaussianLikelihood : GaussianBase<true> {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kGaussianLearned;
  static constexpr const char* kName = "GaussianLearned";
};

// -(y - mean)^2 / (2 sd^2) - log sd with sd = softplus(raw), and both derivatives. For raw << 0,
// sd = e L with e = exp(raw), L = log1p(e) / e -> 1: log sd = raw + log L and sigmoid(raw) / sd
// = 1 / ((1 + e) L) keep their accuracy after e has vanished.
struct HeteroscedasticLikelihood : LikelihoodBase {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kHeteroscedastic;
  static constexpr const char* kName = "HeteroscedasticGaussian";
  static constexpr LikelihoodShape kShape = LikelihoodShape::kMeanAndScale;
  static constexpr double kLogNorm = kHalfLogTwoPi;
  template <class T>
  RIBBIT_HD_MEMBER void term(T mean, T raw, T y, const LikelihoodConstants&, T& term,
                             T& mean_derivative, T& raw_derivative) {
    using O = Ops<T>;
    const T zero = O::set(0.0);
    const T one = O::set(1.0);
    const T magnitude = O::min(O::set(kExpLimit<T>), O::abs(raw));
    const T e = exp_bounded<T>(-magnitude);
    const T ratio = log1p_ratio<T>(e);
    const auto negative = raw < zero;
    const T base = O::select(negative, ratio, O::mul_add(e, ratio, raw));  // sd = base * (e or 1)
    const T inverse_base = one / base;
    const T inverse_sd =
        O::select(negative, inverse_base * exp_bounded<T>(magnitude), inverse_base);
    const T u = (y - mean) * inverse_sd;
    term = O::mul_add(O::set(-0.5) * u, u, -log<T>(base) - O::min(zero, raw));
    mean_derivative = u * inverse_sd;
    raw_derivative = O::mul_add(u, u, -one) * (inverse_base / (one + e));
  }
  template <class V>
  RIBBIT_HD_MEMBER V variance(V, V raw, V, const LikelihoodConstants&) {
    const V sd = softplus<V>(raw);  // in double: float underflows at -104
    return sd * sd;
  }
};

// The same with variance m^2 + softplus(raw)^2, m = p[0] > 0: noise of sd m, such as rounding,
// beside that of the network. m is in [1e-15, 1e15], so that its square is normal in float.
struct FlooredHeteroscedasticLikelihood : LikelihoodBase {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kHeteroscedasticFloored;
  static constexpr const char* kName = "HeteroscedasticGaussianFloored";
  static constexpr LikelihoodShape kShape = LikelihoodShape::kMeanAndScale;
  static constexpr double kLogNorm = kHalfLogTwoPi;
  RIBBIT_HD_MEMBER LikelihoodConstants constants(const LikelihoodParameters& parameters) {
    return {parameters.scale, {parameters.shape, 0.0}, 0.0};
  }
  template <class T>
  RIBBIT_HD_MEMBER void term(T mean, T raw, T y, const LikelihoodConstants& k, T& term,
                             T& mean_derivative, T& raw_derivative) {
    using O = Ops<T>;
    const T zero = O::set(0.0), one = O::set(1.0), floor = O::set(k.p[0]);
    const T e = exp_minus_abs<T>(raw);
    const T own = O::mul_add(e, log1p_ratio<T>(e), O::max(zero, raw));  // softplus(raw)
    const T r = one / (one + e);
    const T variance = O::mul_add(own, own, floor * floor);
    const T inverse_sd = one / O::sqrt(variance);
    const T u = (y - mean) * inverse_sd;
    const T half = O::set(-0.5);
    term = O::mul_add(half * u, u, half * log<T>(variance));
    mean_derivative = u * inverse_sd;
    const T slope = O::select(raw < zero, e * r, r) * inverse_sd;  // d softplus / d raw, over sd
    raw_derivative = O::mul_add(u, u, -one) * ((own * inverse_sd) * slope);
  }
  template <class V>
  RIBBIT_HD_MEMBER V variance(V, V raw, V, const LikelihoodConstants& k) {
    const V own = softplus<V>(raw);
    return Ops<V>::mul_add(own, own, Ops<V>::set(k.p[0] * k.p[0]));
  }
};

// log softmax(f)[y]
struct CategoricalLikelihood : LikelihoodBase {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kCategorical;
  static constexpr const char* kName = "Categorical";
  static constexpr LikelihoodShape kShape = LikelihoodShape::kSoftmax;
  static constexpr bool kClasses = true;
  static constexpr bool kTransforms = true;
};

// y log p + (1 - y) log(1 - p), p = sigmoid(f), and its derivative y - p. exp(-|f|) serves both.
struct BernoulliLikelihood : LikelihoodBase {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kBernoulli;
  static constexpr const char* kName = "Bernoulli";
  static constexpr LikelihoodShape kShape = LikelihoodShape::kElementwise;
  static constexpr bool kClasses = true;
  static constexpr bool kTransforms = true;
  template <class T>
  RIBBIT_HD_MEMBER void term(T f, T y, T& term, T& derivative) {
    using O = Ops<T>;
    const T zero = O::set(0.0);
    const T one = O::set(1.0);
    const T e = exp_minus_abs<T>(f);
    // y f - max(f, 0) is exact for y = 1, f > 0
    term = O::mul_sub(e, log1p_ratio<T>(e), y * f - O::max(zero, f));
    const T r = O::reciprocal(one + e);
    derivative = y - O::select(f < zero, e * r, r);
  }
  template <class T>
  RIBBIT_HD_MEMBER void value(T f, T& value, T& entropy) {
    using O = Ops<T>;
    const T e = exp_minus_abs<T>(f);
    const T r = O::reciprocal(O::set(1.0) + e);  // probability of the likelier outcome
    value = O::select(f < O::set(0.0), e * r, r);
    // With p = e r: -(1 - p) log(1 - p) - p log p = log(1 + e) + |f| p
    const T distance = O::min(O::set(kExpLimit<T>), O::abs(f));
    entropy = O::mul_add(e, log1p_ratio<T>(e), distance * (e * r));
  }
};

// y f - exp(f) and y - exp(f): f is the log rate.
struct PoissonLikelihood : LikelihoodBase {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kPoisson;
  static constexpr const char* kName = "Poisson";
  static constexpr LikelihoodShape kShape = LikelihoodShape::kElementwise;
  static constexpr bool kTransforms = true;
  static constexpr bool kHasConstants = true;
  RIBBIT_HD_MEMBER double constant(double y) { return -library_lgamma(y + 1.0); }
  template <class T>
  RIBBIT_HD_MEMBER void term(T f, T y, T& term, T& derivative) {
    const T rate = exp<T>(f);
    term = y * f - rate;
    derivative = y - rate;
  }
  template <class T>
  RIBBIT_HD_MEMBER T value(T f) {
    return exp<T>(f);
  }
  template <class V>
  RIBBIT_HD_MEMBER V variance(V value, V, V, const LikelihoodConstants&) {
    return value;
  }
};

// f + scale t, t Student's with df degrees of freedom (Lange, Little and Taylor 1989); p: sqrt(df),
// df + 1. With a residual u in scale sqrt(df) the terms go by m = min(|u|, 1 / |u|): its square
// neither overflows nor cancels, and log(1 + u^2) = log1p(m^2) + 2 log max(1, |u|).
template <bool Learned>
struct StudentTBase : NoiseBase<Learned> {
  static constexpr LikelihoodShape kShape = LikelihoodShape::kLocationScale;
  RIBBIT_HD_MEMBER LikelihoodConstants constants(const LikelihoodParameters& parameters) {
    const double df = parameters.shape < 1e30 ? parameters.shape : 1e30;  // float has no df + 1
    // log Gamma((df + 1) / 2) - log Gamma(df / 2) - log(df pi) / 2, whose parts cancel
    double log_norm;
    if (df < 50.0) {
      log_norm = library_lgamma(0.5 * (df + 1.0)) - library_lgamma(0.5 * df) -
                 0.5 * library_log(df * 3.14159265358979324);
    } else {
      const double x = 1.0 / df, square = x * x;
      log_norm = x * (-0.25 + square * (1.0 / 24 + square * (-1.0 / 20 + square * (17.0 / 112)))) -
                 kHalfLogTwoPi;
    }
    return {parameters.scale, {Ops<double>::sqrt(df), df + 1.0}, log_norm};
  }
  RIBBIT_HD_MEMBER double unit(const LikelihoodConstants& k) { return k.p[0]; }
  template <class T>
  RIBBIT_HD_MEMBER void term(T u, const LikelihoodConstants& k, T& term, T& slope) {
    using O = Ops<T>;
    const T one = O::set(1.0);
    const T a = O::abs(u);
    const T larger = O::max(one, a);  // NaN stays
    const T m = O::min(a, one / larger);
    const T e = m * m;
    const T log_sum = O::mul_add(e, log1p_ratio<T>(e), O::set(2.0) * log<T>(larger));
    term = O::set(-0.5 * k.p[1]) * log_sum;
    slope = O::set(k.p[1]) * with_sign<T>(m * O::reciprocal(one + e), u);
  }
  // Infinite for df <= 2; the mean of a prediction is f whatever df.
  template <class V>
  RIBBIT_HD_MEMBER V variance(V, V, V scale, const LikelihoodConstants& k) {
    const double df = k.p[1] - 1.0;
    const V ratio = df > 2.0 ? Ops<V>::set(df / (df - 2.0)) : infinity_of<V>();
    return scale * scale * ratio;
  }
};
struct StudentTLikelihood : StudentTBase<false> {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kStudentT;
  static constexpr const char* kName = "StudentTNoise";
};
struct LearnedStudentTLikelihood : StudentTBase<true> {
  static constexpr LikelihoodKind kKind = LikelihoodKind::kStudentTLearned;
  static constexpr const char* kName = "StudentTNoiseLearned";
};

using Likelihoods =
    Kinds<GaussianLikelihood, LearnedGaussianLikelihood, HeteroscedasticLikelihood,
          CategoricalLikelihood, BernoulliLikelihood, PoissonLikelihood, StudentTLikelihood,
          LearnedStudentTLikelihood, FlooredHeteroscedasticLikelihood>;
static_assert(Likelihoods::kCount == static_cast<int>(LikelihoodKind::kCount) &&
              Likelihoods::kInOrder);

// body(functor of the kind)
template <class Body>
RIBBIT_HD auto with_likelihood(LikelihoodKind kind, const Body& body) {
  switch (kind) {
    case LikelihoodKind::kGaussian:
      return body(GaussianLikelihood{});
    case LikelihoodKind::kGaussianLearned:
      return body(LearnedGaussianLikelihood{});
    case LikelihoodKind::kHeteroscedastic:
      return body(HeteroscedasticLikelihood{});
    case LikelihoodKind::kCategorical:
      return body(CategoricalLikelihood{});
    case LikelihoodKind::kBernoulli:
      return body(BernoulliLikelihood{});
    case LikelihoodKind::kPoisson:
      return body(PoissonLikelihood{});
    case LikelihoodKind::kStudentT:
      return body(StudentTLikelihood{});
    case LikelihoodKind::kStudentTLearned:
      return body(LearnedStudentTLikelihood{});
    case LikelihoodKind::kHeteroscedasticFloored:
      return body(FlooredHeteroscedasticLikelihood{});
    case LikelihoodKind::kCount:
      break;
  }
  unreachable();
}

// What callers ask of a kind.
struct LikelihoodTraits {
  LikelihoodShape shape;
  bool learns_noise, classes, has_constants;
  // Whether each output may have a noise scale of its own: its terms are then those of one output.
  RIBBIT_HD_METHOD bool scales_noise() const {
    return shape == LikelihoodShape::kQuadratic || shape == LikelihoodShape::kLocationScale;
  }
  // Parameters behind the network's.
  RIBBIT_HD_METHOD int learned(const LikelihoodParameters& parameters) const {
    return learns_noise ? parameters.noises : 0;
  }
};
RIBBIT_HD LikelihoodTraits traits_of(LikelihoodKind kind) {
  return with_likelihood(kind, [](auto likelihood) {
    using L = decltype(likelihood);
    return LikelihoodTraits{L::kShape, L::kLearnsNoise, L::kClasses, L::kHasConstants};
  });
}

#if !defined(__CUDACC__)
RIBBIT_HD LikelihoodConstants likelihood_constants(LikelihoodKind kind,
                                                   const LikelihoodParameters& parameters) {
  return with_likelihood(kind, [&](auto likelihood) { return likelihood.constants(parameters); });
}
#endif

// What the terms of one y leave out.
RIBBIT_HD double constant_of(LikelihoodKind kind, double y) {
  return with_likelihood(kind, [=](auto likelihood) { return likelihood.constant(y); });
}

}  // namespace ribbit
