#include "cpu/density/hamiltonian_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/random.h"

namespace ribbit::cpu {
namespace {

constexpr int kLengthLayer = 1;  // of the jitter's purpose: how many steps a trajectory has

// The numbers of leapfrog steps of the transition that comes.
template <class T>
class Steps {
 public:
  explicit Steps(const HamiltonianRun<T>& run)
      : run_(run),
        count_(static_cast<std::size_t>(run.chains)),
        steps_(count_),
        capped_(count_),
        uniforms_(count_) {}

  const std::int64_t* steps() const { return steps_.data(); }
  bool capped(std::int64_t chain) const { return capped_[static_cast<std::size_t>(chain)]; }

  void draw(std::uint64_t step) {
    const TrajectoryRule& rule = run_.rule;
    const bool brief = step < rule.brief_until;
    if (rule.randomize) {
      fill_uniform({run_.seed, step, kPurposeJitter, kLengthLayer}, run_.chain_ids, run_.chains, 1,
                   uniforms_.data());
    }
    for (std::size_t c = 0; c < count_; ++c) {
      std::int64_t steps = run_.num_steps[c];
      bool capped = run_.capped[c];
      if (brief) {
        capped = capped && steps <= rule.brief;
        steps = std::min(steps, rule.brief);
      }
      if (rule.randomize) {
        const double wanted = std::ceil(2.0 * uniforms_[c] * static_cast<double>(steps));
        const bool longer = wanted > static_cast<double>(rule.most);
        capped = capped || longer;
        steps = longer ? rule.most : static_cast<std::int64_t>(wanted);
      }
      steps_[c] = steps;
      capped_[c] = capped;
    }
  }

  // After a transition of warmup.
  void adapt(const std::vector<TransitionOutcome>& outcomes, bool last) {
    DualAveraging& dual = *run_.dual;
    const TrajectoryRule& rule = run_.rule;
    for (std::size_t c = 0; c < count_; ++c) dual.update(c, outcomes[c].acceptance, rule.target);
    dual.next();
    for (std::size_t c = 0; c < count_; ++c) {
      const double size = last && rule.ends ? dual.average(c) : dual.step_size(c);
      run_.step_size[c] = size;
      if (rule.length == 0.0) continue;
      // A quotient that only rounding has lifted over an integer is that integer.
      const double steps = std::fmax(std::ceil(rule.length / size * (1.0 - 1e-14)), 1.0);
      run_.capped[c] = steps > static_cast<double>(rule.most_on_average);
      run_.num_steps[c] = run_.capped[c] ? rule.most_on_average : static_cast<std::int64_t>(steps);
    }
  }

 private:
  const HamiltonianRun<T>& run_;
  const std::size_t count_;
  std::vector<std::int64_t> steps_;
  std::vector<bool> capped_;
  std::vector<double> uniforms_;
};

// Asks now and then: a transition may be over long before it asks by itself.
class Now {
 public:
  explicit Now(Poll* poll) : poll_(poll), begun_(Clock::now()), asked_(begun_) {}
  bool after(double seconds) const {
    return std::chrono::duration<double>(Clock::now() - begun_).count() >= seconds;
  }
  bool stop() {
    if (poll_ == nullptr) return false;
    const Clock::time_point now = Clock::now();
    if (now - asked_ < Poll::kInterval) return false;
    asked_ = now;
    return poll_->stop();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Poll* poll_;
  const Clock::time_point begun_;
  Clock::time_point asked_;
};

template <class T>
void keep_statistics(const HamiltonianRun<T>& run, const std::vector<TransitionOutcome>& outcomes,
                     const Steps<T>& steps, std::int64_t place) {
  const RunStatistics& to = run.statistics;
  for (std::int64_t c = 0; c < run.chains; ++c) {
    const TransitionOutcome& one = outcomes[static_cast<std::size_t>(c)];
    const std::int64_t at = c * run.kept_count + place;
    to.log_density[at] = one.log_density;
    to.energy[at] = one.energy;
    to.energy_error[at] = one.energy_error;
    to.acceptance[at] = one.acceptance;
    to.step_size[at] = run.step_size[c];
    to.steps[at] = one.steps;
    to.accepted[at] = one.accepted;
    to.diverging[at] = one.diverging;
    to.capped[at] = steps.capped(c);
  }
}

}  // namespace

template <class T>
RunEnd hamiltonian_run(const LogDensity<T>& density, const HamiltonianRun<T>& run, Poll* poll) {
  const std::int64_t chains = run.chains, dim = density.dim(), size = chains * dim;

  // Two places that take turns.
  Buffer<T> other_position(size), other_grad(size);
  std::vector<double> other_terms(static_cast<std::size_t>(2 * chains));
  T *position = run.position, *grad = run.grad;
  double* terms = run.terms;
  T *next_position = other_position.data(), *next_grad = other_grad.data();
  double* next_terms = other_terms.data();

  // Without the layer that is integrated out, which is drawn at the end: of all draws at once it
  // takes all threads.
  const bool completes = run.kept != nullptr && density.last() != nullptr;
  Buffer<T> part(completes ? size * run.kept_count : 0);
  T* const to = completes ? part.data() : run.kept;

  // Transitions.
  std::vector<TransitionOutcome> outcomes(static_cast<std::size_t>(chains));
  Steps<T> steps(run);
  Now now(poll);
  std::int64_t made = 0, kept = 0;
  bool over = false;
  for (std::int64_t i = 0; i < run.count && !over; ++i) {
    if (now.stop()) return {};
    const std::uint64_t step = run.step + static_cast<std::uint64_t>(i);
    steps.draw(step);
    const Transitions<T> all{chains,          position,      grad,          terms,     run.mass,
                             run.mass_stride, run.step_size, steps.steps(), run.seed,  step,
                             run.chain_ids,   run.threshold, next_position, next_grad, next_terms,
                             outcomes.data()};
    if (!density.hamiltonian(all, poll)) return {};
    std::swap(position, next_position);
    std::swap(grad, next_grad);
    std::swap(terms, next_terms);

    // What is kept of it.
    if (kept < run.kept_count && run.keep[kept] == i) {
      keep_statistics(run, outcomes, steps, kept);
      for (std::int64_t c = 0; to != nullptr && c < chains; ++c) {
        std::copy_n(position + c * dim, dim, to + (c * run.kept_count + kept) * dim);
      }
      ++kept;
      over = now.after(run.seconds);
    }
    made = i + 1;
    if (run.dual != nullptr) steps.adapt(outcomes, i + 1 == run.count);
  }

  if (position != run.position) {
    std::copy_n(position, size, run.position);
    std::copy_n(grad, size, run.grad);
    std::copy_n(terms, 2 * chains, run.terms);
  }
  if (!completes || kept == 0) return {made, kept};
  std::vector<std::uint64_t> after;
  for (std::int64_t k = 0; k < kept; ++k) {
    after.push_back(run.step + static_cast<std::uint64_t>(run.keep[k]) + 1);
  }
  // Of fewer than were wanted the rows of a chain lie further apart than they are.
  const bool fewer = kept < run.kept_count;
  const std::int64_t whole = dim + density.last()->terms() * density.last()->outputs;
  for (std::int64_t c = 1; fewer && c < chains; ++c) {
    std::copy_n(to + c * run.kept_count * dim, kept * dim, to + c * kept * dim);
  }
  Buffer<T> some(fewer ? chains * kept * whole : 0);
  T* const out = fewer ? some.data() : run.kept;
  if (!density.complete(to, chains, kept, run.seed, after.data(), run.chain_ids, out, poll)) {
    return {};
  }
  for (std::int64_t c = 0; fewer && c < chains; ++c) {
    std::copy_n(out + c * kept * whole, kept * whole, run.kept + c * run.kept_count * whole);
  }
  return {made, kept};
}

#define RIBBIT_INSTANTIATE(T) \
  template RunEnd hamiltonian_run(const LogDensity<T>&, const HamiltonianRun<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
