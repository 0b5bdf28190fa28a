// Windows that slide over images (height, width, channels) with constant sizes, so that indices
// are taken apart by constants. Values of one chain's panel have less than 2^31 numbers.
#pragma once

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

using Small = unsigned int;  // an index inside a value of one chain's panel

template <int Height, int Width, int Channels, int KernelHeight, int KernelWidth, int StrideHeight,
          int StrideWidth, int PadTop, int PadLeft, int OutHeight, int OutWidth>
struct Sliding {
  static constexpr int kHeight = Height, kWidth = Width, kChannels = Channels;
  static constexpr int kKernelHeight = KernelHeight, kKernelWidth = KernelWidth;
  static constexpr int kOutHeight = OutHeight, kOutWidth = OutWidth;
  static constexpr int kCells = Height * Width, kPlaces = OutHeight * OutWidth;
  // The cell that a tap meets at a place, less than zero outside the image.
  RIBBIT_DEVICE static int cell(int place, int tap) {
    const int y = place / OutWidth * StrideHeight + tap / KernelWidth - PadTop;
    const int x = place % OutWidth * StrideWidth + tap % KernelWidth - PadLeft;
    const bool inside = y >= 0 && y < Height && x >= 0 && x < Width;
    return inside ? y * Width + x : -1;
  }
  // The place where a tap meets a cell, less than zero where there is none.
  RIBBIT_DEVICE static int place(int cell, int tap) {
    const int y = cell / Width + PadTop - tap / KernelWidth;
    const int x = cell % Width + PadLeft - tap % KernelWidth;
    const bool inside = y >= 0 && y % StrideHeight == 0 && y / StrideHeight < OutHeight && x >= 0 &&
                        x % StrideWidth == 0 && x / StrideWidth < OutWidth;
    return inside ? y / StrideHeight * OutWidth + x / StrideWidth : -1;
  }
  static constexpr int kTaps = KernelHeight * KernelWidth;
};

}  // namespace ribbit::cuda
