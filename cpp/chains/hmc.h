#pragma once
// Transitions of Hamiltonian Monte Carlo (Neal 2011, section 3.2): momentum, trajectory, Metropolis
// acceptance.

#include <cstdint>
#include <vector>

#include "chains/block.h"
#include "chains/tuner_hmc.h"
#include "density/density.h"

namespace ribbit {

// Columns of a block, in the order of hmc_columns().
enum HmcColumn : std::size_t {
  kLp,
  kAcceptanceRate,
  kAccepted,
  kDiverging,
  kEnergy,
  kEnergyError,
  kSteps,
  kStepSize,
  kCapped,
  kDivergences,
};
// counts: adds the divergences since the last draw, for runs that keep only some transitions.
std::vector<Statistic> hmc_columns(bool counts);

// A view of the chains: their positions and gradients (chains, dim) and tempered terms (chains, 2),
// which move in place, and everything else that a transition depends on. mass: the inverse mass,
// (dim,), or (chains, dim) with mass_stride = dim; null: ones. step: the transitions so far.
template <class T>
struct ChainsView {
  T *position, *grad;
  double* terms;
  const T* mass;
  std::int64_t mass_stride;
  std::uint64_t step;
  HamiltonianTuner* tuner;
};

// Running means and sums of squares (chains, dim) of `count` positions.
struct Moments {
  double *mean = nullptr, *squares = nullptr;
  std::uint64_t count = 0;
};

// Sums over the transitions of each chain, for progress.
struct Totals {
  explicit Totals(std::size_t chains)
      : acceptance(chains), leapfrogs(chains), divergences(chains) {}
  void add(std::size_t chain, double rate, std::int64_t steps, bool diverging) {
    acceptance[chain] += rate;
    leapfrogs[chain] += steps;
    divergences[chain] += diverging ? 1 : 0;
  }
  std::int64_t transitions = 0;
  std::vector<double> acceptance;
  std::vector<std::int64_t> leapfrogs, divergences;
};

// At most `count` successive transitions. keep (kept_count,) lists the transitions to keep,
// ascending and from 0. The k-th of them fills row first_row + k of the block. Its position goes to
// kept (chains, capacity, dim) unless that is null.
template <class T>
struct HmcCall {
  ChainsView<T> view;
  std::int64_t count;
  double threshold;
  const std::int64_t* keep;
  std::int64_t kept_count, first_row;
  Block<T>* block;
  T* kept;
  std::int64_t* divergences;  // (chains,) since the last kept transition
  Moments moments;            // of all positions; null: none are collected
  Totals* totals;
  double seconds;  // the call ends with the first transition after this time
};

struct HmcEnd {
  cpu::CallEnd call;
  std::int64_t made = 0, kept = 0;
};

// Moves the chains. If the call is cancelled or fails, the arrays of the view hold no state.
template <class T, class D>
HmcEnd hmc(const D& density, const HmcCall<T>& call, cpu::Poll* poll);

}  // namespace ribbit
