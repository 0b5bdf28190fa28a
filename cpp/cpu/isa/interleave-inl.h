// Two numbers side by side: a formula on Interleaved<V>, or Interleaved<Interleaved<V>>, runs two
// or four independent chains step by step, which hides the latency that one long chain of dependent
// operations would show (compilers keep the order of the source, and the window of a core is too
// short for whole chains).
#pragma once

#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <class V>
struct Interleaved {
  V a, b;
};
template <class V>
using Quad = Interleaved<Interleaved<V>>;

// N vectors as one such number, N = 2 or 4.
template <class V, int N>
struct GroupOf;
template <class V>
struct GroupOf<V, 2> {
  using type = Interleaved<V>;
};
template <class V>
struct GroupOf<V, 4> {
  using type = Quad<V>;
};
template <class V>
RIBBIT_INLINE Interleaved<V> group(const V (&v)[2]) {
  return {v[0], v[1]};
}
template <class V>
RIBBIT_INLINE Quad<V> group(const V (&v)[4]) {
  return {{v[0], v[1]}, {v[2], v[3]}};
}
template <class V>
RIBBIT_INLINE void ungroup(const Interleaved<V>& g, V (&v)[2]) {
  v[0] = g.a;
  v[1] = g.b;
}
template <class V>
RIBBIT_INLINE void ungroup(const Quad<V>& g, V (&v)[4]) {
  v[0] = g.a.a;
  v[1] = g.a.b;
  v[2] = g.b.a;
  v[3] = g.b.b;
}

#define RIBBIT_INTERLEAVED_OPERATOR(op)                                \
  template <class V>                                                   \
  RIBBIT_INLINE auto operator op(Interleaved<V> x, Interleaved<V> y) { \
    return Interleaved<decltype(x.a op y.a)>{x.a op y.a, x.b op y.b};  \
  }
RIBBIT_INTERLEAVED_OPERATOR(+)
RIBBIT_INTERLEAVED_OPERATOR(-)
RIBBIT_INTERLEAVED_OPERATOR(*)
RIBBIT_INTERLEAVED_OPERATOR(/)
RIBBIT_INTERLEAVED_OPERATOR(&)
RIBBIT_INTERLEAVED_OPERATOR(|)
RIBBIT_INTERLEAVED_OPERATOR(^)
RIBBIT_INTERLEAVED_OPERATOR(<)
RIBBIT_INTERLEAVED_OPERATOR(>)
RIBBIT_INTERLEAVED_OPERATOR(==)
RIBBIT_INTERLEAVED_OPERATOR(!=)
#undef RIBBIT_INTERLEAVED_OPERATOR
template <class V>
RIBBIT_INLINE Interleaved<V> operator<<(Interleaved<V> x, int n) {
  return {x.a << n, x.b << n};
}
template <class V>
RIBBIT_INLINE Interleaved<V> operator>>(Interleaved<V> x, int n) {
  return {x.a >> n, x.b >> n};
}
template <class V>
RIBBIT_INLINE Interleaved<V> operator-(Interleaved<V> x) {
  return {-x.a, -x.b};
}

// Four consecutive vectors.
template <class T>
RIBBIT_INLINE Quad<Vec<T>> load_quad(const T* p) {
  constexpr int kL = kLanes<T>;
  return {{load(p), load(p + kL)}, {load(p + 2 * kL), load(p + 3 * kL)}};
}
template <class T>
RIBBIT_INLINE void store_quad(T* p, Quad<Vec<T>> v) {
  constexpr int kL = kLanes<T>;
  store(p, v.a.a);
  store(p + kL, v.a.b);
  store(p + 2 * kL, v.b.a);
  store(p + 3 * kL, v.b.b);
}

// Whether the magnitude of every number that is not NaN stays below the limit.
#if RIBBIT_VEC_BYTES == 64
RIBBIT_INLINE VecF32 larger_magnitude(VecF32 a, VecF32 b) {
  return __builtin_ia32_rangeps512_mask(a, b, 0x0b, VecF32{}, static_cast<unsigned short>(-1), 4);
}
RIBBIT_INLINE VecF64 larger_magnitude(VecF64 a, VecF64 b) {
  return __builtin_ia32_rangepd512_mask(a, b, 0x0b, VecF64{}, static_cast<unsigned char>(-1), 4);
}
constexpr bool kCheapRangeCheck = true;
RIBBIT_INLINE bool all_below(Quad<VecF32> v, float limit) {
  const VecF32 m = larger_magnitude(larger_magnitude(v.a.a, v.a.b), larger_magnitude(v.b.a, v.b.b));
  // not greater-or-equal: NaN only where all four are
  return __builtin_ia32_cmpps512_mask(m, broadcast(limit), 13, static_cast<unsigned short>(-1),
                                      4) == 0;
}
RIBBIT_INLINE bool all_below(Quad<VecF64> v, double limit) {
  const VecF64 m = larger_magnitude(larger_magnitude(v.a.a, v.a.b), larger_magnitude(v.b.a, v.b.b));
  return __builtin_ia32_cmppd512_mask(m, broadcast(limit), 13, static_cast<unsigned char>(-1), 4) ==
         0;
}
#elif RIBBIT_VEC_BYTES == 32
// Magnitudes in the order of their bits, where NaN is above infinity: not below the limit.
constexpr bool kCheapRangeCheck = true;
RIBBIT_INLINE VecI32 magnitude_bits(VecF32 v) {
  return reinterpret_cast<VecI32>(abs(v));
}
RIBBIT_INLINE VecI32 larger(VecI32 a, VecI32 b) {
  return a > b ? a : b;
}
RIBBIT_INLINE bool all_below(Quad<VecF32> v, float limit) {
  const VecI32 m = larger(larger(magnitude_bits(v.a.a), magnitude_bits(v.a.b)),
                          larger(magnitude_bits(v.b.a), magnitude_bits(v.b.b)));
  const VecI32 out = m >= reinterpret_cast<VecI32>(broadcast(limit));
  return __builtin_ia32_movmskps256(reinterpret_cast<VecF32>(out)) == 0;
}
// AVX2 compares 64-bit lanes, but has no maximum of them: those below, together.
RIBBIT_INLINE bool all_below(Quad<VecF64> v, double limit) {
  const VecF64 most = broadcast(limit);
  const VecI64 in =
      (abs(v.a.a) < most) & (abs(v.a.b) < most) & (abs(v.b.a) < most) & (abs(v.b.b) < most);
  return __builtin_ia32_movmskpd256(reinterpret_cast<VecF64>(in)) == 15;
}
#else
constexpr bool kCheapRangeCheck = false;
template <class V>
RIBBIT_INLINE bool all_below(V, double) {
  return false;
}
#endif

}  // namespace
}  // namespace ribbit::cpu

namespace ribbit {

template <class V>
struct Ops<cpu::Interleaved<V>> {
  using T = cpu::Interleaved<V>;
  using One = Ops<V>;
  using Scalar = typename One::Scalar;
  using Int = cpu::Interleaved<typename One::Int>;
  using Bits = cpu::Interleaved<typename One::Bits>;
  static constexpr bool kFastScale = One::kFastScale, kEighths = One::kEighths;
  static constexpr bool kFused = One::kFused;
  RIBBIT_INLINE T set(double c) { return {One::set(c), One::set(c)}; }
  RIBBIT_INLINE Int set_int(long long c) { return {One::set_int(c), One::set_int(c)}; }
  RIBBIT_INLINE Bits set_bits(Word64 c) { return {One::set_bits(c), One::set_bits(c)}; }
#define RIBBIT_INTERLEAVED_1(R, name, A)     \
  RIBBIT_INLINE R name(A x) {                \
    return {One::name(x.a), One::name(x.b)}; \
  }
#define RIBBIT_INTERLEAVED_2(name)                     \
  RIBBIT_INLINE T name(T x, T y) {                     \
    return {One::name(x.a, y.a), One::name(x.b, y.b)}; \
  }
#define RIBBIT_INTERLEAVED_3(name)                               \
  RIBBIT_INLINE T name(T x, T y, T z) {                          \
    return {One::name(x.a, y.a, z.a), One::name(x.b, y.b, z.b)}; \
  }
  RIBBIT_INTERLEAVED_3(fma)
  RIBBIT_INTERLEAVED_3(mul_add)
  RIBBIT_INTERLEAVED_3(mul_sub)
  RIBBIT_INTERLEAVED_2(divide)
  RIBBIT_INTERLEAVED_2(min)
  RIBBIT_INTERLEAVED_2(max)
  RIBBIT_INTERLEAVED_2(scale)
  RIBBIT_INTERLEAVED_1(T, reciprocal, T)
  RIBBIT_INTERLEAVED_1(T, sqrt, T)
  RIBBIT_INTERLEAVED_1(T, abs, T)
  RIBBIT_INTERLEAVED_1(T, exponent, T)
  RIBBIT_INTERLEAVED_1(T, exp_table, T)
  RIBBIT_INTERLEAVED_1(T, half_exp_table, T)
  RIBBIT_INTERLEAVED_1(T, eighths, T)
  RIBBIT_INTERLEAVED_1(Bits, bits, T)
  RIBBIT_INTERLEAVED_1(T, from_bits, Bits)
  RIBBIT_INTERLEAVED_1(Int, to_int, Bits)
  RIBBIT_INTERLEAVED_1(Bits, to_bits, Int)
  RIBBIT_INTERLEAVED_1(T, to_float, Int)
#undef RIBBIT_INTERLEAVED_1
#undef RIBBIT_INTERLEAVED_2
#undef RIBBIT_INTERLEAVED_3
  template <class M>
  RIBBIT_INLINE T select(cpu::Interleaved<M> m, T x, T y) {
    return {One::select(m.a, x.a, y.a), One::select(m.b, x.b, y.b)};
  }
};

}  // namespace ribbit
