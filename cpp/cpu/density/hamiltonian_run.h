#pragma once
// Many transitions of Hamiltonian Monte Carlo in one call, with what warmup does between them: of
// small networks a call costs as much as a transition, and so does a wait of all threads for the
// longest of their trajectories.

#include "cpu/density/dual_averaging.h"
#include "cpu/density/log_density.h"

namespace ribbit::cpu {

// How many leapfrog steps trajectories have, as ribbit/samplers/mcmc/tuning.py says.
struct TrajectoryRule {
  bool randomize_length;  // uniform on 1, .., 2 L
  std::int64_t most;      // of a trajectory
  std::int64_t brief;     // L at most of transitions whose number is below brief_until
  std::uint64_t brief_until;
  // Where step sizes are found: the acceptance aimed for, the length of a trajectory (0: L stays),
  // L at most, and whether warmup ends with the call, which leaves the averaged step sizes.
  double target;
  double length;
  std::int64_t most_on_average;
  bool ends;
};

// What a run keeps of K of its transitions, (chains, K) each.
struct RunStatistics {
  double *log_density, *energy, *energy_error, *acceptance, *step_size;
  std::int64_t* steps;
  bool *accepted, *diverging, *capped;
  // Divergent transitions of the call since the one that was kept before; or null.
  std::int64_t* divergences = nullptr;
};

// As Transitions, of `count` transitions that follow each other. In place.
template <class T>
struct HamiltonianRun {
  std::int64_t chains, count;
  T *position, *grad;  // (chains, dim)
  double* terms;       // (chains, 2)
  const T* mass;
  std::int64_t mass_stride;
  std::uint64_t seed, step;
  const std::uint32_t* chain_ids;
  double threshold;
  double* step_size;        // (chains,)
  std::int64_t* num_steps;  // (chains,) L
  bool* capped;             // (chains,) whether L was
  TrajectoryRule rule;
  DualAveraging* dual;       // null: step sizes stay
  const std::int64_t* keep;  // (K,) which transitions are kept, 0-based and ascending
  std::int64_t kept_count;   // K
  T* kept;                   // (chains, K, dim, or with the layer that is integrated out); or null
  RunStatistics statistics;
  double seconds;  // after which the run ends with the next transition that is kept
};

// How many transitions were made, and how many of those are kept.
struct RunEnd {
  std::int64_t made, kept;
};

// None made when cancelled: what is in place is then of no use.
template <class T>
RunEnd hamiltonian_run(const LogDensity<T>& density, const HamiltonianRun<T>& run, Poll* poll);

}  // namespace ribbit::cpu
