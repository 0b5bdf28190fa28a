#pragma once
// What steps of a mean-field Gaussian are given, and where it is.

#include <cstdint>

#include "cpu/network/mlp_row_noise.h"

namespace ribbit::cpu {

// A step s uses the batch s % M of epoch s / M as chain 0 does, and weight noise addressed by
// (seed, s, sample). The ascent is on
//   mean over samples of sum over the batch of log p(y | w) / (T_l T)
//   + kl_weight * (entropy + E log prior / T),
// with the prior's expectation in closed form, or from weight samples. The estimators kLocal and
// kFlipout (mlp_row_noise.h) take the likelihood's gradient with noise for each row; noise that is
// not of the network's weights, and the samples of the prior, stay those of (seed, s, sample).
struct VariationalSteps {
  std::uint64_t seed;
  std::uint64_t first_step;
  std::int64_t num_steps;
  std::int64_t batch_rows;  // 1..N; N: all rows, no permutation
  std::int64_t samples;     // weight samples per step
  Estimator estimator;
  bool closed;              // every prior is normal, and its expectation exact
  const double* step_size;  // (num_steps,)
  const double* kl_weight;  // (num_steps,)
  double decay1, decay2, epsilon;
  // Records, (num_steps,) each, at the parameters before the step: the batch's log likelihood
  // (untempered, not scaled), E log q, E log prior (untempered).
  double *log_likelihood, *log_q, *log_prior;
};

// (dim,) each.
template <class T>
struct VariationalState {
  T *mean, *rho, *mean_first, *mean_second, *rho_first, *rho_second;
};

}  // namespace ribbit::cpu
