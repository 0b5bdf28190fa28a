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

RIBBIT_INLINE VecF32 broadcast(float a) {
  return a - VecF32{};
}
RIBBIT_INLINE VecF64 broadcast(double a) {
  return a - VecF64{};
}

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
#if defined(__x86_64__)
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

// ---- shapes -------------------------------------------------------------------------------------
RIBBIT_INLINE VecF64 widen(HalfF32 v) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_ia32_cvtps2pd512_mask(v, VecF64{}, static_cast<unsigned char>(-1), 4);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_ia32_cvtps2pd256(v);
#else
  return __builtin_convertvector(v, VecF64);
#endif
}
// Lanes 0 .. L/2-1 and L/2 .. L-1 of a float vector as double vectors.
RIBBIT_INLINE VecF64 widen_low(VecF32 v) {
#if RIBBIT_VEC_BYTES == 64
  return widen(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
#elif RIBBIT_VEC_BYTES == 32
  return widen(__builtin_shufflevector(v, v, 0, 1, 2, 3));
#else
  return widen(__builtin_shufflevector(v, v, 0, 1));
#endif
}
RIBBIT_INLINE VecF64 widen_high(VecF32 v) {
#if RIBBIT_VEC_BYTES == 64
  return widen(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#elif RIBBIT_VEC_BYTES == 32
  return widen(__builtin_shufflevector(v, v, 4, 5, 6, 7));
#else
  return widen(__builtin_shufflevector(v, v, 2, 3));
#endif
}
// Sum over two double halves of a vector, as one double vector: feeds double accumulators.
RIBBIT_INLINE VecF64 widen_sum(VecF32 v) {
  return widen_low(v) + widen_high(v);
}
RIBBIT_INLINE VecF64 widen_sum(VecF64 v) {
  return v;
}

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

// Sum of the doubles of N vectors by halving: the tree depends on their number alone, not on the
// width of a vector.
template <int N>
RIBBIT_INLINE double halving_sum(const VecF64 (&v)[N]) {
  if constexpr (N == 1) {
    return horizontal_sum(v[0]);
  } else {
    VecF64 half[N / 2];
    for (int j = 0; j < N / 2; ++j) half[j] = v[j] + v[j + N / 2];
    return halving_sum<N / 2>(half);
  }
}

// The two 32-bit halves of each 64-bit lane exchanged.
RIBBIT_INLINE VecU64 swap_halves(VecU64 a) {
  const VecU32 v = reinterpret_cast<VecU32>(a);
#if RIBBIT_VEC_BYTES == 64
  return reinterpret_cast<VecU64>(
      __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
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

}  // namespace
}  // namespace ribbit::cpu

#include "cpu/isa/ops-inl.h"
