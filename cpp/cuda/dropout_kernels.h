// Dropout masks by address, with the CPU's words (cpu/isa/mask-inl.h): element row * 4 ceil(units /
// 4) + unit of a stream decides one unit of one row. They are made again on the way back and never
// stored. Masks of predictions have a purpose of their own, and may be shared by all rows: those of
// row 0.
#pragma once

#include "core/philox_hd.h"
#include "cuda/window_kernels.h"

namespace ribbit::cuda {

// to = from times its masks, times derivative unless null, plus what is there if `add`: values on
// the way forward, deltas on the way back. Values are (rows, places, units) per chain, and all
// places of a row share a mask. A thread makes the four units of a counter block. Grid: (any, C).
template <class T>
struct DropUnits {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const Word64* where;  // seed, step and the sample of chain 0
  const Index* rows;    // numbers of the data rows; null: first_row, first_row + 1, ..
  Index rows_stride;    // from chain to chain
  Index first_row;
  Index shared;      // every row takes the mask of row 0
  Index predicts;    // masks of predictions
  Word64 layer;      // index of the layer
  Word64 threshold;  // rate 2^32: smaller words drop the unit
  double keep;       // what a kept unit is multiplied by
  const T* from;
  Index from_stride;  // from chain to chain
  T* to;
  const T* derivative;
  Index to_stride;  // from chain to chain, of both
  Index count;      // rows
  Index places;
  Index units;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const Small blocks = static_cast<Small>((units + 3) / 4), width = static_cast<Small>(units);
    const Small size = static_cast<Small>(count * places) * blocks;
    const Word64 seed = where[0], step = where[1];
    const Word purpose = predicts != 0 ? kPurposePredictiveMask : kPurposeMask;
    const Word last = counter_purpose(purpose, static_cast<Word>(layer), step);
    const Word sample = static_cast<Word>(where[2]) + static_cast<Word>(block.y());
    const T* source = from + block.y() * from_stride;
    const Index out = block.y() * to_stride;
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < size; i += block.width() * kBlock) {
        const Small four = static_cast<Small>(i) % blocks, at = static_cast<Small>(i) / blocks;
        const Small r = at / static_cast<Small>(places);
        const Index listed = first_row + r;
        const Index own = rows != nullptr ? rows[block.y() * rows_stride + listed] : listed;
        const Index row = shared != 0 ? 0 : own;
        const Word64 number = static_cast<Word64>(row) * blocks + four;
        Word64 c[1][4] = {{number & 0xffffffffull, counter_step(step), sample, last}};
        philox4x32<1>(c, seed);
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          const Small unit = 4 * four + static_cast<Small>(j);
          if (unit >= width) continue;
          const bool kept = static_cast<Word>(c[0][j]) >= static_cast<Word>(threshold);
          const Small place = at * width + unit;
          T value = source[place] * (kept ? static_cast<T>(keep) : T(0));
          if (derivative != nullptr) value *= derivative[out + place];
          to[out + place] = add != 0 ? to[out + place] + value : value;
        }
      }
    });
  }
};

}  // namespace ribbit::cuda
