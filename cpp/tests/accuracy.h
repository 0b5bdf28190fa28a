// What the accuracy tests share: errors against a long double reference, and grids of arguments.
//
// Errors are in ulp of T at the reference value, after an absolute allowance that the line states.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/system/dispatch.h"
#include "tests/check.h"

using Real = long double;

inline void fail(const char* what, const char* detail) {
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
  const int n = 200000 / kReduction;
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

constexpr Real kPi = 3.14159265358979323846264338327950288L;
inline Real sigmoid_ref(Real x) {
  return 1 / (1 + std::exp(-x));
}
inline Real softplus_ref(Real x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

// Calls f(set, its table, the table of the first set) for both dtypes of every set this CPU has.
template <class F>
void for_each_table(F f) {
  const auto names = ribbit::cpu::available_instruction_sets();
  const auto& first = ribbit::cpu::instruction_set_named(names.front());
  for (const std::string& name : names) {
    const auto& set = ribbit::cpu::instruction_set_named(name);
    f(set, *set.f32, *first.f32);
    f(set, *set.f64, *first.f64);
  }
}
