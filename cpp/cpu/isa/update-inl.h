// Updates of parameters from a gradient: one pass that also draws the noise and watches for what is
// not finite.
#pragma once

#include "core/update_hd.h"
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

// The constants of a step in all lanes.
template <class T, class Step>
RIBBIT_INLINE UpdateConstants<Vec<T>> in_lanes(const Step& s) {
  UpdateConstants<Vec<T>> c;
  c.step = broadcast(s.step);
  c.decay1 = broadcast(s.decay1);
  c.decay2 = broadcast(s.decay2);
  c.rest1 = broadcast(T(1) - s.decay1);
  c.rest2 = broadcast(T(1) - s.decay2);
  c.correct1 = broadcast(s.correct1);
  c.correct2 = broadcast(s.correct2);
  c.epsilon = broadcast(s.epsilon);
  return c;
}

// A rule of core/update_hd.h on a range of parameters.
template <class T, class Update>
struct UpdateRange {
  UpdateConstants<Vec<T>> c;
  const T* g;
  T *theta, *first, *second;
  RIBBIT_INLINE_MEMBER UpdateRange(const UpdateStep<T>& s, const T* g_, T* theta_, T* first_,
                                   T* second_)
      : c(in_lanes<T>(s)), g(g_), theta(theta_), first(first_), second(second_) {
    c.noise = broadcast(s.noise);
    c.keep = broadcast(s.keep);
    c.scale = broadcast(s.scale);
    c.adapt = s.adapt;
  }
  template <bool kWhole>
  RIBBIT_INLINE_MEMBER Vec<T> apply(std::int64_t i, Vec<T> z, std::int64_t n) const {
    using L = Lanes<T, kWhole>;
    Vec<T> t = L::get(theta + i, n), m{}, v{};
    if constexpr (Update::kFirst) m = L::get(first + i, n);
    if constexpr (Update::kSecond) v = L::get(second + i, n);
    Update::template apply<Vec<T>>(c, L::get(g + i, n), z, t, m, v);
    if constexpr (Update::kFirst) L::put(first + i, m, n);
    if constexpr (Update::kSecond) L::put(second + i, v, n);
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

template <class T, UpdateRule kRule, class Update>
static bool update_by(const UpdateStep<T>& s, const T* g, std::int64_t n, T* theta, T* first,
                      T* second) {
  static_assert(Update::kFirst == (kRules[kRule].moments > 0));
  static_assert(Update::kSecond || kRules[kRule].moments < 2);
  return update_loop(s, n, UpdateRange<T, Update>(s, g, theta, first, second));
}

template <class T>
static bool update(UpdateRule rule, const UpdateStep<T>& s, const T* g, std::int64_t n, T* theta,
                   T* first, T* second) {
  switch (rule) {
    case kRuleLangevin:
      if (second != nullptr) {
        return update_by<T, kRuleLangevin, PreconditionedUpdate>(s, g, n, theta, first, second);
      }
      return update_by<T, kRuleLangevin, LangevinUpdate>(s, g, n, theta, first, second);
    case kRuleFriction:
      return update_by<T, kRuleFriction, FrictionUpdate>(s, g, n, theta, first, second);
    case kRuleAdam:
      return update_by<T, kRuleAdam, AdamUpdate>(s, g, n, theta, first, second);
    case kRuleKinetic:
      return update_by<T, kRuleKinetic, KineticUpdate>(s, g, n, theta, first, second);
    case kRuleCount:
      break;
  }
  unreachable();
}

}  // namespace
}  // namespace ribbit::cpu
