// Between the lanes of SIMD vectors: halves, sums of lanes, 32-bit parts of 64-bit lanes.
#pragma once

#include "cpu/isa/vec_types-inl.h"

namespace ribbit::cpu {
namespace {

RIBBIT_INLINE VecF64 widen(HalfF32 v) {
#if defined(__clang__) && !RIBBIT_NEON
  return __builtin_convertvector(v, VecF64);
#elif RIBBIT_VEC_BYTES == 64
  return __builtin_ia32_cvtps2pd512_mask(v, VecF64{}, static_cast<unsigned char>(-1), 4);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_ia32_cvtps2pd256(v);
#elif RIBBIT_NEON
  return vcvt_f64_f32(v);
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
#elif RIBBIT_NEON
  return vcvt_high_f64_f32(v);
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
#if defined(__clang__) && !RIBBIT_NEON
  return (a & 0xffffffffull) * (b & 0xffffffffull);  // one instruction, which it finds
#elif RIBBIT_VEC_BYTES == 64
  return reinterpret_cast<VecU64>(__builtin_ia32_pmuludq512_mask(
      reinterpret_cast<VecI32>(a), reinterpret_cast<VecI32>(b - VecU64{}), VecI64{},
      static_cast<unsigned char>(-1)));
#elif RIBBIT_VEC_BYTES == 32
  return reinterpret_cast<VecU64>(__builtin_ia32_pmuludq256(
      reinterpret_cast<VecI32>(a), reinterpret_cast<VecI32>(b - VecU64{})));
#elif defined(__x86_64__)
  return reinterpret_cast<VecU64>(__builtin_ia32_pmuludq128(
      reinterpret_cast<VecI32>(a), reinterpret_cast<VecI32>(b - VecU64{})));
#elif RIBBIT_NEON
  return reinterpret_cast<VecU64>(
      vmull_u32(vmovn_u64(reinterpret_cast<uint64x2_t>(a)), vdup_n_u32(static_cast<Word>(b))));
#else
  return (a & 0xffffffffull) * b;
#endif
}

}  // namespace
}  // namespace ribbit::cpu
