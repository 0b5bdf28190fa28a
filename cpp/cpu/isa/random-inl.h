// Random words and normals into arrays: one philox counter per 64-bit lane.
#pragma once

#include "core/normal_hd.h"
#include "core/philox_hd.h"
#include "cpu/isa/interleave-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

constexpr int kCounters = kLanes<double>;  // per vector
constexpr int kStreams = 4;                // vectors of counters in flight, of words
// Whether the words of the next block are made beside the normals of this one, of two vectors then;
// doubles have no registers left for that (measured).
template <class T>
constexpr bool kWordsBeside = sizeof(T) == 4;
template <class T>
constexpr int kNormalStreams = kWordsBeside<T> ? 2 : kStreams;
constexpr int kBlockElements = 4 * kCounters * kStreams;

// Lane 2j holds counter j and lane 2j + 1 counter W/2 + j, so that interleaving within 128-bit
// lanes brings a vector's words into their order in memory.
RIBBIT_INLINE VecU64 counter_lanes() {
#if RIBBIT_VEC_BYTES == 64
  return VecU64{0, 4, 1, 5, 2, 6, 3, 7};
#elif RIBBIT_VEC_BYTES == 32
  return VecU64{0, 2, 1, 3};
#else
  return VecU64{0, 1};
#endif
}

// The low words of a and b side by side in each 64-bit lane.
RIBBIT_INLINE VecU32 word_pair(VecU64 a, VecU64 b) {
  const VecU32 x = reinterpret_cast<VecU32>(a);
  const VecU32 y = reinterpret_cast<VecU32>(b);
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
#else
  return __builtin_shufflevector(x, y, 0, 4, 2, 6);
#endif
}

// 32-bit and 64-bit interleaving within 128-bit lanes.
RIBBIT_INLINE VecF32 interleave_low(VecF32 x, VecF32 y) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13);
#else
  return __builtin_shufflevector(x, y, 0, 4, 1, 5);
#endif
}
RIBBIT_INLINE VecF32 interleave_high(VecF32 x, VecF32 y) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(x, y, 2, 6, 3, 7);
#endif
}
RIBBIT_INLINE VecF64 interleave_low(VecF64 x, VecF64 y) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 0, 4, 2, 6);
#else
  return __builtin_shufflevector(x, y, 0, 2);
#endif
}
RIBBIT_INLINE VecF64 interleave_high(VecF64 x, VecF64 y) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 1, 5, 3, 7);
#else
  return __builtin_shufflevector(x, y, 1, 3);
#endif
}
// (x, y), each with 128-bit lanes 0 .. Q-1, as one sequence x0 y0 x1 y1 ..: first and second half.
RIBBIT_INLINE VecF64 lanes128_first(VecF64 x, VecF64 y) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 0, 1, 8, 9, 2, 3, 10, 11);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 0, 1, 4, 5);
#else
  (void)y;
  return x;
#endif
}
RIBBIT_INLINE VecF64 lanes128_second(VecF64 x, VecF64 y) {
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 4, 5, 12, 13, 6, 7, 14, 15);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 2, 3, 6, 7);
#else
  (void)x;
  return y;
#endif
}

// Box and Muller on S vectors of words at once.
template <class T, int S, class Beside>
RIBBIT_INLINE void box_muller_streams(const Vec<T> (&w0)[S], const Vec<T> (&w1)[S], Vec<T> (&z0)[S],
                                      Vec<T> (&z1)[S], Beside& beside) {
  using G = typename GroupOf<Vec<T>, S>::type;
  G first, second;
  box_muller<G>(Ops<G>::bits(group(w0)), Ops<G>::bits(group(w1)), first, second, beside);
  ungroup(first, z0);
  ungroup(second, z1);
}

// The normals of S vectors of counters in memory order: out[stream][..]. begin() is called when
// their words are read, and then `beside` now and then.
template <int S, class Begin, class Beside>
RIBBIT_INLINE void ordered_normals(const VecU64 (&w)[S][4], VecF32 (&out)[S][2], const Begin& begin,
                                   Beside& beside) {
  VecF32 u0[S], u1[S], cosines[S], sines[S];
  for (int s = 0; s < S; ++s) {
    u0[s] = reinterpret_cast<VecF32>(word_pair(w[s][0], w[s][2]));
    u1[s] = reinterpret_cast<VecF32>(word_pair(w[s][1], w[s][3]));
  }
  begin();
  box_muller_streams<float>(u0, u1, cosines, sines, beside);  // (z0, z2), (z1, z3) of each counter
  for (int s = 0; s < S; ++s) {
    out[s][0] = interleave_low(cosines[s], sines[s]);
    out[s][1] = interleave_high(cosines[s], sines[s]);
  }
}
template <int S, class Begin, class Beside>
RIBBIT_INLINE void ordered_normals(const VecU64 (&w)[S][4], VecF64 (&out)[S][4], const Begin& begin,
                                   Beside& beside) {
  VecF64 u[4][S], z[4][S];
  for (int s = 0; s < S; ++s)
    for (int k = 0; k < 4; ++k) u[k][s] = reinterpret_cast<VecF64>(w[s][k]);
  begin();
  box_muller_streams<double>(u[0], u[1], z[0], z[1], beside);
  box_muller_streams<double>(u[2], u[3], z[2], z[3], beside);
  for (int s = 0; s < S; ++s) {
    // 128-bit lane j of an interleaved vector: (z0, z1) of counter j (low) or W/2 + j (high)
    const VecF64 low01 = interleave_low(z[0][s], z[1][s]), low23 = interleave_low(z[2][s], z[3][s]);
    const VecF64 high01 = interleave_high(z[0][s], z[1][s]);
    const VecF64 high23 = interleave_high(z[2][s], z[3][s]);
    out[s][0] = lanes128_first(low01, low23);
    out[s][1] = lanes128_second(low01, low23);
    out[s][2] = lanes128_first(high01, high23);
    out[s][3] = lanes128_second(high01, high23);
  }
}

struct StreamAddress {
  Word64 block;  // c0 of the next counter
  Word64 key;
  Word c1, c2, c3;
};

// S vectors of counters from block on.
template <int S>
RIBBIT_INLINE void counters_from(const StreamAddress& a, Word64 block, VecU64 (&c)[S][4]) {
  for (int i = 0; i < S; ++i) {
    c[i][0] = (block + static_cast<Word64>(i * kCounters)) + counter_lanes();
    c[i][1] = a.c1 - VecU64{};
    c[i][2] = a.c2 - VecU64{};
    c[i][3] = a.c3 - VecU64{};
  }
}

// The rounds of philox4x32, one at each call; nothing where all are done.
template <int S>
struct Rounds {
  static constexpr bool kNothing = false;
  VecU64 (&c)[S][4];
  Word key0, key1;
  int left = kPhiloxRounds;
  RIBBIT_INLINE_MEMBER void operator()() {
    if (left == 0) return;
    --left;
    philox_round<S>(c, key0, key1);
  }
};

// sink(index, normals) for each vector of normals; the last, incomplete block goes through a buffer
// to sink.part(index, normals, how many). Words keep the units of integers busy and normals those
// of multiply-adds, whose latencies are longer than a core looks ahead: hence rounds of the next
// words between the steps of normals.
template <class T, class Sink>
RIBBIT_INLINE void for_normals(std::int64_t n, const StreamAddress& a, const Sink& sink) {
  constexpr int kS = kNormalStreams<T>, kL = kLanes<T>;
  constexpr int kVectors = 4 * kCounters / kL;  // per stream
  constexpr std::int64_t kBlock = kVectors * kL * kS;
  const NothingBeside nothing;
  std::int64_t i = 0;
  Word64 block = a.block;
  VecU64 c[kS][4];
  Vec<T> z[kS][kVectors];
  const auto begin = [&] { counters_from(a, block, c); };
  const auto words = [&] {
    begin();
    philox4x32<kS>(c, a.key);
  };
  if constexpr (kWordsBeside<T>) words();
  for (; i + kBlock <= n; i += kBlock) {
    if constexpr (kWordsBeside<T>) {
      block += kCounters * kS;
      Rounds<kS> round{c, static_cast<Word>(a.key), static_cast<Word>(a.key >> 32)};
      ordered_normals<kS>(c, z, begin, round);
      while (round.left > 0) round();
    } else {
      words();
      ordered_normals<kS>(c, z, nothing, nothing);
      block += kCounters * kS;
    }
    for (int s = 0; s < kS; ++s)
      for (int j = 0; j < kVectors; ++j) sink.vector(i + (s * kVectors + j) * kL, z[s][j]);
  }
  if (i < n) {
    alignas(64) T buffer[kBlock];
    if constexpr (!kWordsBeside<T>) words();
    ordered_normals<kS>(c, z, nothing, nothing);
    for (int s = 0; s < kS; ++s)
      for (int j = 0; j < kVectors; ++j) store(buffer + (s * kVectors + j) * kL, z[s][j]);
    for (std::int64_t k = i; k < n; k += kL) {
      const std::int64_t rest = n - k < kL ? n - k : kL;
      sink.part(k, load(buffer + (k - i)), rest);
    }
  }
}

template <class T>
struct FillSink {
  T* out;
  RIBBIT_INLINE_MEMBER void vector(std::int64_t i, Vec<T> z) const { store(out + i, z); }
  RIBBIT_INLINE_MEMBER void part(std::int64_t i, Vec<T> z, std::int64_t n) const {
    store_first(out + i, z, n);
  }
};

template <class T>
struct ReparameterizeSink {
  const T* mean;
  const T* scale;
  T* out;
  RIBBIT_INLINE_MEMBER void vector(std::int64_t i, Vec<T> z) const {
    store(out + i, fma(load(scale + i), z, load(mean + i)));
  }
  RIBBIT_INLINE_MEMBER void part(std::int64_t i, Vec<T> z, std::int64_t n) const {
    store_first(out + i, fma(load_first(scale + i, n), z, load_first(mean + i, n)), n);
  }
};

// Normals with the addresses first_element .. first_element + n - 1; first_element % 4 == 0.
template <class T>
static void fill_normal_block(T* out, std::int64_t n, std::uint64_t first_element,
                              std::uint64_t key, std::uint32_t c1, std::uint32_t c2,
                              std::uint32_t c3) {
  for_normals<T>(n, StreamAddress{first_element >> 2, key, c1, c2, c3}, FillSink<T>{out});
}

// mean + scale * normal, the same bits on every instruction set.
template <class T>
static void reparameterize(const T* mean, const T* scale, T* out, std::int64_t n,
                           std::uint64_t first_element, std::uint64_t key, std::uint32_t c1,
                           std::uint32_t c2, std::uint32_t c3) {
  for_normals<T>(n, StreamAddress{first_element >> 2, key, c1, c2, c3},
                 ReparameterizeSink<T>{mean, scale, out});
}

// The words themselves.
static void fill_words(std::uint32_t* out, std::int64_t n, std::uint64_t first_element,
                       std::uint64_t key, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
  const StreamAddress a{first_element >> 2, key, c1, c2, c3};
  constexpr int kL = kLanes<std::uint32_t>;
  Word64 block = a.block;
  for (std::int64_t i = 0; i < n; i += kBlockElements, block += kCounters * kStreams) {
    alignas(64) std::uint32_t buffer[kBlockElements];
    const bool whole = i + kBlockElements <= n;
    std::uint32_t* target = whole ? out + i : buffer;
    VecU64 c[kStreams][4];
    counters_from(a, block, c);
    philox4x32<kStreams>(c, a.key);
    for (int s = 0; s < kStreams; ++s) {
      const VecF64 low = reinterpret_cast<VecF64>(word_pair(c[s][0], c[s][1]));
      const VecF64 high = reinterpret_cast<VecF64>(word_pair(c[s][2], c[s][3]));
      store(target + 2 * s * kL, reinterpret_cast<VecU32>(interleave_low(low, high)));
      store(target + (2 * s + 1) * kL, reinterpret_cast<VecU32>(interleave_high(low, high)));
    }
    if (!whole)
      for (std::int64_t k = i; k < n; ++k) out[k] = buffer[k - i];
  }
}

}  // namespace
}  // namespace ribbit::cpu
