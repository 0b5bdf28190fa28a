// LSTM (Hochreiter and Schmidhuber 1997; forget gate of Gers et al. 2000): c = f c' + i g,
// h = o tanh(c). What the inputs add to the gates is one product over all steps; a step's product
// with the states before it ends in these sinks, forward and backward. Sequences lie as (rows,
// steps, ..); the four gates of a step one after the other: input, forget, cell, output.
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/product_kernels.h"

namespace ribbit::cuda {

template <int Code, class T>
RIBBIT_DEVICE T activated(T z) {
  T value, derivative;
  activation<Code, false, T>(z, value, derivative);
  return value;
}

// Recurrent weights (units, 4 units) with their columns in another order: column 64 b + 16 q + j is
// gate q of unit 16 b + j, so that a thread of a product with 64 columns owns all gates of a unit.
template <class T>
struct GateColumns {
  static constexpr bool kAlongColumns = true;
  const T* base;
  Index chain_stride;
  Index units;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const Index unit = j / 64 * 16 + j % 16, gate = j / 16 % 4;
    return unit < units ? base[chain * chain_stride + (i * 4 + gate) * units + unit] : T(0);
  }
};

// One step forward: adds the sums to the gates, and gives the gates after their activations, the
// cell and the state. Pointers are at the step of row 0; rows lie steps apart.
template <class T>
struct LstmSink {
  static constexpr bool kJoins = true;
  T* gates;
  T* cell;
  T* state;
  T* last;             // (rows, units), the state once more; null: not wanted
  Index gates_stride;  // from chain to chain, as all strides here
  Index cell_stride;
  Index state_stride;
  Index last_stride;
  Index units;
  Index steps;
  Index step;
  RIBBIT_DEVICE void put(Index chain, Index m, Index n, const T* sums) const {
    const Index unit = n / 64 * 16 + n % 16;
    if (unit >= units) return;
    T* gate = gates + chain * gates_stride + m * steps * 4 * units + unit;
    const T i = activated<kSigmoid>(gate[0] + sums[0]);
    const T f = activated<kSigmoid>(gate[units] + sums[1]);
    const T g = activated<kTanh>(gate[2 * units] + sums[2]);
    const T o = activated<kSigmoid>(gate[3 * units] + sums[3]);
    const Index at = m * steps * units + unit;
    T* here = cell + chain * cell_stride + at;
    T c = i * g;
    if (step > 0) c = Ops<T>::fma(f, here[-units], c);
    const T h = o * activated<kTanh>(c);
    gate[0] = i;
    gate[units] = f;
    gate[2 * units] = g;
    gate[3 * units] = o;
    *here = c;
    state[chain * state_stride + at] = h;
    if (last != nullptr) last[chain * last_stride + m * units + unit] = h;
  }
};

// One step backward: the sums are the part of the state's delta that comes from the next step. The
// gates become their deltas.
template <class T>
struct LstmBackSink {
  static constexpr bool kJoins = false;
  T* gates;
  const T* cell;
  T* cell_delta;       // (rows, units): of the next step on the way in, of this one on the way out
  const T* delta;      // of the states, rows delta_row apart; null: only the next step gives some
  Index stride;        // from chain to chain of what the layer keeps
  Index delta_stride;  // from chain to chain
  Index delta_row;
  Index units;
  Index steps;
  Index step;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const Index kept = chain * stride;
    const Small width = static_cast<Small>(units), row = static_cast<Small>(m);
    const Small unit = static_cast<Small>(n), line = row * static_cast<Small>(steps) * width;
    T* gate = gates + kept + (4 * line + unit);
    const T* here = cell + kept + (line + unit);
    T* carried = cell_delta + kept + (row * width + unit);
    T dh = sum;
    if (delta != nullptr) {
      dh += (delta + chain * delta_stride)[row * static_cast<Small>(delta_row) + unit];
    }
    T squashed, slope;
    activation<kTanh, false, T>(*here, squashed, slope);
    const T i = gate[0], f = gate[width], g = gate[2 * width], o = gate[3 * width];
    const T dc = Ops<T>::fma(dh * o, slope, step + 1 < steps ? *carried : T(0));
    const T before = step > 0 ? here[-units] : T(0);
    gate[0] = dc * g * i * (T(1) - i);
    gate[width] = dc * before * f * (T(1) - f);
    gate[2 * width] = dc * i * (T(1) - g) * (T(1) + g);
    gate[3 * width] = dh * squashed * o * (T(1) - o);
    *carried = dc * f;
  }
};

// (units, rows x steps): the states of the steps before, 0 before the first.
template <class T, int Steps>
struct StatesBefore {
  static constexpr bool kAlongColumns = false;
  const T* base;  // (rows, steps, units) per chain
  Index chain_stride;
  Index units;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    if (static_cast<Small>(j) % Steps == 0) return T(0);
    return base[chain * chain_stride + (j - 1) * units + i];
  }
};

}  // namespace ribbit::cuda
