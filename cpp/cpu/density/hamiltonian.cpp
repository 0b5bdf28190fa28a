#include "cpu/density/hamiltonian.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/random.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {
namespace {

// In the layout of `Trajectories`: a momentum divided by the square root of the inverse mass.
template <class T>
void draw_momenta(const Transitions<T>& all, std::int64_t dim, T* momentum) {
  const Stream stream{all.seed, all.step, kPurposeMomentum, 0};
  fill_normal(stream, all.chain_ids, all.chains, dim, momentum);
  if (all.mass == nullptr) return;
  for_each_piece(all.chains, all.chains * dim, [&](std::int64_t c) {
    const T* mass = all.mass + c * all.mass_stride;
    for (std::int64_t i = 0; i < dim; ++i) momentum[c * dim + i] /= std::sqrt(mass[i]);
  });
}

template <class T>
bool all_finite(const T* values, std::int64_t count) {
  // A sum of squares is finite where its terms are, overflow aside.
  if (std::isfinite(kernels<T>().dot_weighted(values, nullptr, count))) return true;
  return std::all_of(values, values + count, [](T value) { return std::isfinite(value); });
}

// moves(trajectories): false when cancelled.
template <class T, class Moves>
bool transitions(const Transitions<T>& all, std::int64_t n, const Temperatures& t,
                 const Moves& moves) {
  const auto count = static_cast<std::size_t>(all.chains);

  // Momentum, which moves in place, and trajectory.
  Buffer<T> momentum(all.chains * n);
  T* const p = momentum.data();
  draw_momenta(all, n, p);
  std::vector<double> kinetic(2 * count), parts(2 * count);
  double *const before = kinetic.data(), *const after = before + all.chains;
  double *const likelihood = parts.data(), *const prior = likelihood + all.chains;
  std::vector<std::int64_t> made(count);
  kinetic_energy(p, all.mass, all.mass_stride, all.chains, n, before);
  const Trajectories<T> trajectories{
      all.chains,    all.position,     p, all.grad,     all.mass,   all.mass_stride, all.step_size,
      all.num_steps, all.end_position, p, all.end_grad, likelihood, prior,           made.data()};
  if (!moves(trajectories)) return false;
  kinetic_energy(p, all.mass, all.mass_stride, all.chains, n, after);

  // Acceptance.
  const Stream stream{all.seed, all.step, kPurposeAccept, 0};
  for_each_piece(all.chains, all.chains * n / 4, [&](std::int64_t c) {
    TransitionOutcome& outcome = all.outcomes[c];
    const double* old = all.terms + 2 * c;
    double* terms = all.end_terms + 2 * c;
    terms[0] = likelihood[c] / (t.likelihood * t.posterior);
    terms[1] = prior[c] / t.posterior;
    T *position = all.end_position + c * n, *grad = all.end_grad + c * n;
    // A sum of differences. It is finite only if every term, the kinetic energy and so every
    // momentum is; position and gradient are looked at apart.
    double error = (after[c] - before[c]) + ((old[0] - terms[0]) + (old[1] - terms[1]));
    if (!std::isfinite(error) || !all_finite(position, n) || !all_finite(grad, n)) {
      error = std::numeric_limits<double>::infinity();
    }
    outcome.energy_error = error;
    accept(stream, all.chain_ids + c, 1, &error, &outcome.accepted, &outcome.acceptance);
    outcome.diverging = error > all.threshold;
    outcome.steps = made[static_cast<std::size_t>(c)];
    if (!outcome.accepted) {
      std::copy_n(all.position + c * n, n, position);
      std::copy_n(all.grad + c * n, n, grad);
      std::copy_n(old, 2, terms);
    }
    outcome.log_density = terms[0] + terms[1];
    outcome.energy = (outcome.accepted ? after[c] : before[c]) - outcome.log_density;
  });
  return true;
}

}  // namespace

template <class T>
bool hamiltonian(const Evaluator<T>& evaluator, const Transitions<T>& all, Poll* poll) {
  return transitions(
      all, evaluator.dim(), evaluator.temperatures(),
      [&](const Trajectories<T>& trajectories) { return leapfrog(evaluator, trajectories, poll); });
}

PointerDensity::Outcome hamiltonian(const PointerDensity& density, const Transitions<double>& all,
                                    Poll* poll) {
  PointerDensity::Outcome outcome;
  transitions(all, density.dim(), {}, [&](const Trajectories<double>& trajectories) {
    outcome = leapfrog(density, trajectories, poll);
    return outcome.code == 0 && !outcome.cancelled;
  });
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

#define RIBBIT_INSTANTIATE(T) \
  template bool hamiltonian(const Evaluator<T>&, const Transitions<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
