// Microcanonical dynamics (Robnik, De Luca, Silverstein and Seljak 2023, "Microcanonical
// Hamiltonian Monte Carlo", JMLR 24): a position q moves at speed one along a direction u, which
// the gradient g of the log density turns,
//   dq/dt = u, du/dt = (1 - u u') g / (dim - 1),
// so that q visits what the density says while u stays on the unit sphere. Both flows have closed
// forms; that of u is below.
#pragma once

#include "core/math_hd.h"

namespace ribbit {

// How the two flows alternate in a step: leapfrog, and the second-order scheme of two gradients
// with the smallest error constant (Omelyan, Mryglod and Folk 2003, Computer Physics Communications
// 151).
enum Integrator : int { kLeapfrog = 0, kMcLachlan = 1, kIntegratorCount };
#if !defined(__CUDACC__)
constexpr const char* kIntegratorNames[] = {"leapfrog", "mclachlan"};
static_assert(sizeof kIntegratorNames == kIntegratorCount * sizeof *kIntegratorNames);
#endif

// Shares of the step: kick[0], drift[0], kick[1], .., kick[stages].
struct IntegratorScheme {
  int stages;  // gradients of a step
  double kick[3], drift[2];
};
RIBBIT_HD IntegratorScheme integrator_scheme(Integrator integrator) {
  constexpr double kShort = 0.1931833275037836;
  switch (integrator) {
    case kLeapfrog:
      return {1, {0.5, 0.5, 0.0}, {1.0, 0.0}};
    case kMcLachlan:
      return {2, {kShort, 1.0 - 2.0 * kShort, kShort}, {0.5, 0.5}};
    case kIntegratorCount:
      break;
  }
  unreachable();
}

// A direction after the flow of `step` under a gradient that stands still: along g + keep u, of
// unit length up to rounding. energy: log of how the flow spreads volume, which takes the place of
// kinetic energy; what it gains beyond the log density is the error of a step.
struct IsokineticKick {
  double along, keep, energy;
};
// gg, gu, uu: |g|^2, g u and |u|^2, uu > 0 of any size.
RIBBIT_HD IsokineticKick isokinetic_kick(double gg, double gu, double uu, double step, double dim) {
  using O = Ops<double>;
  const double size = O::sqrt(uu), norm = O::sqrt(gg);
  if (!(norm > 0.0)) return {0.0, 1.0 / size, 0.0 * gg};
  const double cosine = clamp<double>(gu / (norm * size), -1.0, 1.0);
  // Beyond 300 the direction is the gradient's, and squares of exp(-delta) still are normal
  // numbers.
  const double delta = step * norm / (dim - 1.0), bent = delta > 300.0 ? 300.0 : delta;
  const double z = exp<double>(-bent);
  const double fallen = z * expm1_twice<double>(0.5 * bent);  // 1 - z
  // 2 z (cosh + cosine sinh), and the same without the leading one of cosh
  const double below = 1.0 + cosine + (1.0 - cosine) * z * z;
  const double beyond = fallen * (fallen + cosine * (1.0 + z));
  const double growth =
      bent < 1.0 ? log1p<double>(beyond / (2.0 * z)) : delta + log<double>(0.5 * below);
  return {fallen * (1.0 + z + cosine * fallen) / (below * norm), 2.0 * z / (below * size),
          (dim - 1.0) * growth};
}

// sd of the noise that, added to each parameter of a unit direction, lets it forget itself over a
// time `length` (Robnik and Seljak 2023, "Fluctuation without dissipation: Microcanonical Langevin
// Monte Carlo"); infinity: none.
RIBBIT_HD double refresh_level(double step, double length, double dim) {
  const double share = step / length;
  return Ops<double>::sqrt(expm1_twice<double>(share < 20.0 ? share : 20.0) / dim);
}

}  // namespace ribbit
