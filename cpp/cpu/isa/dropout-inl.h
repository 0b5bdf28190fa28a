// Dropout masks by address. Element row * 4 ceil(units / 4) + unit of a stream decides one unit of
// one row, so a mask depends neither on the panel nor on which other rows there are.
#pragma once

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/random-inl.h"

namespace ribbit::cpu {
namespace {

// Where row r of a panel lies among the counters: two vectors of them hold the rows in the order
// in which even_words() leaves their words as rows lie in memory.
constexpr int counter_of_row(int r) {
  constexpr int kPair = 2 * kCounters;
  const int in = r % kPair;
  return r / kPair * kPair + in % 4 / 2 * kCounters + in / 4 * 2 + in % 2;
}

// The low words of a and b: within 128 bits two of a, then two of b. One instruction.
RIBBIT_INLINE VecF32 even_words(VecU64 a, VecU64 b) {
  const VecF32 x = reinterpret_cast<VecF32>(a);
  const VecF32 y = reinterpret_cast<VecF32>(b);
#if RIBBIT_VEC_BYTES == 64
  return __builtin_shufflevector(x, y, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30);
#elif RIBBIT_VEC_BYTES == 32
  return __builtin_shufflevector(x, y, 0, 2, 8, 10, 4, 6, 12, 14);
#else
  return __builtin_shufflevector(x, y, 0, 2, 4, 6);
#endif
}

// The sample, c2, of vector v of counters: one for all rows, or one each, by counter.
struct OneSample {
  Word64 sample;
  RIBBIT_INLINE_MEMBER VecU64 operator()(int) const { return sample - VecU64{}; }
};
struct SampleOfEach {
  const std::uint64_t* samples;
  RIBBIT_INLINE_MEMBER VecU64 operator()(int v) const {
    VecU64 c2;
    __builtin_memcpy(&c2, samples + v * kCounters, sizeof c2);
    return c2;
  }
};

// Words of 32 rows and the four units of one block each: words[j][r]. places: by counter.
template <class Samples>
RIBBIT_INLINE void mask_words(const MaskStream& s, const std::uint64_t (&places)[kPanel],
                              const Samples& samples, std::uint64_t block,
                              std::uint32_t (&words)[4][kPanel]) {
  constexpr int kVectors = kPanel / kCounters;
  constexpr int kGroup = kVectors < kStreams ? kVectors : kStreams;
  for (int v = 0; v < kVectors; v += kGroup) {
    VecU64 c[kGroup][4];
    for (int g = 0; g < kGroup; ++g) {
      VecU64 first;
      __builtin_memcpy(&first, places + (v + g) * kCounters, sizeof first);
      c[g][0] = first + block;
      c[g][1] = s.c1 - VecU64{};
      c[g][2] = samples(v + g);
      c[g][3] = s.c3 - VecU64{};
    }
    philox4x32<kGroup>(c, s.key);
    for (int g = 0; g < kGroup; g += 2) {
      for (int j = 0; j < 4; ++j) {
        const VecF32 even = even_words(c[g][j], c[g + 1][j]);
        __builtin_memcpy(&words[j][(v + g) * kCounters], &even, sizeof even);
      }
    }
  }
}

// The units of a panel, see mask_panel. A function of its own for each kind of samples: side by
// side in one, each would spill what the other keeps in registers (0.47 for 0.34 ns a word of
// AVX-512).
template <class T, class Samples>
__attribute__((noinline)) static void mask_units(const MaskStream& s,
                                                 const std::uint64_t (&places)[kPanel],
                                                 const Samples& samples, std::int64_t units,
                                                 const T* from, T* value, T* derivative,
                                                 bool assign) {
  const T keep = static_cast<T>(s.keep);
  for (std::int64_t u = 0; u < units; u += 4) {
    alignas(64) std::uint32_t words[4][kPanel];
    mask_words(s, places, samples, static_cast<std::uint64_t>(u / 4), words);
    const int some = units - u < 4 ? static_cast<int>(units - u) : 4;
    for (int j = 0; j < some; ++j) {
      const std::int64_t at = (u + j) * kPanel;
      T factor[kPanel];
      for (int r = 0; r < kPanel; ++r) factor[r] = words[j][r] >= s.threshold ? keep : T(0);
      for (int r = 0; r < kPanel; ++r) value[at + r] = from[at + r] * factor[r];
      if (derivative == nullptr) continue;
      if (assign) {
        for (int r = 0; r < kPanel; ++r) derivative[at + r] = factor[r];
      } else {
        for (int r = 0; r < kPanel; ++r) derivative[at + r] *= factor[r];
      }
    }
  }
}

// value[u, r] = from[u, r], and derivative[u, r] (may be null), times keep where the unit is kept,
// else 0. assign: the derivative is overwritten. rows: null for `first`, `first` + 1, ..; shared:
// every row takes the mask of row 0. samples: see the table.
template <class T>
static void mask_panel(const MaskStream& s, const std::int64_t* rows, const std::uint32_t* samples,
                       std::int64_t first, int n, std::int64_t units, const T* from, T* value,
                       T* derivative, bool assign) {
  const std::uint64_t blocks = static_cast<std::uint64_t>(units + 3) / 4;
  alignas(64) std::uint64_t places[kPanel], each[kPanel];
  for (int r = 0; r < kPanel; ++r) {
    const std::int64_t last = r < n ? r : (n > 0 ? n - 1 : 0);
    const std::int64_t row = s.shared ? 0 : rows != nullptr ? rows[last] : first + last;
    places[counter_of_row(r)] = static_cast<std::uint64_t>(row) * blocks;
    each[counter_of_row(r)] = samples != nullptr ? samples[last] : s.c2;
  }
  if (samples == nullptr)
    mask_units(s, places, OneSample{s.c2}, units, from, value, derivative, assign);
  else
    mask_units(s, places, SampleOfEach{each}, units, from, value, derivative, assign);
}

}  // namespace
}  // namespace ribbit::cpu
