#pragma once
// The state of chains of HMC or NUTS between transitions.

#include <cstdint>
#include <utility>
#include <vector>

#include "chains/hmc.h"
#include "chains/tuner_hmc.h"

namespace ribbit {

template <class T>
struct HamiltonianState {
  explicit HamiltonianState(HamiltonianTuner with) : tuner(std::move(with)) {}

  std::uint64_t step = 0;                 // transitions so far
  std::vector<T> position, grad;          // (chains, dim)
  std::vector<double> terms;              // (chains, 2) tempered log likelihood and log prior
  std::vector<T> inverse_mass;            // (dim,), (chains, dim), or empty for ones
  bool own_masses = false;                // true: inverse_mass is (chains, dim)
  std::uint64_t moments = 0;              // positions that the current window has collected
  std::vector<double> mean, squares;      // (chains, dim) of these positions
  std::vector<std::int64_t> divergences;  // (chains,) since the last draw
  HamiltonianTuner tuner;

  ChainsView<T> view(std::int64_t dim);
  // Throws std::invalid_argument unless save() can have written this state.
  void check(std::int64_t dim) const;

  // Returns the moments for the next position, or none outside the windows.
  Moments next_moments();
  // Adds the positions of all chains to the moments (Welford 1962).
  void collect(const Moments& to);
  // Sets the inverse mass to the variances of the window, shrunk towards 1e-3 as in Stan.
  void renew_mass();

  template <class A>
  void fields(A& a) {
    const auto chains = static_cast<std::int64_t>(tuner.chains());
    a("step", step);
    a("position", position, chains);
    a("grad", grad, chains);
    a("terms", terms, chains);
    a("inverse_mass", inverse_mass, chains, own_masses);
    a("window.count", moments);
    a("window.mean", mean, chains);
    a("window.squares", squares, chains);
    a("divergences", divergences, chains);
    tuner.fields(a);
  }
};

}  // namespace ribbit
