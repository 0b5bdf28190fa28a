// Convolutions with windows of 3 x 3, stride 1 and an edge of zeros, in float32. A product's tile
// has each cell once for each tap that meets it; here it lies in shared memory once, and a thread
// makes 8 sites side by side of 8 outs, so that the ten cells which it reads serve three taps.
#pragma once

#include "cuda/kernels/conv_kernels.h"

namespace ribbit::cuda {

// Whether a sink takes all images of a block at once.
template <class Sink>
RIBBIT_SIZE auto takes_images(int) -> decltype(Sink::kImages) {
  return Sink::kImages;
}
template <class Sink>
RIBBIT_SIZE bool takes_images(...) {
  return false;
}

// sink (rows x sites, outs) = sum over the nine taps and the channels of the cell that a tap meets
// times its weight, over 16 channels at a time. weights: (taps, channels, outs); turned: (taps,
// outs, channels) with the taps in the opposite order, as the gradient by the cells needs those of
// the convolution below. What is read and written by the sink lies at multiples of 16 bytes; the
// weights may lie anywhere. A sink of whole images needs blocks that have some. Share: 1, or 2 for
// half as many lines of a block, where half of its threads only copy. Grid: (ceil(rows Height /
// kLines), Outs / kOuts, chains).
template <int Height, int Width, int Channels, int Outs, bool Turned, class Sink, int Share = 1>
struct DirectConvolution {
  static constexpr int kBlock = kThreads, kResident = 2;
  static constexpr int kHeight = Height, kWidth = Width, kAllOuts = Outs;
  static constexpr int kDepth = 16;  // channels of a step
  static constexpr int kSites = 8;   // of a thread
  static constexpr int kOuts = Outs % 64 == 0 ? 64 : Outs % 32 == 0 ? 32 : 16;  // of a block
  static constexpr int kTeam = kOuts / 8, kRuns = Width / kSites;
  static constexpr int kLines = kThreads / kTeam / kRuns / Share;  // of images one below another
  // Lines of an image side by side in shared memory, with one above and one below; such parts.
  static constexpr int kPart = kLines < Height ? kLines : Height, kParts = kLines / kPart;
  static constexpr int kStored = kParts * (kPart + 2);
  // Numbers of a line: four of padding behind eight cells, lines 16 mod 32 apart, so that the
  // threads which read at once meet all banks.
  static constexpr int kRaw = (Width + 2) * kDepth + (Width / kSites + 1) * 4;
  static constexpr int kPitch = (kRaw + 15) / 32 * 32 + 16;
  static constexpr int kWeightPitch = kOuts + 4;
  static constexpr int kOwn = kSites * 8;
  static_assert(Width % kSites == 0 && 64 % Width == 0 &&
                kLines * kTeam * kRuns * Share == kThreads);
  static_assert(Height % kPart == 0 && kLines % kPart == 0);
  static_assert(Channels % kDepth == 0 && Outs % kOuts == 0);
  struct Shared {
    alignas(16) float cells[kStored * kPitch];
    alignas(16) float weights[9 * kDepth * kWeightPitch];
  };
  const float* source;
  Index source_stride;  // from chain to chain
  const float* weights;
  Index weights_stride;
  Sink sink;
  Index lines;  // rows x Height

  // A thread's line among those of the block, its run of sites in that line, and the first of its
  // outs: four from there on and four from half of the block's outs further.
  static RIBBIT_DEVICE int line_of(int t) { return t / (kTeam * kRuns); }
  static RIBBIT_DEVICE int run_of(int t) { return t / kTeam % kRuns; }
  static RIBBIT_DEVICE int out_of(int t) { return t % kTeam * 4; }
  // Whether there is a thread's line.
  static RIBBIT_DEVICE bool has_line(int t, int first, Index lines) {
    return (Share == 1 || line_of(t) < kLines) && first + line_of(t) < lines;
  }
  // Where a thread's first site and out are in the values of a chain.
  static RIBBIT_DEVICE Index place_of(int t, int first, int out0) {
    const int site = (first + line_of(t)) * Width + run_of(t) * kSites;
    return static_cast<Index>(site) * Outs + out0 + out_of(t);
  }

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, kOwn> sums(block);
    const int first = static_cast<int>(block.x()) * kLines;
    const int out0 = static_cast<int>(block.y()) * kOuts;
    const Index chain = block.z();
    const float* from = source + chain * source_stride;
    const float* given = weights + chain * weights_stride;
    block.last([&](int t) {
      clear_sides(t, shared.cells);
      RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) sums(t)[i] = 0.0f;
    });
    RIBBIT_UNROLL(1)
    for (int channel = 0; channel < Channels; channel += kDepth) {
      if (channel > 0) block.phase([](int) {});  // the step before is read
      block.last([&](int thread) {
        const int t = anew(thread);
        copy_cells(block, t, shared.cells, from + channel, first);
        copy_weights(block, t, shared.weights, given, channel, out0);
      });
      block.commit();
      block.template wait<0>();
      block.phase([](int) {});
      block.last([&](int t) { multiply(anew(t), shared, sums(t)); });
    }
    if constexpr (takes_images<Sink>(0)) {
      block.phase([](int) {});  // the last step is read: its memory is the sink's
      // anew, lest they wait in registers that the loops need
      const int line = anew(static_cast<int>(block.x())) * kLines;
      const int out = anew(static_cast<int>(block.y())) * kOuts;
      sink.template put_images<DirectConvolution>(block, shared, sums, block.z(), line, out, lines);
    } else {
      block.last([&](int t) {
        const int line = first + line_of(t);
        if (!has_line(t, first, lines)) return;
        const Index site = static_cast<Index>(line) * Width + run_of(t) * kSites;
        const int out = out0 + out_of(t);
        RIBBIT_UNROLL_ALL for (int i = 0; i < kSites; ++i) {
          sink.put4(chain, 0, site + i, out, sums(t) + 8 * i);
          sink.put4(chain, 0, site + i, out + kOuts / 2, sums(t) + 8 * i + 4);
        }
      });
    }
  }

 private:
  // Where cell x - 1 lies in its line.
  static RIBBIT_DEVICE int place(int x) { return x * kDepth + x / kSites * 4; }

  // The cells beside an image, which no step changes.
  static RIBBIT_DEVICE void clear_sides(int t, float* to) {
    const float zeros[4] = {};
    RIBBIT_UNROLL_ALL for (int i = 0; i < 8 * kStored; i += kThreads) {
      const int line = (i + t) / 8, four = (i + t) % 4 * 4;
      if (line >= kStored) continue;
      write4(to + line * kPitch + ((i + t) / 4 % 2 == 0 ? 0 : place(Width + 1)) + four, zeros);
    }
  }
  RIBBIT_DEVICE void copy_cells(Block& block, int t, float* to, const float* own, int first) const {
    constexpr int kApart = kThreads / (4 * Width);  // lines that are copied at once
    const int four = t % 4 * 4, x = t / 4 % Width, down = t / (4 * Width);
    const int top = kPart < Height ? first % Height : 0;
    to += down * kPitch + place(x + 1) + four;
    own += x * Channels + four;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kStored; i += kApart) {
      const int stored = i + down;
      if (kStored % kApart != 0 && stored >= kStored) continue;
      const int part = kParts > 1 ? stored / (kPart + 2) : 0;
      const int inside = stored - part * (kPart + 2) - 1, line = first + part * kPart + inside;
      const bool there = static_cast<unsigned>(top + inside) < static_cast<unsigned>(Height);
      block.template copy<4>(to + i * kPitch, own + line * (Width * Channels),
                             there && line < lines);
    }
  }
  // One by one: an array of parameters may begin anywhere.
  static RIBBIT_DEVICE void copy_weights(Block& block, int t, float* to, const float* own,
                                         int channel, int out0) {
    if constexpr (Turned) {
      const int depth = t % kDepth, out = t / kDepth;
      to += depth * kWeightPitch + out;
      own += (out0 + out) * Channels + channel + depth;
      RIBBIT_UNROLL_ALL for (int tap = 0; tap < 9; ++tap) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kOuts; i += kThreads / kDepth) {
          block.template copy<1>(to + tap * (kDepth * kWeightPitch) + i,
                                 own + ((8 - tap) * Outs + i) * Channels, true);
        }
      }
    } else {
      constexpr int kApart = kThreads / kOuts;
      const int depth = t / kOuts, out = t % kOuts;
      to += depth * kWeightPitch + out;
      own += (channel + depth) * Outs + out0 + out;
      RIBBIT_UNROLL_ALL for (int tap = 0; tap < 9; ++tap) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < kDepth; i += kApart) {
          block.template copy<1>(to + (tap * kDepth + i) * kWeightPitch,
                                 own + (tap * Channels + i) * Outs, true);
        }
      }
    }
  }

  static RIBBIT_DEVICE void multiply(int t, const Shared& shared, float (&sum)[kOwn]) {
    const int line = line_of(t);
    if (Share > 1 && line >= kLines) return;
    const float* a =
        shared.cells + (line + line / kPart * 2) * kPitch + run_of(t) * (kSites * kDepth + 4);
    const float* b = shared.weights + out_of(t);
    RIBBIT_UNROLL(1)
    for (int y = 0; y < 3; ++y) {
      RIBBIT_UNROLL(1)
      for (int channel = 0; channel < kDepth; channel += 4) {
        float cell[kSites + 2][4];
        RIBBIT_UNROLL_ALL for (int i = 0; i < kSites + 2; ++i) load4(cell[i], a + place(i));
        RIBBIT_UNROLL_ALL for (int x = 0; x < 3; ++x) {
          RIBBIT_UNROLL_ALL for (int c = 0; c < 4; ++c) {
            float weight[8];
            load4(weight, b + (x * kDepth + c) * kWeightPitch);
            load4(weight + 4, b + (x * kDepth + c) * kWeightPitch + kOuts / 2);
            RIBBIT_UNROLL_ALL for (int i = 0; i < kSites; ++i) {
              RIBBIT_UNROLL_ALL for (int j = 0; j < 8; ++j) {
                sum[8 * i + j] = Ops<float>::fma(cell[i + x][c], weight[j], sum[8 * i + j]);
              }
            }
          }
        }
        a += 4, b += 4 * kWeightPitch;
      }
      a += kPitch - kDepth, b += 2 * kDepth * kWeightPitch;
    }
  }
};

}  // namespace ribbit::cuda
