// Standard normals from random words (Box and Muller 1958). Only add, multiply, fma, sqrt and
// integer operations, each rounded as IEEE 754 says: the same bits on every instruction set and
// GPU.
//
// u1 = (w0 + 1/2) / 2^32, u2 = (w1 + 1/2) / 2^32; z0 = sqrt(-2 ln u1) cos(2 pi u2), z1 = ..
// sin(..). The largest |z| is sqrt(66 ln 2) = 6.7637. Against the exact formula on the exact words,
// the error of a normal is below 2.6e-7 (float) or 5e-16 (double) of its radius, out to both ends
// of u1: -2 ln u1 is a sum of two terms of one sign.
#pragma once

#include "core/math_hd.h"

namespace ribbit {

// What is done beside a formula, a part at each call, so that the latencies of one hide in the
// other: nothing.
struct NothingBeside {
  static constexpr bool kNothing = true;
  RIBBIT_HD_METHOD void operator()() const {}
};

// horner_exact (math_hd.h) with a part of it after every other step.
template <class T, class Beside>
RIBBIT_HD T horner_beside(Beside&, T, double c0) {
  return Ops<T>::set(c0);
}
template <class T, class Beside, class... Rest>
RIBBIT_HD T horner_beside(Beside& beside, T x, double c0, Rest... rest) {
  const T p = horner_beside<T>(beside, x, rest...);
  const T sum = Ops<T>::fma(p, x, Ops<T>::set(c0));
  if constexpr (sizeof...(rest) % 2 == 0) beside();
  return sum;
}

// The low 32 bits of each lane as a signed number, rounded to T.
template <class T>
RIBBIT_HD T signed_word(typename Ops<T>::Bits w) {
  using O = Ops<T>;
  if constexpr (sizeof(typename O::Scalar) == 4) {
    return O::to_float(O::to_int(w));
  } else {
    // 2^52 + (w with the sign bit flipped) is a double with w in its low mantissa bits.
    const auto low = (w & O::set_bits(0xffffffffull)) ^ O::set_bits(0x4330000080000000ull);
    return O::from_bits(low) - O::set(4503601774854144.0);  // 2^52 + 2^31
  }
}

// The square root of a number in [2^-33, 46], or of lanes of them. On a device the compiler's own
// comes with a second way, for numbers whose reciprocal root is not a normal one; these have none.
template <class T>
RIBBIT_HD T root_of_radius(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    const float root = __fmul_rn(x, r), half = __fmul_rn(0.5f, r);
    return __fmaf_rn(__fmaf_rn(-root, root, x), half, root);
  }
#endif
  return Ops<T>::sqrt(x);
}

// sqrt(-2 ln u1). s = signed(w0): u1 = a for s >= 0 and 1 + a for s < 0, where a = (s + 1/2) /
// 2^32, so that neither end of (0, 1) loses bits. a = 2^e m, m in [1/2, 1), f = m - 1 (or f = a, e
// = 0); -2 ln u1 = f Q(f) - 2 e ln 2, Q(f) = -2 log1p(f) / f on [-1/2, 0], minimax relative
// error 3.7e-9 (float), 1.1e-18 (double).
template <class T, class Beside>
RIBBIT_HD T box_muller_radius(typename Ops<T>::Bits w0, Beside& beside) {
  using O = Ops<T>;
  const T a = O::fma(signed_word<T>(w0), O::set(0x1p-32), O::set(0x1p-33));
  beside();
  const auto upper = a < O::set(0.0);
  T m;
  if constexpr (sizeof(typename O::Scalar) == 4) {
    m = O::from_bits((O::bits(a) & O::set_bits(0x007fffffu)) | O::set_bits(0x3f000000u));
  } else {
    m = O::from_bits((O::bits(a) & O::set_bits(0x000fffffffffffffull)) |
                     O::set_bits(0x3fe0000000000000ull));
  }
  const T f = O::select(upper, a, m - O::set(1.0));
  const T step = O::set(-1.3862943611198906);  // -2 ln 2; e = exponent + 1
  const T tail = O::select(upper, O::set(0.0), O::fma(O::exponent(a), step, step));
  beside();
  T q;
  if constexpr (sizeof(typename O::Scalar) == 4) {
    q = horner_beside<T>(beside, f, -2.0, 1.0000017881393433, -0.6665242910385132,
                         0.5037771463394165, -0.3513795733451843, 0.6820980310440063,
                         1.1907473802566528, 3.953453540802002, 4.964673042297363,
                         3.4919002056121826);
  } else {
    q = horner_beside<T>(beside, f, -2.0, 1.0000000000000027, -0.6666666666656236,
                         0.5000000001418994, -0.39999999013508547, 0.3333337467205335,
                         -0.2857028159068697, 0.25022372922647435, -0.21902668402708486,
                         0.2343893609975765, 0.10270268511362654, 2.001638409852147,
                         9.152128638875366, 37.41002332559913, 117.67939566413934,
                         292.6019429082457, 563.6807060803703, 827.562530447455, 894.6328775269691,
                         673.7325702564189, 316.5731936121436, 70.67144295668827);
  }
  const T root = root_of_radius<T>(O::fma(f, q, tail));
  beside();
  return root;
}

// Whether bit 30 is set, of each lane. On a device one instruction, where the compiler's own way
// takes a shift, a mask and a comparison.
template <class T>
RIBBIT_HD auto bit_30(typename Ops<T>::Bits w) {
#if defined(__CUDA_ARCH__)
  Word bit;
  asm("and.b32 %0, %1, 0x40000000;" : "=r"(bit) : "r"(static_cast<Word>(w)));
  return bit != 0;
#else
  using O = Ops<T>;
  return (w & O::set_bits(1u << 30)) != O::set_bits(0);
#endif
}

// cos and sin of 2 pi (w1 + 1/2) / 2^32: the quadrant is taken off in integers, the rest is
// pi/2 y with y in [-1/2, 1/2].
template <class T, class Beside>
RIBBIT_HD void box_muller_angle(typename Ops<T>::Bits w1, T& cosine, T& sine, Beside& beside) {
  using O = Ops<T>;
  constexpr bool kFloat = sizeof(typename O::Scalar) == 4;
  beside();
  const T y = O::fma(signed_word<T>(w1 << 2), O::set(0x1p-32), O::set(0x1p-31));
  beside();
  T c, s;
  sincos_quarter<T, true>(y, c, s);
  beside();
  const auto quadrant = w1 + O::set_bits(1u << 29);  // bits 30, 31
  const auto odd = bit_30<T>(quadrant);
  const auto sign = O::set_bits(kFloat ? 0x80000000ull : 0x8000000000000000ull);
  const auto cosine_bits = O::bits(O::select(odd, s, c));
  const auto sine_bits = O::bits(O::select(odd, c, s));
  constexpr int kToSign = kFloat ? 0 : 32;
  cosine = O::from_bits(cosine_bits ^ (((quadrant + O::set_bits(1u << 30)) << kToSign) & sign));
  sine = O::from_bits(sine_bits ^ ((quadrant << kToSign) & sign));
}

template <class T, class Beside = const NothingBeside>
RIBBIT_HD void box_muller(typename Ops<T>::Bits w0, typename Ops<T>::Bits w1, T& z0, T& z1,
                          Beside& beside = Beside{}) {
  // The order changes no bits: with work beside the angle first is faster, alone the radius.
  T c, s;
  if constexpr (!Beside::kNothing) box_muller_angle<T>(w1, c, s, beside);
  const T radius = box_muller_radius<T>(w0, beside);
  if constexpr (Beside::kNothing) box_muller_angle<T>(w1, c, s, beside);
  z0 = radius * c;
  z1 = radius * s;
}

}  // namespace ribbit
