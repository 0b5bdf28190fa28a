// Layer norm and group norm (core/norm_hd.h), with the activation that follows. Blocks of
// Lanes x 256 / Lanes threads: channels in the lanes.
#pragma once

#include "core/norm_hd.h"
#include "cuda/kernels/norm_arrays.h"
#include "cuda/kernels/reduction_kernels.h"

namespace ribbit::cuda {

// Of the numbers that teams of threads (those of `sum`) have: their mean for every thread and, left
// in `sum`, the squares of what is left of them. numbers(t, body): body(number) of each that thread
// t has. share(): 1 / how many a team has, asked where it is used: keeping it takes registers.
template <class T, class Sum, class Share, class Numbers>
RIBBIT_DEVICE void sum_deviations(Block& block, Sum& sum, Registers<T, 1>& means,
                                  const Share& share, const Numbers& numbers) {
  block.phase([&](int t) {
    T own = T(0);
    numbers(t, [&](T number) { own += number; });
    sum.value[0][t] = own;
  });
  sum.reduce(block);
  block.phase([&](int t) { means(t)[0] = sum.value[0][sum.home(t)] * share(); });
  block.phase([&](int t) {
    T own = T(0);
    numbers(t, [&](T number) {
      const T off = number - means(t)[0];
      own = Ops<T>::fma(off, off, own);
    });
    sum.value[0][t] = own;
  });
  sum.reduce(block);
}

// value = f(standard_output). moments: (positions, 2) per chain, mean and r; positions: rows x
// sites. Grid: (ceil(positions Lanes / 256), C).
template <class T, int Code, int Lanes>
struct LayerNorm {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 1, Lanes, false>;
  PerChain<const T> z;
  NormParameters<T> parameters;
  NormOutput<T> out;
  PerChain<T> moments;
  Index positions;
  Index channels;
  double epsilon;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<T, 1> means(block);
    const Index first = block.x() * (kBlock / Lanes), chain = block.y();
    const T share = T(1) / static_cast<T>(channels);
    const auto line = [&](int t) { return z.of(chain) + (first + t / Lanes) * channels; };
    sum_deviations(
        block, sum, means, [&] { return share; },
        [&](int t, const auto& body) {
          for (Index c = t % Lanes; first + t / Lanes < positions && c < channels; c += Lanes) {
            body(line(t)[c]);
          }
        });
    block.last([&](int t) {
      const Index position = first + t / Lanes;
      if (position >= positions) return;
      const T squares = sum.value[0][sum.home(t)], mean = means(t)[0];
      const T r = inverse_root<T>(squares, share, T(epsilon));
      if (t % Lanes == 0) {
        T* own = moments.of(chain) + 2 * position;
        own[0] = mean;
        own[1] = r;
      }
      const Index own = chain * parameters.stride;
      for (Index c = t % Lanes; c < channels; c += Lanes) {
        const T unit = standardised<T>(line(t)[c], mean, r);
        const T v = standard_output<T>(unit, parameters.gamma[own + c], parameters.beta[own + c]);
        out.template put<Code>(chain, position * channels + c, v);
      }
    });
  }
};

// Grid: as above.
template <class T, int Lanes>
struct LayerNormBackward {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 2, Lanes, false>;
  PerChain<const T> z;
  NormParameters<T> parameters;
  PerChain<const T> delta;
  PerChain<const T> moments;
  NormBelow<T> below;
  Index positions;
  Index channels;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index first = block.x() * (kBlock / Lanes), chain = block.y();
    const T* gamma = parameters.gamma + chain * parameters.stride;
    const T* own_moments = moments.of(chain);
    const T* from = z.of(chain);
    const T* given = delta.of(chain);
    block.phase([&](int t) {
      const Index position = first + t / Lanes;
      T plain = T(0), along = T(0);
      for (Index c = t % Lanes; position < positions && c < channels; c += Lanes) {
        const Index at = position * channels + c;
        const T* own = own_moments + 2 * position;
        const T unit = standardised<T>(from[at], own[0], own[1]);
        add_delta<T>(given[at] * gamma[c], unit, plain, along);
      }
      sum.value[0][t] = plain;
      sum.value[1][t] = along;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const Index position = first + t / Lanes;
      if (position >= positions) return;
      const T share = T(1) / static_cast<T>(channels), r = own_moments[2 * position + 1];
      const T plain = sum.value[0][sum.home(t)] * share, along = sum.value[1][sum.home(t)] * share;
      for (Index c = t % Lanes; c < channels; c += Lanes) {
        const Index at = position * channels + c;
        const T unit = standardised<T>(from[at], own_moments[2 * position], r);
        const T value = standard_by_input<T>(unit, given[at] * gamma[c], r, plain, along);
        below.put(chain, at, value, add);
      }
    });
  }
};

// terms (rows, 2, channels) of gamma and beta: sums over sites of delta u and of delta.
// Grid: (rows ceil(channels / Lanes), C).
template <class T, int Lanes>
struct LayerNormTerms {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 2, Lanes, true>;
  PerChain<const T> z;
  PerChain<const T> delta;
  PerChain<const T> moments;
  PerChain<T> terms;
  Index sites;
  Index channels;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index groups = (channels + Lanes - 1) / Lanes, row = block.x() / groups;
    const Index channel0 = block.x() % groups * Lanes, chain = block.y();
    block.phase([&](int t) {
      const Index c = channel0 + t % Lanes;
      T along = T(0), plain = T(0);
      for (Index p = t / Lanes; p < sites && c < channels; p += kBlock / Lanes) {
        const Index position = row * sites + p, at = position * channels + c;
        const T* own = moments.of(chain) + 2 * position;
        const T unit = standardised<T>(z.of(chain)[at], own[0], own[1]);
        add_delta<T>(delta.of(chain)[at], unit, plain, along);
      }
      sum.value[0][t] = along;
      sum.value[1][t] = plain;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const Index c = channel0 + t;
      if (t >= Lanes || c >= channels) return;
      T* own = terms.of(chain) + row * 2 * channels + c;
      own[0] = sum.value[0][t];
      own[channels] = sum.value[1][t];
    });
  }
};

// The numbers of a group of channels: a block's share of (rows, sites, channels). Its channels lie
// along Lanes threads, its sites along the others.
template <class T, int Lanes>
struct ChannelGroup {
  Index sites;
  Index channels;
  Index width;  // channels of a group
  Index row;
  Index channel;  // the first
  RIBBIT_DEVICE ChannelGroup(const Block& block, Index sites, Index channels, Index groups)
      : sites(sites),
        channels(channels),
        width(channels / groups),
        row(block.x() / groups),
        channel(block.x() % groups * width) {}
  RIBBIT_DEVICE Index first() const { return row * sites * channels + channel; }
  RIBBIT_DEVICE T share() const { return T(1) / static_cast<T>(sites * width); }
  // body(channel of the group, place behind first()) of each number that is thread t's.
  template <class Body>
  RIBBIT_DEVICE void each(int t, const Body& body) const {
    for (Index p = t / Lanes; p < sites; p += kThreads / Lanes) {
      for (Index c = t % Lanes; c < width; c += Lanes) body(c, p * channels + c);
    }
  }
};

// value = f(standard_output). moments: (rows, groups, 2) per chain, mean and r. One block per row
// and group. Grid: (rows groups, C).
template <class T, int Code, int Lanes>
struct GroupNorm {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 1, kThreads, false>;
  PerChain<const T> z;
  NormParameters<T> parameters;
  NormOutput<T> out;
  PerChain<T> moments;
  Index sites;
  Index channels;
  Index groups;
  double epsilon;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<T, 1> means(block);
    const ChannelGroup<T, Lanes> group(block, sites, channels, groups);
    const Index chain = block.y();
    const T* from = z.of(chain) + group.first();
    sum_deviations(
        block, sum, means, [&] { return group.share(); },
        [&](int t, const auto& body) { group.each(t, [&](Index, Index at) { body(from[at]); }); });
    block.last([&](int t) {
      const T mean = means(t)[0];
      const T r = inverse_root<T>(sum.value[0][sum.home(t)], group.share(), T(epsilon));
      if (t == 0) {
        T* own = moments.of(chain) + 2 * block.x();
        own[0] = mean;
        own[1] = r;
      }
      const T* gamma = parameters.gamma + chain * parameters.stride + group.channel;
      const T* beta = parameters.beta + chain * parameters.stride + group.channel;
      group.each(t, [&](Index c, Index at) {
        const T unit = standardised<T>(from[at], mean, r);
        out.template put<Code>(chain, group.first() + at,
                               standard_output<T>(unit, gamma[c], beta[c]));
      });
    });
  }
};

// terms (rows, 2, channels) of gamma and beta. Grid: as above.
template <class T, int Lanes>
struct GroupNormBackward {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 2, Lanes, true>;
  PerChain<const T> z;
  NormParameters<T> parameters;
  PerChain<const T> delta;
  PerChain<const T> moments;
  PerChain<T> terms;
  NormBelow<T> below;
  Index sites;
  Index channels;
  Index groups;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<T, 2> of_group(block);  // of gamma delta u and of gamma delta
    const ChannelGroup<T, Lanes> group(block, sites, channels, groups);
    const Index chain = block.y();
    const T* from = z.of(chain) + group.first();
    const T* given = delta.of(chain) + group.first();
    const T* gamma = parameters.gamma + chain * parameters.stride + group.channel;
    const T* own_moments = moments.of(chain) + 2 * block.x();
    block.phase([&](int t) { of_group(t)[0] = of_group(t)[1] = T(0); });
    for (Index c0 = 0; c0 < group.width; c0 += Lanes) {
      block.phase([&](int t) {
        const Index c = c0 + t % Lanes;
        const T mean = own_moments[0], r = own_moments[1];
        T along = T(0), plain = T(0);
        for (Index p = t / Lanes; p < sites && c < group.width; p += kBlock / Lanes) {
          const T d = given[p * channels + c];
          add_delta<T>(d, standardised<T>(from[p * channels + c], mean, r), plain, along);
        }
        sum.value[0][t] = along;
        sum.value[1][t] = plain;
      });
      sum.reduce(block);
      block.phase([&](int t) {
        const Index c = c0 + t;
        if (t >= Lanes || c >= group.width) return;
        T* own = terms.of(chain) + group.row * 2 * channels + group.channel + c;
        own[0] = sum.value[0][t];
        own[channels] = sum.value[1][t];
        for (int n = 0; n < 2; ++n) {
          of_group(t)[n] = Ops<T>::fma(gamma[c], sum.value[n][t], of_group(t)[n]);
        }
      });
    }
    if (below.delta == nullptr) return;
    block.phase([&](int t) {
      for (int n = 0; n < 2 && t < Lanes; ++n) sum.value[n][t] = of_group(t)[n];
    });
    block.last([&](int t) {
      const T mean = own_moments[0], r = own_moments[1];
      T along = T(0), plain = T(0);
      for (int lane = 0; lane < Lanes; ++lane) {
        along += sum.value[0][lane];
        plain += sum.value[1][lane];
      }
      along *= group.share();
      plain *= group.share();
      group.each(t, [&](Index c, Index at) {
        const T unit = standardised<T>(from[at], mean, r);
        const T value = standard_by_input<T>(unit, given[at] * gamma[c], r, plain, along);
        below.put(chain, group.first() + at, value, add);
      });
    });
  }
};

}  // namespace ribbit::cuda
