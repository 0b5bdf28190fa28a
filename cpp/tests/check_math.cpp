// Checks the elementary functions, activations, priors, likelihoods and random numbers against long
// double references, on scalars, on the vectors this file is compiled for, and through the kernel
// table of every instruction set this CPU has. Prints the largest errors; exit code 1 over a bound.
//
// Errors are in ulp of T at the reference value, after an absolute allowance that the line states.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "core/activation_hd.h"
#include "core/likelihood_hd.h"
#include "core/normal_hd.h"
#include "core/philox_hd.h"
#include "core/prior_hd.h"
#include "cpu/dispatch.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/vec-inl.h"
#include "tests/check.h"

namespace {

using ribbit::Ops;
using ribbit::cpu::InstructionSet;
using ribbit::cpu::KernelTable;
using Real = long double;

void fail(const char* what, const char* detail) {
  std::printf("FAIL %s: %s\n", what, detail);
  ++failures;
}

template <class T>
const char* type_name() {
  return sizeof(T) == 4 ? "f32" : "f64";
}

// Distance in ulp beyond the absolute allowance; 0 for equal specials, infinite for unequal ones.
template <class T>
double ulp_error(T got, Real want, double absolute) {
  if (std::isnan(want)) return std::isnan(got) ? 0.0 : INFINITY;
  if (std::isnan(got)) return INFINITY;
  const Real largest = std::numeric_limits<T>::max();
  if (std::isinf(want) || std::fabs(want) > largest) {
    if (std::isinf(got)) return (got > 0) == (want > 0) ? 0.0 : INFINITY;
    return std::isinf(want) ? INFINITY : 1.0;
  }
  if (std::isinf(got)) return std::fabs(want) > 0.999999L * largest ? 1.0 : INFINITY;
  const Real distance = std::fabs(static_cast<Real>(got) - want) - absolute;
  if (distance <= 0) return 0.0;
  int exponent = 0;
  std::frexp(want, &exponent);
  const int lowest = std::numeric_limits<T>::min_exponent;
  if (want == 0 || exponent < lowest) exponent = lowest;
  return static_cast<double>(distance /
                             std::ldexp(Real(1), exponent - std::numeric_limits<T>::digits));
}

// A dense grid of [low, high] (linear, and geometric towards 0 on both sides), and edge values.
template <class T>
std::vector<T> grid(double low, double high, bool edges) {
  std::vector<T> x;
  const int n = 200000;
  for (int i = 0; i <= n; ++i)
    x.push_back(static_cast<T>(low + (high - low) * (static_cast<double>(i) + 0.37) / (n + 1)));
  for (double m = 1e-45; m < 1e308; m *= 1.0173)
    for (double s : {-m, m})
      if (s >= low && s <= high) x.push_back(static_cast<T>(s));
  if (edges) {
    using L = std::numeric_limits<T>;
    for (T e : {T(0), L::denorm_min(), L::min(), T(1), L::max(), L::infinity()}) {
      x.push_back(e);
      x.push_back(-e);
    }
    x.push_back(L::quiet_NaN());
  }
  while (x.size() % 64 != 0) x.push_back(T(0.5));
  return x;
}

// The absolute allowance is absolute + slope |x|.
template <class T, class Eval, class Reference>
void check(const char* where, const char* name, const std::vector<T>& x, Eval eval,
           Reference reference, double bound, double absolute = 0.0, double slope = 0.0) {
  std::vector<T> y(x.size());
  eval(x.data(), static_cast<std::int64_t>(x.size()), y.data());
  double worst = 0.0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double allowed =
        slope == 0.0 ? absolute : absolute + slope * std::fabs(static_cast<double>(x[i]));
    const double e = ulp_error<T>(y[i], reference(static_cast<Real>(x[i])), allowed);
    if (!(e <= worst)) {
      worst = e;
      at = i;
    }
  }
  std::printf("%-9s %s %-28s max %8.3f ulp (bound %g, absolute %.1e) at %.9g\n", where,
              type_name<T>(), name, worst, bound, absolute, static_cast<double>(x[at]));
  if (!(worst <= bound)) {
    char detail[200];
    std::snprintf(detail, sizeof detail, "%s %s: x = %.17g got %.17g want %.17Lg", where,
                  type_name<T>(), static_cast<double>(x[at]), static_cast<double>(y[at]),
                  reference(static_cast<Real>(x[at])));
    fail(name, detail);
  }
}

// ---- references ---------------------------------------------------------------------------------
const Real kPi = 3.14159265358979323846264338327950288L;
Real sigmoid_ref(Real x) {
  return 1 / (1 + std::exp(-x));
}
Real softplus_ref(Real x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
Real normal_cdf_ref(Real x) {
  return std::erfc(-x / std::sqrt(Real(2))) / 2;
}
Real density_ref(Real x) {
  return std::exp(-x * x / 2) / std::sqrt(2 * kPi);
}

Real value_ref(int code, Real z) {
  switch (code) {
    case ribbit::kIdentity:
      return z;
    case ribbit::kRelu:
      return z > 0 ? z : (std::isnan(z) ? z : 0);
    case ribbit::kTanh:
      return std::tanh(z);
    case ribbit::kSilu:
      return std::isinf(z) && z < 0 ? 0 : z * sigmoid_ref(z);
    case ribbit::kSigmoid:
      return sigmoid_ref(z);
    case ribbit::kGelu:
      return std::isinf(z) && z < 0 ? 0 : z * normal_cdf_ref(z);
    default:
      return softplus_ref(z);
  }
}
Real derivative_ref(int code, Real z) {
  const Real s = sigmoid_ref(z);
  switch (code) {
    case ribbit::kIdentity:
      return 1;
    case ribbit::kRelu:
      return z > 0 ? 1 : 0;
    case ribbit::kTanh: {
      const Real e = std::exp(-2 * std::fabs(z));
      return 4 * e / ((1 + e) * (1 + e));
    }
    case ribbit::kSilu:
      return std::isinf(z) ? (z > 0 ? 1 : 0) : s * (1 + z * sigmoid_ref(-z));
    case ribbit::kSigmoid:
      return s * sigmoid_ref(-z);
    case ribbit::kGelu:
      return std::isinf(z) ? (z > 0 ? 1 : 0) : normal_cdf_ref(z) + z * density_ref(z);
    default:
      return s;
  }
}
const char* const kActivationNames[] = {"identity", "relu", "tanh",    "silu",
                                        "sigmoid",  "gelu", "softplus"};

// ---- elementary functions -----------------------------------------------------------------------
template <class V, class T, class F>
auto over(F f) {
  return [f](const T* x, std::int64_t n, T* y) {
    constexpr std::int64_t kStep = static_cast<std::int64_t>(sizeof(V) / sizeof(T));
    for (std::int64_t i = 0; i < n; i += kStep) {
      V v;
      std::memcpy(&v, x + i, sizeof v);
      v = f(v);
      std::memcpy(y + i, &v, sizeof v);
    }
  };
}

template <class V, class T>
void check_elementary(const char* where) {
  constexpr bool kF = sizeof(T) == 4;
  // the baseline's mul_add rounds twice
  const double slack = Ops<V>::kFused ? 1.0 : 1.6;
  const double tiny = kF ? 1e-36 : 1e-303;
  const double limit = ribbit::kExpLimit<V>;
  const auto wide = grid<T>(kF ? -110 : -760, kF ? 95 : 720, true);
  const auto inner = grid<T>(-limit, limit, false);
  const auto positive = grid<T>(0, kF ? 10 : 100, true);
  const auto small = grid<T>(-12, 12, true);
  const auto turns = grid<T>(-2, 2, false);
  check<T>(
      where, "exp", wide, over<V, T>([](V x) { return ribbit::exp<V>(x); }),
      [](Real x) { return std::exp(x); }, 1.5 * slack);
  check<T>(
      where, "exp_bounded", inner, over<V, T>([](V x) { return ribbit::exp_bounded<V>(x); }),
      [](Real x) { return std::exp(x); }, 3.0 * slack);
  check<T>(
      where, "log", positive, over<V, T>([](V x) { return ribbit::log<V>(x); }),
      [](Real x) { return std::log(x); }, 1.5 * slack);
  check<T>(
      where, "log1p", grid<T>(-0.99999, 8, true),
      over<V, T>([](V x) { return ribbit::log1p<V>(x); }), [](Real x) { return std::log1p(x); },
      1.8 * slack);
  check<T>(
      where, "cos 2 pi u", turns, over<V, T>([](V x) {
        V c, s;
        ribbit::sincos_2pi<V>(x, c, s);
        return c;
      }),
      [](Real x) { return std::cos(2 * kPi * (x - std::round(x))); }, 0.0, kF ? 1.4e-7 : 2.5e-16);
  check<T>(
      where, "sin 2 pi u", turns, over<V, T>([](V x) {
        V c, s;
        ribbit::sincos_2pi<V>(x, c, s);
        return s;
      }),
      [](Real x) { return std::sin(2 * kPi * (x - std::round(x))); }, 0.0, kF ? 1.4e-7 : 2.5e-16);
  check<T>(
      where, "tanh", small, over<V, T>([](V x) { return ribbit::tanh<V>(x); }),
      [](Real x) { return std::tanh(x); }, 3.0 * slack);
  check<T>(where, "sigmoid", grid<T>(-10, 40, true),
           over<V, T>([](V x) { return ribbit::sigmoid<V>(x); }), sigmoid_ref, 4.5 * slack, tiny);
  check<T>(where, "softplus", small, over<V, T>([](V x) { return ribbit::softplus<V>(x); }),
           softplus_ref, 3.5 * slack, tiny);
  check<T>(
      where, "erf", small, over<V, T>([](V x) { return ribbit::erf<V>(x); }),
      [](Real x) { return std::erf(x); }, 2.5 * slack);
}

// ---- through the kernel tables ------------------------------------------------------------------
template <class T>
void check_activations(const char* where, const KernelTable<T>& table, bool fused) {
  constexpr bool kF = sizeof(T) == 4;
  const double eps = std::numeric_limits<T>::epsilon();
  const double slack = fused ? 1.0 : 1.6;
  const double tiny = kF ? 1e-35 : 1e-296;
  for (int code = 0; code <= ribbit::kSoftplus; ++code) {
    // silu and sigmoid in float keep one part of ln 2: 3e-9 |z| more in the left tail
    const bool tail = code == ribbit::kSilu || code == ribbit::kSigmoid;
    const double low = tail ? -10 : code == ribbit::kGelu ? -12 : -30;
    const auto z = grid<T>(low, 30, true);
    const double bounds[] = {0, 0, 3.0, 4.5, 4.5, 10.0, 3.5};
    char name[60];
    check<T>(
        where, kActivationNames[code], z,
        [&](const T* x, std::int64_t n, T* y) { table.activation_forward(code, x, n, y); },
        [code](Real x) { return value_ref(code, x); }, bounds[code] * slack, tiny);
    std::vector<T> value(z.size());
    std::snprintf(name, sizeof name, "%s'", kActivationNames[code]);
    const double derivative_ulp[] = {0, 0, 4.0, 3.0, 3.0, 4.2, 4.2};
    const double derivative_absolute[] = {0, 0, tiny, 0.75 * eps, 0.8 * eps, eps, tiny};
    const double slope = code == ribbit::kSilu ? 0.75 * eps : 0.0;
    auto finite = z;
    for (T& x : finite)
      if (std::isnan(x)) x = T(1);
    check<T>(
        where, name, finite,
        [&](const T* x, std::int64_t n, T* y) {
          table.activation_forward_derivative(code, x, n, value.data(), y);
        },
        [code](Real x) { return derivative_ref(code, x); }, derivative_ulp[code] * slack,
        derivative_absolute[code] * slack, slope * slack);
    if (tail) {
      std::snprintf(name, sizeof name, "%s, left tail", kActivationNames[code]);
      check<T>(
          where, name, grid<T>(kF ? -85.9 : -699, -10, false),
          [&](const T* x, std::int64_t n, T* y) { table.activation_forward(code, x, n, y); },
          [code](Real x) { return value_ref(code, x); }, 8.0 * slack, tiny);
    }
    // any length, in place
    for (const int n : {1, 3, 17, 63, 65, 130}) {
      std::vector<T> a(z.begin() + 1000, z.begin() + 1000 + n);
      std::vector<T> b(static_cast<std::size_t>(n) + 1, T(7));
      std::vector<T> d(b), v(b);
      table.activation_forward(code, a.data(), n, b.data());
      table.activation_forward_derivative(code, a.data(), n, v.data(), d.data());
      if (b.back() != T(7) || d.back() != T(7)) fail(kActivationNames[code], "wrote past the end");
      table.activation_forward(code, a.data(), n, a.data());
      for (std::size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i] || v[i] != b[i])
          fail(kActivationNames[code], "in place or with derivative differs");
    }
  }
}

// An activation's bits depend on nothing but the number: not on its place, not on its neighbours.
template <class T>
void check_place(const KernelTable<T>& table) {
  const auto x = grid<T>(-20, 20, false);
  for (int code = 0; code <= ribbit::kSoftplus; ++code) {
    const std::int64_t n = 4096;
    std::vector<T> v(4096), d(4096), z(130), w(130), e(130);
    table.activation_forward_derivative(code, x.data(), n, v.data(), d.data());
    bool same = true;
    for (std::size_t i = 0; i < 4096; i += 97) {
      for (std::size_t at : {std::size_t(5), std::size_t(129)}) {
        z.assign(130, at == 5 ? T(-1e9) : std::numeric_limits<T>::quiet_NaN());
        z[at] = x[i];
        table.activation_forward_derivative(code, z.data(), 130, w.data(), e.data());
        same = same && w[at] == v[i] && e[at] == d[i];
      }
    }
    if (!same) fail(kActivationNames[code], "the result depends on the neighbours");
  }
}

struct PriorCase {
  int kind;
  double a, b, c;
  const char* name;
};
const PriorCase kPriors[] = {{ribbit::kNormal, 0.7, 0, 0, "normal"},
                             {ribbit::kLaplace, 0.3, 0, 0, "laplace"},
                             {ribbit::kStudentT, 3.5, 0.8, 0, "studentt"},
                             {ribbit::kLogistic, 0.4, 0, 0, "logistic"},
                             {ribbit::kScaleMixture, 0.25, 1.0, 0.05, "scalemixture"}};

Real prior_ref(const PriorCase& p, Real x, bool score) {
  const Real a = p.a, b = p.b, c = p.c;
  switch (p.kind) {
    case ribbit::kNormal:
      return score ? -x / (a * a) : -x * x / (2 * a * a) - std::log(a * std::sqrt(2 * kPi));
    case ribbit::kLaplace:
      return score ? (x == 0 ? 0 : (x > 0 ? -1 : 1) / a) : -std::fabs(x) / a - std::log(2 * a);
    case ribbit::kStudentT:
      return score ? -(a + 1) * x / (a * b * b + x * x)
                   : std::lgamma((a + 1) / 2) - std::lgamma(a / 2) - std::log(a * kPi) / 2 -
                         std::log(b) - (a + 1) / 2 * std::log1p(x * x / (a * b * b));
    case ribbit::kLogistic:
      return score ? -std::tanh(x / (2 * a)) / a
                   : -std::fabs(x) / a - 2 * std::log1p(std::exp(-std::fabs(x) / a)) - std::log(a);
    default: {
      const Real p1 = 1 / (b * b), p2 = 1 / (c * c);
      const Real l1 = std::log(a / b) - x * x * p1 / 2, l2 = std::log((1 - a) / c) - x * x * p2 / 2;
      const Real m = std::fmax(l1, l2);
      const Real e1 = std::exp(l1 - m), e2 = std::exp(l2 - m);
      return score ? -x * (e1 * p1 + e2 * p2) / (e1 + e2)
                   : m + std::log(e1 + e2) - std::log(2 * kPi) / 2;
    }
  }
}

template <class T>
void check_priors(const char* where, const KernelTable<T>& table, bool fused) {
  const auto theta = grid<T>(-6, 6, false);
  const std::int64_t n = static_cast<std::int64_t>(theta.size());
  for (const PriorCase& p : kPriors) {
    char name[60];
    std::snprintf(name, sizeof name, "%s score", p.name);
    check<T>(
        where, name, theta,
        [&](const T* x, std::int64_t m, T* y) {
          for (std::int64_t i = 0; i < m; ++i) y[i] = T(0);
          table.prior_segment(p.kind, p.a, p.b, p.c, x, m, 1.0, nullptr, y);
        },
        [&](Real x) { return prior_ref(p, x, true); },
        p.kind == ribbit::kScaleMixture ? 20.0
        : fused                         ? 5.0
                                        : 8.0,
        sizeof(T) == 4 ? 1e-36 : 1e-300);
    // one by one: the log density is computed in double whatever T is
    double worst = 0.0;
    Real total = 0;
    for (std::size_t i = 0; i < theta.size(); ++i) {
      double logp = 0.0;
      table.prior_segment(p.kind, p.a, p.b, p.c, &theta[i], 1, 1.0, &logp, nullptr);
      const Real want = prior_ref(p, static_cast<Real>(theta[i]), false);
      total += want;
      worst = std::fmax(worst, static_cast<double>(std::fabs(logp - want) / (1 + std::fabs(want))));
    }
    // the sum, the gradient weight, and unaligned tails
    double logp = 10.0;
    std::vector<T> grad(theta.size() + 1, T(1)), unit(theta.size() + 1, T(0));
    table.prior_segment(p.kind, p.a, p.b, p.c, theta.data(), n, 0.5, &logp, grad.data());
    table.prior_segment(p.kind, p.a, p.b, p.c, theta.data() + 1, n - 1, 1.0, nullptr,
                        unit.data() + 1);
    double worst_grad = 0.0;
    for (std::size_t i = 1; i < theta.size(); ++i)
      worst_grad = std::fmax(worst_grad, std::fabs(static_cast<double>(grad[i]) - 1.0 -
                                                   0.5 * static_cast<double>(unit[i])) /
                                             (1.0 + std::fabs(static_cast<double>(unit[i]))));
    const double worst_sum = static_cast<double>(std::fabs(logp - 10.0 - total) / std::fabs(total));
    std::printf("%-9s %s %-28s max %.2e relative, sum %.2e\n", where, type_name<T>(), p.name, worst,
                worst_sum);
    if (!(worst < 2e-15) || !(worst_sum < 2e-13)) fail(p.name, "log density");
    if (!(worst_grad < 2.0 * static_cast<double>(std::numeric_limits<T>::epsilon())))
      fail(p.name, "accumulated gradient");
    for (const std::int64_t m : {1, 5, 16, 37}) {
      std::vector<T> bad(static_cast<std::size_t>(m), T(0.1));
      bad.back() = std::numeric_limits<T>::quiet_NaN();
      std::vector<T> g(bad.size(), T(0));
      logp = 0.0;
      table.prior_segment(p.kind, p.a, p.b, p.c, bad.data(), m, 1.0, &logp, g.data());
      if (!std::isnan(logp) || !std::isnan(g.back())) fail(p.name, "a NaN did not come through");
    }
  }
}

// ---- likelihoods --------------------------------------------------------------------------------
// Row log likelihood (without what depends on y alone) and its gradient, all in long double.
Real likelihood_ref(int kind, const Real* f, const Real* y, int outputs, Real parameter,
                    Real* gradient, Real* noise) {
  const Real half_log_two_pi = std::log(2 * kPi) / 2;
  Real ll = 0;
  *noise = 0;
  if (kind <= ribbit::kGaussianLearned) {
    const Real scale = kind == ribbit::kGaussian ? parameter : std::exp(parameter);
    for (int k = 0; k < outputs; ++k) {
      const Real r = (y[k] - f[k]) / scale;
      ll += -r * r / 2 - std::log(scale) - half_log_two_pi;
      gradient[k] = r / scale;
      *noise += r * r - 1;
    }
  } else if (kind == ribbit::kHeteroscedastic) {
    for (int k = 0; k < outputs / 2; ++k) {
      const Real raw = f[outputs / 2 + k], sd = softplus_ref(raw), r = (y[k] - f[k]) / sd;
      ll += -r * r / 2 - std::log(sd) - half_log_two_pi;
      gradient[k] = r / sd;
      gradient[outputs / 2 + k] = (r * r - 1) * sigmoid_ref(raw) / sd;
    }
  } else if (kind == ribbit::kCategorical) {
    Real m = f[0], sum = 0;
    for (int k = 1; k < outputs; ++k) m = std::fmax(m, f[k]);
    for (int k = 0; k < outputs; ++k) sum += std::exp(f[k] - m);
    for (int k = 0; k < outputs; ++k)
      gradient[k] = (static_cast<Real>(k) == y[0] ? 1 : 0) - std::exp(f[k] - m) / sum;
    ll = f[static_cast<int>(y[0])] - m - std::log(sum);
  } else {
    for (int k = 0; k < outputs; ++k) {
      const bool bernoulli = kind == ribbit::kBernoulli;
      ll += y[k] * f[k] - (bernoulli ? softplus_ref(f[k]) : std::exp(f[k]));
      gradient[k] = y[k] - (bernoulli ? sigmoid_ref(f[k]) : std::exp(f[k]));
    }
  }
  return ll;
}

template <class T>
void check_likelihoods(const char* where, const KernelTable<T>& table) {
  constexpr int kMost = 12;
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  const char* const names[] = {"gaussian",    "gaussian learned", "heteroscedastic",
                               "categorical", "bernoulli",        "poisson"};
  ribbit::Word64 state = 88172645463325252ull;
  const auto uniform = [&state] {  // xorshift; the values only have to be varied
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<double>(state >> 11) * 0x1p-53;
  };
  for (int kind = 0; kind <= ribbit::kPoisson; ++kind) {
    double worst_ll = 0.0, worst_delta = 0.0, worst_noise = 0.0;
    for (int trial = 0; trial < 3000; ++trial) {
      const int rows = 1 + trial % 32;
      int outputs = 1 + trial % kMost;
      if (kind == ribbit::kHeteroscedastic) outputs += outputs % 2;
      const double spread = trial % 7 == 0 ? 30.0 : 3.0;
      alignas(64) T f[kMost * 32], y[kMost * 32], delta[kMost * 32];
      for (int i = 0; i < kMost * 32; ++i) {
        const bool used = i % 32 < rows;
        // unused lanes hold anything
        f[i] = used ? static_cast<T>(spread * (2.0 * uniform() - 1.0))
                    : std::numeric_limits<T>::quiet_NaN();
        delta[i] = std::numeric_limits<T>::quiet_NaN();
        double target = 4.0 * uniform() - 2.0;
        if (kind == ribbit::kCategorical) target = std::floor(uniform() * outputs);
        if (kind == ribbit::kBernoulli) target = uniform() < 0.5 ? 0.0 : 1.0;
        if (kind == ribbit::kPoisson) target = std::floor(20.0 * uniform());
        y[i] = used ? static_cast<T>(target) : std::numeric_limits<T>::quiet_NaN();
      }
      if (kind == ribbit::kHeteroscedastic && trial % 7 == 0)  // keep the residual over sd finite
        for (int i = 0; i < outputs / 2 * 32; ++i) f[i] = y[i] + f[i] * T(1e-9);
      const T parameter = kind == ribbit::kGaussian ? T(0.3) : T(-1.2);
      const double weight = 1.75;
      double ll = 5.0, noise = 2.0;
      table.likelihood_panel(kind, f, y, outputs, rows, parameter, weight, delta, &ll, &noise);
      Real want_ll = 0, want_noise = 0, magnitude = 0;
      for (int r = 0; r < rows; ++r) {
        Real row_f[kMost + 1], row_y[kMost + 1], gradient[kMost + 1], row_noise;
        for (int k = 0; k < outputs; ++k) {
          row_f[k] = static_cast<Real>(f[k * 32 + r]);
          row_y[k] = static_cast<Real>(y[k * 32 + r]);
        }
        const Real row = likelihood_ref(kind, row_f, row_y, outputs, static_cast<Real>(parameter),
                                        gradient, &row_noise);
        want_ll += row;
        want_noise += row_noise;
        magnitude += std::fabs(row) + outputs;
        for (int k = 0; k < outputs; ++k) {
          const Real scale = std::fabs(gradient[k]) + (kind >= ribbit::kCategorical ? 1 : 0) +
                             (kind == ribbit::kPoisson ? row_y[k] : 0) +
                             (kind == ribbit::kHeteroscedastic ? 1 : 0);
          const Real e = std::fabs(static_cast<Real>(delta[k * 32 + r]) / weight - gradient[k]);
          worst_delta = std::fmax(worst_delta, static_cast<double>(e / scale) / eps);
          if (std::isnan(delta[k * 32 + r])) worst_delta = INFINITY;
        }
      }
      for (int k = 0; k < outputs; ++k)
        for (int r = rows; r < 32; ++r)
          if (delta[k * 32 + r] != T(0)) fail(names[kind], "an unused lane is not zero");
      const double e = static_cast<double>(std::fabs(ll - 5.0 - want_ll) / magnitude) / eps;
      worst_ll = std::fmax(worst_ll, e);
      if (std::isnan(ll)) worst_ll = INFINITY;
      if (kind == ribbit::kGaussianLearned)
        worst_noise =
            std::fmax(worst_noise,
                      static_cast<double>(std::fabs(noise - 2.0 - want_noise) / magnitude) / eps);
      else if (noise != 2.0)
        fail(names[kind], "touched the noise gradient");
      // a NaN in a row in use reaches ll and delta; null ll gives the same delta
      if (trial % 50 == 0) {
        alignas(64) T again[kMost * 32];
        table.likelihood_panel(kind, f, y, outputs, rows, parameter, weight, again, nullptr,
                               nullptr);
        for (int i = 0; i < outputs * 32; ++i)
          if (again[i] != delta[i]) fail(names[kind], "delta depends on ll being asked for");
        for (int k = 0; k < outputs; ++k) {
          const T kept = f[k * 32 + rows - 1];
          f[k * 32 + rows - 1] = std::numeric_limits<T>::quiet_NaN();
          ll = 0.0;
          table.likelihood_panel(kind, f, y, outputs, rows, parameter, weight, again, &ll, &noise);
          if (!std::isnan(ll) || !std::isnan(again[k * 32 + rows - 1]))
            fail(names[kind], "a NaN did not come through");
          f[k * 32 + rows - 1] = kept;
          noise = 2.0;
        }
      }
    }
    std::printf("%-9s %s %-28s ll %.2f delta %.2f noise %.2f (in epsilon, relative)\n", where,
                type_name<T>(), names[kind], worst_ll, worst_delta, worst_noise);
    if (!(worst_ll < 6.0) || !(worst_delta < 10.0) || !(worst_noise < 6.0))
      fail(names[kind], "accuracy");
  }
}

// ---- sums ---------------------------------------------------------------------------------------
template <class T>
void check_dot(const char* where, const KernelTable<T>& table, const KernelTable<T>& other) {
  const auto p = grid<T>(-3, 3, false);
  std::vector<T> m(p.size());
  for (std::size_t i = 0; i < m.size(); ++i)
    m[i] = static_cast<T>(1.0 + 0.01 * static_cast<double>(i % 77));
  for (const std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(15), std::size_t(16),
                              std::size_t(1000), p.size()}) {
    Real plain = 0, weighted = 0;
    for (std::size_t i = 0; i < n; ++i) {
      plain += static_cast<Real>(p[i]) * p[i];
      weighted += static_cast<Real>(p[i]) * p[i] * m[i];
    }
    const std::int64_t count = static_cast<std::int64_t>(n);
    const double a = table.dot_weighted(p.data(), nullptr, count);
    const double b = table.dot_weighted(p.data(), m.data(), count);
    if (!(std::fabs(a - plain) <= 1e-13L * plain) ||
        !(std::fabs(b - weighted) <= 1e-13L * weighted))
      fail(where, "dot_weighted");
    if (a != other.dot_weighted(p.data(), nullptr, count) ||
        b != other.dot_weighted(p.data(), m.data(), count))
      fail(where, "dot_weighted differs between instruction sets");
  }
}

// ---- random numbers -----------------------------------------------------------------------------
void check_known_answers() {
  // Random123 1.14, kat_vectors: philox4x32 10
  struct Known {
    std::uint32_t counter[4], key[2], answer[4];
  };
  const Known known[] = {{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                         {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                          {0xffffffff, 0xffffffff},
                          {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                         {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                          {0xa4093822, 0x299f31d0},
                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Known& k : known) {
    const std::uint64_t key = (static_cast<std::uint64_t>(k.key[1]) << 32) | k.key[0];
    ribbit::Word64 c[1][4] = {{k.counter[0], k.counter[1], k.counter[2], k.counter[3]}};
    ribbit::philox4x32<1>(c, key);
    for (int i = 0; i < 4; ++i)
      if (static_cast<std::uint32_t>(c[0][i]) != k.answer[i]) fail("philox4x32-10", "known answer");
    for (const std::string& name : ribbit::cpu::available_instruction_sets()) {
      std::uint32_t words[4];
      ribbit::cpu::instruction_set_named(name).fill_words(
          words, 4, std::uint64_t{4} * k.counter[0], key, k.counter[1], k.counter[2], k.counter[3]);
      if (std::memcmp(words, k.answer, sizeof words) != 0) fail(name.c_str(), "known answer");
    }
  }
  if (ribbit::counter_purpose(9, 3, 0x1234567890ull) != 0x09000312u ||
      ribbit::counter_step(0x1234567890ull) != 0x34567890u || ribbit::counter_block(11) != 2)
    fail("philox4x32-10", "address");
}

// One pair of words: scalar normals against the formula in long double.
template <class T>
void check_pair(std::uint32_t w0, std::uint32_t w1, double* worst) {
  T z0, z1;
  ribbit::box_muller<T>(w0, w1, z0, z1);
  // -2 ln u1 without cancellation near 1
  const Real below_one = (static_cast<Real>(0xffffffffu - w0) + 0.5L) * 0x1p-32L;
  const Real u1 = (static_cast<Real>(w0) + 0.5L) * 0x1p-32L;
  const Real radius = std::sqrt(-2 * (w0 > 0x80000000u ? std::log1p(-below_one) : std::log(u1)));
  const Real angle = 2 * kPi * ((static_cast<Real>(w1) + 0.5L) * 0x1p-32L);
  const Real e0 = std::fabs(z0 - radius * std::cos(angle));
  const Real e1 = std::fabs(z1 - radius * std::sin(angle));
  const double e = static_cast<double>(std::fmax(e0, e1) / radius);
  if (!(e <= *worst)) *worst = e;
}

template <class T>
void check_normals() {
  std::vector<std::uint32_t> edges = {0,          1,          2,          0x1fffffff, 0x20000000,
                                      0x3fffffff, 0x40000000, 0x5a827999, 0x5fffffff, 0x60000000,
                                      0x7ffffffe, 0x7fffffff, 0x80000000, 0x80000001, 0x9fffffff,
                                      0xa0000000, 0xb504f333, 0xbfffffff, 0xc0000000, 0xdfffffff,
                                      0xe0000000, 0xfffffffe, 0xffffffff};
  double worst = 0.0;
  for (const std::uint32_t w0 : edges)
    for (const std::uint32_t w1 : edges) check_pair<T>(w0, w1, &worst);
  std::vector<std::uint32_t> words(1 << 20);
  ribbit::cpu::instruction_set().fill_words(words.data(), 1 << 20, 0, 7, 1, 2, 3);
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    check_pair<T>(words[i], words[i + 1], &worst);
    // small and large u1: shift the word towards either end
    const unsigned shift = words[i + 1] & 31u;
    check_pair<T>(words[i] >> shift, words[i + 1], &worst);
    check_pair<T>(~(words[i] >> shift), words[i + 1], &worst);
  }
  const double bound = sizeof(T) == 4 ? 2.6e-7 : 5e-16;
  T largest, unused;
  ribbit::box_muller<T>(0, 0, largest, unused);
  std::printf("scalar    %s normals: error %.2e of the radius (bound %.1e), largest %.6f\n",
              type_name<T>(), worst, bound, static_cast<double>(largest));
  if (!(worst <= bound)) fail("normals", "accuracy");
  if (std::fabs(static_cast<double>(largest) - std::sqrt(66.0 * std::log(2.0))) > 1e-6)
    fail("normals", "largest value");
}

// Every instruction set against the scalar formula, bit by bit.
template <class T>
void check_stream(const char* where, const InstructionSet& set, const KernelTable<T>& table) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 31, 64, 127, 128, 129, 1000, 40000}) {
    const std::uint64_t first = n % 2 == 0 ? 0 : 4 * 0xfffffffeull - 400;  // c0 wraps in the second
    const std::uint64_t key = 0x0123456789abcdefull + static_cast<std::uint64_t>(n);
    const std::size_t size = static_cast<std::size_t>(n);
    std::vector<std::uint32_t> words(size + 4 + 1, 77);
    std::vector<T> z(size + 1, T(77)), mean(size), scale(size), out(size + 1, T(77));
    set.fill_words(words.data(), n + 4, first, key, 5, 6, 7);
    if (words.back() != 77) fail(where, "fill_words wrote past the end");
    table.fill_normal(z.data(), n, first, key, 5, 6, 7);
    for (std::size_t i = 0; i < size; ++i) {
      mean[i] = static_cast<T>(i) * T(0.01);
      scale[i] = T(1) / static_cast<T>(i + 1);
    }
    table.reparameterize(mean.data(), scale.data(), out.data(), n, first, key, 5, 6, 7);
    if (z.back() != T(77) || out.back() != T(77)) fail(where, "wrote past the end");
    for (std::size_t i = 0; i < size; ++i) {
      ribbit::Word64 c[1][4] = {{static_cast<std::uint32_t>((first + i) / 4), 5, 6, 7}};
      ribbit::philox4x32<1>(c, key);
      T pair[2];
      const std::size_t at = i % 4 / 2 * 2;
      const auto w0 = static_cast<std::uint32_t>(c[0][at]);
      const auto w1 = static_cast<std::uint32_t>(c[0][at + 1]);
      if (words[i] != static_cast<std::uint32_t>(c[0][i % 4])) fail(where, "word");
      ribbit::box_muller<T>(w0, w1, pair[0], pair[1]);
      const T want = pair[i % 2];
      const T moved = Ops<T>::fma(scale[i], want, mean[i]);
      if (std::memcmp(&z[i], &want, sizeof want) != 0) fail(where, "normal");
      if (std::memcmp(&out[i], &moved, sizeof moved) != 0) fail(where, "reparameterized normal");
      if (failures > 20) return;
    }
  }
}

template <class T>
void check_table(const char* where, const InstructionSet& set, const KernelTable<T>& table,
                 const KernelTable<T>& first) {
  const bool fused = std::strcmp(where, "baseline") != 0;
  check_activations<T>(where, table, fused);
  check_place<T>(table);
  check_priors<T>(where, table, fused);
  check_likelihoods<T>(where, table);
  check_dot<T>(where, table, first);
  check_stream<T>(where, set, table);
}

}  // namespace

int main() {
  check_known_answers();
  check_elementary<float, float>("scalar");
  check_elementary<double, double>("scalar");
  check_elementary<ribbit::cpu::VecF32, float>("vector");
  check_elementary<ribbit::cpu::VecF64, double>("vector");
  check_normals<float>();
  check_normals<double>();
  const auto names = ribbit::cpu::available_instruction_sets();
  const InstructionSet& first = ribbit::cpu::instruction_set_named(names.front());
  for (const std::string& name : names) {
    const InstructionSet& set = ribbit::cpu::instruction_set_named(name);
    check_table<float>(set.name, set, *set.f32, *first.f32);
    check_table<double>(set.name, set, *set.f64, *first.f64);
  }
  return report("check_math");
}
