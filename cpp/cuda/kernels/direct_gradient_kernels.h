// Gradients of the weights of DirectConvolution's windows, in float32: bands of eight lines of an
// image lie in shared memory once, and a thread makes those of all nine taps for two channels and
// four outs, so that a cell which it reads serves three sites.
#pragma once

#include "cuda/kernels/conv_kernels.h"

namespace ribbit::cuda {

// sink (taps x channels, outs) = sum over the sites of bands of what each tap meets times the
// site's delta, and the sum of the deltas if `ones`. N outs of a block: 64, or fewer and then more
// teams of threads, which take every so many runs of 8 sites each; their sums are added pair by
// pair. Stages: bands in shared memory, 2, or 1, which waits for each and has the same bits. Grid:
// (Channels / 16, Outs / N, chains x slices). What is read lies at multiples of 16
// bytes.
template <int Height, int Width, int Channels, int Outs, int N, int Stages = 2>
struct DirectGradient {
  static constexpr int kBlock = kThreads, kResident = Stages;
  static constexpr int kDepth = 16;  // channels of a block
  static constexpr int kBand = 8, kRun = 8, kRuns = kBand * Width / kRun;
  static constexpr int kTeam = kDepth / 2 * (N / 4), kTeams = kThreads / kTeam;
  static constexpr int kOwn = 9 * 2 * 4;               // outputs of a thread
  static constexpr int kPitch = (Width + 2) * kDepth;  // of a line, with a cell on either side
  static constexpr int kCells = (kBand + 2) * kPitch, kDeltas = kBand * Width * N;
  static constexpr int kStage = kCells + kDeltas, kHanded = kOwn * (kThreads / 2);
  static_assert(Height % kBand == 0 && Width % kRun == 0 && 64 % Width == 0);
  static_assert(Channels % kDepth == 0 && Outs % N == 0 && kRuns % kTeams == 0 && kTeams >= 2);
  static_assert(kDeltas % kThreads == 0 && kThreads % N == 0);
  // The stages, and then what teams hand over.
  struct Shared {
    alignas(16) float memory[Stages * kStage > kHanded ? Stages * kStage : kHanded];
    float ones[kThreads];  // sums of the deltas of every so many sites
  };
  const float* source;
  Index source_stride;  // from chain to chain
  const float* delta;
  Index delta_stride;
  GradientSink<float> sink;
  Index bands;
  Index slices;
  Index slice_length;  // bands
  Index ones;

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, kOwn> sums(block);
    const int channel0 = static_cast<int>(block.x()) * kDepth, n0 = static_cast<int>(block.y()) * N;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const int begin = static_cast<int>(slice * slice_length);
    const Index last = begin + slice_length < bands ? begin + slice_length : bands;
    const int end = static_cast<int>(last);
    const float* from = as_it_is(source + chain * source_stride + channel0);
    const float* given = as_it_is(delta + chain * delta_stride + n0);
    const bool sums_ones = ones != 0 && block.x() == 0;
    const auto fetch = [&](int band) {
      if (band < end) {
        float* to = shared.memory + (band - begin) % Stages * kStage;
        block.last([&](int t) {
          copy_cells(block, t, to, from, band);
          copy_deltas(block, t, to + kCells, given, band);
        });
      }
      block.commit();
    };
    block.last([&](int t) {
      clear_sides(t, shared.memory);
      if constexpr (Stages > 1) clear_sides(t, shared.memory + kStage);
      RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) sums(t)[i] = 0.0f;
      shared.ones[t] = 0.0f;
    });
    fetch(begin);
    for (int band = begin; band < end; ++band) {
      block.template wait<0>();
      block.phase([](int) {});  // what others have asked for is there, and the last band is read
      if constexpr (Stages > 1) fetch(band + 1);
      const float* stage = shared.memory + (band - begin) % Stages * kStage;
      block.last([&](int t) { multiply(t, stage, sums(t)); });
      if (sums_ones) {
        block.last([&](int t) {
          float sum = shared.ones[t];
          RIBBIT_UNROLL_ALL for (int i = 0; i < kDeltas; i += kThreads) {
            sum = sum + stage[kCells + i + t];
          }
          shared.ones[t] = sum;
        });
      }
      if constexpr (Stages == 1) {
        block.phase([](int) {});  // the band is read
        fetch(band + 1);
      }
    }
    block.phase([](int) {});  // the last stage is read: its memory is for what teams hand over
    RIBBIT_UNROLL_ALL for (int half = kTeams / 2; half > 0; half /= 2) {
      block.phase([&](int t) {
        const int team = t / kTeam;
        if (team < half || team >= 2 * half) return;
        float* to = shared.memory + (t - half * kTeam);
        RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) to[i * (kThreads / 2)] = sums(t)[i];
      });
      block.phase([&](int t) {
        if (t / kTeam >= half) return;
        RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) {
          sums(t)[i] = sums(t)[i] + shared.memory[i * (kThreads / 2) + t];
        }
      });
    }
    block.last([&](int t) {
      if (t >= kTeam) return;
      RIBBIT_UNROLL_ALL for (int i = 0; i < 18; ++i) {
        const int m = i / 2 * Channels + channel0 + channel_of(t) + i % 2;
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          sink.put(chain, slice, m, n0 + out_of(t) + j, sums(t)[4 * i + j]);
        }
      }
    });
    if (sums_ones) {
      block.last([&](int t) {
        if (t >= N) return;
        float sum = 0.0f;
        RIBBIT_UNROLL_ALL for (int i = 0; i < kThreads; i += N) sum = sum + shared.ones[i + t];
        sink.put(chain, slice, sink.rows, n0 + t, sum);
      });
    }
  }

 private:
  // The first of a thread's channels and outs among those of the block.
  static RIBBIT_DEVICE int channel_of(int t) { return t % (kDepth / 2) * 2; }
  static RIBBIT_DEVICE int out_of(int t) { return t / (kDepth / 2) % (N / 4) * 4; }

  // The cells beside an image, which no band changes.
  static RIBBIT_DEVICE void clear_sides(int t, float* to) {
    const float zeros[4] = {};
    const int line = t / 8, side = t / 4 % 2, four = t % 4 * 4;
    if (line < kBand + 2) write4(to + line * kPitch + side * (Width + 1) * kDepth + four, zeros);
  }
  static RIBBIT_DEVICE void copy_cells(Block& block, int t, float* to, const float* own, int band) {
    constexpr int kApart = kThreads / (4 * Width);  // lines that are copied at once
    const int four = t % 4 * 4, x = t / 4 % Width, down = t / (4 * Width);
    const int first = band * kBand - 1, top = first - band * kBand / Height * Height;
    to += down * kPitch + (x + 1) * kDepth + four;
    own += (static_cast<Index>(first) + down) * (Width * Channels) + x * Channels + four;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kBand + 2; i += kApart) {
      if ((kBand + 2) % kApart != 0 && i + down >= kBand + 2) continue;
      const bool inside = static_cast<unsigned>(top + i + down) < static_cast<unsigned>(Height);
      block.template copy<4>(to + i * kPitch, own + i * (Width * Channels), inside);
    }
  }
  static RIBBIT_DEVICE void copy_deltas(Block& block, int t, float* to, const float* own,
                                        int band) {
    constexpr int kFours = N / 4, kApart = kThreads / kFours;  // sites that are copied at once
    const int four = t % kFours * 4, site = t / kFours;
    to += site * N + four;
    own += (static_cast<Index>(band) * (kBand * Width) + site) * Outs + four;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kBand * Width; i += kApart) {
      if (kBand * Width % kApart != 0 && i + site >= kBand * Width) continue;
      block.template copy<4>(to + i * N, own + i * Outs, true);
    }
  }

  static RIBBIT_DEVICE void multiply(int t, const float* stage, float (&sum)[kOwn]) {
    const float* cells = stage + channel_of(t);
    const float* deltas = stage + kCells + out_of(t);
    RIBBIT_UNROLL(1)
    for (int run = t / kTeam; run < kRuns; run += kTeams) {
      const int line = run / (Width / kRun), x0 = run % (Width / kRun) * kRun;
      const float* a = cells + line * kPitch + x0 * kDepth;
      const float* b = deltas + run * (kRun * N);
      float window[3][3][2];  // lines and cells that a site meets; cell i in place i % 3
      RIBBIT_UNROLL_ALL for (int y = 0; y < 3; ++y) {
        load2(window[y][0], a + y * kPitch);
        load2(window[y][1], a + y * kPitch + kDepth);
      }
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRun; ++i) {
        RIBBIT_UNROLL_ALL for (int y = 0; y < 3; ++y) {
          load2(window[y][(i + 2) % 3], a + y * kPitch + (i + 2) * kDepth);
        }
        float right[4];
        load4(right, b + i * N);
        RIBBIT_UNROLL_ALL for (int tap = 0; tap < 9; ++tap) {
          RIBBIT_UNROLL_ALL for (int c = 0; c < 2; ++c) {
            const float left = window[tap / 3][(i + tap % 3) % 3][c];
            RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
              float& own = sum[(2 * tap + c) * 4 + j];
              own = Ops<float>::fma(left, right[j], own);
            }
          }
        }
      }
    }
  }
};

}  // namespace ribbit::cuda
