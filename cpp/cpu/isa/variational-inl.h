// Mean-field steps: the noise part of a gradient, and Adam on (mean, rho) with the closed parts of
// the Kullback-Leibler divergence.
#pragma once

#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/update-inl.h"

namespace ribbit::cpu {
namespace {

// mean += g; scale += g z, z by address. kFirst: assigned instead.
template <class T, bool kFirst>
struct NoiseGradientSink {
  const T* g;
  T* mean;
  T* scale;
  template <bool kWhole>
  RIBBIT_INLINE_MEMBER void add(std::int64_t i, Vec<T> z, std::int64_t n) const {
    using L = Lanes<T, kWhole>;
    const Vec<T> gradient = L::get(g + i, n);
    L::put(mean + i, kFirst ? gradient : L::get(mean + i, n) + gradient, n);
    L::put(scale + i, kFirst ? gradient * z : fma(gradient, z, L::get(scale + i, n)), n);
  }
  RIBBIT_INLINE_MEMBER void vector(std::int64_t i, Vec<T> z) const { add<true>(i, z, kLanes<T>); }
  RIBBIT_INLINE_MEMBER void part(std::int64_t i, Vec<T> z, std::int64_t n) const {
    add<false>(i, z, n);
  }
};

template <class T>
static void noise_gradient(const T* g, std::int64_t n, std::uint64_t first_element,
                           std::uint64_t key, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                           bool first, T* mean, T* scale) {
  const StreamAddress address{first_element >> 2, key, c1, c2, c3};
  if (first)
    for_buffered_normals<T>(n, address, NoiseGradientSink<T, true>{g, mean, scale});
  else
    for_buffered_normals<T>(n, address, NoiseGradientSink<T, false>{g, mean, scale});
}

// One direction of Adam; returns the moved parameters.
template <class T, bool kWhole>
RIBBIT_INLINE Vec<T> adam(const UpdateConstants<Vec<T>>& c, Vec<T> gradient, T* theta, T* first,
                          T* second, std::int64_t n) {
  using L = Lanes<T, kWhole>;
  Vec<T> t = L::get(theta, n), m = L::get(first, n), v = L::get(second, n);
  AdamUpdate::apply<Vec<T>>(c, gradient, Vec<T>{}, t, m, v);
  L::put(first, m, n);
  L::put(second, v, n);
  L::put(theta, t, n);
  return t;
}

template <class T, bool kWhole, bool kCentred>
RIBBIT_INLINE Vec<T> variational_vector(const VariationalStep<T>& s,
                                        const UpdateConstants<Vec<T>>& c,
                                        const VariationalArrays<T>& a, std::int64_t i,
                                        std::int64_t n) {
  using L = Lanes<T, kWhole>;
  const Vec<T> mean = L::get(a.mean + i, n);
  const Vec<T> away = kCentred ? mean - L::get(a.centre + i, n) : mean;
  Vec<T> mean_gradient, rho_gradient;
  mean_field_ascent<Vec<T>>(away, L::get(a.rho + i, n), L::get(a.mean_gradient + i, n),
                            L::get(a.scale_gradient + i, n), broadcast(s.samples),
                            broadcast(s.entropy), broadcast(s.shrink), mean_gradient, rho_gradient);
  const Vec<T> t =
      adam<T, kWhole>(c, mean_gradient, a.mean + i, a.mean_first + i, a.mean_second + i, n);
  const Vec<T> r =
      adam<T, kWhole>(c, rho_gradient, a.rho + i, a.rho_first + i, a.rho_second + i, n);
  return (t - t) + (r - r);
}

template <class T, bool kCentred>
static bool variational_loop(const VariationalStep<T>& s, const VariationalArrays<T>& a,
                             std::int64_t n) {
  constexpr int kL = kLanes<T>;
  const UpdateConstants<Vec<T>> c = in_lanes<T>(s);
  Vec<T> bad{};
  std::int64_t i = 0;
  for (; i + kL <= n; i += kL) bad += variational_vector<T, true, kCentred>(s, c, a, i, kL);
  if (i < n) {
    const Vec<T> last = variational_vector<T, false, kCentred>(s, c, a, i, n - i);
    for (int lane = 0; lane < n - i; ++lane) bad[lane] += last[lane];
  }
  T sum = 0;
  for (int lane = 0; lane < kL; ++lane) sum += bad[lane];
  return sum == T(0);
}

// Moves mean and rho; false when one is not finite any more.
template <class T>
static bool variational_update(const VariationalStep<T>& s, const VariationalArrays<T>& a,
                               std::int64_t n) {
  return a.centre != nullptr ? variational_loop<T, true>(s, a, n)
                             : variational_loop<T, false>(s, a, n);
}

// Sum of logarithms, in double. The product of four floats neither overflows there nor loses more
// than 2 ulp, so that they share a logarithm.
template <class T>
static double sum_log(const T* x, std::int64_t n) {
  Partials partials;
  partials.clear();
  std::int64_t i = 0;
  constexpr int kFactors = sizeof(T) == 4 ? 4 : 1;
  for (; kFactors > 1 && i + kFactors * kPartials <= n; i += kFactors * kPartials) {
    VecF64 value[kPartialVecs], factor[kPartialVecs];
    load_partials(x + i, value);
    for (int f = 1; f < kFactors; ++f) {
      load_partials(x + i + f * kPartials, factor);
      for (int j = 0; j < kPartialVecs; ++j) value[j] *= factor[j];
    }
    for (int j = 0; j < kPartialVecs; ++j) partials.sum[j] += log<VecF64>(value[j]);
  }
  for (; i + kPartials <= n; i += kPartials) {
    VecF64 value[kPartialVecs];
    load_partials(x + i, value);
    for (int j = 0; j < kPartialVecs; ++j) partials.sum[j] += log<VecF64>(value[j]);
  }
  double total = partials.total();
  for (; i < n; ++i) total += log<double>(static_cast<double>(x[i]));
  return total;
}

}  // namespace
}  // namespace ribbit::cpu
