#pragma once
// Many stochastic-gradient steps in one call: what SGLD, SGHMC, BAOAB and Adam need beside the
// target.

#include <cstdint>

#include "cpu/density/evaluator.h"
#include "cpu/isa/kernel_table-inl.h"

namespace ribbit::cpu {

// Step s of chain c uses batch s % M of epoch s / M, M = ceil(N / batch_rows), of the epoch's
// permutation of the rows (core/permutation_hd.h: batches differ by one row at most), and noise
// addressed by (seed, s, c). With kRuleKinetic an epoch is 2 M steps, through its batches and back.
struct StochasticSteps {
  std::uint64_t seed;
  std::uint64_t first_step;  // number of the first step of the call
  std::int64_t num_steps;
  std::int64_t batch_rows;         // 1..N; N: all rows, no permutation
  const std::uint32_t* chain_ids;  // (chains,)
  const double* step_size;         // (num_steps,)
  const double* noise;             // (num_steps,) factor of the noise's sd
  UpdateRule rule;
  double prior;                    // weight of the log prior: 1, or 0 for the likelihood alone
  double friction;                 // kRuleFriction: the a of Chen et al. 2014, eq. 15;
                                   // kRuleKinetic: per unit of the step size's time
  double previous;                 // kRuleFriction: step size of the step before these
  double decay1, decay2, epsilon;  // moments of Adam; preconditioner: decay2, epsilon
  std::uint64_t adapt_until;       // steps before this one move the preconditioner
  // Steps of the call (0-based, ascending) after which positions are kept; null: none.
  const std::int64_t* keep = nullptr;  // (num_kept,)
  std::int64_t num_kept = 0;
};

// What a chain did.
struct StochasticOutcome {
  std::int64_t failed;  // which step of the call left a parameter that is not finite; -1: none
  double largest;       // largest |gradient| of that step
};

// Steps of every chain, in place. theta: (chains, dim). first, second: (chains, dim) velocities or
// moments, null where the rule has none. outcomes: (chains,). kept: (chains, num_kept, dim). False
// when cancelled.
template <class T>
bool advance(const Evaluator<T>& evaluator, const StochasticSteps& steps, T* theta, T* first,
             T* second, std::int64_t chains, StochasticOutcome* outcomes, Poll* poll,
             T* kept = nullptr);

}  // namespace ribbit::cpu
