// Samples in the lanes: one row of data under kPanel weight vectors at once. Weights come
// transposed, (elements, kPanel), and every sum keeps the order of tile-inl.h, so that a row's
// outputs have the same bits whichever way they were computed.
#pragma once

#include "cpu/isa/row_noise-inl.h"
#include "cpu/isa/tile-inl.h"

namespace ribbit::cpu {
namespace {

// Partial sums of a tile of `width` outputs, as multiply_panel chooses them.
constexpr int split_of(int width) {
  return width <= 2 ? 4 : (width == 3 ? 2 : 1);
}

// out[o]: partial sums of output o; returns the largest.
static int lane_splits(std::int64_t outs, unsigned char* out) {
  const Tiling tiling(outs);
  int most = 1;
  for (std::int64_t t = 0; t < tiling.count; ++t) {
    const int split = split_of(tiling.width(t));
    most = split > most ? split : most;
    for (int o = 0; o < tiling.width(t); ++o) {
      out[tiling.begin(t) + o] = static_cast<unsigned char>(split);
    }
  }
  return most;
}

// out (count, kPanel) = mean + scale * normal for elements first .. first + count - 1, both
// multiples of 4, of `limit` in all; lane l draws for samples[l].
template <class T>
static void draw_lanes(const T* mean, const T* scale, std::int64_t first, std::int64_t count,
                       std::int64_t limit, std::uint64_t key, std::uint32_t c1, std::uint32_t c3,
                       const std::uint64_t* samples, T* out) {
  using O = Ops<Vec<T>>;
  const MaskStream stream{key, c1, 0, c3, 0, 1.0, false};
  const std::uint64_t places[kPanel] = {};
  std::uint64_t lanes[kPanel];
  for (int r = 0; r < kPanel; ++r) lanes[counter_of_row(r)] = samples[r];
  for (std::int64_t i = 0; i < count; i += 4) {
    alignas(64) std::uint32_t words[4][kPanel];
    mask_words(stream, places, SampleOfEach{lanes}, static_cast<std::uint64_t>((first + i) / 4),
               words);
    const int some = limit - (first + i) < 4 ? static_cast<int>(limit - (first + i)) : 4;
    for (int r = 0; r < kPanel; r += kLanes<T>) {
      Vec<T> z[4];
      for (int j = 0; j < 4; j += 2) {
        box_muller<Vec<T>>(O::bits(word_lanes(words[j] + r, T())),
                           O::bits(word_lanes(words[j + 1] + r, T())), z[j], z[j + 1]);
      }
      for (int j = 0; j < some; ++j) {
        store(out + (i + j) * kPanel + r,
              fma(broadcast(scale[first + i + j]), z[j], broadcast(mean[first + i + j])));
      }
    }
  }
}

// out (count, kPanel): elements first .. first + count - 1 of kPanel arrays.
template <class T>
static void gather_lanes(const T* const* arrays, std::int64_t first, std::int64_t count, T* out) {
  constexpr int lanes = kLanes<T>;
  for (int r = 0; r < kPanel; r += lanes) {
    for (std::int64_t i = 0; i < count; i += lanes) {
      const std::int64_t some = count - i < lanes ? count - i : lanes;
      Vec<T> square[lanes];
      RIBBIT_UNROLL for (int a = 0; a < lanes; ++a) {
        square[a] = load_first(arrays[r + a] + first + i, some);
      }
      transpose_square<T>(square);
      for (int j = 0; j < some; ++j) store(out + (i + j) * kPanel + r, square[j]);
    }
  }
}

// Adds weights first .. first + count - 1 (in C order of (ins, outs)) times their inputs to the
// partial sums. w: (count, kPanel), x: (rows, ins, kPanel), sums: (rows, outs, most, kPanel).
template <class T>
static void accumulate_lanes(const T* w, std::int64_t first, std::int64_t count, const T* x,
                             std::int64_t ins, std::int64_t outs, std::int64_t rows,
                             const unsigned char* splits, int most, T* sums) {
  constexpr int kVecs = kPanel / kLanes<T>;
  std::int64_t k = first / outs, o = first % outs;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t split = splits[o];
    const std::int64_t part = k < ins - ins % split ? k % split : 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* in = x + (row * ins + k) * kPanel;
      T* sum = sums + ((row * outs + o) * most + part) * kPanel;
      RIBBIT_UNROLL for (int v = 0; v < kVecs; ++v) {
        const int at = v * kLanes<T>;
        store(sum + at, mul_add(load(w + i * kPanel + at), load(in + at), load(sum + at)));
      }
    }
    if (++o == outs) {
      o = 0;
      ++k;
    }
  }
}

// y (n, kPanel): the partial sums (n, most, kPanel) of n outputs; splits repeat every `outs`.
template <class T>
static void finish_lanes(const T* sums, const unsigned char* splits, std::int64_t outs, int most,
                         std::int64_t n, T* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const int split = splits[i % outs];
    for (int r = 0; r < kPanel; r += kLanes<T>) {
      Vec<T> total = load(sums + i * most * kPanel + r);
      for (int s = 1; s < split; ++s) total += load(sums + (i * most + s) * kPanel + r);
      store(y + i * kPanel + r, total);
    }
  }
}

}  // namespace
}  // namespace ribbit::cpu
