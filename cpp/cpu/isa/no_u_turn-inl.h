// Whether two parts of a trajectory go on as one: the sums of core/no_u_turn_hd.h.
#pragma once

#include "core/no_u_turn_hd.h"
#include "cpu/isa/elementwise-inl.h"

namespace ribbit::cpu {
namespace {

template <class T>
RIBBIT_INLINE void load_some(const T* p, std::int64_t i, std::int64_t n,
                             VecF64 (&out)[kPartialVecs]) {
  if (i + kPartials <= n)
    load_partials(p + i, out);
  else
    load_partials_first(p + i, n - i, out);
}

RIBBIT_INLINE void load_ones(VecF64 (&out)[kPartialVecs]) {
  for (int j = 0; j < kPartialVecs; ++j) out[j] = broadcast(1.0);
}

// Adds to sums (kTurnSums,), and b's rho to a's.
template <class T>
static void turn_products(const TurnPart<T>& a, const TurnPart<T>& b, const T* inverse_mass,
                          std::int64_t n, double* sums) {
  VecF64 partial[kPartialVecs][kTurnSums] = {};
  for (std::int64_t i = 0; i < n; i += kPartials) {
    VecF64 rho_a[kPartialVecs], rho_b[kPartialVecs], a_first[kPartialVecs], a_last[kPartialVecs],
        b_first[kPartialVecs], b_last[kPartialVecs], m[kPartialVecs];
    load_some(a.rho, i, n, rho_a);
    load_some(b.rho, i, n, rho_b);
    load_some(a.first, i, n, a_first);
    load_some(a.last, i, n, a_last);
    load_some(b.first, i, n, b_first);
    load_some(b.last, i, n, b_last);
    if (inverse_mass != nullptr)
      load_some(inverse_mass, i, n, m);
    else
      load_ones(m);
    for (int j = 0; j < kPartialVecs; ++j) {
      add_turn_products(rho_a[j], rho_b[j], a_first[j], a_last[j], b_first[j], b_last[j], m[j],
                        partial[j]);
    }
  }
  for (int s = 0; s < kTurnSums; ++s) {
    Partials one;
    for (int j = 0; j < kPartialVecs; ++j) one.sum[j] = partial[j][s];
    sums[s] += one.total();
  }
  for (std::int64_t i = 0; i < n; ++i) a.rho[i] += b.rho[i];
}

// Of two single states; adds to sums (kLeafTurnSums,), rho = a + b.
template <class T>
static void leaf_turn_products(const T* a, const T* b, const T* inverse_mass, std::int64_t n,
                               T* rho, double* sums) {
  VecF64 partial[kPartialVecs][kLeafTurnSums] = {};
  for (std::int64_t i = 0; i < n; i += kPartials) {
    VecF64 first[kPartialVecs], last[kPartialVecs], m[kPartialVecs];
    load_some(a, i, n, first);
    load_some(b, i, n, last);
    if (inverse_mass != nullptr)
      load_some(inverse_mass, i, n, m);
    else
      load_ones(m);
    for (int j = 0; j < kPartialVecs; ++j) {
      add_leaf_turn_products(first[j], last[j], m[j], partial[j]);
    }
  }
  for (int s = 0; s < kLeafTurnSums; ++s) {
    Partials one;
    for (int j = 0; j < kPartialVecs; ++j) one.sum[j] = partial[j][s];
    sums[s] += one.total();
  }
  for (std::int64_t i = 0; i < n; ++i) rho[i] = a[i] + b[i];
}

}  // namespace
}  // namespace ribbit::cpu
