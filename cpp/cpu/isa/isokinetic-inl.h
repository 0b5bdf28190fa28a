// Isokinetic steps on ranges of parameters: plain products and sums, which the compiler vectorises
// and which round as scalars do.
#pragma once

#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <class T>
RIBBIT_INLINE void load_sixteen(const T* p, std::int64_t n, VecF64 (&out)[kPartialVecs]) {
  if (n >= kPartials)
    load_partials(p, out);
  else
    load_partials_first(p, n, out);
}

template <class T>
static void isokinetic_sums(const T* g, const T* s, const T* u, std::int64_t n, double* sums) {
  Partials gradient, both, direction;
  gradient.clear();
  both.clear();
  direction.clear();
  for (std::int64_t i = 0; i < n; i += kPartials) {
    VecF64 a[kPartialVecs], b[kPartialVecs];
    load_sixteen(g + i, n - i, a);
    load_sixteen(u + i, n - i, b);
    if (s != nullptr) {
      VecF64 scale[kPartialVecs];
      load_sixteen(s + i, n - i, scale);
      for (int j = 0; j < kPartialVecs; ++j) a[j] = a[j] * scale[j];
    }
    for (int j = 0; j < kPartialVecs; ++j) {
      gradient.sum[j] += a[j] * a[j];
      both.sum[j] += a[j] * b[j];
      direction.sum[j] += b[j] * b[j];
    }
  }
  sums[0] = gradient.total();
  sums[1] = both.total();
  sums[2] = direction.total();
}

template <class T>
static void isokinetic_move(const T* g, const T* s, const T* u, const T* q, std::int64_t n, T along,
                            T keep, T drift, T* turned, T* moved) {
  if (s == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) {
      const T direction = along * g[i] + keep * u[i];
      turned[i] = direction;
      moved[i] = q[i] + drift * direction;
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const T direction = along * (s[i] * g[i]) + keep * u[i];
      turned[i] = direction;
      moved[i] = q[i] + drift * (s[i] * direction);
    }
  }
}

template <class T>
static void isokinetic_drift(const T* s, const T* u, const T* q, std::int64_t n, T drift,
                             T* moved) {
  if (s == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) moved[i] = q[i] + drift * u[i];
  } else {
    for (std::int64_t i = 0; i < n; ++i) moved[i] = q[i] + drift * (s[i] * u[i]);
  }
}

template <class T>
static void mix_inputs(const T* weights, const T* in, std::int64_t inputs, std::int64_t stride,
                       std::int64_t n, T* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = weights[0] * in[i];
  for (std::int64_t j = 1; j < inputs; ++j) {
    const T weight = weights[j];
    const T* row = in + j * stride;
    for (std::int64_t i = 0; i < n; ++i) out[i] += weight * row[i];
  }
}

template <class T>
static void isokinetic_refresh(const T* g, const T* s, const T* u, const T* z, std::int64_t n,
                               T along, T keep, T level, T* turned) {
  if (s == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) turned[i] = (along * g[i] + keep * u[i]) + level * z[i];
  } else {
    for (std::int64_t i = 0; i < n; ++i)
      turned[i] = (along * (s[i] * g[i]) + keep * u[i]) + level * z[i];
  }
}

}  // namespace
}  // namespace ribbit::cpu
