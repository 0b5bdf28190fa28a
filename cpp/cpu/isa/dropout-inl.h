// Dropout masks by address. Element row * 4 ceil(units / 4) + unit of a stream decides one unit of
// one row, so a mask depends neither on the panel nor on which other rows there are.
#pragma once

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/random-inl.h"

namespace ribbit::cpu {
namespace {

using VecWords = std::uint32_t __attribute__((vector_size(sizeof(VecU64) / 2)));

// Words of 32 rows and the four units of one block each: words[j][r].
RIBBIT_INLINE void mask_words(const MaskStream& s, const std::uint64_t (&rows)[kPanel],
                              const std::uint64_t (&samples)[kPanel], std::uint64_t block,
                              std::uint32_t (&words)[4][kPanel]) {
  constexpr int kVectors = kPanel / kCounters;
  constexpr int kGroup = kVectors < kStreams ? kVectors : kStreams;
  for (int v = 0; v < kVectors; v += kGroup) {
    VecU64 c[kGroup][4];
    for (int g = 0; g < kGroup; ++g) {
      VecU64 first;
      __builtin_memcpy(&first, rows + (v + g) * kCounters, sizeof first);
      __builtin_memcpy(&c[g][2], samples + (v + g) * kCounters, sizeof first);
      c[g][0] = (first + block) & 0xffffffffull;
      c[g][1] = s.c1 - VecU64{};
      c[g][3] = s.c3 - VecU64{};
    }
    philox4x32<kGroup>(c, s.key);
    for (int g = 0; g < kGroup; ++g) {
      for (int j = 0; j < 4; ++j) {
        const VecWords low = __builtin_convertvector(c[g][j], VecWords);
        __builtin_memcpy(&words[j][(v + g) * kCounters], &low, sizeof low);
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
  std::uint64_t place[kPanel], sample[kPanel];
  for (int r = 0; r < kPanel; ++r) {
    const std::int64_t last = r < n ? r : (n > 0 ? n - 1 : 0);
    const std::int64_t row = s.shared ? 0 : rows != nullptr ? rows[last] : first + last;
    place[r] = static_cast<std::uint64_t>(row) * blocks;
    sample[r] = samples != nullptr ? samples[last] : s.c2;
  }
  const T keep = static_cast<T>(s.keep);
  for (std::int64_t u = 0; u < units; u += 4) {
    std::uint32_t words[4][kPanel];
    mask_words(s, place, sample, static_cast<std::uint64_t>(u / 4), words);
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

}  // namespace
}  // namespace ribbit::cpu
