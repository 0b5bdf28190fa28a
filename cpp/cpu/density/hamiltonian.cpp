#include "cpu/density/hamiltonian.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/density/chains.h"
#include "cpu/random.h"
#include "cpu/system/faults.h"

namespace ribbit::cpu {
namespace {

// Elements [first, last) of a chain's momentum, which is divided by the square root of the inverse
// mass.
template <class T>
void draw_momentum(const Transitions<T>& all, std::int64_t chain, std::int64_t first,
                   std::int64_t last, T* momentum) {
  const Stream stream{all.seed, all.step, kPurposeMomentum, 0};
  fill_normal(stream, all.chain_ids[chain], first, last - first, momentum + first);
  if (all.mass == nullptr) return;
  const T* mass = all.mass + chain * all.mass_stride;
  for (std::int64_t i = first; i < last; ++i) momentum[i] /= std::sqrt(mass[i]);
}

template <class T>
double energy_of(const Transitions<T>& all, std::int64_t chain, std::int64_t n, const T* momentum) {
  const T* mass = all.mass == nullptr ? nullptr : all.mass + chain * all.mass_stride;
  return kinetic_energy(momentum, mass, n);
}

template <class T>
bool all_finite(const T* values, std::int64_t count) {
  // A sum of squares is finite where its terms are, overflow aside.
  if (std::isfinite(kernels<T>().dot_weighted(values, nullptr, count))) return true;
  return std::all_of(values, values + count, [](T value) { return std::isfinite(value); });
}

// What a chain's trajectory comes to: from kinetic energies before and after it and the terms at
// its end, end_terms, to its outcome and what is kept.
template <class T>
void decide(const Transitions<T>& all, std::int64_t c, std::int64_t n, double before, double after,
            std::int64_t made) {
  TransitionOutcome& outcome = all.outcomes[c];
  const double* old = all.terms + 2 * c;
  double* terms = all.end_terms + 2 * c;
  T *position = all.end_position + c * n, *grad = all.end_grad + c * n;
  // A sum of differences. It is finite only if every term, the kinetic energy and so every momentum
  // is; position and gradient are looked at apart.
  double error = (after - before) + ((old[0] - terms[0]) + (old[1] - terms[1]));
  if (!std::isfinite(error) || !all_finite(position, n) || !all_finite(grad, n)) {
    error = std::numeric_limits<double>::infinity();
  }
  outcome.energy_error = error;
  accept({all.seed, all.step, kPurposeAccept, 0}, all.chain_ids + c, 1, &error, &outcome.accepted,
         &outcome.acceptance);
  outcome.diverging = error > all.threshold;
  outcome.steps = made;
  if (!outcome.accepted) {
    std::copy_n(all.position + c * n, n, position);
    std::copy_n(all.grad + c * n, n, grad);
    std::copy_n(old, 2, terms);
  }
  if (planted(Fault::kStaleEnergy)) std::copy_n(old, 2, terms);
  outcome.log_density = terms[0] + terms[1];
  outcome.energy = (outcome.accepted ? after : before) - outcome.log_density;
}

// momentum: (chains, dim), which moves in place.
template <class T>
Trajectories<T> trajectories_of(const Transitions<T>& all, TransitionSpace<T>& space) {
  T* p = space.momentum.data();
  return {all.chains,
          all.position,
          p,
          all.grad,
          all.mass,
          all.mass_stride,
          all.step_size,
          all.num_steps,
          all.end_position,
          p,
          all.end_grad,
          space.likelihood.data(),
          space.prior.data(),
          space.made.data()};
}

}  // namespace

template <class T>
bool transition(const Evaluator<T>& evaluator, Member<T>& m, const Transitions<T>& all,
                std::int64_t chain, TransitionSpace<T>& space) {
  const std::int64_t n = evaluator.dim(), chunks = evaluator.chunk_count();
  const auto at = static_cast<std::size_t>(chain);
  T* momentum = space.momentum.data() + chain * n;
  m.grad = all.end_grad + chain * n;

  draw_momentum(all, chain, std::min(n, m.first(chunks) * kChunk),
                std::min(n, m.last(chunks) * kChunk), momentum);
  if (!m.barrier()) return false;
  double before = 0;
  if (m.index == 0) before = energy_of(all, chain, n, momentum);
  if (!m.gather()) return false;
  if (!trajectory(evaluator, m, trajectories_of(all, space), chain)) return false;
  if (m.index != 0) return true;

  const Temperatures& t = evaluator.temperatures();
  all.end_terms[2 * chain] = space.likelihood[at] / (t.likelihood * t.posterior);
  all.end_terms[2 * chain + 1] = space.prior[at] / t.posterior;
  decide(all, chain, n, before, energy_of(all, chain, n, momentum), space.made[at]);
  return true;
}

template <class T>
bool hamiltonian(const Evaluator<T>& evaluator, const Transitions<T>& all, Poll* poll) {
  TransitionSpace<T> space(all.chains, evaluator.dim());
  double passes = 0;
  for (std::int64_t c = 0; c < all.chains; ++c) passes += static_cast<double>(all.num_steps[c]);
  return evaluator.on_chains(
      all.chains, evaluator.full_batch(), passes, all.end_grad, poll,
      [&](Member<T>& m, std::int64_t c) { return transition(evaluator, m, all, c, space); },
      NoPreparation{}, longest_first(all.num_steps, all.chains).data());
}

PointerDensity::Outcome hamiltonian(const PointerDensity& density, const Transitions<double>& all,
                                    Poll* poll) {
  const std::int64_t n = density.dim();
  TransitionSpace<double> space(all.chains, n);
  double* momentum = space.momentum.data();
  std::vector<double> before;
  for (std::int64_t c = 0; c < all.chains; ++c) {
    draw_momentum(all, c, 0, n, momentum + c * n);
    before.push_back(energy_of(all, c, n, momentum + c * n));
  }
  const PointerDensity::Outcome outcome = leapfrog(density, trajectories_of(all, space), poll);
  if (outcome.code != 0 || outcome.cancelled) return outcome;
  for (std::int64_t c = 0; c < all.chains; ++c) {
    const auto at = static_cast<std::size_t>(c);
    all.end_terms[2 * c] = space.likelihood[at];
    all.end_terms[2 * c + 1] = space.prior[at];
    decide(all, c, n, before[at], energy_of(all, c, n, momentum + c * n), space.made[at]);
  }
  return outcome;
}

PointerDensity::Outcome leapfrog(const PointerDensity& density, const Trajectories<double>& all,
                                 Poll* poll) {
  const std::int64_t count = all.chains * density.dim();
  const auto copy = [count](const double* from, double* to) {
    if (from != to) std::copy_n(from, count, to);
  };
  copy(all.position, all.end_position);
  copy(all.momentum, all.end_momentum);
  copy(all.grad, all.end_grad);
  std::fill_n(all.log_prior, all.chains, 0.0);
  return density.leapfrog(all.end_position, all.end_momentum, all.end_grad, all.mass,
                          all.mass_stride, all.step_size, all.num_steps, all.chains,
                          all.log_likelihood, all.made, poll);
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template bool transition(const Evaluator<T>&, Member<T>&, const Transitions<T>&, std::int64_t, \
                           TransitionSpace<T>&);                                                 \
  template bool hamiltonian(const Evaluator<T>&, const Transitions<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
