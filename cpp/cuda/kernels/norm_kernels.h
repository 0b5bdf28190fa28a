// Filter response normalisation (Singh and Krishnan 2020, eq. 1 to 3), layer normalisation (Ba,
// Kiros and Hinton 2016, eq. 4) and group normalisation (Wu and He 2018, eq. 1, 4), with the
// activation that follows. Values are (rows, sites,
// channels) per chain. Blocks of Lanes x 256 / Lanes threads: channels in the lanes.
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/reduction_kernels.h"

namespace ribbit::cuda {

constexpr double kResponseEpsilon = 1e-6, kLayerEpsilon = 1e-5;  // those of cpu/layers/norm.cpp

// Where the parameters of a norm lie; tau is null without a threshold.
template <class T>
struct NormParameters {
  const T* gamma;
  const T* beta;
  const T* tau;
  Index stride;  // from chain to chain
};

// r = 1 / sqrt(mean over sites of z^2 + epsilon); value = f(max(gamma r z + beta, tau)).
// inverse: (rows, channels) per chain. One block per row and Lanes channels.
// Grid: (rows ceil(channels / Lanes), C).
template <class T, int Code, int Lanes>
struct ResponseNorm {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 1, Lanes, true>;
  const T* z;
  Index z_stride;  // from chain to chain, as all strides here
  NormParameters<T> parameters;
  T* value;
  T* derivative;
  Index stride;
  T* inverse;
  Index inverse_stride;
  Index sites;
  Index channels;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index groups = (channels + Lanes - 1) / Lanes, row = block.x() / groups;
    const Index channel0 = block.x() % groups * Lanes, chain = block.y();
    const T* from = z + chain * z_stride + row * sites * channels;
    block.phase([&](int t) {
      const Index c = channel0 + t % Lanes;
      T own = T(0);
      for (Index p = t / Lanes; p < sites && c < channels; p += kBlock / Lanes) {
        own = Ops<T>::fma(from[p * channels + c], from[p * channels + c], own);
      }
      sum.value[0][t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const Index c = channel0 + t % Lanes;
      if (c >= channels) return;
      const T share = T(1) / static_cast<T>(sites);
      const T squares = sum.value[0][sum.home(t)];
      const T r = T(1) / Ops<T>::sqrt(Ops<T>::fma(squares, share, T(kResponseEpsilon)));
      if (t < Lanes) inverse[chain * inverse_stride + row * channels + c] = r;
      const Index own = chain * parameters.stride + c;
      const T scale = parameters.gamma[own] * r, shift = parameters.beta[own];
      const bool cuts = parameters.tau != nullptr;
      const T least = cuts ? parameters.tau[own] : T(0);
      for (Index p = t / Lanes; p < sites; p += kBlock / Lanes) {
        T v = Ops<T>::fma(from[p * channels + c], scale, shift), f, d;
        // Of two equal ones the threshold: NaN passes.
        if (cuts && v <= least) v = least;
        activation<Code, false, T>(v, f, d);
        const Index at = chain * stride + (row * sites + p) * channels + c;
        value[at] = f;
        if (derivative != nullptr) derivative[at] = d;
      }
    });
  }
};

// delta of z = gamma r (d - r^2 z mean(d z)), d the delta where the threshold does not cut; times
// derivative unless null, plus what is there if `add`; not wanted where below is null.
// terms (rows, 3, channels): of gamma, beta and tau. Grid: as above.
template <class T, int Lanes>
struct ResponseNormBackward {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 3, Lanes, true>;
  const T* z;
  Index z_stride;
  NormParameters<T> parameters;
  const T* delta;
  Index stride;
  const T* inverse;
  Index inverse_stride;
  T* terms;
  Index terms_stride;
  T* below;
  const T* derivative;
  Index below_stride;
  Index sites;
  Index channels;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index groups = (channels + Lanes - 1) / Lanes, row = block.x() / groups;
    const Index channel0 = block.x() % groups * Lanes, chain = block.y();
    const Index image = row * sites * channels;
    const T* from = z + chain * z_stride + image;
    const T* given = delta + chain * stride + image;
    const T* inverses = inverse + chain * inverse_stride + row * channels;
    const T* gammas = parameters.gamma + chain * parameters.stride;
    const T* betas = parameters.beta + chain * parameters.stride;
    const T* taus =
        parameters.tau != nullptr ? parameters.tau + chain * parameters.stride : nullptr;
    // Whether the threshold cuts a number off.
    const auto cut = [&](Index c, T number, T scale) {
      return taus != nullptr && Ops<T>::fma(number, scale, betas[c]) <= taus[c];
    };
    block.phase([&](int t) {
      const Index c = channel0 + t % Lanes;
      const T scale = c < channels ? gammas[c] * inverses[c] : T(0);
      T plain = T(0), along = T(0), off = T(0);
      for (Index p = t / Lanes; p < sites && c < channels; p += kBlock / Lanes) {
        const T number = from[p * channels + c], d = given[p * channels + c];
        if (cut(c, number, scale)) {
          off += d;
        } else {
          plain += d;
          along = Ops<T>::fma(d, number, along);
        }
      }
      sum.value[0][t] = along;
      sum.value[1][t] = plain;
      sum.value[2][t] = off;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const Index c = channel0 + t % Lanes;
      if (c >= channels) return;
      const int home = sum.home(t);
      const T r = inverses[c], scale = gammas[c] * r, along = r * sum.value[0][home];
      if (t < Lanes) {
        T* own = terms + chain * terms_stride + row * 3 * channels + c;
        own[0] = along;
        own[channels] = sum.value[1][home];
        own[2 * channels] = sum.value[2][home];
      }
      if (below == nullptr) return;
      const T shrink = scale * r * (along * (T(1) / static_cast<T>(sites)));
      for (Index p = t / Lanes; p < sites; p += kBlock / Lanes) {
        const Index at = chain * below_stride + image + p * channels + c;
        const T number = from[p * channels + c];
        const T d = cut(c, number, scale) ? T(0) : given[p * channels + c];
        T value = Ops<T>::fma(-shrink, number, scale * d);
        if (derivative != nullptr) value *= derivative[at];
        below[at] = add != 0 ? below[at] + value : value;
      }
    });
  }
};

// value = f(gamma (z - mean) r + beta), r = 1 / sqrt(variance over channels + epsilon).
// moments: (positions, 2) per chain, mean and r; positions: rows x sites.
// Grid: (ceil(positions Lanes / 256), C).
template <class T, int Code, int Lanes>
struct LayerNorm {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 1, Lanes, false>;
  const T* z;
  Index z_stride;
  NormParameters<T> parameters;
  T* value;
  T* derivative;
  Index stride;
  T* moments;
  Index moments_stride;
  Index positions;
  Index channels;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<T, 1> means(block);
    const Index first = block.x() * (kBlock / Lanes), chain = block.y();
    const T share = T(1) / static_cast<T>(channels);
    const auto line = [&](int t) { return z + chain * z_stride + (first + t / Lanes) * channels; };
    block.phase([&](int t) {
      T own = T(0);
      for (Index c = t % Lanes; first + t / Lanes < positions && c < channels; c += Lanes) {
        own += line(t)[c];
      }
      sum.value[0][t] = own;
    });
    sum.reduce(block);
    block.phase([&](int t) { means(t)[0] = sum.value[0][sum.home(t)] * share; });
    block.phase([&](int t) {
      T own = T(0);
      for (Index c = t % Lanes; first + t / Lanes < positions && c < channels; c += Lanes) {
        const T off = line(t)[c] - means(t)[0];
        own = Ops<T>::fma(off, off, own);
      }
      sum.value[0][t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const Index position = first + t / Lanes;
      if (position >= positions) return;
      const T squares = sum.value[0][sum.home(t)], mean = means(t)[0];
      const T r = T(1) / Ops<T>::sqrt(Ops<T>::fma(squares, share, T(kLayerEpsilon)));
      if (t % Lanes == 0) {
        T* own = moments + chain * moments_stride + 2 * position;
        own[0] = mean;
        own[1] = r;
      }
      const Index own = chain * parameters.stride;
      for (Index c = t % Lanes; c < channels; c += Lanes) {
        T v, d;
        const T unit = (line(t)[c] - mean) * r;
        activation<Code, false, T>(
            Ops<T>::fma(parameters.gamma[own + c], unit, parameters.beta[own + c]), v, d);
        const Index at = chain * stride + position * channels + c;
        value[at] = v;
        if (derivative != nullptr) derivative[at] = d;
      }
    });
  }
};

// delta of z = r (g - mean(g) - u mean(g u)), g = gamma delta, u = (z - mean) r; times derivative
// unless null, plus what is there if `add`. Grid: as above.
template <class T, int Lanes>
struct LayerNormBackward {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 2, Lanes, false>;
  const T* z;
  Index z_stride;
  NormParameters<T> parameters;
  const T* delta;
  Index stride;
  const T* moments;
  Index moments_stride;
  T* below;
  const T* derivative;
  Index below_stride;
  Index positions;
  Index channels;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index first = block.x() * (kBlock / Lanes), chain = block.y();
    const T* gamma = parameters.gamma + chain * parameters.stride;
    const T* own_moments = moments + chain * moments_stride;
    const T* from = z + chain * z_stride;
    const T* given = delta + chain * stride;
    block.phase([&](int t) {
      const Index position = first + t / Lanes;
      T plain = T(0), along = T(0);
      for (Index c = t % Lanes; position < positions && c < channels; c += Lanes) {
        const Index at = position * channels + c;
        const T unit = (from[at] - own_moments[2 * position]) * own_moments[2 * position + 1];
        const T g = given[at] * gamma[c];
        plain += g;
        along = Ops<T>::fma(g, unit, along);
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
        const Index here = position * channels + c, at = chain * below_stride + here;
        const T unit = (from[here] - own_moments[2 * position]) * r;
        T value = r * (given[here] * gamma[c] - plain - unit * along);
        if (derivative != nullptr) value *= derivative[at];
        below[at] = add != 0 ? below[at] + value : value;
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
  const T* z;
  Index z_stride;
  const T* delta;
  Index stride;
  const T* moments;
  Index moments_stride;
  T* terms;
  Index terms_stride;
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
        const T* own = moments + chain * moments_stride + 2 * position;
        const T unit = (z[chain * z_stride + at] - own[0]) * own[1];
        const T d = delta[chain * stride + at];
        along = Ops<T>::fma(d, unit, along);
        plain += d;
      }
      sum.value[0][t] = along;
      sum.value[1][t] = plain;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const Index c = channel0 + t;
      if (t >= Lanes || c >= channels) return;
      T* own = terms + chain * terms_stride + row * 2 * channels + c;
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

// value = f(gamma (z - mean) r + beta), mean and r = 1 / sqrt(variance + epsilon) of a row's group.
// moments: (rows, groups, 2) per chain, mean and r. One block per row and group.
// Grid: (rows groups, C).
template <class T, int Code, int Lanes>
struct GroupNorm {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 1, kThreads, false>;
  const T* z;
  Index z_stride;
  NormParameters<T> parameters;
  T* value;
  T* derivative;
  Index stride;
  T* moments;
  Index moments_stride;
  Index sites;
  Index channels;
  Index groups;
  double epsilon;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<T, 1> means(block);
    const ChannelGroup<T, Lanes> group(block, sites, channels, groups);
    const Index chain = block.y();
    const T* from = z + chain * z_stride + group.first();
    block.phase([&](int t) {
      T own = T(0);
      group.each(t, [&](Index, Index at) { own += from[at]; });
      sum.value[0][t] = own;
    });
    sum.reduce(block);
    block.phase([&](int t) { means(t)[0] = sum.value[0][0] * group.share(); });
    block.phase([&](int t) {
      T own = T(0);
      group.each(t, [&](Index, Index at) {
        const T off = from[at] - means(t)[0];
        own = Ops<T>::fma(off, off, own);
      });
      sum.value[0][t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      const T mean = means(t)[0];
      const T r = T(1) / Ops<T>::sqrt(Ops<T>::fma(sum.value[0][0], group.share(), T(epsilon)));
      if (t == 0) {
        T* own = moments + chain * moments_stride + 2 * block.x();
        own[0] = mean;
        own[1] = r;
      }
      const T* gamma = parameters.gamma + chain * parameters.stride + group.channel;
      const T* beta = parameters.beta + chain * parameters.stride + group.channel;
      group.each(t, [&](Index c, Index at) {
        T v, d;
        activation<Code, false, T>(Ops<T>::fma(gamma[c], (from[at] - mean) * r, beta[c]), v, d);
        const Index here = chain * stride + group.first() + at;
        value[here] = v;
        if (derivative != nullptr) derivative[here] = d;
      });
    });
  }
};

// delta of z as that of LayerNormBackward, means over the group; not wanted where below is null.
// terms (rows, 2, channels) of gamma and beta. Grid: as above.
template <class T, int Lanes>
struct GroupNormBackward {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 2, Lanes, true>;
  const T* z;
  Index z_stride;
  NormParameters<T> parameters;
  const T* delta;
  Index stride;
  const T* moments;
  Index moments_stride;
  T* terms;
  Index terms_stride;
  T* below;
  const T* derivative;
  Index below_stride;
  Index sites;
  Index channels;
  Index groups;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    Registers<T, 2> of_group(block);  // of gamma delta u and of gamma delta
    const ChannelGroup<T, Lanes> group(block, sites, channels, groups);
    const Index chain = block.y();
    const T* from = z + chain * z_stride + group.first();
    const T* given = delta + chain * stride + group.first();
    const T* gamma = parameters.gamma + chain * parameters.stride + group.channel;
    const T* own_moments = moments + chain * moments_stride + 2 * block.x();
    block.phase([&](int t) { of_group(t)[0] = of_group(t)[1] = T(0); });
    for (Index c0 = 0; c0 < group.width; c0 += Lanes) {
      block.phase([&](int t) {
        const Index c = c0 + t % Lanes;
        const T mean = own_moments[0], r = own_moments[1];
        T along = T(0), plain = T(0);
        for (Index p = t / Lanes; p < sites && c < group.width; p += kBlock / Lanes) {
          const T d = given[p * channels + c];
          along = Ops<T>::fma(d, (from[p * channels + c] - mean) * r, along);
          plain += d;
        }
        sum.value[0][t] = along;
        sum.value[1][t] = plain;
      });
      sum.reduce(block);
      block.phase([&](int t) {
        const Index c = c0 + t;
        if (t >= Lanes || c >= group.width) return;
        T* own = terms + chain * terms_stride + group.row * 2 * channels + group.channel + c;
        own[0] = sum.value[0][t];
        own[channels] = sum.value[1][t];
        for (int n = 0; n < 2; ++n) {
          of_group(t)[n] = Ops<T>::fma(gamma[c], sum.value[n][t], of_group(t)[n]);
        }
      });
    }
    if (below == nullptr) return;
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
        const Index here = chain * below_stride + group.first() + at;
        const T unit = (from[at] - mean) * r;
        T value = r * (given[at] * gamma[c] - plain - unit * along);
        if (derivative != nullptr) value *= derivative[here];
        below[here] = add != 0 ? below[here] + value : value;
      });
    });
  }
};

}  // namespace ribbit::cuda
