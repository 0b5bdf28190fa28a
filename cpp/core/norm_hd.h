// Norms: filter response norm (Singh and Krishnan 2020, eq. 1 to 3), layer norm (Ba, Kiros and
// Hinton 2016, eq. 4) and group norm (Wu and He 2018, eq. 1, 4), and how deltas pass through them,
// on numbers or SIMD vectors T (see ops_hd.h). Sums and their order belong to the callers.
//
// z: an input; d: the delta of an output; gamma, beta, tau: gain, shift and threshold of a channel.
// Of the numbers that are normalised together: share = 1 / how many they are, mean, r = 1 / sd, or
// 1 / their root mean square where no mean is subtracted.
#pragma once

#include "core/ops_hd.h"

namespace ribbit {

// r; squares: the sum of z^2, or of (z - mean)^2
template <class T>
RIBBIT_HD T inverse_root(T squares, T share, T epsilon) {
  using O = Ops<T>;
  return O::set(1.0) / O::sqrt(O::mul_add(squares, share, epsilon));
}

// The sums that gradients are made of: of d, and of d times what it belongs to.
template <class T>
RIBBIT_HD void add_delta(T d, T by, T& plain, T& along) {
  plain = plain + d;
  along = Ops<T>::mul_add(d, by, along);
}

// Filter response norm: max(scale z + beta, tau), scale = gamma r. By tau: the sum of d where the
// threshold cuts; the rest is made of the other d. By beta: their sum.
template <class T>
RIBBIT_HD T response_output(T z, T scale, T beta) {
  return Ops<T>::mul_add(z, scale, beta);
}
// Of two equal ones the threshold: NaN passes.
template <class T>
RIBBIT_HD T response_output(T z, T scale, T beta, T tau) {
  const T value = response_output<T>(z, scale, beta);
  return Ops<T>::select(value <= tau, tau, value);
}
template <class T>
RIBBIT_HD auto threshold_cuts(T z, T scale, T beta, T tau) {
  return response_output<T>(z, scale, beta) <= tau;
}
// along: the sum of d z
template <class T>
RIBBIT_HD T response_by_gamma(T r, T along) {
  return r * along;
}
template <class T>
RIBBIT_HD T response_shrink(T scale, T r, T by_gamma, T share) {
  return scale * r * (by_gamma * share);
}
// by z: scale d - shrink z. direct: scale d, to which a caller may have added what is there
template <class T>
RIBBIT_HD T response_by_input(T z, T direct, T shrink) {
  return Ops<T>::mul_sub(shrink, z, direct);
}

// Layer norm and group norm: gamma u + beta. Gradients by beta and gamma are the sums of d and d u.
// The CPU makes a group norm as a filter response norm of z - mean, with the kernels of that.
template <class T>
RIBBIT_HD T standardised(T z, T mean, T r) {
  return (z - mean) * r;  // u
}
template <class T>
RIBBIT_HD T standard_output(T u, T gamma, T beta) {
  return Ops<T>::mul_add(gamma, u, beta);
}
// by z. g: gamma d; plain, along: the means of g and g u
template <class T>
RIBBIT_HD T standard_by_input(T u, T g, T r, T plain, T along) {
  return r * (g - plain - u * along);
}

}  // namespace ribbit
