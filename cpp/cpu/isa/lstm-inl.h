// The elementwise part of an LSTM (Hochreiter and Schmidhuber 1997; forget gate of Gers et al.
// 2000): c = f c' + i g, h = o tanh(c).
#pragma once

#include "core/activation_hd.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <int Code, class V>
RIBBIT_INLINE V value_of(V z) {
  V value, slope;
  activation<Code>(z, value, slope);
  return value;
}

template <class T>
static void lstm_step(std::int64_t units, const T* cell_before, T* gates, T* cell, T* state) {
  const std::int64_t n = units * kPanel;
  for (std::int64_t e = 0; e < n; e += kLanes<T>) {
    const Vec<T> i = value_of<kSigmoid>(load<T>(gates + e));
    const Vec<T> f = value_of<kSigmoid>(load<T>(gates + n + e));
    const Vec<T> g = value_of<kTanh>(load<T>(gates + 2 * n + e));
    const Vec<T> o = value_of<kSigmoid>(load<T>(gates + 3 * n + e));
    Vec<T> c = i * g;
    if (cell_before != nullptr) c = mul_add(f, load<T>(cell_before + e), c);
    store<T>(gates + e, i);
    store<T>(gates + n + e, f);
    store<T>(gates + 2 * n + e, g);
    store<T>(gates + 3 * n + e, o);
    store<T>(cell + e, c);
    store<T>(state + e, o * value_of<kTanh>(c));
  }
}

template <class T>
static void lstm_backward(std::int64_t units, const T* cell_before, const T* cell, const T* dstate,
                          T* gates, T* dcell) {
  const std::int64_t n = units * kPanel;
  for (std::int64_t e = 0; e < n; e += kLanes<T>) {
    const Vec<T> i = load<T>(gates + e), f = load<T>(gates + n + e);
    const Vec<T> g = load<T>(gates + 2 * n + e), o = load<T>(gates + 3 * n + e);
    const Vec<T> dh = load<T>(dstate + e);
    Vec<T> squashed, slope;
    activation<kTanh>(load<T>(cell + e), squashed, slope);
    const Vec<T> dc = mul_add(dh * o, slope, load<T>(dcell + e));
    const Vec<T> before = cell_before != nullptr ? load<T>(cell_before + e) : Vec<T>{};
    const Vec<T> one = Vec<T>{} + T(1);
    store<T>(gates + e, dc * g * i * (one - i));
    store<T>(gates + n + e, dc * before * f * (one - f));
    store<T>(gates + 2 * n + e, dc * i * (one - g) * (one + g));
    store<T>(gates + 3 * n + e, dh * squashed * o * (one - o));
    store<T>(dcell + e, dc * f);
  }
}

}  // namespace
}  // namespace ribbit::cpu
