// Arithmetic of SIMD vectors, lane by lane.
#pragma once

#include "cpu/isa/vec_types-inl.h"

namespace ribbit::cpu {
namespace {

#if defined(__clang__) && RIBBIT_VEC_BYTES > 16
// Clang's own names, of vectors of any width; it finds the instructions in the selections.
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  return __builtin_elementwise_fma(a, b, c);
}
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return __builtin_elementwise_fma(a, b, c);
}
// c - a * b
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) {
  return fma(-a, b, c);
}
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) {
  return fma(-a, b, c);
}
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return __builtin_elementwise_sqrt(a);
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) {
  return __builtin_elementwise_sqrt(a);
}
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) {
  return a < b ? a : b;
}
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) {
  return a < b ? a : b;
}
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) {
  return a > b ? a : b;
}
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) {
  return a > b ? a : b;
}
#elif RIBBIT_VEC_BYTES == 64
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, static_cast<unsigned char>(-1), 4);
}
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) {
  return __builtin_ia32_vfnmaddps512_mask(a, b, c, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) {
  return __builtin_ia32_vfnmaddpd512_mask(a, b, c, static_cast<unsigned char>(-1), 4);
}
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return __builtin_ia32_sqrtps512_mask(a, VecF32{}, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) {
  return __builtin_ia32_sqrtpd512_mask(a, VecF64{}, static_cast<unsigned char>(-1), 4);
}
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) {
  return __builtin_ia32_minps512_mask(a, b, VecF32{}, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) {
  return __builtin_ia32_minpd512_mask(a, b, VecF64{}, static_cast<unsigned char>(-1), 4);
}
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) {
  return __builtin_ia32_maxps512_mask(a, b, VecF32{}, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) {
  return __builtin_ia32_maxpd512_mask(a, b, VecF64{}, static_cast<unsigned char>(-1), 4);
}
#elif RIBBIT_VEC_BYTES == 32
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  return __builtin_ia32_vfmaddps256(a, b, c);
}
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return __builtin_ia32_vfmaddpd256(a, b, c);
}
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) {
  return fma(-a, b, c);
}
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) {
  return fma(-a, b, c);
}
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return __builtin_ia32_sqrtps256(a);
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) {
  return __builtin_ia32_sqrtpd256(a);
}
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) {
  return __builtin_ia32_minps256(a, b);
}
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) {
  return __builtin_ia32_minpd256(a, b);
}
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) {
  return __builtin_ia32_maxps256(a, b);
}
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) {
  return __builtin_ia32_maxpd256(a, b);
}
#elif RIBBIT_NEON
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  return vfmaq_f32(c, a, b);
}
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return vfmaq_f64(c, a, b);
}
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) {
  return vfmsq_f32(c, a, b);
}
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) {
  return vfmsq_f64(c, a, b);
}
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return vsqrtq_f32(a);
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) {
  return vsqrtq_f64(a);
}
// The instructions fmin and fmax give NaN where an operand is NaN.
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) {
  return a < b ? a : b;
}
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) {
  return a < b ? a : b;
}
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) {
  return a > b ? a : b;
}
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) {
  return a > b ? a : b;
}
#else
#if RIBBIT_HAS_FMA
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  return VecF32{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
                __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#else
// Exact float fma without the instruction: the product is exact in double; the sum is rounded to
// odd there (53 >= 2 * 24 + 2 bits), so that the rounding to float is the only one that counts
// (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums").
RIBBIT_INLINE HalfF32 fma_half(HalfF32 a, HalfF32 b, HalfF32 c) {
  const VecF64 product = __builtin_convertvector(a, VecF64) * __builtin_convertvector(b, VecF64);
  const VecF64 addend = __builtin_convertvector(c, VecF64);
  const VecF64 sum = product + addend;
  const VecF64 shadow = sum - product;
  const VecF64 error = (product - (sum - shadow)) + (addend - shadow);
  const VecI64 bits = reinterpret_cast<VecI64>(sum);
  // A NaN or infinite sum has a NaN error: neither comparison holds and it passes unchanged.
  const VecI64 inexact = (error > 0.0) | (error < 0.0);
  const VecI64 even = (bits & 1) == 0;
  // -1 steps the magnitude down: where the error points towards zero.
  const VecI64 towards_zero = (error > 0.0) ^ (sum > 0.0);
  const VecI64 step = (towards_zero & -1) | (~towards_zero & 1);
  const VecI64 odd = bits + (step & inexact & even);
  return __builtin_convertvector(reinterpret_cast<VecF64>(odd), HalfF32);
}
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  const HalfF32 low =
      fma_half(__builtin_shufflevector(a, a, 0, 1), __builtin_shufflevector(b, b, 0, 1),
               __builtin_shufflevector(c, c, 0, 1));
  const HalfF32 high =
      fma_half(__builtin_shufflevector(a, a, 2, 3), __builtin_shufflevector(b, b, 2, 3),
               __builtin_shufflevector(c, c, 2, 3));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
#endif
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return VecF64{__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])};
}
#if RIBBIT_HAS_FMA
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) {
  return fma(-a, b, c);
}
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) {
  return fma(-a, b, c);
}
#endif
#if defined(__x86_64__) && !defined(__clang__)
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return __builtin_ia32_sqrtps(a);
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) {
  return __builtin_ia32_sqrtpd(a);
}
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) {
  return __builtin_ia32_minps(a, b);
}
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) {
  return __builtin_ia32_minpd(a, b);
}
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) {
  return __builtin_ia32_maxps(a, b);
}
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) {
  return __builtin_ia32_maxpd(a, b);
}
#else
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return VecF32{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
                __builtin_sqrtf(a[3])};
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) {
  return VecF64{__builtin_sqrt(a[0]), __builtin_sqrt(a[1])};
}
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) {
  return a < b ? a : b;
}
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) {
  return a < b ? a : b;
}
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) {
  return a > b ? a : b;
}
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) {
  return a > b ? a : b;
}
#endif
#endif
// min and max return b when either operand is NaN.

// a * b + c at full speed: fused where the instruction exists, two roundings on the baseline.
// fma() above is exact everywhere and slow on the baseline.
template <class V>
RIBBIT_INLINE V mul_add(V a, V b, V c) {
#if RIBBIT_HAS_FMA
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

// c - a * b, likewise
template <class V>
RIBBIT_INLINE V mul_sub(V a, V b, V c) {
#if RIBBIT_HAS_FMA
  return fnma(a, b, c);
#else
  return c - a * b;
#endif
}

RIBBIT_INLINE VecF32 abs(VecF32 a) {
  return reinterpret_cast<VecF32>(reinterpret_cast<VecU32>(a) & 0x7fffffffu);
}
RIBBIT_INLINE VecF64 abs(VecF64 a) {
  return reinterpret_cast<VecF64>(reinterpret_cast<VecU64>(a) & 0x7fffffffffffffffull);
}

// a / b. AVX-512: reciprocal estimate and Newton steps, about 1 ulp, needs |b| in [2^-120, 2^120]
// (double: [2^-1000, 2^1000]); an infinite b gives NaN. Elsewhere the exact division.
RIBBIT_INLINE VecF32 reciprocal(VecF32 b) {
#if RIBBIT_VEC_BYTES == 64
  VecF32 r = __builtin_ia32_rcp14ps512_mask(b, VecF32{}, static_cast<unsigned short>(-1));
  return fma(fnma(b, r, broadcast(1.0f)), r, r);
#else
  return 1.0f / b;
#endif
}
RIBBIT_INLINE VecF64 reciprocal(VecF64 b) {
#if RIBBIT_VEC_BYTES == 64
  VecF64 r = __builtin_ia32_rcp14pd512_mask(b, VecF64{}, static_cast<unsigned char>(-1));
  r = fma(fnma(b, r, broadcast(1.0)), r, r);
  return fma(fnma(b, r, broadcast(1.0)), r, r);
#else
  return 1.0 / b;
#endif
}
template <class V>
RIBBIT_INLINE V divide(V a, V b) {
#if RIBBIT_VEC_BYTES == 64
  const V r = reciprocal(b);
  const V q = a * r;
  return fma(fnma(b, q, a), r, q);
#else
  return a / b;
#endif
}

}  // namespace
}  // namespace ribbit::cpu
