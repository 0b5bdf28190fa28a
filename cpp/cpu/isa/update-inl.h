// Updates of parameters from a gradient: one pass that also draws the noise and watches for what is
// not finite.
#pragma once

#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/random-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

// Loads and stores of whole vectors, or of the first n lanes of one.
template <class T, bool kWhole>
struct Lanes {
  RIBBIT_INLINE_MEMBER static Vec<T> get(const T* p, std::int64_t n) {
    return kWhole ? load(p) : load_first(p, n);
  }
  RIBBIT_INLINE_MEMBER static void put(T* p, Vec<T> v, std::int64_t n) {
    if (kWhole)
      store(p, v);
    else
      store_first(p, v, n);
  }
};

// theta += step g + noise z
template <class T>
struct LangevinRule {
  const UpdateStep<T>& s;
  const T* g;
  T* theta;
  template <bool kWhole>
  RIBBIT_INLINE_MEMBER Vec<T> apply(std::int64_t i, Vec<T> z, std::int64_t n) const {
    using L = Lanes<T, kWhole>;
    Vec<T> t = fma(broadcast(s.step), L::get(g + i, n), L::get(theta + i, n));
    t = fma(broadcast(s.noise), z, t);
    L::put(theta + i, t, n);
    return t;
  }
};

// second = decay2 second + (1 - decay2) (scale g)^2 while adapting; G = 1 / (epsilon + sqrt second)
// theta += step G g + noise sqrt(G) z
template <class T>
struct PreconditionedRule {
  const UpdateStep<T>& s;
  const T* g;
  T* theta;
  T* second;
  template <bool kWhole>
  RIBBIT_INLINE_MEMBER Vec<T> apply(std::int64_t i, Vec<T> z, std::int64_t n) const {
    using L = Lanes<T, kWhole>;
    const Vec<T> gradient = L::get(g + i, n);
    Vec<T> v = L::get(second + i, n);
    if (s.adapt) {
      const Vec<T> scaled = gradient * broadcast(s.scale);
      v = fma(broadcast(s.decay2), v, broadcast(T(1) - s.decay2) * scaled * scaled);
      L::put(second + i, v, n);
    }
    const Vec<T> metric = reciprocal(sqrt(v) + broadcast(s.epsilon));
    Vec<T> t = fma(broadcast(s.step) * metric, gradient, L::get(theta + i, n));
    t = fma(broadcast(s.noise) * sqrt(metric), z, t);
    L::put(theta + i, t, n);
    return t;
  }
};

// velocity = keep velocity + step g + noise z; theta += velocity
template <class T>
struct FrictionRule {
  const UpdateStep<T>& s;
  const T* g;
  T* theta;
  T* velocity;
  template <bool kWhole>
  RIBBIT_INLINE_MEMBER Vec<T> apply(std::int64_t i, Vec<T> z, std::int64_t n) const {
    using L = Lanes<T, kWhole>;
    Vec<T> v = broadcast(s.keep) * L::get(velocity + i, n);
    v = fma(broadcast(s.noise), z, fma(broadcast(s.step), L::get(g + i, n), v));
    const Vec<T> t = L::get(theta + i, n) + v;
    L::put(velocity + i, v, n);
    L::put(theta + i, t, n);
    return t;
  }
};

// Adam, uphill (Kingma and Ba 2015, algorithm 1); correct1, correct2: 1 / (1 - decay^t).
template <class T>
struct AdamRule {
  const UpdateStep<T>& s;
  const T* g;
  T* theta;
  T* first;
  T* second;
  template <bool kWhole>
  RIBBIT_INLINE_MEMBER Vec<T> apply(std::int64_t i, Vec<T>, std::int64_t n) const {
    using L = Lanes<T, kWhole>;
    const Vec<T> gradient = L::get(g + i, n);
    const Vec<T> m =
        fma(broadcast(s.decay1), L::get(first + i, n), broadcast(T(1) - s.decay1) * gradient);
    const Vec<T> v = fma(broadcast(s.decay2), L::get(second + i, n),
                         broadcast(T(1) - s.decay2) * gradient * gradient);
    L::put(first + i, m, n);
    L::put(second + i, v, n);
    const Vec<T> below = sqrt(v * broadcast(s.correct2)) + broadcast(s.epsilon);
    const Vec<T> t =
        fma(broadcast(s.step), divide(m * broadcast(s.correct1), below), L::get(theta + i, n));
    L::put(theta + i, t, n);
    return t;
  }
};

// body(i, vector) for the vectors of n normals, made in pieces that stay in the first-level cache:
// one copy of the generator serves all rules. body.part(i, vector, count) takes the last lanes.
template <class T, class Body>
RIBBIT_INLINE void for_buffered_normals(std::int64_t n, const StreamAddress& a, const Body& body) {
  constexpr int kL = kLanes<T>;
  constexpr std::int64_t kPiece = 1024;
  alignas(64) T buffer[kPiece];
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t size = n - begin < kPiece ? n - begin : kPiece;
    fill_normal_block<T>(buffer, size, 4 * a.block + static_cast<std::uint64_t>(begin), a.key, a.c1,
                         a.c2, a.c3);
    std::int64_t i = 0;
    for (; i + kL <= size; i += kL) body.vector(begin + i, load(buffer + i));
    if (i < size) body.part(begin + i, load_first(buffer + i, size - i), size - i);
  }
}

// t - t is 0 for what is finite and NaN otherwise.
template <class T, class Rule>
struct UpdateSink {
  const Rule& rule;
  Vec<T>& bad;
  RIBBIT_INLINE_MEMBER void vector(std::int64_t i, Vec<T> z) const {
    const Vec<T> t = rule.template apply<true>(i, z, kLanes<T>);
    bad += t - t;
  }
  RIBBIT_INLINE_MEMBER void part(std::int64_t i, Vec<T> z, std::int64_t n) const {
    const Vec<T> t = rule.template apply<false>(i, z, n);
    bad += t - t;
  }
};

template <class T, class Rule>
static bool update_loop(const UpdateStep<T>& s, std::int64_t n, const Rule& rule) {
  constexpr int kL = kLanes<T>;
  Vec<T> bad{};
  const UpdateSink<T, Rule> sink{rule, bad};
  if (s.noise != T(0)) {
    for_buffered_normals<T>(n, StreamAddress{s.first_element >> 2, s.key, s.c1, s.c2, s.c3}, sink);
  } else {
    std::int64_t i = 0;
    for (; i + kL <= n; i += kL) sink.vector(i, Vec<T>{});
    if (i < n) sink.part(i, Vec<T>{}, n - i);
  }
  T sum = 0;
  for (int lane = 0; lane < kL; ++lane) sum += bad[lane];
  return sum == T(0);
}

template <class T>
static bool update(UpdateRule rule, const UpdateStep<T>& s, const T* g, std::int64_t n, T* theta,
                   T* first, T* second) {
  switch (rule) {
    case kRuleLangevin:
      return second == nullptr ? update_loop(s, n, LangevinRule<T>{s, g, theta})
                               : update_loop(s, n, PreconditionedRule<T>{s, g, theta, second});
    case kRuleFriction:
      return update_loop(s, n, FrictionRule<T>{s, g, theta, first});
    case kRuleAdam:
      return update_loop(s, n, AdamRule<T>{s, g, theta, first, second});
    case kRuleCount:
      break;
  }
  unreachable();
}

}  // namespace
}  // namespace ribbit::cpu
