// Filter response norm (core/norm_hd.h), with the activation that follows. Blocks of
// Lanes x 256 / Lanes threads: channels in the lanes.
#pragma once

#include "core/norm_hd.h"
#include "cuda/kernels/norm_arrays.h"
#include "cuda/kernels/reduction_kernels.h"

namespace ribbit::cuda {

// value = f(response_output). inverse: r, (rows, channels) per chain. One block per row and Lanes
// channels. Grid: (rows ceil(channels / Lanes), C).
template <class T, int Code, int Lanes>
struct ResponseNorm {
  static constexpr int kBlock = kThreads;
  using Shared = GroupSum<T, 1, Lanes, true>;
  PerChain<const T> z;
  NormParameters<T> parameters;
  NormOutput<T> out;
  PerChain<T> inverse;
  Index sites;
  Index channels;
  double epsilon;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index groups = (channels + Lanes - 1) / Lanes, row = block.x() / groups;
    const Index channel0 = block.x() % groups * Lanes, chain = block.y();
    const T* from = z.of(chain) + row * sites * channels;
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
      const T r = inverse_root<T>(sum.value[0][sum.home(t)], share, T(epsilon));
      if (t < Lanes) inverse.of(chain)[row * channels + c] = r;
      const Index own = chain * parameters.stride + c;
      const T scale = parameters.gamma[own] * r, shift = parameters.beta[own];
      const bool cuts = parameters.tau != nullptr;
      const T least = cuts ? parameters.tau[own] : T(0);
      for (Index p = t / Lanes; p < sites; p += kBlock / Lanes) {
        const T number = from[p * channels + c];
        out.template put<Code>(chain, (row * sites + p) * channels + c,
                               cuts ? response_output<T>(number, scale, shift, least)
                                    : response_output<T>(number, scale, shift));
      }
    });
  }
};

// terms (rows, 3, channels): of gamma, beta and tau. A delta of z is made unless below has none.
// Grid: as above.
template <class T, int Lanes>
struct ResponseNormBackward {
  static constexpr int kBlock = kThreads;
  static constexpr int kResident = sizeof(T) == 8 ? 4 : 0;  // 64 registers; 0: as it comes
  using Shared = GroupSum<T, 3, Lanes, true>;
  PerChain<const T> z;
  NormParameters<T> parameters;
  PerChain<const T> delta;
  PerChain<const T> inverse;
  PerChain<T> terms;
  NormBelow<T> below;
  Index sites;
  Index channels;
  Index add;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    const Index groups = (channels + Lanes - 1) / Lanes, row = block.x() / groups;
    const Index channel0 = block.x() % groups * Lanes, chain = block.y();
    const Index image = row * sites * channels;
    const T* from = z.of(chain) + image;
    const T* given = delta.of(chain) + image;
    const T* inverses = inverse.of(chain) + row * channels;
    const T* gammas = parameters.gamma + chain * parameters.stride;
    const T* betas = parameters.beta + chain * parameters.stride;
    const T* taus =
        parameters.tau != nullptr ? parameters.tau + chain * parameters.stride : nullptr;
    const bool cuts = taus != nullptr;
    block.phase([&](int t) {
      const Index c = channel0 + t % Lanes;
      const bool there = c < channels;
      const T scale = there ? gammas[c] * inverses[c] : T(0), shift = there ? betas[c] : T(0);
      const T least = there && cuts ? taus[c] : T(0);
      T plain = T(0), along = T(0), off = T(0);
      for (Index p = t / Lanes; p < sites && there; p += kBlock / Lanes) {
        const T number = from[p * channels + c], d = given[p * channels + c];
        if (cuts && threshold_cuts<T>(number, scale, shift, least)) {
          off += d;
        } else {
          add_delta<T>(d, number, plain, along);
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
      const T r = inverses[c], scale = gammas[c] * r;
      const T by_gamma = response_by_gamma<T>(r, sum.value[0][home]);
      if (t < Lanes) {
        T* own = terms.of(chain) + row * 3 * channels + c;
        own[0] = by_gamma;
        own[channels] = sum.value[1][home];
        own[2 * channels] = sum.value[2][home];
      }
      if (below.delta == nullptr) return;
      const T shift = betas[c], least = cuts ? taus[c] : T(0);
      const T shrink = response_shrink<T>(scale, r, by_gamma, T(1) / static_cast<T>(sites));
      for (Index p = t / Lanes; p < sites; p += kBlock / Lanes) {
        const T number = from[p * channels + c];
        const bool off = cuts && threshold_cuts<T>(number, scale, shift, least);
        const T d = off ? T(0) : given[p * channels + c];
        below.put(chain, image + p * channels + c, response_by_input<T>(number, scale * d, shrink),
                  add);
      }
    });
  }
};

}  // namespace ribbit::cuda
