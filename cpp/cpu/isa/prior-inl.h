// One prior segment: sum of log densities (in double) and gradient.
#pragma once

#include "core/prior_hd.h"
#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <class Prior, class T>
static double prior_log_density_sum(const T* theta, std::int64_t n, const PriorConstants& k) {
  Partials partials;
  partials.clear();
  for (std::int64_t i = 0; i < n; i += kPartials) {
    VecF64 value[kPartialVecs];
    if (i + kPartials <= n) {
      load_partials(theta + i, value);
      for (int j = 0; j < kPartialVecs; ++j)
        partials.sum[j] += Prior::template log_density<VecF64>(value[j], k);
    } else {
      load_partials_first(theta + i, n - i, value);
      for (int j = 0; j < kPartialVecs; ++j) {
        VecF64 term = Prior::template log_density<VecF64>(value[j], k);
        for (int lane = 0; lane < kLanes<double>; ++lane)
          if (i + j * kLanes<double> + lane >= n) term[lane] = 0.0;
        partials.sum[j] += term;
      }
    }
  }
  return partials.total();
}

template <class Prior, class T>
static void prior_gradient(const T* theta, std::int64_t n, const PriorConstants& k, T weight,
                           T* grad) {
  constexpr int kL = kLanes<T>;
  const Vec<T> w = broadcast(weight);
  std::int64_t i = 0;
  for (; i + kL <= n; i += kL) {
    const Vec<T> score = Prior::template score<Vec<T>>(load(theta + i), k);
    store(grad + i, mul_add(w, score, load(grad + i)));
  }
  if (i < n) {
    const Vec<T> score = Prior::template score<Vec<T>>(load_first(theta + i, n - i), k);
    store_first(grad + i, mul_add(w, score, load_first(grad + i, n - i)), n - i);
  }
}

// *logp += sum of normalised log densities; grad += weight * score. Either may be null.
template <class T>
static void prior_segment(PriorKind kind, const PriorConstants& k, const T* theta, std::int64_t n,
                          double weight, double* logp, T* grad) {
  with_prior(kind, [=, &k](auto prior) {
    using Prior = decltype(prior);
    if (logp != nullptr)
      *logp += prior_log_density_sum<Prior, T>(theta, n, k) + static_cast<double>(n) * k.log_norm;
    if (grad != nullptr) prior_gradient<Prior, T>(theta, n, k, static_cast<T>(weight), grad);
  });
}

}  // namespace
}  // namespace ribbit::cpu
