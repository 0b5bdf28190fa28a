#pragma once
// One transition of the no-U-turn sampler (Hoffman and Gelman 2014; multinomial: Betancourt 2017).

#include "chains/hmc.h"

namespace ribbit {

// Columns of a block, in the order of nuts_columns().
enum NutsColumn : std::size_t {
  kTreeLp,
  kTreeAcceptanceRate,
  kTreeDiverging,
  kTreeEnergy,
  kTreeEnergyError,
  kTreeSteps,
  kTreeDepth,
  kTreeAtMaxDepth,
  kTreeStepSize,
  kTreeDivergences,
};
std::vector<Statistic> nuts_columns(bool counts);

// The outcome of one chain's transition.
struct TreeOutcome {
  double kinetic;             // kinetic energy of the drawn state
  double energy_error;        // energy of the drawn state minus energy of the start
  double acceptance;          // mean of min(1, exp(-energy error)) over all leapfrogs
  std::int64_t steps;         // leapfrogs
  std::int64_t depth;         // completed doublings
  std::int64_t diverging;     // 1: an energy error was above the threshold or not finite
  std::int64_t at_max_depth;  // 1: the depth limit, not a U-turn or a divergence, ended the tree
};

// One transition of every chain, from `view` to the end arrays (chains, dim) and terms (chains, 2).
template <class T>
struct NutsCall {
  ChainsView<T> view;
  double threshold;
  T *end_position, *end_grad;
  double* end_terms;
  TreeOutcome* outcomes;  // (chains,)
};

// Writes an outcome to element `at` of the columns of nuts_columns(). divergences: since the last
// draw.
template <class T>
void put_outcome(Block<T>& to, std::int64_t at, const TreeOutcome& outcome, double lp,
                 double step_size, std::int64_t divergences) {
  to.real(kTreeLp)[at] = lp;
  to.real(kTreeAcceptanceRate)[at] = outcome.acceptance;
  to.flag(kTreeDiverging)[at] = outcome.diverging != 0;
  to.real(kTreeEnergy)[at] = outcome.kinetic - lp;
  to.real(kTreeEnergyError)[at] = outcome.energy_error;
  to.whole(kTreeSteps)[at] = outcome.steps;
  to.whole(kTreeDepth)[at] = outcome.depth;
  to.flag(kTreeAtMaxDepth)[at] = outcome.at_max_depth != 0;
  to.real(kTreeStepSize)[at] = step_size;
  if (to.columns.size() > kTreeDivergences) to.whole(kTreeDivergences)[at] = divergences;
}

template <class T, class D>
cpu::CallEnd nuts(const D& density, const NutsCall<T>& call, cpu::Poll* poll);

}  // namespace ribbit
