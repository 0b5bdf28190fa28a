#pragma once
// Options of the kernels that move chains, with every value that depends on the target filled in.

#include <cstdint>
#include <variant>
#include <vector>

namespace ribbit {

enum class MassRule { kGiven, kAdapt };  // kGiven with an empty inverse mass means ones

// Options that HMC and NUTS share.
struct HamiltonianOptions {
  std::vector<double> step_size;     // (1,) or one for each chain; empty: warmup finds it
  std::vector<double> inverse_mass;  // (dim,) until warmup has adapted it; empty: ones
  MassRule mass = MassRule::kGiven;
  bool needs_windows = false;  // true: a warmup that is too short to adapt the mass is an error
  double target_accept = 0.9, divergence_threshold = 1000.0;
};

struct Hmc : HamiltonianOptions {
  double trajectory_length = 0.0;       // 0: num_leapfrog_steps is used instead
  std::int64_t num_leapfrog_steps = 1;  // used if there is no length
  bool randomize_length = true;         // the number of steps is uniform on 1, .., 2 L
  double step_size_jitter = 0.0;
  std::int64_t max_num_leapfrog_steps = 100'000;   // limit of one trajectory
  std::int64_t max_mean_leapfrog_steps = 100'000;  // limit of L
};

struct Nuts : HamiltonianOptions {
  std::int64_t max_tree_depth = 10;
};

using Kernel = std::variant<Hmc, Nuts>;

}  // namespace ribbit
