#pragma once
// Whole leapfrog trajectories.

#include "cpu/density/evaluator.h"

namespace ribbit::cpu {

// How often a trajectory looks whether it is lost.
inline constexpr std::int64_t kCheckedSteps = 8;

// num_steps[c] >= 1 leapfrog steps of size step_size[c] of each chain, (chains, dim) arrays. grad:
// at the position; null: it is evaluated first. mass: inverse, (dim,) or (chains, dim) with
// mass_stride = dim, or null for ones. The terms (chains,) are those at the end. made (chains,):
// the steps that were made, fewer than num_steps where a chain was lost: a momentum whose square
// overflows never comes back, and every kCheckedSteps steps it is looked for. The terms are then
// NaN.
template <class T>
struct Trajectories {
  std::int64_t chains;
  const T *position, *momentum, *grad;
  const T* mass;
  std::int64_t mass_stride;
  const double* step_size;
  const std::int64_t* num_steps;
  T *end_position, *end_momentum, *end_grad;
  double *log_likelihood, *log_prior;
  std::int64_t* made;
};

// Of one of them, by all members of its team; m.grad: where its gradient ends. Ends with a barrier;
// false for those that are to return at once. The terms and `made` are written by member 0 after
// it.
template <class T>
bool trajectory(const Evaluator<T>& evaluator, const Member<T>& m, const Trajectories<T>& all,
                std::int64_t chain);

// Which chain comes first, (chains,): the longest, so that the threads end together.
std::vector<std::int64_t> longest_first(const std::int64_t* num_steps, std::int64_t chains);

// Of every chain. False when cancelled.
template <class T>
bool leapfrog(const Evaluator<T>& evaluator, const Trajectories<T>& all, Poll* poll);

}  // namespace ribbit::cpu
