#pragma once
// Loops over flat parameter ranges. Tails go through scalars; the sums keep one shape.

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/tile-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <class T>
static void multiply_in_place(T* a, const T* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) a[i] *= b[i];
}

template <class T>
static void add_arrays(const T* a, const T* b, std::int64_t n, T* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}
template <class T>
static void accumulate(const T* a, std::int64_t n, T* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] += a[i];
}

// Adjacent pairs, then pairs of pairs, ...; an odd one out joins the next round.
template <class T>
static void tree_sum(const T* buffers, std::int64_t stride, std::int64_t count, std::int64_t n,
                     T* out) {
  constexpr int kMost = 16;
  constexpr int lanes = kLanes<T>;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    Vec<T> v[kMost];
    for (std::int64_t k = 0; k < count; ++k) v[k] = load<T>(buffers + k * stride + i);
    for (std::int64_t left = count; left > 1; left = (left + 1) / 2) {
      for (std::int64_t k = 0; k + 1 < left; k += 2) v[k / 2] = v[k] + v[k + 1];
      if (left % 2 != 0) v[left / 2] = v[left - 1];
    }
    store<T>(out + i, v[0]);
  }
  for (; i < n; ++i) {
    T v[kMost];
    for (std::int64_t k = 0; k < count; ++k) v[k] = buffers[k * stride + i];
    for (std::int64_t left = count; left > 1; left = (left + 1) / 2) {
      for (std::int64_t k = 0; k + 1 < left; k += 2) v[k / 2] = v[k] + v[k + 1];
      if (left % 2 != 0) v[left / 2] = v[left - 1];
    }
    out[i] = v[0];
  }
}

// Plain products and sums: the compiler vectorises, and every lane rounds as a scalar would.
template <class T>
static void kick_drift(T* q, T* p, const T* g, const T* m, std::int64_t n, T kick, T drift) {
  if (m == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) {
      const T momentum = p[i] + kick * g[i];
      p[i] = momentum;
      q[i] += drift * momentum;
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const T momentum = p[i] + kick * g[i];
      p[i] = momentum;
      q[i] += drift * (m[i] * momentum);
    }
  }
}

// x - x is 0 for finite x and NaN otherwise.
template <class T>
static bool all_finite(const T* a, std::int64_t n) {
  T bad = 0;
  constexpr std::int64_t kChunk = 1024;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t end = begin + kChunk < n ? begin + kChunk : n;
    Vec<T> sum = Vec<T>{};
    std::int64_t i = begin;
    for (; i + kLanes<T> <= end; i += kLanes<T>) {
      const auto v = load<T>(a + i);
      sum += v - v;
    }
    alignas(64) T lanes[kLanes<T>];
    store<T>(lanes, sum);
    for (int lane = 0; lane < kLanes<T>; ++lane) bad += lanes[lane];
    for (; i < end; ++i) bad += a[i] - a[i];
    if (!(bad == 0)) return false;
  }
  return true;
}

// Squares of lanes x lanes are transposed in registers; the last one reaches back over features
// that another has done. Fewer features than lanes go one by one.
template <class T>
static void pack_panel(const T* x, std::int64_t features, const std::int64_t* rows,
                       std::int64_t first, int n, T* panel) {
  constexpr int lanes = kLanes<T>;
  const auto row = [&](int r) __attribute__((always_inline)) {
    return x + (rows != nullptr ? rows[first + r] : first + r) * features;
  };
  if (features == 1 && rows == nullptr) {
    __builtin_memcpy(panel, x + first, static_cast<std::size_t>(n) * sizeof(T));
    for (int r = n; r < kPanel; ++r) panel[r] = 0;
  } else if (features < lanes) {
    for (int r = 0; r < n; ++r) {
      const T* from = row(r);
      for (std::int64_t f = 0; f < features; ++f) panel[f * kPanel + r] = from[f];
    }
    for (std::int64_t f = 0; f < features; ++f) {
      for (int r = n; r < kPanel; ++r) panel[f * kPanel + r] = 0;
    }
  } else {
    for (int r0 = 0; r0 < kPanel; r0 += lanes) {
      const T* from[lanes];
      for (int r = 0; r < lanes; ++r) from[r] = r0 + r < n ? row(r0 + r) : nullptr;
      for (std::int64_t begin = 0; begin < features; begin += lanes) {
        const std::int64_t f = begin + lanes <= features ? begin : features - lanes;
        Vec<T> square[lanes];
        RIBBIT_UNROLL for (int r = 0; r < lanes; ++r) {
          square[r] = from[r] != nullptr ? load<T>(from[r] + f) : Vec<T>{};
        }
        transpose_square<T>(square);
        RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
          store<T>(panel + (f + i) * kPanel + r0, square[i]);
        }
      }
    }
  }
}

template <class T>
static void unpack_panel(const T* panel, std::int64_t features, std::int64_t first, int n, T* y) {
  constexpr int lanes = kLanes<T>;
  if (features == 1) {
    __builtin_memcpy(y + first, panel, static_cast<std::size_t>(n) * sizeof(T));
  } else if (features < lanes) {
    for (int r = 0; r < n; ++r) {
      T* row = y + (first + r) * features;
      for (std::int64_t f = 0; f < features; ++f) row[f] = panel[f * kPanel + r];
    }
  } else {
    for (int r0 = 0; r0 < n; r0 += lanes) {
      const int some = n - r0 < lanes ? n - r0 : lanes;
      for (std::int64_t begin = 0; begin < features; begin += lanes) {
        const std::int64_t f = begin + lanes <= features ? begin : features - lanes;
        Vec<T> square[lanes];
        RIBBIT_UNROLL for (int i = 0; i < lanes; ++i) {
          square[i] = load<T>(panel + (f + i) * kPanel + r0);
        }
        transpose_square<T>(square);
        for (int r = 0; r < some; ++r) {
          store<T>(y + (first + r0 + r) * features + f, square[r]);
        }
      }
    }
  }
}

// Independent chains of FMAs: enough for 2 ports x 4 cycles on x86, 4 x 4 with NEON, whose multiply
// adds in place.
template <class T>
static double fma_loop(std::int64_t count, T* sink) {
  using V = Vec<T>;
  constexpr int kChains = RIBBIT_NEON ? 24 : 12;
  V sum[kChains];
  RIBBIT_UNROLL for (int c = 0; c < kChains; ++c) sum[c] = broadcast(T(c));
  const V factor = broadcast(T(0.999)), term = broadcast(T(1e-3));
  for (std::int64_t i = 0; i < count; ++i) {
    RIBBIT_UNROLL for (int c = 0; c < kChains; ++c) {
      sum[c] = RIBBIT_NEON ? mul_add(factor, term, sum[c]) : mul_add(sum[c], factor, term);
    }
  }
  V total = sum[0];
  RIBBIT_UNROLL for (int c = 1; c < kChains; ++c) total += sum[c];
  store<T>(sink, total);  // sink: 64 bytes
  return 2.0 * static_cast<double>(count) * kChains * kLanes<T>;
}

}  // namespace
}  // namespace ribbit::cpu
