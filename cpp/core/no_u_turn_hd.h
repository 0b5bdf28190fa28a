// What the growth of a no-U-turn tree is decided by (Hoffman and Gelman 2014; the criterion of
// Betancourt 2017, appendix A.4.2, on sums of momenta), on numbers or SIMD vectors T.
//
// A part of a trajectory has a sum rho of its momenta and momenta at its first and its last state,
// in the order in which they were made. Two parts a and b, b made after a and as long, go on as one
// while every sum of products with the velocity M^-1 p is positive:
//   of rho_a + rho_b         with the ends of both together: a's first and b's last,
//   of rho_a + b's first     with a's first and b's first,
//   of a's last + rho_b      with a's last and b's last.
// The last two look across the seam: without them two parts that each go half a turn, one there and
// one back, go on for a second round.
#pragma once

#include "core/ops_hd.h"

namespace ribbit {

// Layers of the purpose kPurposeTree (philox_hd.h). Elements: of the first the depth, of the second
// the number of the leaf in the transition, of the third the depth of the tree before it doubles.
enum TreeLayer : int { kTreeDirection = 0, kTreeLeaf = 1, kTreeDoubling = 2 };

inline constexpr int kTurnSums = 6;
inline constexpr int kLeafTurnSums = 2;  // two single states: the seam is all there is
inline constexpr int kMostTreeDepth = 24;

// Adds the products of one parameter to the six sums.
template <class T>
RIBBIT_HD void add_turn_products(T rho_a, T rho_b, T a_first, T a_last, T b_first, T b_last,
                                 T inverse_mass, T (&sums)[kTurnSums]) {
  const T rho = rho_a + rho_b, near = rho_a + b_first, far = a_last + rho_b;
  const T from = inverse_mass * a_first, to = inverse_mass * b_last;
  sums[0] += from * rho;
  sums[1] += to * rho;
  sums[2] += from * near;
  sums[3] += (inverse_mass * b_first) * near;
  sums[4] += (inverse_mass * a_last) * far;
  sums[5] += to * far;
}

template <class T>
RIBBIT_HD void add_leaf_turn_products(T a, T b, T inverse_mass, T (&sums)[kLeafTurnSums]) {
  const T rho = a + b;
  sums[0] += (inverse_mass * a) * rho;
  sums[1] += (inverse_mass * b) * rho;
}

// False for NaN too.
RIBBIT_HD bool goes_on(const double* sums, int count) {
  for (int i = 0; i < count; ++i) {
    if (!(sums[i] > 0.0)) return false;
  }
  return true;
}

// log(exp(a) + exp(b)); b is finite, a may be -infinity.
RIBBIT_HD double log_add_exp(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  return high + library_log(1.0 + library_exp(low - high));
}

}  // namespace ribbit
