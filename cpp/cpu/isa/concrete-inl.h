// Concrete dropout: relaxed masks, differentiable by the rate. Uniforms have the addresses of the
// masks: u = (word + 1/2) / 2^32.
#pragma once

#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/row_noise-inl.h"

namespace ribbit::cpu {
namespace {

// log(u / (1 - u)) of the words of one vector of rows.
RIBBIT_INLINE VecF32 logit_of_words(const std::uint32_t* words, float) {
  VecI32 w;
  __builtin_memcpy(&w, words, sizeof w);
  // From the nearer end, so that neither logarithm loses its digits.
  const VecI32 folded = w < 0 ? ~w : w;
  const VecF32 near =
      mul_add(__builtin_convertvector(folded, VecF32), broadcast(0x1p-32f), broadcast(0x1p-33f));
  const VecF32 value = log<VecF32>(near) - log<VecF32>(broadcast(1.0f) - near);
  return w < 0 ? -value : value;
}
RIBBIT_INLINE VecF64 logit_of_words(const std::uint32_t* words, double) {
  VecWords half;
  __builtin_memcpy(&half, words, sizeof half);
  const VecF64 u =
      mul_add(__builtin_convertvector(half, VecF64), broadcast(0x1p-32), broadcast(0x1p-33));
  return log<VecF64>(u) - log<VecF64>(broadcast(1.0) - u);
}

template <class T>
static void concrete_panel(const MaskStream& s, T logit, const std::int64_t* rows,
                           std::int64_t first, int n, std::int64_t units, const T* from, T* value,
                           T* derivative, bool assign, T* ratio) {
  using V = Vec<T>;
  constexpr double kSharpness = 10.0;  // 1 / temperature
  const std::uint64_t blocks = static_cast<std::uint64_t>(units + 3) / 4;
  const PanelBlocks at(rows, first, n, blocks);
  const V p = sigmoid<V>(broadcast(logit)), sharp = broadcast(static_cast<T>(kSharpness));
  const V keep = broadcast(T(1)) / (broadcast(T(1)) - p);
  for (std::int64_t u = 0; u < units; u += 4) {
    alignas(64) std::uint32_t words[4][kPanel];
    mask_words(s, at.places, OneSample{s.c2}, static_cast<std::uint64_t>(u / 4), words);
    const int some = units - u < 4 ? static_cast<int>(units - u) : 4;
    for (int j = 0; j < some; ++j) {
      for (int r = 0; r < kPanel; r += kLanes<T>) {
        const std::int64_t i = (u + j) * kPanel + r;
        const V a = (broadcast(logit) + logit_of_words(words[j] + r, T())) * sharp;
        const V factor = keep * sigmoid<V>(-a);
        store(value + i, load(from + i) * factor);
        if (derivative == nullptr) continue;
        store(derivative + i, assign ? factor : load(derivative + i) * factor);
        store(ratio + i, p - sharp * sigmoid<V>(a));
      }
    }
  }
}

template <class T>
static double dot3(const T* a, const T* b, const T* c, std::int64_t n) {
  Partials partials;
  partials.clear();
  for (std::int64_t i = 0; i + kPartials <= n; i += kPartials) {
    VecF64 x[kPartialVecs], y[kPartialVecs], z[kPartialVecs];
    load_partials(a + i, x);
    load_partials(b + i, y);
    load_partials(c + i, z);
    for (int j = 0; j < kPartialVecs; ++j) partials.sum[j] += x[j] * y[j] * z[j];
  }
  return partials.total();
}

}  // namespace
}  // namespace ribbit::cpu
