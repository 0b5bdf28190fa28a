// Filter response norms (core/norm_hd.h) as sinks of direct convolutions whose blocks have whole
// images: the norm that reads a convolution's sums, and on the way back that whose delta they end.
// What it needs of an image is then in registers.
#pragma once

#include "core/math_hd.h"
#include "core/norm_hd.h"
#include "cuda/kernels/direct_conv_kernels.h"
#include "cuda/kernels/norm_arrays.h"

namespace ribbit::cuda {

// Shared memory of such a sink: N sums at a time of every channel of every image of a block, over
// its threads by a tree, and Kept numbers of each. A channel of an image is a pair.
template <class Tile, int N, int Kept>
struct ImageChannels {
  static constexpr int kOuts = Tile::kOuts;
  static constexpr int kAlike = Tile::kHeight * Tile::kRuns * Tile::kTeam;  // threads of an image
  static constexpr int kPairs = Tile::kLines / Tile::kHeight * kOuts;
  static_assert(Tile::kLines % Tile::kHeight == 0);
  float value[N][8][kThreads];  // by the thread's channels
  alignas(16) float kept[Kept][kPairs];
  RIBBIT_DEVICE void reduce(Block& block) {
    RIBBIT_UNROLL_ALL for (int half = kAlike / 2; half >= Tile::kTeam; half /= 2) {
      block.phase([&](int t) {
        if (t % kAlike >= half) return;
        RIBBIT_UNROLL_ALL for (int n = 0; n < N; ++n) {
          RIBBIT_UNROLL_ALL for (int j = 0; j < 8; ++j) value[n][j][t] += value[n][j][t + half];
        }
      });
    }
  }
  // Of `reduce`.
  RIBBIT_DEVICE float sum(int n, int pair) const {
    const int out = pair % kOuts, side = out % (kOuts / 2);
    return value[n][out / (kOuts / 2) * 4 + side % 4][pair / kOuts * kAlike + side / 4];
  }
  // What is kept of four of a thread's channels.
  RIBBIT_DEVICE void load(float (&to)[4], int which, int t, int half) const {
    load4(to, kept[which] + t / kAlike * kOuts + Tile::out_of(t) + half * (kOuts / 2));
  }
  // one(pair, image of all, channel of the block) for each pair whose image is there.
  template <class One>
  static RIBBIT_DEVICE void each_pair(int t, int first, Index lines, const One& one) {
    RIBBIT_UNROLL(1)
    for (int pair = t; pair < kPairs; pair += kThreads) {
      const int image = first / Tile::kHeight + pair / kOuts;
      if (static_cast<Index>(image) * Tile::kHeight < lines) one(pair, image, pair % kOuts);
    }
  }
};

// out = f(norm(sum + bias)). All that is read and written lies at multiples of 16 bytes but bias,
// parameters and inverse.
template <int Code>
struct ResponseNormSink {
  static constexpr bool kImages = true;
  const float* bias;  // null: none
  Index bias_stride;  // from chain to chain
  PerChain<float> z;  // sum + bias; null: nobody asks for it
  NormParameters<float> parameters;
  NormOutput<float> out;
  PerChain<float> inverse;  // (rows, channels): r
  double epsilon;

  template <class Tile>
  RIBBIT_DEVICE void put_images(Block& block, typename Tile::Shared& memory,
                                Registers<float, Tile::kOwn>& sums, Index chain, int first,
                                int out0, Index lines) const {
    using Channels = ImageChannels<Tile, 1, 3>;
    static_assert(sizeof(Channels) <= sizeof(typename Tile::Shared));
    Channels& channels = reinterpret_cast<Channels&>(memory);
    enum { kScale, kShift, kLeast };
    block.phase([&](int t) {
      float (&own)[Tile::kOwn] = sums(t);
      const int channel = out0 + Tile::out_of(t);
      RIBBIT_UNROLL_ALL for (int j = 0; j < 8; ++j) {
        const int c = channel + j / 4 * (Tile::kOuts / 2) + j % 4;
        const float add = bias != nullptr ? bias[chain * bias_stride + c] : 0.0f;
        float squares = 0.0f;
        RIBBIT_UNROLL_ALL for (int i = 0; i < Tile::kSites; ++i) {
          float& number = own[8 * i + j];
          number = bias != nullptr ? number + add : number;
          squares = Ops<float>::fma(number, number, squares);
        }
        channels.value[0][j][t] = squares;
      }
    });
    channels.reduce(block);
    block.phase([&](int t) {
      Channels::each_pair(t, first, lines, [&](int pair, int image, int inside) {
        constexpr float kShare = 1.0f / static_cast<float>(Tile::kHeight * Tile::kWidth);
        const int c = out0 + inside;
        const Index at = chain * parameters.stride + c;
        const float r = inverse_root<float>(channels.sum(0, pair), kShare, float(epsilon));
        inverse.of(chain)[static_cast<Index>(image) * Tile::kAllOuts + c] = r;
        channels.kept[kScale][pair] = parameters.gamma[at] * r;
        channels.kept[kShift][pair] = parameters.beta[at];
        // nothing is less than NaN
        channels.kept[kLeast][pair] =
            parameters.tau != nullptr ? parameters.tau[at] : nan_of<float>();
      });
    });
    block.last([&](int t) {
      if (!Tile::has_line(t, first, lines)) return;
      const float (&own)[Tile::kOwn] = sums(t);
      const Index place = Tile::place_of(t, first, out0);
      RIBBIT_UNROLL_ALL for (int half = 0; half < 2; ++half) {
        float scale[4], shift[4], least[4];
        channels.load(scale, kScale, t, half);
        channels.load(shift, kShift, t, half);
        channels.load(least, kLeast, t, half);
        RIBBIT_UNROLL_ALL for (int i = 0; i < Tile::kSites; ++i) {
          const float* number = own + 8 * i + 4 * half;
          const Index at = place + i * Tile::kAllOuts + half * (Tile::kOuts / 2);
          if (z.first != nullptr) write4(z.of(chain) + at, number);
          float v[4], f[4], d[4];
          RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
            v[j] = response_output<float>(number[j], scale[j], shift[j], least[j]);
          }
          if (out.other.first != nullptr) {
            float other[4];
            load4(other, out.other.of(chain) + at);
            RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) v[j] += other[j];
          }
          RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
            activation<Code, false, float>(v[j], f[j], d[j]);
          }
          write4(out.value + chain * out.stride + at, f);
          if (out.derivative != nullptr) write4(out.derivative + chain * out.stride + at, d);
        }
      }
    });
  }
};

// The delta of a norm's value as DeltaSink makes it, which is written unless its place is null, and
// what ResponseNormBackward makes of it: terms and the delta below.
struct ResponseNormDeltaSink {
  static constexpr bool kImages = true;
  DeltaSink<float> deltas;
  PerChain<const float> z;
  NormParameters<float> parameters;
  PerChain<const float> inverse;
  PerChain<float> terms;  // (rows, 3, channels)
  PerChain<float> below;

  template <class Tile>
  RIBBIT_DEVICE void put_images(Block& block, typename Tile::Shared& memory,
                                Registers<float, Tile::kOwn>& sums, Index chain, int first,
                                int out0, Index lines) const {
    using Channels = ImageChannels<Tile, 3, 3>;
    static_assert(sizeof(Channels) <= sizeof(typename Tile::Shared));
    Channels& channels = reinterpret_cast<Channels&>(memory);
    enum { kScale, kShift, kLeast, kShrink = kScale };
    enum { kAlong, kPlain, kOff };
    constexpr int kAll = Tile::kAllOuts;
    // Two phases, one after the other, lest their loads take the registers of sums.
    block.phase([&](int thread) {
      const int t = anew(thread);
      Channels::each_pair(t, first, lines, [&](int pair, int image, int inside) {
        const int c = out0 + inside;
        const Index at = chain * parameters.stride + c;
        const float r = inverse.of(chain)[static_cast<Index>(image) * kAll + c];
        channels.kept[kScale][pair] = parameters.gamma[at] * r;
        channels.kept[kShift][pair] = parameters.beta[at];
        channels.kept[kLeast][pair] =
            parameters.tau != nullptr ? parameters.tau[at] : nan_of<float>();
      });
    });
    block.phase([&](int thread) {
      const int t = anew(thread);
      if (!Tile::has_line(t, first, lines)) return;
      float (&own)[Tile::kOwn] = sums(thread);
      const Index place = Tile::place_of(t, first, out0);
      RIBBIT_UNROLL_ALL for (int i = 0; i < Tile::kSites; ++i) {
        RIBBIT_UNROLL_ALL for (int half = 0; half < 2; ++half) {
          const Index at = place + i * kAll + half * (Tile::kOuts / 2);
          float d[4];
          deltas.template make<4>(chain, at, own + 8 * i + 4 * half, d);
          if (deltas.delta != nullptr) write4(deltas.delta + chain * deltas.chain_stride + at, d);
          RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) own[8 * i + 4 * half + j] = d[j];
        }
      }
    });
    block.phase([&](int thread) {
      const int t = anew(thread);
      float (&own)[Tile::kOwn] = sums(thread);
      const bool there = Tile::has_line(t, first, lines);
      const Index place = Tile::place_of(t, first, out0);
      RIBBIT_UNROLL_ALL for (int half = 0; half < 2; ++half) {
        float scale[4] = {}, shift[4] = {}, least[4] = {}, plain[4] = {}, along[4] = {},
              off[4] = {};
        if (there) {
          channels.load(scale, kScale, t, half);
          channels.load(shift, kShift, t, half);
          channels.load(least, kLeast, t, half);
          RIBBIT_UNROLL_ALL for (int i = 0; i < Tile::kSites; ++i) {
            float number[4];
            load4(number, z.of(chain) + (place + i * kAll + half * (Tile::kOuts / 2)));
            RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
              float& d = own[8 * i + 4 * half + j];
              const bool cut = threshold_cuts<float>(number[j], scale[j], shift[j], least[j]);
              off[j] += cut ? d : 0.0f;
              d = cut ? 0.0f : d;
              add_delta<float>(d, number[j], plain[j], along[j]);
              d = scale[j] * d;
            }
          }
        }
        RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
          channels.value[kAlong][4 * half + j][t] = along[j];
          channels.value[kPlain][4 * half + j][t] = plain[j];
          channels.value[kOff][4 * half + j][t] = off[j];
        }
      }
    });
    channels.reduce(block);
    block.phase([&](int thread) {
      const int t = anew(thread);
      Channels::each_pair(t, first, lines, [&](int pair, int image, int inside) {
        constexpr float kShare = 1.0f / static_cast<float>(Tile::kHeight * Tile::kWidth);
        const int c = out0 + inside;
        const float r = inverse.of(chain)[static_cast<Index>(image) * kAll + c];
        const float by_gamma = response_by_gamma<float>(r, channels.sum(kAlong, pair));
        float* to = terms.of(chain) + static_cast<Index>(image) * (3 * kAll) + c;
        to[0] = by_gamma;
        to[kAll] = channels.sum(kPlain, pair);
        to[2 * kAll] = channels.sum(kOff, pair);
        channels.kept[kShrink][pair] =
            response_shrink<float>(channels.kept[kScale][pair], r, by_gamma, kShare);
      });
    });
    block.last([&](int thread) {
      const int t = anew(thread);
      if (!Tile::has_line(t, first, lines)) return;
      const float (&own)[Tile::kOwn] = sums(thread);
      const Index place = Tile::place_of(t, first, out0);
      RIBBIT_UNROLL_ALL for (int half = 0; half < 2; ++half) {
        float shrink[4];
        channels.load(shrink, kShrink, t, half);
        RIBBIT_UNROLL_ALL for (int i = 0; i < Tile::kSites; ++i) {
          const Index at = place + i * kAll + half * (Tile::kOuts / 2);
          float number[4], made[4];
          load4(number, z.of(chain) + at);
          RIBBIT_UNROLL_ALL for (int j = 0; j < 4; ++j) {
            made[j] = response_by_input<float>(number[j], own[8 * i + 4 * half + j], shrink[j]);
          }
          write4(below.of(chain) + at, made);
        }
      }
    });
  }
};

}  // namespace ribbit::cuda
