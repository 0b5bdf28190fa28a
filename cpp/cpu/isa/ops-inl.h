// What the formulas of core/*_hd.h see of a SIMD vector (see core/ops_hd.h).
#pragma once

#include "core/ops_hd.h"
#include "cpu/isa/vec_arithmetic-inl.h"
#include "cpu/isa/vec_lanes-inl.h"
#include "cpu/isa/vec_types-inl.h"

namespace ribbit::cpu {
namespace {

#if RIBBIT_VEC_BYTES == 64
// 0.5000050067901611 * 2^(j/32), and 2^(j/32).
alignas(64) constexpr float kHalfPowersOfTwo[32] = {
    0x1.0000a8p-1f, 0x1.059bb8p-1f, 0x1.0b5636p-1f, 0x1.1130dp-1f,  0x1.172c3ap-1f, 0x1.1d492ep-1f,
    0x1.238866p-1f, 0x1.29eaa2p-1f, 0x1.3070a8p-1f, 0x1.371b4p-1f,  0x1.3deb36p-1f, 0x1.44e15cp-1f,
    0x1.4bfe88p-1f, 0x1.534394p-1f, 0x1.5ab162p-1f, 0x1.6248d4p-1f, 0x1.6a0ad4p-1f, 0x1.71f852p-1f,
    0x1.7a124p-1f,  0x1.825998p-1f, 0x1.8acf58p-1f, 0x1.937484p-1f, 0x1.9c4a26p-1f, 0x1.a5515p-1f,
    0x1.ae8b14p-1f, 0x1.b7f89p-1f,  0x1.c19ae4p-1f, 0x1.cb733cp-1f, 0x1.d582c2p-1f, 0x1.dfcaaep-1f,
    0x1.ea4c3cp-1f, 0x1.f508aep-1f,
};
alignas(64) constexpr float kPowersOfTwo[32] = {
    0x1.0p+0f,      0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f, 0x1.1d4874p+0f,
    0x1.2387a6p+0f, 0x1.29e9ep+0f,  0x1.306fep+0f,  0x1.371a74p+0f, 0x1.3dea64p+0f, 0x1.44e086p+0f,
    0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab07ep+0f, 0x1.6247ecp+0f, 0x1.6a09e6p+0f, 0x1.71f75ep+0f,
    0x1.7a1148p+0f, 0x1.82589ap+0f, 0x1.8ace54p+0f, 0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f,
    0x1.ae89fap+0f, 0x1.b7f77p+0f,  0x1.c199bep+0f, 0x1.cb720ep+0f, 0x1.d5818ep+0f, 0x1.dfc974p+0f,
    0x1.ea4afap+0f, 0x1.f50766p+0f,
};
#elif RIBBIT_VEC_BYTES == 32 || RIBBIT_NEON
// The bits of 2^(j/8), less j 2^20.
alignas(32) constexpr int kEighthPowersOfTwo[8] = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                                   0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
#endif

}  // namespace
}  // namespace ribbit::cpu

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
  static constexpr bool kFastScale = true, kEighths = false;
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
#if defined(__clang__)
    return __builtin_ia32_vpermi2varps512(low, reinterpret_cast<Int>(t), high);
#else
    return __builtin_ia32_vpermt2varps512_mask(reinterpret_cast<Int>(t), low, high,
                                               static_cast<unsigned short>(-1));
#endif
  }
#else
  static constexpr bool kFastScale = false, kEighths = RIBBIT_VEC_BYTES == 32 || RIBBIT_NEON;
#if RIBBIT_VEC_BYTES == 32
  RIBBIT_INLINE T eighths(T t) {
    Int table;
    __builtin_memcpy(&table, cpu::kEighthPowersOfTwo, sizeof table);
    const Int power = __builtin_ia32_permvarsi256(table, reinterpret_cast<Int>(t));
    return from_bits((bits(t) << 20) + to_bits(power));
  }
#elif RIBBIT_NEON
  RIBBIT_INLINE T eighths(T t) {
    uint8x16x2_t table;
    __builtin_memcpy(&table, cpu::kEighthPowersOfTwo, sizeof table);
    const Bits bytes = (bits(t) & 7u) * 0x04040404u + 0x03020100u;  // of the eighth's power
    const auto power = vqtbl2q_u8(table, reinterpret_cast<uint8x16_t>(bytes));
    return from_bits((bits(t) << 20) + reinterpret_cast<Bits>(power));
  }
#endif
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
  static constexpr bool kFastScale = true, kEighths = false;
  RIBBIT_INLINE T exponent(T a) {
    return __builtin_ia32_getexppd512_mask(a, T{}, static_cast<unsigned char>(-1), 4);
  }
  RIBBIT_INLINE T scale(T a, T n) {
    return __builtin_ia32_scalefpd512_mask(a, n, T{}, static_cast<unsigned char>(-1), 4);
  }
#else
  static constexpr bool kFastScale = false, kEighths = false;
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
    return a ^ (b ^ c);  // b ^ c does not wait for a
#endif
  }
};

}  // namespace ribbit
