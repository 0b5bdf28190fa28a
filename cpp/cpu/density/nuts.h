#pragma once
// One transition of the no-U-turn sampler (Hoffman and Gelman 2014; multinomial: Betancourt 2017).

#include "cpu/density/evaluator.h"

namespace ribbit::cpu {

// What a chain did.
struct TreeOutcome {
  double kinetic;             // energy of the state that was drawn
  double energy_error;        // its energy minus that of the start
  double acceptance;          // mean of min(1, exp(-energy error)) over all leapfrog steps
  std::int64_t steps;         // leapfrog steps
  std::int64_t depth;         // doublings that were kept
  std::int64_t diverging;     // 1: an energy error above the threshold, or not finite
  std::int64_t at_max_depth;  // 1: neither a turn nor a divergence has ended the tree
};

// Of every chain, (chains, dim) arrays. grad and terms: at the position; the terms (chains, 2) are
// the tempered log likelihood and log prior. mass: as in Trajectories. The chains' own step sizes;
// random numbers by (seed, step, chain id).
template <class T>
struct Trees {
  std::int64_t chains;
  const T *position, *momentum, *grad;
  const double* terms;
  const T* mass;
  std::int64_t mass_stride;
  const double* step_size;
  std::uint64_t seed, step;
  const std::uint32_t* chain_ids;
  int max_depth;     // 1..kMostTreeDepth
  double threshold;  // of an energy error that diverges
  T *end_position, *end_grad;
  double* end_terms;
  TreeOutcome* outcomes;  // (chains,)
};

// Of every chain. False when cancelled.
template <class T>
bool no_u_turn(const Evaluator<T>& evaluator, const Trees<T>& all, Poll* poll);

}  // namespace ribbit::cpu
