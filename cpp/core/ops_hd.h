// What a formula may do with a number of type T: the scalar half. cpu/isa/vec-inl.h adds the SIMD
// vectors, so that the scalar reference, the CPU kernels and CUDA share one source per formula.
#pragma once

#if defined(__CUDACC_RTC__)
// not static: NVRTC would warn of each function that a program does not use
#define RIBBIT_HD __device__ __forceinline__
#define RIBBIT_HD_MEMBER static __device__ __forceinline__
#define RIBBIT_HD_METHOD __device__ __forceinline__
#elif defined(__CUDACC__)
#define RIBBIT_HD static __device__ __host__ __forceinline__
#define RIBBIT_HD_MEMBER static __device__ __host__ __forceinline__
#define RIBBIT_HD_METHOD __device__ __host__ __forceinline__
#else
#define RIBBIT_HD static inline __attribute__((always_inline))
#define RIBBIT_HD_MEMBER static inline __attribute__((always_inline))
#define RIBBIT_HD_METHOD inline __attribute__((always_inline))
#endif

#if defined(__clang__)
// Clang does not know lgamma_r by itself, and libraries differ in whether it is noexcept: hence by
// a name of our own.
#if defined(__APPLE__)
extern "C" double ribbit_lgamma_r(double, int*) __asm__("_lgamma_r");
#else
extern "C" double ribbit_lgamma_r(double, int*) __asm__("lgamma_r");
#endif
#endif

namespace ribbit {

// The end of what lists every case: a number that none of them has stops the program.
[[noreturn]] RIBBIT_HD void unreachable() {
#if defined(__CUDA_ARCH__)
  __trap();
  __builtin_unreachable();
#else
  __builtin_trap();
#endif
}

// Functions of the C library, for constants that the host makes once.
RIBBIT_HD double library_log(double a) {
#if defined(__CUDA_ARCH__)
  return ::log(a);
#else
  return __builtin_log(a);
#endif
}
RIBBIT_HD double library_exp(double a) {
#if defined(__CUDA_ARCH__)
  return ::exp(a);
#else
  return __builtin_exp(a);
#endif
}
RIBBIT_HD double library_lgamma(double a) {
#if defined(__CUDA_ARCH__)
  return ::lgamma(a);
#else
  int sign = 0;  // lgamma itself has a global variable
#if defined(__clang__)
  return ::ribbit_lgamma_r(a, &sign);
#else
  return __builtin_lgamma_r(a, &sign);
#endif
#endif
}

using Word = unsigned int;          // 32 bits on every platform of the project
using Word64 = unsigned long long;  // 64 bits

// Members of Ops<T>:
//   Scalar, Int, Bits      T's scalar; T's lanes as signed / unsigned integers of equal width
//   set(c)                 broadcast of a constant
//   fma(a, b, c)           correctly rounded a * b + c on every instruction set
//   mul_add(a, b, c)       a * b + c, fused where the hardware does it, else two roundings
//   mul_sub(a, b, c)       c - a * b, like mul_add
//   sqrt, min, max, abs    min / max return their second operand when one is NaN
//   reciprocal(b)          1 / b within 1.5 ulp; |b| from 2^-125 to 2^125 (double: 2^+-1000)
//   divide(a, b)           a / b within 1.5 ulp, b as above
//   select(m, a, b)        a where the comparison m holds, else b
//   bits, from_bits        casts of the number; to_int, to_bits between the integer lanes
//   exponent(a)            floor(log2(a)) as a T, for normal a > 0
//   kFused                 mul_add is fma
//   kFastScale             the hardware scales by 2^floor(n): scale(a, n); and has a small table of
//                          powers of two: exp_table(t) picks 2^(j/32), j the low 5 bits of t
//                          (float)
//   kEighths               the hardware has a table of eight: eighths(t) is 2^n for t = 1.5 * 2^20
//                          + n (float), n a multiple of 1/8 in [-126, 127]
//   to_float(Int)          conversion of the integer lanes (double: |i| < 2^51)
template <class T>
struct Ops;

template <>
struct Ops<float> {
  using Scalar = float;
  static constexpr bool kFastScale = false, kEighths = false;
  static constexpr bool kFused = true;
  using Int = int;
  using Bits = Word;
  RIBBIT_HD_MEMBER float set(double c) { return static_cast<float>(c); }
  RIBBIT_HD_MEMBER Int set_int(long long c) { return static_cast<Int>(c); }
  RIBBIT_HD_MEMBER Bits set_bits(Word64 c) { return static_cast<Bits>(c); }
  RIBBIT_HD_MEMBER float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
  }
  RIBBIT_HD_MEMBER float mul_add(float a, float b, float c) { return fma(a, b, c); }
  RIBBIT_HD_MEMBER float mul_sub(float a, float b, float c) { return fma(-a, b, c); }
  RIBBIT_HD_MEMBER float sqrt(float a) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(a);
#else
    return __builtin_sqrtf(a);
#endif
  }
  RIBBIT_HD_MEMBER float reciprocal(float b) { return 1.0f / b; }
  RIBBIT_HD_MEMBER float divide(float a, float b) { return a / b; }
  RIBBIT_HD_MEMBER float min(float a, float b) { return a < b ? a : b; }
  RIBBIT_HD_MEMBER float max(float a, float b) { return a > b ? a : b; }
  RIBBIT_HD_MEMBER Bits bits(float a) {
#if defined(__CUDA_ARCH__)
    return static_cast<Bits>(__float_as_int(a));
#else
    Bits r;
    __builtin_memcpy(&r, &a, sizeof r);
    return r;
#endif
  }
  RIBBIT_HD_MEMBER float from_bits(Bits a) {
#if defined(__CUDA_ARCH__)
    return __int_as_float(static_cast<int>(a));
#else
    float r;
    __builtin_memcpy(&r, &a, sizeof r);
    return r;
#endif
  }
  RIBBIT_HD_MEMBER float select(bool m, float a, float b) { return m ? a : b; }
  RIBBIT_HD_MEMBER Int to_int(Bits a) { return static_cast<Int>(a); }
  RIBBIT_HD_MEMBER Bits to_bits(Int a) { return static_cast<Bits>(a); }
  RIBBIT_HD_MEMBER float exponent(float a) {
    return static_cast<float>(static_cast<Int>(bits(a) >> 23) - 127);
  }
  RIBBIT_HD_MEMBER float abs(float a) { return from_bits(bits(a) & 0x7fffffffu); }
  RIBBIT_HD_MEMBER float to_float(Int a) { return static_cast<float>(a); }
};

template <>
struct Ops<double> {
  using Scalar = double;
  static constexpr bool kFastScale = false, kEighths = false;
  static constexpr bool kFused = true;
  using Int = long long;
  using Bits = Word64;
  RIBBIT_HD_MEMBER double set(double c) { return c; }
  RIBBIT_HD_MEMBER Int set_int(long long c) { return c; }
  RIBBIT_HD_MEMBER Bits set_bits(Word64 c) { return c; }
  RIBBIT_HD_MEMBER double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
  }
  RIBBIT_HD_MEMBER double mul_add(double a, double b, double c) { return fma(a, b, c); }
  RIBBIT_HD_MEMBER double mul_sub(double a, double b, double c) { return fma(-a, b, c); }
  RIBBIT_HD_MEMBER double sqrt(double a) {
#if defined(__CUDA_ARCH__)
    return __dsqrt_rn(a);
#else
    return __builtin_sqrt(a);
#endif
  }
  RIBBIT_HD_MEMBER double reciprocal(double b) { return 1.0 / b; }
  RIBBIT_HD_MEMBER double divide(double a, double b) { return a / b; }
  RIBBIT_HD_MEMBER double min(double a, double b) { return a < b ? a : b; }
  RIBBIT_HD_MEMBER double max(double a, double b) { return a > b ? a : b; }
  RIBBIT_HD_MEMBER Bits bits(double a) {
#if defined(__CUDA_ARCH__)
    return static_cast<Bits>(__double_as_longlong(a));
#else
    Bits r;
    __builtin_memcpy(&r, &a, sizeof r);
    return r;
#endif
  }
  RIBBIT_HD_MEMBER double from_bits(Bits a) {
#if defined(__CUDA_ARCH__)
    return __longlong_as_double(static_cast<long long>(a));
#else
    double r;
    __builtin_memcpy(&r, &a, sizeof r);
    return r;
#endif
  }
  RIBBIT_HD_MEMBER double select(bool m, double a, double b) { return m ? a : b; }
  RIBBIT_HD_MEMBER Int to_int(Bits a) { return static_cast<Int>(a); }
  RIBBIT_HD_MEMBER Bits to_bits(Int a) { return static_cast<Bits>(a); }
  RIBBIT_HD_MEMBER double exponent(double a) {
    return static_cast<double>(static_cast<Int>(bits(a) >> 52) - 1023);
  }
  RIBBIT_HD_MEMBER double abs(double a) { return from_bits(bits(a) & 0x7fffffffffffffffull); }
  RIBBIT_HD_MEMBER double to_float(Int a) { return static_cast<double>(a); }
};

// 64-bit lanes that carry one 32-bit word each in their low half (the philox state; the high half
// may hold anything). L is Word64 or a vector of them. high and high_too bring the high half down,
// by two instructions that use different ports of the CPU.
template <class L>
struct Lanes64;

template <>
struct Lanes64<Word64> {
  RIBBIT_HD_MEMBER Word64 set(Word64 c) { return c; }
  RIBBIT_HD_MEMBER Word64 multiply_low32(Word64 a, Word b) { return (a & 0xffffffffull) * b; }
  RIBBIT_HD_MEMBER Word64 high(Word64 a) { return a >> 32; }
  RIBBIT_HD_MEMBER Word64 high_too(Word64 a) { return a >> 32; }
  RIBBIT_HD_MEMBER Word64 xor3(Word64 a, Word64 b, Word64 c) { return a ^ b ^ c; }
};

}  // namespace ribbit
