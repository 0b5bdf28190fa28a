#pragma once
// The tuner of HMC and NUTS. Its warmup finds step sizes and lengths of trajectories, and it says
// when the mass changes. Several threads may use one tuner, each for its own chain. Chains that
// move in Python or on a GPU use the same tuner.

#include <cstdint>
#include <vector>

#include "chains/kernel.h"
#include "cpu/density/dual_averaging.h"

namespace ribbit {

// Windows of the mass adaptation (Stan's schedule): a fast start of 75 transitions, slow windows of
// 25, 50, 100, .. and a fast end of 50. A short warmup scales the three to 15, 75 and 10 %. Below
// 20 transitions there are no windows. Unlike in Stan, no window is shorter than the first, so a
// warmup of 151 to 174 transitions has a single window.
struct MassWindows {
  explicit MassWindows(std::uint64_t warmup);
  bool empty() const { return ends.empty(); }
  // After `done` transitions: whether the position belongs to a window, and whether a window ends.
  bool collects(std::uint64_t done) const { return done > first && done <= last(); }
  bool closes(std::uint64_t done) const;
  std::uint64_t last() const { return ends.empty() ? 0 : ends.back(); }
  std::uint64_t next(std::uint64_t done) const;  // end of the next window; 0: none

  std::uint64_t first;
  std::vector<std::uint64_t> ends;
};

// The leapfrogs L of a trajectory, and whether a limit shortened it.
struct Length {
  std::int64_t steps;
  bool capped;
};
Length length_of(const Hmc& options, double step_size);
// True if a limit shortens trajectories with this step size, random ones included.
bool is_shortened(const Hmc& options, double step_size);

class HamiltonianTuner {
 public:
  // The settings of one transition of a chain.
  struct Plan {
    double step_size;
    std::int64_t steps;  // leapfrogs of HMC, or the depth limit of NUTS
    bool capped;         // true: a limit shortened the trajectory
  };

  HamiltonianTuner(const Hmc& options, std::uint64_t seed, std::vector<std::uint32_t> chain_ids,
                   std::uint64_t warmup);
  HamiltonianTuner(const Nuts& options, std::uint64_t seed, std::vector<std::uint32_t> chain_ids,
                   std::uint64_t warmup);

  // Throws std::invalid_argument if warmup is too short to find the step sizes or the mass.
  void check_warmup() const;
  // Throws std::invalid_argument if fields() cannot have written the values that it has read.
  void check_fields() const;

  bool finds_step() const { return options_.step_size.empty(); }
  bool adapts_mass() const { return options_.mass == MassRule::kAdapt && !windows_.empty(); }
  double first_try() const;  // start of the search for a first step size
  std::size_t chains() const { return chain_ids_.size(); }
  const std::vector<std::uint32_t>& chain_ids() const { return chain_ids_; }
  std::uint64_t seed() const { return seed_; }
  std::uint64_t warmup() const { return warmup_; }
  const MassWindows& windows() const { return windows_; }
  // The next step after `step` at which a window begins or ends; 0: none.
  std::uint64_t next_boundary(std::uint64_t step) const {
    if (!adapts_mass()) return 0;
    return step < windows_.first ? windows_.first : windows_.next(step);
  }
  const HamiltonianOptions& options() const { return options_; }

  // Sets the first step sizes (chains,), as a search found them. renewed: after a change of mass.
  // Given step sizes take precedence.
  void begin(const std::vector<double>& step_size, bool renewed = false);
  Plan plan(std::size_t chain, std::uint64_t step) const;
  // Updates the step size of a chain after transition `step` of warmup.
  void observe(std::size_t chain, std::uint64_t step, double acceptance);
  // The step at which trajectories reach their full length.
  std::uint64_t brief_until() const;
  void end_warmup() { dual = {}; }  // the step sizes stay
  // Applies the options after fields() has read a state at `step` with an inverse mass, empty for
  // ones; own: (chains, dim), else (dim,). Throws std::invalid_argument if step sizes that warmup
  // has found would be used with another mass.
  void adopt(std::uint64_t step, const std::vector<double>& inverse_mass, bool own);

  template <class A>
  void fields(A& a) {
    const auto rows = static_cast<std::int64_t>(chains());
    a("step_size", step_size, rows);
    dual.fields(a, rows);
  }
  std::vector<double> step_size;        // (chains,)
  std::vector<std::int64_t> num_steps;  // (chains,) L
  std::vector<std::uint8_t> capped;     // (chains,) 1: a limit shortened L
  cpu::DualAveraging dual;              // empty: the step sizes stay

 private:
  void check_step_size() const;
  bool has_mass(const std::vector<double>& inverse_mass) const;
  void count_steps(std::size_t chain);
  std::vector<double> given() const;

  HamiltonianOptions options_;
  Hmc hmc_;                          // the other options of HMC; unused for NUTS
  std::int64_t max_tree_depth_ = 0;  // 0: the kernel is HMC
  std::uint64_t seed_, warmup_;
  std::vector<std::uint32_t> chain_ids_;
  MassWindows windows_;
};

}  // namespace ribbit
