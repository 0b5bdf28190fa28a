// Gradients of the weights of windows with nine taps, in float32. A general product would have
// 9 x 16 rows in a tile of 256; here a block makes those of 16 channels and nothing else.
#pragma once

#include "cuda/kernels/conv_kernels.h"

namespace ribbit::cuda {

// sink (taps x channels, outs) = sum over sites of what each tap meets times the site's delta, and
// the sum of the deltas if `ones`. N outs of a block: 64, or fewer and then teams of threads that
// take every so many terms each; their sums are added pair by pair. S: a Sliding window. Grid:
// (channels / 16, outs / N, chains x slices). What is read lies at multiples of 16 bytes.
template <class S, int N>
struct TapGradient {
  static constexpr int kBlock = kThreads, kResident = 2;
  static constexpr int kTaps = 9, kChannels = 16, kRows = kTaps * kChannels;
  static constexpr int kDepth = 32, kStages = 3;  // terms of a stage
  static constexpr int kAcross = N / 4, kTeam = 16 * kAcross, kTeams = kThreads / kTeam;
  static constexpr int kTerms = kDepth / kTeams;  // of a team and a stage
  static constexpr int kOwn = 36;                 // outputs of a thread: 9 rows of 4
  static_assert(S::kTaps == kTaps && S::kChannels % kChannels == 0 && N <= 64);
  // Lines of 144 numbers: two of them are neighbours in the banks.
  struct Shared {
    alignas(16) float a[kStages * kDepth * kRows];
    alignas(16) float b[kStages * kDepth * N];
    float ones[N];
  };
  const float* source;
  Index source_stride;  // from chain to chain
  const float* delta;
  Index delta_stride;
  GradientSink<float> sink;
  Index terms;
  Index slices;
  Index slice_length;
  Index ones;

  // The thread's place among the 16 of a team that have other rows, and its first column; lanes
  // are paired as those of WideProduct.
  static RIBBIT_DEVICE int row_of(int t) {
    const int own = t % kTeam;
    return own / 32 * (32 / kAcross) + own % 32 / 2 / kAcross * 2 + own % 2;
  }
  static RIBBIT_DEVICE int column_of(int t) { return t % 32 / 2 % kAcross * 4; }
  // Row i of a thread's nine: two times four side by side, and one of the last tap.
  static RIBBIT_DEVICE int row(int place, int i) {
    return i == 8 ? 8 * kChannels + place : i / 4 * (4 * kChannels) + 4 * place + i % 4;
  }

  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, kOwn> sums(block);
    const int channel0 = static_cast<int>(block.x()) * kChannels,
              n0 = static_cast<int>(block.y()) * N;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const Index begin = slice * slice_length;
    const Index end = begin + slice_length < terms ? begin + slice_length : terms;
    const int steps = static_cast<int>((end - begin + kDepth - 1) / kDepth);
    const float* from = as_it_is(source + chain * source_stride + channel0);
    const float* given = as_it_is(delta + chain * delta_stride + n0);
    const bool sums_ones = ones != 0 && block.x() == 0;

    const auto fetch = [&](int step, int stage) {
      if (step < steps) {
        const Index first = begin + step * kDepth;
        const int more = static_cast<int>(end - first);
        block.last([&](int t) {
          copy_source(block, t, shared.a + stage * (kDepth * kRows), from, first, more);
          copy_delta(block, t, shared.b + stage * (kDepth * N), given, first, more);
        });
      }
      block.commit();
    };
    fetch(0, 0);
    fetch(1, 1);
    block.last([&](int t) {
      float (&sum)[kOwn] = sums(t);
      RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) sum[i] = 0.0f;
      if (t < N) shared.ones[t] = 0.0f;
    });
    int stage = 0, ahead = 2;  // of this step and of the one that is fetched
    for (int step = 0; step < steps; ++step) {
      block.template wait<1>();
      block.phase([](int) {});  // what others have asked for is there, and the last stage is read
      fetch(step + 2, ahead);
      const float* b = shared.b + stage * (kDepth * N);
      block.last([&](int t) { multiply(t, shared.a + stage * (kDepth * kRows), b, sums(t)); });
      if (sums_ones) {
        block.last([&](int t) {
          if (t >= N) return;
          float sum = shared.ones[t];
          RIBBIT_UNROLL_ALL for (int kk = 0; kk < kDepth; ++kk) sum = sum + b[kk * N + t];
          shared.ones[t] = sum;
        });
      }
      ahead = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    block.phase([](int) {});  // the last stage is read: its memory is for what teams hand over
    RIBBIT_UNROLL_ALL for (int half = kTeams / 2; half > 0; half /= 2) {
      block.phase([&](int t) {
        const int team = t / kTeam;
        if (team < half || team >= 2 * half) return;
        float* to = shared.a + (t - half * kTeam);
        RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) to[i * kThreads] = sums(t)[i];
      });
      block.phase([&](int t) {
        if (t / kTeam >= half) return;
        RIBBIT_UNROLL_ALL for (int i = 0; i < kOwn; ++i) {
          sums(t)[i] = sums(t)[i] + shared.a[i * kThreads + t];
        }
      });
    }
    block.last([&](int t) {
      if (t >= kTeam) return;
      RIBBIT_UNROLL_ALL for (int i = 0; i < 9; ++i) {
        const int inside = row(row_of(t), i);
        const int m = inside / kChannels * S::kChannels + channel0 + inside % kChannels;
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          sink.put(chain, slice, m, n0 + column_of(t) + j, sums(t)[4 * i + j]);
        }
      }
    });
    if (sums_ones) {
      block.last([&](int t) {
        if (t < N) sink.put(chain, slice, sink.rows, n0 + t, shared.ones[t]);
      });
    }
  }

 private:
  // Four channels of a term; of the taps a thread has every second one.
  static RIBBIT_DEVICE void copy_source(Block& block, int t, float* to, const float* own,
                                        Index first, int more) {
    const int channel = t % 4 * 4, term = t / 4 % kDepth, odd = t / (4 * kDepth);
    const Small at = static_cast<Small>(first) + static_cast<Small>(term);
    const Reach reach = S::cells(static_cast<int>(at % S::kSites));
    const int cell = static_cast<int>(at / S::kSites) * S::kCells + reach.first;
    const unsigned taps = term < more ? reach.taps >> odd : 0u;
    const float* from = own + (cell * S::kChannels + channel);
    to += term * kRows + odd * kChannels + channel;
    RIBBIT_UNROLL_ALL for (int tap = 0; tap < kTaps; tap += 2) {
      const int next = tap + 1 < kTaps ? tap + 1 : tap;
      if (tap == next && odd != 0) continue;
      const int offset = odd != 0 ? S::cell_offset(next) : S::cell_offset(tap);
      block.template copy<4>(to + tap * kChannels, from + offset * S::kChannels,
                             (taps >> tap & 1u) != 0);
    }
  }
  RIBBIT_DEVICE void copy_delta(Block& block, int t, float* to, const float* own, Index first,
                                int more) const {
    constexpr int kFours = N / 4;
    RIBBIT_UNROLL_ALL for (int i = 0; i < kDepth * kFours; i += kThreads) {
      const int term = (i + t) / kFours, column = (i + t) % kFours * 4;
      if (term >= kDepth) continue;
      const float* from = own + (static_cast<int>(first) + term) * static_cast<int>(sink.width);
      block.template copy<4>(to + term * N + column, from + column, term < more);
    }
  }

  static RIBBIT_DEVICE void multiply(int t, const float* a, const float* b, float (&sum)[kOwn]) {
    const int place = row_of(t), column = column_of(t), first = t / kTeam * kTerms;
    a += first * kRows + 4 * place;
    b += first * N + column;
    RIBBIT_UNROLL_ALL for (int kk = 0; kk < kTerms; ++kk) {
      float left[9], right[4];
      load4(left, a + kk * kRows);
      load4(left + 4, a + kk * kRows + 4 * kChannels);
      left[8] = a[kk * kRows + 8 * kChannels - 3 * place];
      load4(right, b + kk * N);
      RIBBIT_UNROLL_ALL for (int i = 0; i < 9; ++i) {
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          sum[4 * i + j] = Ops<float>::fma(left[i], right[j], sum[4 * i + j]);
        }
      }
    }
  }
};

}  // namespace ribbit::cuda
