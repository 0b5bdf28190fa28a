// Layers whose output of a row is a mean path plus a noise path: local reparameterisation and
// flipout. Noise goes by address: the normal of (row, unit) is element row * 4 ceil(units / 4) +
// unit of its stream, the sign of (row, unit) bit unit % 32 of element row * 4 ceil(units / 128) +
// unit / 32.
#pragma once

#include "cpu/isa/dropout-inl.h"

namespace ribbit::cpu {
namespace {

// First blocks of the panel's rows, by counter.
struct PanelBlocks {
  std::uint64_t places[kPanel];
  RIBBIT_INLINE_MEMBER PanelBlocks(const std::int64_t* rows, std::int64_t first, int n,
                                   std::uint64_t blocks) {
    for (int r = 0; r < kPanel; ++r) {
      const std::int64_t last = r < n ? r : n - 1;
      const std::int64_t row = rows != nullptr ? rows[last] : first + last;
      places[counter_of_row(r)] = static_cast<std::uint64_t>(row) * blocks;
    }
  }
};

using VecWords = std::uint32_t __attribute__((vector_size(sizeof(VecU64) / 2)));

RIBBIT_INLINE VecF32 word_lanes(const std::uint32_t* words, float) {
  VecF32 v;
  __builtin_memcpy(&v, words, sizeof v);
  return v;
}
RIBBIT_INLINE VecF64 word_lanes(const std::uint32_t* words, double) {
  VecWords half;
  __builtin_memcpy(&half, words, sizeof half);
  return reinterpret_cast<VecF64>(__builtin_convertvector(half, VecU64));
}

// z = z + sqrt(c) e, and c = e / (2 sqrt(c)), the derivative of z with respect to c; 0 where c is.
template <class T>
static void local_noise(const MaskStream& s, const std::int64_t* rows, std::int64_t first, int n,
                        std::int64_t units, T* z, T* c) {
  using O = Ops<Vec<T>>;
  const std::uint64_t blocks = static_cast<std::uint64_t>(units + 3) / 4;
  const PanelBlocks at(rows, first, n, blocks);
  const Vec<T> zero{}, half = O::set(0.5);
  for (std::int64_t u = 0; u < units; u += 4) {
    alignas(64) std::uint32_t words[4][kPanel];
    mask_words(s, at.places, OneSample{s.c2}, static_cast<std::uint64_t>(u / 4), words);
    const int some = units - u < 4 ? static_cast<int>(units - u) : 4;
    for (int r = 0; r < kPanel; r += kLanes<T>) {
      Vec<T> e[4];
      for (int j = 0; j < 4; j += 2) {
        box_muller<Vec<T>>(O::bits(word_lanes(words[j] + r, T())),
                           O::bits(word_lanes(words[j + 1] + r, T())), e[j], e[j + 1]);
      }
      for (int j = 0; j < some; ++j) {
        T* mean = z + (u + j) * kPanel + r;
        T* variance = c + (u + j) * kPanel + r;
        const Vec<T> v = load(variance), sd = O::sqrt(v);
        store(mean, O::mul_add(sd, e[j], load(mean)));
        const auto some_noise = v > zero;
        const Vec<T> safe = O::select(some_noise, sd, half);
        store(variance, O::select(some_noise, O::divide(half * e[j], safe), zero));
      }
    }
  }
}

// out[u, r] = 1 or -1.
template <class T>
static void sign_panel(const MaskStream& s, const std::int64_t* rows, std::int64_t first, int n,
                       std::int64_t units, T* out) {
  const std::uint64_t blocks = static_cast<std::uint64_t>(units + 127) / 128;
  const PanelBlocks at(rows, first, n, blocks);
  for (std::int64_t u = 0; u < units; u += 128) {
    alignas(64) std::uint32_t words[4][kPanel];
    mask_words(s, at.places, OneSample{s.c2}, static_cast<std::uint64_t>(u / 128), words);
    const std::int64_t some = units - u < 128 ? units - u : 128;
    for (std::int64_t j = 0; j < some; ++j) {
      T* to = out + (u + j) * kPanel;
      const std::uint32_t* word = words[j / 32];
      for (int r = 0; r < kPanel; ++r) to[r] = (word[r] >> (j % 32) & 1u) != 0 ? T(-1) : T(1);
    }
  }
}

template <class T>
static void product(const T* a, const T* b, std::int64_t n, T* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}

template <class T>
static void step_in_place(T* a, const T* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) a[i] = b[i] > T(0) ? a[i] : T(0);
}

// y = (y + factor a b) d; d null: 1.
template <class T>
static void add_product(T factor, const T* a, const T* b, const T* d, std::int64_t n, T* y) {
  if (d == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) y[i] += factor * a[i] * b[i];
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = (y[i] + factor * a[i] * b[i]) * d[i];
  }
}

}  // namespace
}  // namespace ribbit::cpu
