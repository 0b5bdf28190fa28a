#include "chains/hmc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "chains/work_queue.h"
#include "core/philox_hd.h"
#include "cpu/random.h"
#include "cpu/system/faults.h"

namespace ribbit {
namespace {

using cpu::CallEnd;
using cpu::Poll;

// The outcome of one chain's transition.
struct Outcome {
  double log_density;   // of the state after the transition
  double energy;        // of the state after the transition
  double energy_error;  // of the proposal minus that of the start; infinite if not finite
  double acceptance;    // min(1, exp(-energy error))
  std::int64_t steps;   // leapfrogs
  bool accepted;
  bool diverging;  // the energy error is above the threshold or infinite
};

// One transition of all chains, from the arrays of `from` to the arrays of `to`.
template <class T>
struct Transitions {
  ChainsView<T> from, to;
  const double* step_size;
  const std::int64_t* num_steps;
  double threshold;
};

// The working memory of transitions.
template <class T>
struct Space {
  Space(std::int64_t chains, std::int64_t dim)
      : momentum(chains * dim),
        likelihood(static_cast<std::size_t>(chains)),
        prior(likelihood.size()),
        made(likelihood.size()),
        outcomes(likelihood.size()) {}
  cpu::Buffer<T> momentum;                // (chains, dim)
  std::vector<double> likelihood, prior;  // (chains,)
  std::vector<std::int64_t> made;         // (chains,)
  std::vector<Outcome> outcomes;          // (chains,)
};

template <class T>
bool all_finite(const T* values, std::int64_t count) {
  // The sum of squares is finite if all values are, unless it overflows.
  if (std::isfinite(cpu::kernels<T>().dot_weighted(values, nullptr, count))) return true;
  return std::all_of(values, values + count, [](T value) { return std::isfinite(value); });
}

// Accepts or rejects the end of a chain's trajectory and writes the outcome. before, after: the
// kinetic energies at its ends.
template <class T>
void decide(const Transitions<T>& all, std::int64_t c, std::int64_t n, double before, double after,
            Space<T>& space) {
  const auto at = static_cast<std::size_t>(c);
  Outcome& outcome = space.outcomes[at];
  const double* old = all.from.terms + 2 * c;
  double* terms = all.to.terms + 2 * c;
  terms[0] = space.likelihood[at];
  terms[1] = space.prior[at];
  T *position = all.to.position + c * n, *grad = all.to.grad + c * n;
  // The sum of differences is finite only if every term and every momentum is. The position and the
  // gradient need a check of their own.
  double error = (after - before) + ((old[0] - terms[0]) + (old[1] - terms[1]));
  if (!std::isfinite(error) || !all_finite(position, n) || !all_finite(grad, n)) {
    error = std::numeric_limits<double>::infinity();
  }
  outcome.energy_error = error;
  const HamiltonianTuner& tuner = *all.from.tuner;
  cpu::accept({tuner.seed(), all.from.step, kPurposeAccept, 0}, &tuner.chain_ids()[at], 1, &error,
              &outcome.accepted, &outcome.acceptance);
  outcome.diverging = error > all.threshold;
  outcome.steps = space.made[at];
  if (!outcome.accepted) {
    std::copy_n(all.from.position + c * n, n, position);
    std::copy_n(all.from.grad + c * n, n, grad);
    std::copy_n(old, 2, terms);
  }
  if (cpu::planted(cpu::Fault::kStaleEnergy)) std::copy_n(old, 2, terms);
  outcome.log_density = terms[0] + terms[1];
  outcome.energy = (outcome.accepted ? after : before) - outcome.log_density;
}

// One transition of a chain, by all workers of its thread group. False for a worker that must
// return at once. Worker 0 writes the outcome after the last barrier.
template <class C, class T>
bool transition(C& context, const Transitions<T>& all, std::int64_t chain, Space<T>& space) {
  const std::int64_t n = context.dim();
  T* const momentum = space.momentum.data() + chain * n;
  const T* const mass =
      all.from.mass == nullptr ? nullptr : all.from.mass + chain * all.from.mass_stride;
  const HamiltonianTuner& tuner = *all.from.tuner;
  const std::int64_t first = context.begin(), last = context.end();
  cpu::fill_normal({tuner.seed(), all.from.step, kPurposeMomentum, 0},
                   tuner.chain_ids()[static_cast<std::size_t>(chain)], first, last - first,
                   momentum + first);
  for (std::int64_t i = first; mass != nullptr && i < last; ++i) momentum[i] /= std::sqrt(mass[i]);
  if (!context.barrier()) return false;
  double before = 0;
  if (context.index() == 0) before = cpu::kinetic_energy(momentum, mass, n);
  if (!context.gather()) return false;
  T* p = space.momentum.data();
  const cpu::Trajectories<T> trajectories{static_cast<std::int64_t>(tuner.chains()),
                                          all.from.position,
                                          p,
                                          all.from.grad,
                                          all.from.mass,
                                          all.from.mass_stride,
                                          all.step_size,
                                          all.num_steps,
                                          all.to.position,
                                          p,
                                          all.to.grad,
                                          space.likelihood.data(),
                                          space.prior.data(),
                                          space.made.data()};
  if (!context.trajectory(trajectories, chain)) return false;
  if (context.index() != 0) return true;
  decide(all, chain, n, before, cpu::kinetic_energy(momentum, mass, n), space);
  return true;
}

// Rounds of transitions. Within a round no chain waits for another.
template <class T, class D>
class Rounds {
 public:
  Rounds(const D& density, const HmcCall<T>& call, Poll* poll)
      : density_(density),
        call_(call),
        tuner_(*call.view.tuner),
        poll_(poll),
        chains_(static_cast<std::int64_t>(tuner_.chains())),
        position_(chains_ * density.dim()),
        grad_(chains_ * density.dim()),
        terms_(2 * tuner_.chains()),
        space_(chains_, density.dim()),
        step_size_(tuner_.chains()),
        num_steps_(tuner_.chains()) {}

  // The work of the first transition of all chains.
  double flops() const {
    double passes = 0;
    for (std::size_t c = 0; c < tuner_.chains(); ++c) {
      passes += static_cast<double>(tuner_.plan(c, call_.view.step).steps);
    }
    return passes * cpu::gradient_flops(density_);
  }

  // Makes the transitions [begin, end) of every chain. `kept` transitions were kept before.
  CallEnd make(std::int64_t begin, std::int64_t end, std::int64_t kept) {
    // Counter-based draws give the lengths in advance as long as L stays.
    double passes = 0;
    std::vector<std::int64_t> ahead(tuner_.chains(), 0);
    for (std::size_t c = 0; c < ahead.size(); ++c) {
      for (std::int64_t i = begin; i < end; ++i) ahead[c] += tuner_.plan(c, step_of(i)).steps;
      passes += static_cast<double>(ahead[c]);
    }
    if (cpu::shares_chains(density_, chains_)) {
      const std::vector<std::int64_t> order = cpu::longest_first(ahead.data(), chains_);
      return cpu::on_chains(
          density_, chains_, passes, poll_,
          [&](auto& context, std::int64_t chain) {
            for (std::int64_t i = begin; i < end; ++i) {
              if (!make(context, chain, i, kept)) return false;
            }
            return true;
          },
          order.data());
    }
    // Each chain needs one thread only. Each thread makes the next transition of the chain with the
    // most work ahead.
    WorkQueue queue(begin, end, std::move(ahead));
    return cpu::on_chains(density_, std::min<std::int64_t>(chains_, cpu::num_threads()), passes,
                          poll_, [&](auto& context, std::int64_t) {
                            // A larger thread group forms only after the queue is empty.
                            if (context.workers() > 1) return true;
                            while (const auto next = queue.take()) {
                              const auto [chain, number] = *next;
                              if (!make(context, chain, number, kept)) return false;
                              queue.put(chain,
                                        space_.outcomes[static_cast<std::size_t>(chain)].steps);
                            }
                            return true;
                          });
  }

  // Writes the last state to the arrays of the call.
  void finish(std::int64_t made) {
    if (made % 2 == 0) return;
    const std::int64_t size = chains_ * density_.dim();
    std::copy_n(position_.data(), size, call_.view.position);
    std::copy_n(grad_.data(), size, call_.view.grad);
    std::copy_n(terms_.data(), 2 * chains_, call_.view.terms);
  }

 private:
  std::uint64_t step_of(std::int64_t number) const {
    return call_.view.step + static_cast<std::uint64_t>(number);
  }

  // Transitions alternate between the call's arrays and this object's.
  Transitions<T> transitions(std::int64_t number) {
    Transitions<T> all{call_.view, call_.view, step_size_.data(), num_steps_.data(),
                       call_.threshold};
    ChainsView<T>& other = number % 2 == 1 ? all.from : all.to;
    other.position = position_.data();
    other.grad = grad_.data();
    other.terms = terms_.data();
    all.from.step = step_of(number);
    return all;
  }

  // One transition of a chain, by all workers of its thread group.
  template <class C>
  bool make(C& context, std::int64_t chain, std::int64_t number, std::int64_t kept) {
    const Transitions<T> all = transitions(number);
    const auto c = static_cast<std::size_t>(chain);
    bool capped = false;
    if (context.index() == 0) {
      const HamiltonianTuner::Plan plan = tuner_.plan(c, all.from.step);
      step_size_[c] = plan.step_size;
      num_steps_[c] = plan.steps;
      capped = plan.capped;
    }
    if (!context.gather() || !transition(context, all, chain, space_)) return false;
    if (context.index() != 0) return true;
    const Outcome& one = space_.outcomes[c];
    call_.divergences[chain] += one.diverging ? 1 : 0;
    call_.totals->add(c, one.acceptance, one.steps, one.diverging);
    const std::int64_t* const last = call_.keep + call_.kept_count;
    const std::int64_t* const found = std::lower_bound(call_.keep + kept, last, number);
    if (found != last && *found == number) keep(all, chain, found - call_.keep, capped);
    if (call_.moments.mean != nullptr) collect(all.to.position, chain, number);
    tuner_.observe(c, all.from.step, one.acceptance);
    return true;
  }

  void keep(const Transitions<T>& all, std::int64_t chain, std::int64_t row, bool capped) {
    Block<T>& to = *call_.block;
    const auto c = static_cast<std::size_t>(chain);
    const Outcome& one = space_.outcomes[c];
    const std::int64_t at = chain * to.capacity + call_.first_row + row, dim = density_.dim();
    to.real(kLp)[at] = one.log_density;
    to.real(kAcceptanceRate)[at] = one.acceptance;
    to.flag(kAccepted)[at] = one.accepted;
    to.flag(kDiverging)[at] = one.diverging;
    to.real(kEnergy)[at] = one.energy;
    to.real(kEnergyError)[at] = one.energy_error;
    to.whole(kSteps)[at] = one.steps;
    to.real(kStepSize)[at] = step_size_[c];
    to.flag(kCapped)[at] = capped;
    if (to.columns.size() > kDivergences) to.whole(kDivergences)[at] = call_.divergences[chain];
    call_.divergences[chain] = 0;
    if (call_.kept != nullptr) {
      std::copy_n(all.to.position + chain * dim, dim, call_.kept + at * dim);
    }
  }

  // Adds a position to the moments (Welford 1962).
  void collect(const T* position, std::int64_t chain, std::int64_t number) const {
    const std::int64_t dim = density_.dim(), first = chain * dim;
    const auto count =
        static_cast<double>(call_.moments.count + static_cast<std::uint64_t>(number) + 1);
    double *mean = call_.moments.mean + first, *squares = call_.moments.squares + first;
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto q = static_cast<double>(position[first + i]);
      const double delta = q - mean[i];
      mean[i] += delta / count;
      squares[i] += delta * (q - mean[i]);
    }
  }

  const D& density_;
  const HmcCall<T>& call_;
  HamiltonianTuner& tuner_;
  Poll* const poll_;
  const std::int64_t chains_;
  cpu::Buffer<T> position_, grad_;
  std::vector<double> terms_;
  Space<T> space_;
  std::vector<double> step_size_;
  std::vector<std::int64_t> num_steps_;
};

}  // namespace

std::vector<Statistic> hmc_columns(bool counts) {
  std::vector<Statistic> columns{
      {"lp", 'd'},        {"acceptance_rate", 'd'}, {"accepted", '?'},
      {"diverging", '?'}, {"energy", 'd'},          {"energy_error", 'd'},
      {"n_steps", 'q'},   {"step_size", 'd'},       {"capped", '?'}};
  if (counts) columns.push_back({"divergences", 'q'});
  return columns;
}

template <class T, class D>
HmcEnd hmc(const D& density, const HmcCall<T>& call, Poll* poll) {
  // MPI ranks have different clocks, so with ranks the call makes all of its transitions. Its
  // gradients ask all ranks whether to stop.
  const bool clocked = !cpu::has_ranks(density);
  Rounds<T, D> rounds(density, call, poll);
  RoundLength length(rounds.flops(), call.seconds);
  Stopwatch watch(clocked ? poll : nullptr);
  HmcEnd end;
  for (bool over = false; end.made < call.count && !over;) {
    if (watch.stop()) return {{true, 0}};
    const std::int64_t more = clocked ? length.next(end.made, watch.seconds(), call.seconds) : 1;
    const std::int64_t to = std::min(call.count, end.made + more);
    end.call = rounds.make(end.made, to, end.kept);
    if (!end.call.done()) return {end.call};
    end.made = to;
    while (end.kept < call.kept_count && call.keep[end.kept] < to) ++end.kept;
    over = clocked && watch.seconds() >= call.seconds;
  }
  rounds.finish(end.made);
  return end;
}

template HmcEnd hmc(const cpu::LogDensity<float>&, const HmcCall<float>&, Poll*);
template HmcEnd hmc(const cpu::LogDensity<double>&, const HmcCall<double>&, Poll*);
template HmcEnd hmc(const cpu::PointerDensity&, const HmcCall<double>&, Poll*);

}  // namespace ribbit
