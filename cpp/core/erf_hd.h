// The error function and the tail of the normal law.
#pragma once

#include "core/math_hd.h"

namespace ribbit {

// Upper tail of the normal law: Phi(-a) = density * ratio(a), density = exp(-a^2 / 2), for a >= 0
// (a clipped at 13 or 37: no subnormals). ratio is smooth in u = (k - a) / (k + a); minimax
// relative error 1.1e-8 (float, k = 3), 3.6e-18 (double, k = 5). The rounding error of a^2 goes
// into the exponent, so Phi(-a) stays within 10 ulp out to the clip.
template <class T>
RIBBIT_HD void normal_tail(T a, T& density, T& tail) {
  using O = Ops<T>;
  a = O::min(O::set(kIsFloat<T> ? 13.0 : 37.0), a);
  const T k = O::set(kIsFloat<T> ? 3.0 : 5.0);
  const T half = O::set(0.5) * a;
  const T exponent = half * a;
  T lost;
  if constexpr (O::kFused)
    lost = O::mul_sub(half, a, exponent);  // exponent - half a, exactly
  else
    lost = O::set(0.0) - O::fma(half, a, -exponent);
  T scale, factor;
  exp_parts<T, true, -1>(exponent, scale, factor);
  density = scale * O::mul_add(factor, lost, factor);
  const T u = O::mul_add(k + k, O::reciprocal(k + a), O::set(-1.0));  // (k - a) / (k + a)
  T p;
  if constexpr (kIsFloat<T>) {
    p = horner<T>(u, 0.12151394784450531, 0.20640261471271515, 0.12322505563497543,
                  0.04621323570609093, 0.0061318110674619675, -0.0029042137321084738,
                  -0.0009828222682699561, 0.00033854582579806447, 0.00011450450983829796,
                  -5.267635060590692e-05);
  } else {
    p = horner<T>(u, 0.07691930497500629, 0.14345755526401197, 0.11606881188600329,
                  0.08088387726412725, 0.04785535228416998, 0.02341390048769582,
                  0.008991370550591035, 0.0023788443566565435, 0.00021955073761313642,
                  -0.00013427684325819565, -6.042748276356471e-05, -9.613060938590818e-07,
                  6.6444212115430195e-06, 1.2700747902532662e-06, -6.750786905308784e-07,
                  -2.4334345707378324e-07, 7.710724438321258e-08, 3.916268835570358e-08,
                  -1.0994091390316274e-08, -5.684726531651679e-09, 1.8241756653852455e-09,
                  5.681005811417991e-10, -2.310049757096618e-10);
  }
  tail = density * p;
}

// erf(x): 2.5 ulp. A polynomial in x^2 up to |x| = 1, the normal tail beyond.
template <class T>
RIBBIT_HD T erf(T x) {
  using O = Ops<T>;
  const T a = O::abs(x);
  const T u = O::min(O::set(1.0), a * a);
  T p;
  if constexpr (kIsFloat<T>) {
    p = horner<T>(u, 1.1283791065216064, -0.3761262595653534, 0.1128358542919159,
                  -0.026853812858462334, 0.005188327748328447, -0.0008010193123482168,
                  7.853860006434843e-05);
  } else {
    p = horner<T>(u, 1.1283791670955126, -0.3761263890318375, 0.11283791670954857,
                  -0.026866170645072896, 0.005223977624780875, -0.0008548326978742595,
                  0.00012055331036911085, -1.4925593507102268e-05, 1.6460972819481492e-06,
                  -1.6350025239598178e-07, 1.4657879901296016e-08, -1.1365666000861305e-09,
                  5.945261529824205e-11);
  }
  T density, tail;
  normal_tail<T>(a * O::set(1.4142135623730951), density, tail);
  const T outer = with_sign<T>(O::mul_add(tail, O::set(-2.0), O::set(1.0)), x);
  return O::select(a < O::set(1.0), x * p, outer);
}

}  // namespace ribbit
