// SIMD vectors as wide as the instruction set of this translation unit (GCC vector extensions):
// 64 bytes with AVX-512, 32 with AVX2 + FMA, 16 otherwise. Operators + - * / < ?: work on them.
// No intrinsics header: only builtins, so nothing here can become a weak symbol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops_hd.h"

#define RIBBIT_INLINE static inline __attribute__((always_inline))
#define RIBBIT_INLINE_MEMBER inline __attribute__((always_inline))

namespace ribbit::cpu {
namespace {

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define RIBBIT_VEC_BYTES 64
#define RIBBIT_HAS_FMA 1
#elif defined(__AVX2__) && defined(__FMA__)
#define RIBBIT_VEC_BYTES 32
#define RIBBIT_HAS_FMA 1
#else
#define RIBBIT_VEC_BYTES 16
#if defined(__FP_FAST_FMA) && defined(__FP_FAST_FMAF)
#define RIBBIT_HAS_FMA 1
#else
#define RIBBIT_HAS_FMA 0
#endif
#endif

constexpr int kVecBytes = RIBBIT_VEC_BYTES;

typedef float VecF32 __attribute__((vector_size(RIBBIT_VEC_BYTES)));
typedef double VecF64 __attribute__((vector_size(RIBBIT_VEC_BYTES)));
typedef int VecI32 __attribute__((vector_size(RIBBIT_VEC_BYTES)));
typedef unsigned int VecU32 __attribute__((vector_size(RIBBIT_VEC_BYTES)));
typedef long long VecI64 __attribute__((vector_size(RIBBIT_VEC_BYTES)));
typedef unsigned long long VecU64 __attribute__((vector_size(RIBBIT_VEC_BYTES)));
typedef float HalfF32 __attribute__((vector_size(RIBBIT_VEC_BYTES / 2)));

template <class T>
struct VecFor;
template <>
struct VecFor<float> {
  using type = VecF32;
  typedef float unaligned __attribute__((vector_size(RIBBIT_VEC_BYTES), aligned(4), may_alias));
  typedef float aligned __attribute__((vector_size(RIBBIT_VEC_BYTES), may_alias));
};
template <>
struct VecFor<double> {
  using type = VecF64;
  typedef double unaligned __attribute__((vector_size(RIBBIT_VEC_BYTES), aligned(8), may_alias));
  typedef double aligned __attribute__((vector_size(RIBBIT_VEC_BYTES), may_alias));
};
template <>
struct VecFor<std::uint32_t> {
  using type = VecU32;
  typedef unsigned int unaligned
      __attribute__((vector_size(RIBBIT_VEC_BYTES), aligned(4), may_alias));
  typedef unsigned int aligned __attribute__((vector_size(RIBBIT_VEC_BYTES), may_alias));
};

template <class T>
using Vec = typename VecFor<T>::type;
template <class T>
constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(T));

// ---- memory -------------------------------------------------------------------------------------
template <class T>
RIBBIT_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VecFor<T>::unaligned*>(p);
}
template <class T>
RIBBIT_INLINE Vec<T> load_aligned(const T* p) {
  return *reinterpret_cast<const typename VecFor<T>::aligned*>(p);
}
template <class T>
RIBBIT_INLINE void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecFor<T>::unaligned*>(p) = v;
}
template <class T>
RIBBIT_INLINE void store_aligned(T* p, Vec<T> v) {
  *reinterpret_cast<typename VecFor<T>::aligned*>(p) = v;
}

RIBBIT_INLINE VecF32 broadcast(float a) { return a - VecF32{}; }
RIBBIT_INLINE VecF64 broadcast(double a) { return a - VecF64{}; }

// The first n lanes (0 <= n <= lanes), zeros behind; touches no memory behind them.
#if RIBBIT_VEC_BYTES == 64
RIBBIT_INLINE VecF32 load_first(const float* p, std::int64_t n) {
  const unsigned mask = (1u << n) - 1u;
  return __builtin_ia32_loadups512_mask(p, VecF32{}, static_cast<unsigned short>(mask));
}
RIBBIT_INLINE VecF64 load_first(const double* p, std::int64_t n) {
  const unsigned mask = (1u << n) - 1u;
  return __builtin_ia32_loadupd512_mask(p, VecF64{}, static_cast<unsigned char>(mask));
}
RIBBIT_INLINE void store_first(float* p, VecF32 v, std::int64_t n) {
  const unsigned mask = (1u << n) - 1u;
  __builtin_ia32_storeups512_mask(p, v, static_cast<unsigned short>(mask));
}
RIBBIT_INLINE void store_first(double* p, VecF64 v, std::int64_t n) {
  const unsigned mask = (1u << n) - 1u;
  __builtin_ia32_storeupd512_mask(p, v, static_cast<unsigned char>(mask));
}
#else
template <class T>
RIBBIT_INLINE Vec<T> load_first(const T* p, std::int64_t n) {
  Vec<T> v{};
  for (int i = 0; i < kLanes<T>; ++i)
    if (i < n) v[i] = p[i];
  return v;
}
template <class T>
RIBBIT_INLINE void store_first(T* p, Vec<T> v, std::int64_t n) {
  for (int i = 0; i < kLanes<T>; ++i)
    if (i < n) p[i] = v[i];
}
#endif

// ---- arithmetic ---------------------------------------------------------------------------------
#if RIBBIT_VEC_BYTES == 64
RIBBIT_INLINE VecF32 fma(VecF32 a, VecF32 b, VecF32 c) {
  return __builtin_ia32_vfmaddps512_mask(a, b, c, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, static_cast<unsigned char>(-1), 4);
}
// c - a * b
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
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) { return fma(-a, b, c); }
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) { return fma(-a, b, c); }
RIBBIT_INLINE VecF32 sqrt(VecF32 a) { return __builtin_ia32_sqrtps256(a); }
RIBBIT_INLINE VecF64 sqrt(VecF64 a) { return __builtin_ia32_sqrtpd256(a); }
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) { return __builtin_ia32_minps256(a, b); }
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) { return __builtin_ia32_minpd256(a, b); }
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) { return __builtin_ia32_maxps256(a, b); }
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) { return __builtin_ia32_maxpd256(a, b); }
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
  const HalfF32 low = fma_half(__builtin_shufflevector(a, a, 0, 1),
                               __builtin_shufflevector(b, b, 0, 1),
                               __builtin_shufflevector(c, c, 0, 1));
  const HalfF32 high = fma_half(__builtin_shufflevector(a, a, 2, 3),
                                __builtin_shufflevector(b, b, 2, 3),
                                __builtin_shufflevector(c, c, 2, 3));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
#endif
RIBBIT_INLINE VecF64 fma(VecF64 a, VecF64 b, VecF64 c) {
  return VecF64{__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1])};
}
#if RIBBIT_HAS_FMA
RIBBIT_INLINE VecF32 fnma(VecF32 a, VecF32 b, VecF32 c) { return fma(-a, b, c); }
RIBBIT_INLINE VecF64 fnma(VecF64 a, VecF64 b, VecF64 c) { return fma(-a, b, c); }
#endif
#if defined(__x86_64__)
RIBBIT_INLINE VecF32 sqrt(VecF32 a) { return __builtin_ia32_sqrtps(a); }
RIBBIT_INLINE VecF64 sqrt(VecF64 a) { return __builtin_ia32_sqrtpd(a); }
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) { return __builtin_ia32_minps(a, b); }
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) { return __builtin_ia32_minpd(a, b); }
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) { return __builtin_ia32_maxps(a, b); }
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) { return __builtin_ia32_maxpd(a, b); }
#else
RIBBIT_INLINE VecF32 sqrt(VecF32 a) {
  return VecF32{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
                __builtin_sqrtf(a[3])};
}
RIBBIT_INLINE VecF64 sqrt(VecF64 a) { return VecF64{__builtin_sqrt(a[0]), __builtin_sqrt(a[1])}; }
RIBBIT_INLINE VecF32 min(VecF32 a, VecF32 b) { return a < b ? a : b; }
RIBBIT_INLINE VecF64 min(VecF64 a, VecF64 b) { return a < b ? a : b; }
RIBBIT_INLINE VecF32 max(VecF32 a, VecF32 b) { return a > b ? a : b; }
RIBBIT_INLINE VecF64 max(VecF64 a, VecF64 b) { return a > b ? a : b; }
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

// ---- shapes -------------------------------------------------------------------------------------
// Lanes 0 .. L/2-1 and L/2 .. L-1 of a float vector as double vectors.
RIBBIT_INLINE VecF64 widen_low(VecF32 v) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), VecF64);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3), VecF64);
#else
  return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1), VecF64);
#endif
}
RIBBIT_INLINE VecF64 widen_high(VecF32 v) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_convertvector(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15),
                                 VecF64);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_convertvector(__builtin_shufflevector(v, v, 4, 5, 6, 7), VecF64);
#else
  return __builtin_convertvector(__builtin_shufflevector(v, v, 2, 3), VecF64);
#endif
}
// Sum over two double halves of a vector, as one double vector: feeds double accumulators.
RIBBIT_INLINE VecF64 widen_sum(VecF32 v) { return widen_low(v) + widen_high(v); }
RIBBIT_INLINE VecF64 widen_sum(VecF64 v) { return v; }

// Sum of the lanes by halving: the same tree whatever the caller.
RIBBIT_INLINE float horizontal_sum(VecF32 v) {
#if RIBBIT_VEC_BYTES == 64
  const auto h8 = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto h4 =
      __builtin_shufflevector(h8, h8, 0, 1, 2, 3) + __builtin_shufflevector(h8, h8, 4, 5, 6, 7);
#elif RIBBIT_VEC_BYTES == 32
  const auto h4 =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
  const auto h4 = v;
#endif
  return (h4[0] + h4[2]) + (h4[1] + h4[3]);
}
RIBBIT_INLINE double horizontal_sum(VecF64 v) {
#if RIBBIT_VEC_BYTES == 64
  const auto h4 =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return (h4[0] + h4[2]) + (h4[1] + h4[3]);
#elif RIBBIT_VEC_BYTES == 32
  return (v[0] + v[2]) + (v[1] + v[3]);
#else
  return v[0] + v[1];
#endif
}

// The two 32-bit halves of each 64-bit lane exchanged.
RIBBIT_INLINE VecU64 swap_halves(VecU64 a) {
  const VecU32 v = reinterpret_cast<VecU32>(a);
#if RIBBIT_VEC_BYTES == 64
  return reinterpret_cast<VecU64>(__builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11,
                                                          10, 13, 12, 15, 14));
#elif RIBBIT_VEC_BYTES == 32
  return reinterpret_cast<VecU64>(__builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
  return reinterpret_cast<VecU64>(__builtin_shufflevector(v, v, 1, 0, 3, 2));
#endif
}

// Low 32 bits of each 64-bit lane times a 32-bit constant, as 64-bit products.
RIBBIT_INLINE VecU64 multiply_low32(VecU64 a, Word64 b) {
#if RIBBIT_VEC_BYTES == 64
  return reinterpret_cast<VecU64>(__builtin_ia32_pmuludq512_mask(
      reinterpret_cast<VecI32>(a), reinterpret_cast<VecI32>(b - VecU64{}), VecI64{},
      static_cast<unsigned char>(-1)));
#elif RIBBIT_VEC_BYTES == 32
  return reinterpret_cast<VecU64>(__builtin_ia32_pmuludq256(
      reinterpret_cast<VecI32>(a), reinterpret_cast<VecI32>(b - VecU64{})));
#elif defined(__x86_64__)
  return reinterpret_cast<VecU64>(__builtin_ia32_pmuludq128(
      reinterpret_cast<VecI32>(a), reinterpret_cast<VecI32>(b - VecU64{})));
#else
  return (a & 0xffffffffull) * b;
#endif
}

#if RIBBIT_VEC_BYTES == 64
// 0.5000050067901611 * 2^(j/32), and 2^(j/32).
alignas(64) constexpr float kHalfPowersOfTwo[32] = {
    0x1.0000a8p-1f, 0x1.059bb8p-1f, 0x1.0b5636p-1f, 0x1.1130dp-1f,
    0x1.172c3ap-1f, 0x1.1d492ep-1f, 0x1.238866p-1f, 0x1.29eaa2p-1f,
    0x1.3070a8p-1f, 0x1.371b4p-1f, 0x1.3deb36p-1f, 0x1.44e15cp-1f,
    0x1.4bfe88p-1f, 0x1.534394p-1f, 0x1.5ab162p-1f, 0x1.6248d4p-1f,
    0x1.6a0ad4p-1f, 0x1.71f852p-1f, 0x1.7a124p-1f, 0x1.825998p-1f,
    0x1.8acf58p-1f, 0x1.937484p-1f, 0x1.9c4a26p-1f, 0x1.a5515p-1f,
    0x1.ae8b14p-1f, 0x1.b7f89p-1f, 0x1.c19ae4p-1f, 0x1.cb733cp-1f,
    0x1.d582c2p-1f, 0x1.dfcaaep-1f, 0x1.ea4c3cp-1f, 0x1.f508aep-1f,
};
alignas(64) constexpr float kPowersOfTwo[32] = {
    0x1.0p+0f, 0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f,
    0x1.172b84p+0f, 0x1.1d4874p+0f, 0x1.2387a6p+0f, 0x1.29e9ep+0f,
    0x1.306fep+0f, 0x1.371a74p+0f, 0x1.3dea64p+0f, 0x1.44e086p+0f,
    0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab07ep+0f, 0x1.6247ecp+0f,
    0x1.6a09e6p+0f, 0x1.71f75ep+0f, 0x1.7a1148p+0f, 0x1.82589ap+0f,
    0x1.8ace54p+0f, 0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f,
    0x1.ae89fap+0f, 0x1.b7f77p+0f, 0x1.c199bep+0f, 0x1.cb720ep+0f,
    0x1.d5818ep+0f, 0x1.dfc974p+0f, 0x1.ea4afap+0f, 0x1.f50766p+0f,
};
#endif

}  // namespace
}  // namespace ribbit::cpu

// ---- the formulas' view of a vector (see core/ops_hd.h) -----------------------------------------
namespace ribbit {

template <>
struct Ops<cpu::VecF32> {
  using T = cpu::VecF32;
  using Scalar = float;
  static constexpr bool kFused = RIBBIT_HAS_FMA;
  using Int = cpu::VecI32;
  using Bits = cpu::VecU32;
  RIBBIT_INLINE T set(double c) { return cpu::broadcast(static_cast<float>(c)); }
  RIBBIT_INLINE Int set_int(long long c) { return static_cast<int>(c) - Int{}; }
  RIBBIT_INLINE Bits set_bits(Word64 c) { return static_cast<unsigned>(c) - Bits{}; }
  RIBBIT_INLINE T fma(T a, T b, T c) { return cpu::fma(a, b, c); }
  RIBBIT_INLINE T mul_add(T a, T b, T c) { return cpu::mul_add(a, b, c); }
  RIBBIT_INLINE T mul_sub(T a, T b, T c) { return cpu::mul_sub(a, b, c); }
  RIBBIT_INLINE T reciprocal(T b) { return cpu::reciprocal(b); }
  RIBBIT_INLINE T sqrt(T a) { return cpu::sqrt(a); }
  RIBBIT_INLINE T divide(T a, T b) { return cpu::divide(a, b); }
  RIBBIT_INLINE T min(T a, T b) { return cpu::min(a, b); }
  RIBBIT_INLINE T max(T a, T b) { return cpu::max(a, b); }
  RIBBIT_INLINE Bits bits(T a) { return reinterpret_cast<Bits>(a); }
  RIBBIT_INLINE T from_bits(Bits a) { return reinterpret_cast<T>(a); }
  RIBBIT_INLINE T abs(T a) { return cpu::abs(a); }
  RIBBIT_INLINE T to_float(Int a) { return __builtin_convertvector(a, T); }
  template <class M>
  RIBBIT_INLINE T select(M m, T a, T b) {
    return m ? a : b;
  }
  RIBBIT_INLINE Int to_int(Bits a) { return reinterpret_cast<Int>(a); }
  RIBBIT_INLINE Bits to_bits(Int a) { return reinterpret_cast<Bits>(a); }
#if RIBBIT_VEC_BYTES == 64
  static constexpr bool kFastScale = true;
  RIBBIT_INLINE T exponent(T a) {
    return __builtin_ia32_getexpps512_mask(a, T{}, static_cast<unsigned short>(-1), 4);
  }
  RIBBIT_INLINE T scale(T a, T n) {
    return __builtin_ia32_scalefps512_mask(a, n, T{}, static_cast<unsigned short>(-1), 4);
  }
  RIBBIT_INLINE T exp_table(T t) { return look_up(t, cpu::kPowersOfTwo); }
  RIBBIT_INLINE T half_exp_table(T t) { return look_up(t, cpu::kHalfPowersOfTwo); }
  RIBBIT_INLINE T look_up(T t, const float* table) {
    const T low = cpu::load_aligned(table);
    const T high = cpu::load_aligned(table + 16);
    return __builtin_ia32_vpermt2varps512_mask(reinterpret_cast<Int>(t), low, high,
                                               static_cast<unsigned short>(-1));
  }
#else
  static constexpr bool kFastScale = false;
  RIBBIT_INLINE T exponent(T a) { return to_float(to_int(bits(a) >> 23) - 127); }
#endif
};

template <>
struct Ops<cpu::VecF64> {
  using T = cpu::VecF64;
  using Scalar = double;
  static constexpr bool kFused = RIBBIT_HAS_FMA;
  using Int = cpu::VecI64;
  using Bits = cpu::VecU64;
  RIBBIT_INLINE T set(double c) { return cpu::broadcast(c); }
  RIBBIT_INLINE Int set_int(long long c) { return c - Int{}; }
  RIBBIT_INLINE Bits set_bits(Word64 c) { return c - Bits{}; }
  RIBBIT_INLINE T fma(T a, T b, T c) { return cpu::fma(a, b, c); }
  RIBBIT_INLINE T mul_add(T a, T b, T c) { return cpu::mul_add(a, b, c); }
  RIBBIT_INLINE T mul_sub(T a, T b, T c) { return cpu::mul_sub(a, b, c); }
  RIBBIT_INLINE T reciprocal(T b) { return cpu::reciprocal(b); }
  RIBBIT_INLINE T sqrt(T a) { return cpu::sqrt(a); }
  RIBBIT_INLINE T divide(T a, T b) { return cpu::divide(a, b); }
  RIBBIT_INLINE T min(T a, T b) { return cpu::min(a, b); }
  RIBBIT_INLINE T max(T a, T b) { return cpu::max(a, b); }
  RIBBIT_INLINE Bits bits(T a) { return reinterpret_cast<Bits>(a); }
  RIBBIT_INLINE T from_bits(Bits a) { return reinterpret_cast<T>(a); }
  RIBBIT_INLINE T abs(T a) { return cpu::abs(a); }
  // 1.5 * 2^52 as an integer plus a small one is the double 1.5 * 2^52 + a: no conversion
  // instruction is needed (AVX2 has none for 64-bit lanes).
  RIBBIT_INLINE T to_float(Int a) {
    return reinterpret_cast<T>(a + 0x4338000000000000ll) - 6755399441055744.0;
  }
  template <class M>
  RIBBIT_INLINE T select(M m, T a, T b) {
    return m ? a : b;
  }
  RIBBIT_INLINE Int to_int(Bits a) { return reinterpret_cast<Int>(a); }
  RIBBIT_INLINE Bits to_bits(Int a) { return reinterpret_cast<Bits>(a); }
#if RIBBIT_VEC_BYTES == 64
  static constexpr bool kFastScale = true;
  RIBBIT_INLINE T exponent(T a) {
    return __builtin_ia32_getexppd512_mask(a, T{}, static_cast<unsigned char>(-1), 4);
  }
  RIBBIT_INLINE T scale(T a, T n) {
    return __builtin_ia32_scalefpd512_mask(a, n, T{}, static_cast<unsigned char>(-1), 4);
  }
#else
  static constexpr bool kFastScale = false;
  RIBBIT_INLINE T exponent(T a) { return to_float(to_int(bits(a) >> 52) - 1023); }
#endif
};

template <>
struct Lanes64<cpu::VecU64> {
  using L = cpu::VecU64;
  RIBBIT_INLINE L set(Word64 c) { return c - L{}; }
  RIBBIT_INLINE L multiply_low32(L a, Word b) { return cpu::multiply_low32(a, b); }
  RIBBIT_INLINE L high(L a) { return a >> 32; }
  RIBBIT_INLINE L high_too(L a) { return cpu::swap_halves(a); }
  RIBBIT_INLINE L xor3(L a, L b, L c) {
#if RIBBIT_VEC_BYTES == 64
    return reinterpret_cast<L>(__builtin_ia32_pternlogq512_mask(
        reinterpret_cast<cpu::VecI64>(a), reinterpret_cast<cpu::VecI64>(b),
        reinterpret_cast<cpu::VecI64>(c), 0x96, static_cast<unsigned char>(-1)));
#else
    return a ^ b ^ c;
#endif
  }
};

}  // namespace ribbit
