// The order of an epoch's rows: as permute() in core/permutation_hd.h, many rows at once.
#pragma once

#include "core/permutation_hd.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

// One way through the rounds, of N vectors with a number in each 64-bit lane.
template <int N>
RIBBIT_INLINE void permutation_rounds(const Permutation& p, Word64* numbers) {
  constexpr int kL = kLanes<double>;
  VecU64 left[N], right[N];
  for (int v = 0; v < N; ++v) {
    VecU64 i;
    __builtin_memcpy(&i, numbers + v * kL, sizeof i);
    left[v] = i >> p.half_bits;
    right[v] = i & p.mask;
  }
  for (const Word key : p.keys) {
    for (int v = 0; v < N; ++v) {
      const VecU64 next = left[v] ^ (mix_half(right[v], key) & p.mask);
      left[v] = right[v];
      right[v] = next;
    }
  }
  for (int v = 0; v < N; ++v) {
    const VecU64 i = left[v] << p.half_bits | right[v];
    __builtin_memcpy(numbers + v * kL, &i, sizeof i);
  }
}

// Where rows begin + i go, i < count. Numbers that are not below p.size yet go another way through
// the rounds, beside the next ones.
static void permute_rows(const Permutation& p, std::uint64_t begin, std::int64_t count,
                         std::int64_t* rows) {
  constexpr int kVectors = 4, kMost = kVectors * kLanes<double>;
  alignas(64) Word64 number[kMost] = {};
  std::int64_t place[kMost], next = 0;
  int lanes = 0;
  const auto take = [&](int lane) {
    place[lane] = next;
    number[lane] = begin + static_cast<Word64>(next++);
  };
  while (lanes < kMost && next < count) take(lanes++);
  while (lanes > 0) {
    permutation_rounds<kVectors>(p, number);
    int left = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      rows[place[lane]] = static_cast<std::int64_t>(number[lane]);
      if (number[lane] >= p.size) {
        place[left] = place[lane];
        number[left++] = number[lane];
      } else if (next < count) {
        take(left++);
      }
    }
    lanes = left;
  }
}

}  // namespace
}  // namespace ribbit::cpu
