// Types and memory of SIMD vectors (GCC vector extensions), as wide as the instruction set allows:
// 64 bytes with AVX-512, 32 with AVX2 + FMA, 16 otherwise. Operators + - * / < ?: work on them.
// On x86 no intrinsics header: only builtins, so nothing here can become a weak symbol. What
// <arm_neon.h> defines is always inlined, and known to every compiler by the same names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ops_hd.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#define RIBBIT_NEON 1
#else
#define RIBBIT_NEON 0
#endif

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
#elif RIBBIT_NEON
#define RIBBIT_VEC_BYTES 16
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
#if defined(__AVX512F__) || RIBBIT_NEON
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

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

#if RIBBIT_NEON
// kCount numbers, fewer than lanes, in the first of them; touches no memory behind them.
template <int kCount>
RIBBIT_INLINE VecF32 load_few(const float* p) {
  if constexpr (kCount == 1) return VecF32{p[0]};
  if constexpr (kCount == 2) return vcombine_f32(vld1_f32(p), vdup_n_f32(0));
  if constexpr (kCount == 3) return vcombine_f32(vld1_f32(p), float32x2_t{p[2], 0});
}
template <int kCount>
RIBBIT_INLINE VecF64 load_few(const double* p) {
  static_assert(kCount == 1);
  return VecF64{p[0]};
}
#endif

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
#elif RIBBIT_NEON
RIBBIT_INLINE VecF32 load_first(const float* p, std::int64_t n) {
  return n >= 4   ? load(p)
         : n == 3 ? load_few<3>(p)
         : n == 2 ? load_few<2>(p)
         : n == 1 ? load_few<1>(p)
                  : VecF32{};
}
RIBBIT_INLINE VecF64 load_first(const double* p, std::int64_t n) {
  return n >= 2 ? load(p) : n == 1 ? load_few<1>(p) : VecF64{};
}
RIBBIT_INLINE void store_first(float* p, VecF32 v, std::int64_t n) {
  if (n >= 4) {
    store(p, v);
  } else if (n >= 2) {
    vst1_f32(p, vget_low_f32(v));
    if (n == 3) p[2] = v[2];
  } else if (n == 1) {
    p[0] = v[0];
  }
}
RIBBIT_INLINE void store_first(double* p, VecF64 v, std::int64_t n) {
  if (n >= 2) {
    store(p, v);
  } else if (n == 1) {
    p[0] = v[0];
  }
}
#elif RIBBIT_VEC_BYTES == 32
// A window of eight lanes, of which the first n are to be loaded.
alignas(64) constexpr int kFirstLanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
RIBBIT_INLINE VecI32 first_lanes(std::int64_t n) {
  VecI32 mask;
  __builtin_memcpy(&mask, kFirstLanes + 8 - n, sizeof mask);
  return mask;
}
RIBBIT_INLINE VecF32 load_first(const float* p, std::int64_t n) {
  if (n >= 8) return load(p);
  return __builtin_ia32_maskloadps256(reinterpret_cast<const VecF32*>(p), first_lanes(n));
}
RIBBIT_INLINE VecF64 load_first(const double* p, std::int64_t n) {
  if (n >= 4) return load(p);
  return __builtin_ia32_maskloadpd256(reinterpret_cast<const VecF64*>(p),
                                      reinterpret_cast<VecI64>(first_lanes(2 * n)));
}
// In halves: a masked store takes more than ten cycles on some processors.
RIBBIT_INLINE void store_first(float* p, VecF32 v, std::int64_t n) {
  if (n >= 8) return store(p, v);
  HalfF32 half = __builtin_shufflevector(v, v, 0, 1, 2, 3);
  if ((n & 4) != 0) {
    __builtin_memcpy(p, &half, sizeof half);
    half = __builtin_shufflevector(v, v, 4, 5, 6, 7);
    p += 4;
  }
  if ((n & 2) != 0) {
    __builtin_memcpy(p, &half, sizeof half / 2);
    half = __builtin_shufflevector(half, half, 2, 3, 2, 3);
    p += 2;
  }
  if ((n & 1) != 0) *p = half[0];
}
RIBBIT_INLINE void store_first(double* p, VecF64 v, std::int64_t n) {
  if (n >= 4) return store(p, v);
  if ((n & 2) != 0) {
    p[0] = v[0];
    p[1] = v[1];
  }
  if ((n & 1) != 0) p[n - 1] = v[n - 1];
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

}  // namespace
}  // namespace ribbit::cpu
