// Checks the elementary functions and activations against long double references, on scalars, on
// the vectors this file is compiled for, and through the kernel table of every instruction set this
// CPU has. Prints the largest errors; exit code 1 over a bound.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "core/activation_hd.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/vec-inl.h"
#include "tests/accuracy.h"

namespace {

using ribbit::Ops;
using ribbit::cpu::KernelTable;

// ---- references ---------------------------------------------------------------------------------
Real normal_cdf_ref(Real x) {
  return std::erfc(-x / std::sqrt(Real(2))) / 2;
}
Real density_ref(Real x) {
  return std::exp(-x * x / 2) / std::sqrt(2 * kPi);
}

Real value_ref(int code, Real z) {
  switch (static_cast<ribbit::ActivationCode>(code)) {
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
    case ribbit::kSoftplus:
      return softplus_ref(z);
    case ribbit::kLeakyRelu:
      return z > 0 ? z : z * Real(0.01L);
    case ribbit::kElu:
      return z > 0 ? z : std::expm1(z);
    case ribbit::kActivationCount:
      break;
  }
  return std::nan("");
}
Real derivative_ref(int code, Real z) {
  const Real s = sigmoid_ref(z);
  switch (static_cast<ribbit::ActivationCode>(code)) {
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
    case ribbit::kSoftplus:
      return s;
    case ribbit::kLeakyRelu:
      return z > 0 ? 1 : Real(0.01L);
    case ribbit::kElu:
      return z > 0 ? 1 : std::exp(z);
    case ribbit::kActivationCount:
      break;
  }
  return std::nan("");
}

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
  for (int code = 0; code < ribbit::kActivationCount; ++code) {
    // silu and sigmoid in float keep one part of ln 2: 3e-9 |z| more in the left tail
    const bool tail = code == ribbit::kSilu || code == ribbit::kSigmoid;
    const double low = tail ? -10 : code == ribbit::kGelu ? -12 : -30;
    const auto z = grid<T>(low, 30, true);
    const double bounds[] = {0, 0, 3.0, 4.5, 4.5, 10.0, 3.5, 1.5, 4.0};
    char name[60];
    check<T>(
        where, ribbit::kActivationNames[code], z,
        [&](const T* x, std::int64_t n, T* y) { table.activation_forward(code, x, n, y); },
        [code](Real x) { return value_ref(code, x); }, bounds[code] * slack, tiny);
    std::vector<T> value(z.size());
    std::snprintf(name, sizeof name, "%s'", ribbit::kActivationNames[code]);
    const double derivative_ulp[] = {0, 0, 4.0, 3.0, 3.0, 4.2, 4.2, 1.0, 3.5};
    const double derivative_absolute[] = {0, 0, tiny, 0.75 * eps, 0.8 * eps, eps, tiny, 0, tiny};
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
      std::snprintf(name, sizeof name, "%s, left tail", ribbit::kActivationNames[code]);
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
      if (b.back() != T(7) || d.back() != T(7))
        fail(ribbit::kActivationNames[code], "wrote past the end");
      table.activation_forward(code, a.data(), n, a.data());
      for (std::size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i] || v[i] != b[i])
          fail(ribbit::kActivationNames[code], "in place or with derivative differs");
    }
  }
}

// An activation's bits depend on nothing but the number: not on its place, not on its neighbours.
template <class T>
void check_place(const KernelTable<T>& table) {
  const auto x = grid<T>(-20, 20, false);
  for (int code = 0; code < ribbit::kActivationCount; ++code) {
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
    if (!same) fail(ribbit::kActivationNames[code], "the result depends on the neighbours");
  }
}

}  // namespace

int main() {
  check_elementary<float, float>("scalar");
  check_elementary<double, double>("scalar");
  check_elementary<ribbit::cpu::VecF32, float>("vector");
  check_elementary<ribbit::cpu::VecF64, double>("vector");
  for_each_table([](const auto& set, const auto& table, const auto&) {
    check_activations(set.name, table, std::strcmp(set.name, "baseline") != 0);
    check_place(table);
  });
  return report("check_math");
}
