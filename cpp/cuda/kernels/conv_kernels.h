// Windows that slide over images (height, width, channels) with constant sizes, so that indices
// are taken apart by constants, and operands that make convolutions products. S: a Sliding window;
// a kernel lies as (taps, channels, outs), or with groups of channels as (groups, taps, channels of
// a group, outs of a group). Values of one chain's panel have less than 2^31 numbers.
#pragma once

#include "cuda/kernels/product_kernels.h"

namespace ribbit::cuda {

template <int Height, int Width, int Channels, int KernelHeight, int KernelWidth, int StrideHeight,
          int StrideWidth, int PadTop, int PadLeft, int OutHeight, int OutWidth, int DilationHeight,
          int DilationWidth>
struct Sliding {
  static constexpr int kHeight = Height, kWidth = Width, kChannels = Channels;
  static constexpr int kKernelHeight = KernelHeight, kKernelWidth = KernelWidth;
  static constexpr int kOutHeight = OutHeight, kOutWidth = OutWidth;
  static constexpr int kCells = Height * Width, kSites = OutHeight * OutWidth;
  // The cell that a tap meets at a site, less than zero outside the image.
  RIBBIT_DEVICE static int cell(int site, int tap) {
    const int y = site / OutWidth * StrideHeight + tap / KernelWidth * DilationHeight - PadTop;
    const int x = site % OutWidth * StrideWidth + tap % KernelWidth * DilationWidth - PadLeft;
    const bool inside = y >= 0 && y < Height && x >= 0 && x < Width;
    return inside ? y * Width + x : -1;
  }
  // The site where a tap meets a cell, less than zero where there is none.
  RIBBIT_DEVICE static int site(int cell, int tap) {
    const int y = cell / Width + PadTop - tap / KernelWidth * DilationHeight;
    const int x = cell % Width + PadLeft - tap % KernelWidth * DilationWidth;
    const bool inside = y >= 0 && y % StrideHeight == 0 && y / StrideHeight < OutHeight && x >= 0 &&
                        x % StrideWidth == 0 && x / StrideWidth < OutWidth;
    return inside ? y / StrideHeight * OutWidth + x / StrideWidth : -1;
  }
  static constexpr int kTaps = KernelHeight * KernelWidth;
};

// (rows x sites, taps x channels): the cells that the window covers, 0 outside the image;
// transposed: (taps x channels, rows x sites).
template <class T, class S, bool Transposed>
struct Patches {
  static constexpr bool kAlongColumns = !Transposed;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    const Small at = static_cast<Small>(Transposed ? j : i);
    const Small entry = static_cast<Small>(Transposed ? i : j);
    const Small row = at / S::kSites, site = at % S::kSites;
    const int cell = S::cell(static_cast<int>(site), static_cast<int>(entry / S::kChannels));
    if (cell < 0) return nullptr;
    const Small pixel = row * S::kCells + static_cast<Small>(cell);
    return base + chain * chain_stride + (pixel * S::kChannels + entry % S::kChannels);
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T* at = find(chain, i, j);
    return at == nullptr ? T(0) : *at;
  }
};

// (rows x cells, taps x outs): the deltas of the sites where each tap meets the cell.
template <class T, class S, int Outs>
struct DeltaPatches {
  static constexpr bool kAlongColumns = true;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    const Small at = static_cast<Small>(i), entry = static_cast<Small>(j);
    const Small row = at / S::kCells, cell = at % S::kCells;
    const int site = S::site(static_cast<int>(cell), static_cast<int>(entry / Outs));
    if (site < 0) return nullptr;
    const Small where = row * S::kSites + static_cast<Small>(site);
    return base + chain * chain_stride + (where * Outs + entry % Outs);
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T* at = find(chain, i, j);
    return at == nullptr ? T(0) : *at;
  }
};

// (taps x outs, channels): a kernel with its channels and outs exchanged.
template <class T, int Channels, int Outs>
struct TurnedKernel {
  static constexpr bool kAlongColumns = false;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE const T* find(Index chain, Index i, Index j) const {
    const Small entry = static_cast<Small>(i);
    const Small line = entry / Outs * Channels + static_cast<Small>(j);
    return base + chain * chain_stride + (line * Outs + entry % Outs);
  }
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const { return *find(chain, i, j); }
};

// Where a kernel of groups has the weight of a tap from a channel to an out, less than zero where
// they are of different groups: as a matrix it has zeros outside its blocks.
template <int Taps, int Channels, int Outs, int Groups>
RIBBIT_DEVICE int grouped_weight(int tap, int channel, int out) {
  constexpr int kChannels = Channels / Groups, kOuts = Outs / Groups;
  const int group = channel / kChannels;
  if (group != out / kOuts) return -1;
  return ((group * Taps + tap) * kChannels + channel % kChannels) * kOuts + out % kOuts;
}

// (taps x channels, outs) of a kernel of groups; transposed: (taps x outs, channels).
template <class T, int Taps, int Channels, int Outs, int Groups, bool Turned>
struct GroupedKernel {
  static constexpr bool kAlongColumns = !Turned;
  const T* base;
  Index chain_stride;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    constexpr int kInner = Turned ? Outs : Channels;
    const int tap = static_cast<int>(i) / kInner, inner = static_cast<int>(i) % kInner;
    const int other = static_cast<int>(j);
    const int at = Turned ? grouped_weight<Taps, Channels, Outs, Groups>(tap, other, inner)
                          : grouped_weight<Taps, Channels, Outs, Groups>(tap, inner, other);
    return at < 0 ? T(0) : (base + chain * chain_stride)[at];
  }
};

// A GradientSink (taps x channels, outs) of a kernel of groups: what is outside its blocks goes.
template <class T, int Taps, int Channels, int Outs, int Groups>
struct GroupedGradientSink {
  static constexpr bool kJoins = false;
  GradientSink<T> sink;
  RIBBIT_DEVICE void put(Index chain, Index slice, Index m, Index n, T sum) const {
    if (m >= sink.rows) return sink.put(chain, slice, m, n, sum);
    const int tap = static_cast<int>(m) / Channels, channel = static_cast<int>(m) % Channels;
    const int at = grouped_weight<Taps, Channels, Outs, Groups>(tap, channel, static_cast<int>(n));
    if (at >= 0) sink.put(chain, slice, at / sink.width, at % sink.width, sum);
  }
};

}  // namespace ribbit::cuda
