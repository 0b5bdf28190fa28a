// Operands that make convolutions products. S: a Sliding window; an image of a data row lies as
// (height, width, channels), a kernel as (taps, channels, outs).
#pragma once

#include "cuda/kernels/product_kernels.h"
#include "cuda/kernels/window_kernels.h"

namespace ribbit::cuda {

// (rows x places, taps x channels): the cells that the window covers, 0 outside the image;
// transposed: (taps x channels, rows x places).
template <class T, class S, bool Transposed>
struct Patches {
  static constexpr bool kAlongColumns = !Transposed;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const Small at = static_cast<Small>(Transposed ? j : i);
    const Small entry = static_cast<Small>(Transposed ? i : j);
    const Small row = at / S::kPlaces, place = at % S::kPlaces;
    const int cell = S::cell(static_cast<int>(place), static_cast<int>(entry / S::kChannels));
    if (cell < 0) return T(0);
    const Small pixel = row * S::kCells + static_cast<Small>(cell);
    return (base + chain * chain_stride)[pixel * S::kChannels + entry % S::kChannels];
  }
};

// (rows x cells, taps x outs): the deltas of the places where each tap meets the cell.
template <class T, class S, int Outs>
struct DeltaPatches {
  static constexpr bool kAlongColumns = true;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const Small at = static_cast<Small>(i), entry = static_cast<Small>(j);
    const Small row = at / S::kCells, cell = at % S::kCells;
    const int place = S::place(static_cast<int>(cell), static_cast<int>(entry / Outs));
    if (place < 0) return T(0);
    const Small where = row * S::kPlaces + static_cast<Small>(place);
    return (base + chain * chain_stride)[where * Outs + entry % Outs];
  }
};

// (taps x outs, channels): a kernel with its channels and outs exchanged.
template <class T, int Channels, int Outs>
struct TurnedKernel {
  static constexpr bool kAlongColumns = false;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const Small entry = static_cast<Small>(i);
    const Small line = entry / Outs * Channels + static_cast<Small>(j);
    return (base + chain * chain_stride)[line * Outs + entry % Outs];
  }
};

}  // namespace ribbit::cuda
