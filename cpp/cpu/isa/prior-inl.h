// One prior segment: sum of log densities (in double) and gradient.
#pragma once

#include "core/prior_hd.h"
#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/vec-inl.h"

namespace ribbit::cpu {
namespace {

template <int Kind, class T>
static double prior_log_density_sum(const T* theta, std::int64_t n, const PriorConstants& k) {
  Partials partials;
  partials.clear();
  for (std::int64_t i = 0; i < n; i += kPartials) {
    VecF64 value[kPartialVecs];
    if (i + kPartials <= n) {
      load_partials(theta + i, value);
      for (int j = 0; j < kPartialVecs; ++j)
        partials.sum[j] += prior_log_density<Kind, VecF64>(value[j], k);
    } else {
      load_partials_first(theta + i, n - i, value);
      for (int j = 0; j < kPartialVecs; ++j) {
        VecF64 term = prior_log_density<Kind, VecF64>(value[j], k);
        for (int lane = 0; lane < kLanes<double>; ++lane)
          if (i + j * kLanes<double> + lane >= n) term[lane] = 0.0;
        partials.sum[j] += term;
      }
    }
  }
  return partials.total();
}

template <int Kind, class T>
static void prior_gradient(const T* theta, std::int64_t n, const PriorConstants& k, T weight,
                           T* grad) {
  constexpr int kL = kLanes<T>;
  const Vec<T> w = broadcast(weight);
  std::int64_t i = 0;
  for (; i + kL <= n; i += kL) {
    const Vec<T> score = prior_score<Kind, Vec<T>>(load(theta + i), k);
    store(grad + i, mul_add(w, score, load(grad + i)));
  }
  if (i < n) {
    const Vec<T> score = prior_score<Kind, Vec<T>>(load_first(theta + i, n - i), k);
    store_first(grad + i, mul_add(w, score, load_first(grad + i, n - i)), n - i);
  }
}

template <int Kind, class T>
static void prior_segment_kind(const PriorConstants& k, const T* theta, std::int64_t n,
                               double weight, double* logp, T* grad) {
  if (logp != nullptr)
    *logp += prior_log_density_sum<Kind, T>(theta, n, k) + static_cast<double>(n) * k.log_norm;
  if (grad != nullptr) prior_gradient<Kind, T>(theta, n, k, static_cast<T>(weight), grad);
}

// *logp += sum of normalised log densities; grad += weight * score. Either may be null.
template <class T>
static void prior_segment(int kind, double a, double b, double c, const T* theta, std::int64_t n,
                          double weight, double* logp, T* grad) {
  const PriorConstants k = prior_constants(kind, a, b, c);
  switch (kind) {
    case kNormal:
      return prior_segment_kind<kNormal, T>(k, theta, n, weight, logp, grad);
    case kLaplace:
      return prior_segment_kind<kLaplace, T>(k, theta, n, weight, logp, grad);
    case kStudentT:
      return prior_segment_kind<kStudentT, T>(k, theta, n, weight, logp, grad);
    case kLogistic:
      return prior_segment_kind<kLogistic, T>(k, theta, n, weight, logp, grad);
    default:
      return prior_segment_kind<kScaleMixture, T>(k, theta, n, weight, logp, grad);
  }
}

}  // namespace
}  // namespace ribbit::cpu
