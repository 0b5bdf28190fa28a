// Filter response norm and layer norm, by the formulas of core/norm_hd.h. Rows of data ride in the
// lanes.
#pragma once

#include "core/norm_hd.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/transpose-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

// The squares of a call are summed before they join the sums: with the sites of an image row in
// each the rounding of a sum over the image stays near that of its square root.
template <class T>
static void add_squares(const T* z, std::int64_t sites, std::int64_t channels, T* sums) {
  constexpr int lanes = kLanes<T>;
  constexpr int kVectors = 8;  // independent sums
  using V = Vec<T>;
  const std::int64_t pixel = channels * kPanel;
  // A panel is a multiple of a vector, not of eight of them.
  for (std::int64_t e = 0; e < pixel; e += kVectors * lanes) {
    const std::int64_t some = pixel - e < kVectors * lanes ? (pixel - e) / lanes : kVectors;
    V sum[kVectors];
    RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) sum[v] = V{};
    if (some == kVectors) {
      for (std::int64_t p = 0; p < sites; ++p) {
        RIBBIT_UNROLL for (int v = 0; v < kVectors; ++v) {
          const V value = load<T>(z + p * pixel + e + v * lanes);
          sum[v] = mul_add(value, value, sum[v]);
        }
      }
    } else {
      for (std::int64_t p = 0; p < sites; ++p) {
        for (std::int64_t v = 0; v < some; ++v) {
          const V value = load<T>(z + p * pixel + e + v * lanes);
          sum[v] = mul_add(value, value, sum[v]);
        }
      }
    }
    for (std::int64_t v = 0; v < some; ++v) {
      T* total = sums + e + v * lanes;
      store<T>(total, load<T>(total) + sum[v]);
    }
  }
}

template <class T>
static void response(std::int64_t sites, std::int64_t channels, const T* gamma, T epsilon, T* r,
                     T* scale) {
  constexpr int lanes = kLanes<T>;
  using V = Vec<T>;
  const V share = broadcast(T(1) / static_cast<T>(sites)), small = broadcast(epsilon);
  for (std::int64_t c = 0; c < channels; ++c) {
    const V factor = broadcast(gamma[c]);
    for (int lane = 0; lane < kPanel; lane += lanes) {
      T* at = r + c * kPanel + lane;
      const V inverse = inverse_root<V>(load<T>(at), share, small);
      store<T>(at, inverse);
      store<T>(scale + c * kPanel + lane, factor * inverse);
    }
  }
}

template <class T>
static void response_apply(const T* z, std::int64_t sites, std::int64_t channels, const T* scale,
                           const T* beta, const T* tau, T* out) {
  constexpr int lanes = kLanes<T>;
  const std::int64_t pixel = channels * kPanel;
  for (std::int64_t p = 0; p < sites; ++p) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const Vec<T> shift = broadcast(beta[c]);
      const Vec<T> least = broadcast(tau != nullptr ? tau[c] : T(0));
      RIBBIT_UNROLL for (int lane = 0; lane < kPanel; lane += lanes) {
        const std::int64_t at = c * kPanel + lane;
        const Vec<T> from = load<T>(z + p * pixel + at), gain = load<T>(scale + at);
        store<T>(out + p * pixel + at, tau != nullptr
                                           ? response_output<Vec<T>>(from, gain, shift, least)
                                           : response_output<Vec<T>>(from, gain, shift));
      }
    }
  }
}

template <class T>
static void response_delta(const T* z, std::int64_t sites, std::int64_t channels, const T* scale,
                           const T* beta, const T* tau, const T* slope, T* d, T* sums) {
  constexpr int lanes = kLanes<T>;
  const std::int64_t pixel = channels * kPanel;
  T *by_z = sums + pixel, *by_cut = by_z + pixel;
  for (std::int64_t p = 0; p < sites; ++p) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const Vec<T> shift = broadcast(beta[c]);
      const Vec<T> least = broadcast(tau != nullptr ? tau[c] : T(0));
      RIBBIT_UNROLL for (int lane = 0; lane < kPanel; lane += lanes) {
        const std::int64_t at = c * kPanel + lane, here = p * pixel + at;
        const Vec<T> value = load<T>(z + here);
        Vec<T> delta = load<T>(d + here);
        if (slope != nullptr) delta *= load<T>(slope + here);
        if (tau != nullptr) {
          const auto cuts = threshold_cuts<Vec<T>>(value, load<T>(scale + at), shift, least);
          store<T>(by_cut + at, load<T>(by_cut + at) + (cuts ? delta : Vec<T>{}));
          delta = cuts ? Vec<T>{} : delta;
        }
        store<T>(d + here, delta);
        Vec<T> plain = load<T>(sums + at), along = load<T>(by_z + at);
        add_delta<Vec<T>>(delta, value, plain, along);
        store<T>(sums + at, plain);
        store<T>(by_z + at, along);
      }
    }
  }
}

template <class T>
static void response_backward(const T* z, const T* d, std::int64_t sites, std::int64_t channels,
                              const T* scale, const T* shrink, bool add, T* dz) {
  constexpr int lanes = kLanes<T>;
  const std::int64_t pixel = channels * kPanel;
  for (std::int64_t p = 0; p < sites; ++p) {
    for (std::int64_t at = 0; at < pixel; at += lanes) {
      const std::int64_t here = p * pixel + at;
      const Vec<T> before = add ? load<T>(dz + here) : Vec<T>{};
      const Vec<T> gain = mul_add(load<T>(scale + at), load<T>(d + here), before);
      store<T>(dz + here, response_by_input<Vec<T>>(load<T>(z + here), gain, load<T>(shrink + at)));
    }
  }
}

// Mean and 1 / sqrt(variance + epsilon) over the channels at one vector of rows.
template <class T>
RIBBIT_INLINE void moments_of_site(const T* z, std::int64_t channels, T epsilon, Vec<T>& mean,
                                   Vec<T>& r) {
  const T share = T(1) / static_cast<T>(channels);
  Vec<T> sum{}, squares{};
  for (std::int64_t c = 0; c < channels; ++c) sum += load<T>(z + c * kPanel);
  mean = sum * share;
  for (std::int64_t c = 0; c < channels; ++c) {
    const Vec<T> off = load<T>(z + c * kPanel) - mean;
    squares = mul_add(off, off, squares);
  }
  r = inverse_root<Vec<T>>(squares, broadcast(share), broadcast(epsilon));
}

template <class T>
static void layer_norm(const T* z, std::int64_t sites, std::int64_t channels, const T* gamma,
                       const T* beta, T epsilon, T* out) {
  const std::int64_t pixel = channels * kPanel;
  for (std::int64_t p = 0; p < sites; ++p) {
    for (int lane = 0; lane < kPanel; lane += kLanes<T>) {
      const T* from = z + p * pixel + lane;
      Vec<T> mean, r;
      moments_of_site<T>(from, channels, epsilon, mean, r);
      for (std::int64_t c = 0; c < channels; ++c) {
        const Vec<T> unit = standardised<Vec<T>>(load<T>(from + c * kPanel), mean, r);
        store<T>(out + p * pixel + c * kPanel + lane,
                 standard_output<Vec<T>>(unit, broadcast(gamma[c]), broadcast(beta[c])));
      }
    }
  }
}

template <class T>
static void layer_norm_backward(const T* z, const T* d, std::int64_t sites, std::int64_t channels,
                                const T* gamma, T epsilon, bool add, T* dz, T* sums) {
  const std::int64_t pixel = channels * kPanel;
  const T share = T(1) / static_cast<T>(channels);
  for (std::int64_t p = 0; p < sites; ++p) {
    for (int lane = 0; lane < kPanel; lane += kLanes<T>) {
      const std::int64_t first = p * pixel + lane;
      Vec<T> mean, r, plain{}, along{};
      moments_of_site<T>(z + first, channels, epsilon, mean, r);
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t at = first + c * kPanel, sum = c * kPanel + lane;
        const Vec<T> delta = load<T>(d + at);
        const Vec<T> unit = standardised<Vec<T>>(load<T>(z + at), mean, r);
        Vec<T> by_beta = load<T>(sums + sum), by_gamma = load<T>(sums + pixel + sum);
        add_delta<Vec<T>>(delta, unit, by_beta, by_gamma);
        store<T>(sums + sum, by_beta);
        store<T>(sums + pixel + sum, by_gamma);
        add_delta<Vec<T>>(delta * broadcast(gamma[c]), unit, plain, along);
      }
      if (dz == nullptr) continue;
      plain *= share;
      along *= share;
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t at = first + c * kPanel;
        const Vec<T> unit = standardised<Vec<T>>(load<T>(z + at), mean, r);
        const Vec<T> g = load<T>(d + at) * broadcast(gamma[c]);
        const Vec<T> value = standard_by_input<Vec<T>>(unit, g, r, plain, along);
        store<T>(dz + at, add ? load<T>(dz + at) + value : value);
      }
    }
  }
}

}  // namespace
}  // namespace ribbit::cpu
