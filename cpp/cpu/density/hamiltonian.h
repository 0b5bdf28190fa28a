#pragma once
// Whole transitions of Hamiltonian Monte Carlo (Neal 2011, section 3.2): momentum, trajectory,
// Metropolis acceptance.

#include <vector>

#include "cpu/density/evaluator.h"
#include "cpu/density/leapfrog.h"
#include "cpu/density/pointer_density.h"

namespace ribbit::cpu {

// What a chain did.
struct TransitionOutcome {
  double log_density;   // of the state that is kept
  double energy;        // its energy
  double energy_error;  // of the proposal minus that of the start; infinite where not finite
  double acceptance;    // min(1, exp(-energy error)), 0 where that is infinite
  std::int64_t steps;   // leapfrog steps that were made
  bool accepted;
  bool diverging;  // an energy error above the threshold, infinity included
};

// Of every chain, (chains, dim) arrays. grad and terms: at the position; the terms (chains, 2) are
// the tempered log likelihood and log prior. mass: inverse, as in Trajectories. Step sizes and
// steps are the chains' own; random numbers by (seed, step, chain id).
template <class T>
struct Transitions {
  std::int64_t chains;
  const T *position, *grad;
  const double* terms;
  const T* mass;
  std::int64_t mass_stride;
  const double* step_size;
  const std::int64_t* num_steps;
  std::uint64_t seed, step;
  const std::uint32_t* chain_ids;
  double threshold;  // of an energy error that diverges
  T *end_position, *end_grad;
  double* end_terms;
  TransitionOutcome* outcomes;  // (chains,)
};

// What transitions work in.
template <class T>
struct TransitionSpace {
  TransitionSpace(std::int64_t chains, std::int64_t dim)
      : momentum(chains * dim),
        likelihood(static_cast<std::size_t>(chains)),
        prior(likelihood.size()),
        made(likelihood.size()) {}
  Buffer<T> momentum;                     // (chains, dim)
  std::vector<double> likelihood, prior;  // (chains,)
  std::vector<std::int64_t> made;         // (chains,)
};

// Of one chain, by all members of its team. False for those that are to return at once. What is the
// outcome, and the position where it was rejected, member 0 writes after the last barrier.
template <class T>
bool transition(const Evaluator<T>& evaluator, Member<T>& m, const Transitions<T>& all,
                std::int64_t chain, TransitionSpace<T>& space);

// Of every chain. False when cancelled.
template <class T>
bool hamiltonian(const Evaluator<T>& evaluator, const Transitions<T>& all, Poll* poll);

// The same and its trajectories of a function, whose log density is the first term; the second is
// 0.
PointerDensity::Outcome hamiltonian(const PointerDensity& density, const Transitions<double>& all,
                                    Poll* poll);
PointerDensity::Outcome leapfrog(const PointerDensity& density, const Trajectories<double>& all,
                                 Poll* poll);

}  // namespace ribbit::cpu
