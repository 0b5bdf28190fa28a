#include "cpu/density/hamiltonian_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/density/chains.h"
#include "cpu/random.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {
namespace {

constexpr int kLengthLayer = 1;  // stream id of lengths under kPurposeJitter; step sizes have 0

// The numbers of leapfrog steps of the transition that comes, of a chain at a time: several threads
// may each have theirs.
template <class T>
class Steps {
 public:
  explicit Steps(const HamiltonianRun<T>& run)
      : run_(run), steps_(static_cast<std::size_t>(run.chains)), capped_(steps_.size()) {}

  const std::int64_t* steps() const { return steps_.data(); }
  bool capped(std::int64_t chain) const { return capped_[static_cast<std::size_t>(chain)] != 0; }

  void draw(std::int64_t chain, std::uint64_t step) {
    const auto c = static_cast<std::size_t>(chain);
    bool capped;
    steps_[c] = steps_of(chain, step, capped);
    capped_[c] = capped;
  }

  // With the L of now. capped: whether it would be longer.
  std::int64_t steps_of(std::int64_t chain, std::uint64_t step, bool& capped) const {
    const TrajectoryRule& rule = run_.rule;
    std::int64_t steps = run_.num_steps[chain];
    capped = run_.capped[chain];
    if (step < rule.brief_until) {
      capped = capped && steps <= rule.brief;
      steps = std::min(steps, rule.brief);
    }
    if (rule.randomize_length) {
      double uniform;
      fill_uniform({run_.seed, step, kPurposeJitter, kLengthLayer}, run_.chain_ids + chain, 1, 1,
                   &uniform);
      const double wanted = std::ceil(2.0 * uniform * static_cast<double>(steps));
      const bool longer = wanted > static_cast<double>(rule.most);
      capped = capped || longer;
      steps = longer ? rule.most : static_cast<std::int64_t>(wanted);
    }
    return steps;
  }

  // After the transition `step` of warmup.
  void adapt(std::int64_t chain, std::uint64_t step, double acceptance, bool last) {
    DualAveraging& dual = *run_.dual;
    const TrajectoryRule& rule = run_.rule;
    const auto c = static_cast<std::size_t>(chain);
    dual.update(c, acceptance, rule.target, step >= rule.brief_until);
    const double size = last && rule.ends ? dual.average(c) : dual.step_size(c);
    run_.step_size[c] = size;
    if (rule.length == 0.0) return;
    // A quotient that only rounding has lifted over an integer is that integer.
    const double steps = std::fmax(std::ceil(rule.length / size * (1.0 - 1e-14)), 1.0);
    run_.capped[c] = steps > static_cast<double>(rule.most_on_average);
    run_.num_steps[c] = run_.capped[c] ? rule.most_on_average : static_cast<std::int64_t>(steps);
  }

 private:
  const HamiltonianRun<T>& run_;
  std::vector<std::int64_t> steps_;
  std::vector<std::uint8_t> capped_;  // bits of one word would be written by several threads
};

// Asks now and then: a round may be over long before it asks by itself.
class Now {
 public:
  explicit Now(Poll* poll) : poll_(poll), begun_(Clock::now()), asked_(begun_) {}
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
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

// The transitions [begin, end) of every chain, of which the kept ones are number `kept` and on.
struct Round {
  std::int64_t begin, end, kept;
};

// Whose transition is next, where each thread may take any chain.
class Turns {
 public:
  // ahead: (chains,) leapfrog steps, about.
  Turns(const Round& round, std::vector<std::int64_t> ahead)
      : end_(round.end), ahead_(std::move(ahead)), next_(ahead_.size(), round.begin) {}

  // A chain, which is this thread's until it is put back, and the number of its transition.
  std::optional<std::pair<std::int64_t, std::int64_t>> take() {
    const std::scoped_lock lock(mutex_);
    std::size_t best = next_.size();
    for (std::size_t c = 0; c < next_.size(); ++c) {
      const bool free = next_[c] >= 0 && next_[c] < end_;
      if (free && (best == next_.size() || ahead_[c] > ahead_[best])) best = c;
    }
    if (best == next_.size()) return std::nullopt;
    const std::int64_t number = next_[best];
    next_[best] = ~number;  // taken
    return std::pair{static_cast<std::int64_t>(best), number};
  }
  void put(std::int64_t chain, std::int64_t steps) {
    const std::scoped_lock lock(mutex_);
    const auto c = static_cast<std::size_t>(chain);
    next_[c] = ~next_[c] + 1;
    ahead_[c] -= steps;
  }

 private:
  const std::int64_t end_;
  std::mutex mutex_;
  std::vector<std::int64_t> ahead_, next_;
};

// How many kept transitions the next round has, or how many where none is kept. Between rounds the
// threads wait for each other, which makes long ones worth it; but a call is to end in time, and to
// hear of a wish to stop.
class RoundLength {
 public:
  // flops: of all chains up to the first transition that is kept. seconds: of the call.
  RoundLength(double flops, double seconds) {
    // A guess at the first: a quarter of the time, of one thread at the rate of small networks.
    constexpr double kRate = 2e10;
    length_ = rounded(0.25 * std::min(seconds, kInterval) * kRate / flops);
  }
  std::int64_t next(std::int64_t kept, double passed, double seconds) {
    constexpr std::int64_t kGrowth = 4;  // rates of the first few are rough
    if (kept == 0) return length_;
    const double time = std::min(seconds - passed, kInterval);
    length_ = std::min(kGrowth * length_, rounded(time * static_cast<double>(kept) / passed));
    return length_;
  }

 private:
  static constexpr double kInterval = std::chrono::duration<double>(Poll::kInterval).count();
  static std::int64_t rounded(double length) {
    return static_cast<std::int64_t>(std::fmin(std::fmax(length, 1.0), 1e6));  // NaN is 1
  }
  std::int64_t length_;
};

// Rounds of transitions: within one no chain waits for another.
template <class T>
class Rounds {
 public:
  // kept: (chains, K, dim), or null.
  Rounds(const Evaluator<T>& evaluator, const HamiltonianRun<T>& run, T* kept, Poll* poll)
      : evaluator_(evaluator),
        run_(run),
        kept_(kept),
        poll_(poll),
        position_(run.chains * evaluator.dim()),
        grad_(run.chains * evaluator.dim()),
        terms_(static_cast<std::size_t>(2 * run.chains)),
        space_(run.chains, evaluator.dim()),
        outcomes_(static_cast<std::size_t>(run.chains)),
        divergences_(static_cast<std::size_t>(run.chains), 0),
        steps_(run) {}

  // Of the first transition of all chains.
  double flops() const {
    double passes = 0;
    bool capped;
    for (std::int64_t c = 0; c < run_.chains; ++c) {
      passes += static_cast<double>(steps_.steps_of(c, run_.step, capped));
    }
    return passes * evaluator_.gradient_flops(evaluator_.full_batch().x.rows);
  }

  // False when cancelled.
  bool make(const Round& round) {
    const Batch<T>& batch = evaluator_.full_batch();
    const auto cut = evaluator_.cut_of(batch, run_.chains);
    // Lengths are drawn by address, so what a chain has before it is known, as far as L stays.
    double passes = 0;
    std::vector<std::int64_t> ahead(static_cast<std::size_t>(run_.chains), 0);
    for (std::int64_t c = 0; c < run_.chains; ++c) {
      std::int64_t& sum = ahead[static_cast<std::size_t>(c)];
      bool capped;
      for (std::int64_t i = round.begin; i < round.end; ++i) {
        sum += steps_.steps_of(c, run_.step + static_cast<std::uint64_t>(i), capped);
      }
      passes += static_cast<double>(sum);
    }
    if (cut.pieces > 1 || cut.group != nullptr) {
      return evaluator_.on_chains(
          run_.chains, batch, passes, run_.grad, poll_,
          [&](Member<T>& m, std::int64_t chain) {
            for (std::int64_t i = round.begin; i < round.end; ++i) {
              if (!make(m, round, chain, i)) return false;
            }
            return true;
          },
          NoPreparation{}, longest_first(ahead.data(), run_.chains).data());
    }
    // Chains that no second thread is worth: as many workers as threads, of which each makes the
    // next transition of whichever chain has most before it, until there is none.
    Turns turns(round, std::move(ahead));
    return evaluator_.on_chains(std::min<std::int64_t>(run_.chains, num_threads()), batch, passes,
                                run_.grad, poll_, [&](Member<T>& m, std::int64_t) {
                                  // A team takes what is left over, which is nothing.
                                  if (m.team.size() > 1) return true;
                                  while (const auto turn = turns.take()) {
                                    const auto [chain, number] = *turn;
                                    if (!make(m, round, chain, number)) return false;
                                    turns.put(chain,
                                              outcomes_[static_cast<std::size_t>(chain)].steps);
                                  }
                                  return true;
                                });
  }

  // Takes the chains to where the run has them.
  void finish(std::int64_t made) {
    if (made % 2 == 0) return;
    const std::int64_t size = run_.chains * evaluator_.dim();
    std::copy_n(position_.data(), size, run_.position);
    std::copy_n(grad_.data(), size, run_.grad);
    std::copy_n(terms_.data(), 2 * run_.chains, run_.terms);
  }

 private:
  // Two places take turns.
  Transitions<T> transitions(std::int64_t number) {
    const std::uint64_t step = run_.step + static_cast<std::uint64_t>(number);
    Transitions<T> all{
        run_.chains,      run_.position,  run_.grad,        run_.terms,   run_.mass,
        run_.mass_stride, run_.step_size, steps_.steps(),   run_.seed,    step,
        run_.chain_ids,   run_.threshold, position_.data(), grad_.data(), terms_.data(),
        outcomes_.data()};
    if (number % 2 == 1) {
      all.position = position_.data();
      all.grad = grad_.data();
      all.terms = terms_.data();
      all.end_position = run_.position;
      all.end_grad = run_.grad;
      all.end_terms = run_.terms;
    }
    return all;
  }

  // One transition of a chain, by all members of its team.
  bool make(Member<T>& m, const Round& round, std::int64_t chain, std::int64_t number) {
    const Transitions<T> all = transitions(number);
    if (m.index == 0) steps_.draw(chain, all.step);
    if (!m.gather() || !transition(evaluator_, m, all, chain, space_)) return false;
    if (m.index != 0) return true;
    const auto at = static_cast<std::size_t>(chain);
    divergences_[at] += outcomes_[at].diverging ? 1 : 0;
    const std::int64_t* const last = run_.keep + run_.kept_count;
    const std::int64_t* const place = std::lower_bound(run_.keep + round.kept, last, number);
    if (place != last && *place == number) keep(all, chain, place - run_.keep);
    if (run_.dual != nullptr) {
      const double acceptance = outcomes_[static_cast<std::size_t>(chain)].acceptance;
      steps_.adapt(chain, all.step, acceptance, number + 1 == run_.count);
    }
    return true;
  }

  void keep(const Transitions<T>& all, std::int64_t c, std::int64_t place) {
    const RunStatistics& to = run_.statistics;
    const TransitionOutcome& one = outcomes_[static_cast<std::size_t>(c)];
    const std::int64_t at = c * run_.kept_count + place, dim = evaluator_.dim();
    to.log_density[at] = one.log_density;
    to.energy[at] = one.energy;
    to.energy_error[at] = one.energy_error;
    to.acceptance[at] = one.acceptance;
    to.step_size[at] = run_.step_size[c];
    to.steps[at] = one.steps;
    to.accepted[at] = one.accepted;
    to.diverging[at] = one.diverging;
    to.capped[at] = steps_.capped(c);
    std::int64_t& lost = divergences_[static_cast<std::size_t>(c)];
    if (to.divergences != nullptr) to.divergences[at] = lost;
    lost = 0;
    if (kept_ != nullptr) std::copy_n(all.end_position + c * dim, dim, kept_ + at * dim);
  }

  const Evaluator<T>& evaluator_;
  const HamiltonianRun<T>& run_;
  T* const kept_;
  Poll* const poll_;
  Buffer<T> position_, grad_;
  std::vector<double> terms_;
  TransitionSpace<T> space_;
  std::vector<TransitionOutcome> outcomes_;
  std::vector<std::int64_t> divergences_;  // of each chain since a transition was kept
  Steps<T> steps_;
};

// Fills what is kept, (chains, K, ..), of the first `kept` of K positions `at` with the layer that
// is integrated out. False when cancelled.
template <class T>
bool complete(const LogDensity<T>& density, const HamiltonianRun<T>& run, std::int64_t kept, T* at,
              Poll* poll) {
  const std::int64_t chains = run.chains, dim = density.dim();
  std::vector<std::uint64_t> after;
  for (std::int64_t k = 0; k < kept; ++k) {
    after.push_back(run.step + static_cast<std::uint64_t>(run.keep[k]) + 1);
  }
  // Of fewer than were wanted the rows of a chain lie further apart than they are.
  const bool fewer = kept < run.kept_count;
  const std::int64_t whole = dim + density.last()->terms() * density.last()->outputs;
  for (std::int64_t c = 1; fewer && c < chains; ++c) {
    std::copy_n(at + c * run.kept_count * dim, kept * dim, at + c * kept * dim);
  }
  Buffer<T> some(fewer ? chains * kept * whole : 0);
  T* const out = fewer ? some.data() : run.kept;
  if (!density.complete(at, chains, kept, run.seed, after.data(), run.chain_ids, out, poll)) {
    return false;
  }
  for (std::int64_t c = 0; fewer && c < chains; ++c) {
    std::copy_n(out + c * kept * whole, kept * whole, run.kept + c * run.kept_count * whole);
  }
  return true;
}

}  // namespace

template <class T>
RunEnd hamiltonian_run(const LogDensity<T>& density, const HamiltonianRun<T>& run, Poll* poll) {
  // Without the layer that is integrated out, which is drawn at the end: of all draws at once it
  // takes all threads.
  const bool completes = run.kept != nullptr && density.last() != nullptr;
  Buffer<T> part(completes ? run.chains * density.dim() * run.kept_count : 0);
  T* const to = completes ? part.data() : run.kept;

  // No two ranks have the same clock: there a round is a transition that is kept.
  const bool clocked = density.group() == nullptr;
  Rounds<T> rounds(density.evaluator(), run, to, poll);
  const double gap = run.kept_count > 0 ? static_cast<double>(run.keep[0] + 1) : 1.0;
  RoundLength length(gap * rounds.flops(), run.seconds);
  Now now(poll);
  std::int64_t made = 0, kept = 0;
  for (bool over = false; made < run.count && !over;) {
    if (now.stop()) return {};
    const bool keeps = kept < run.kept_count;
    const std::int64_t before = run.kept_count > 0 ? kept : made;
    const std::int64_t more = clocked ? length.next(before, now.seconds(), run.seconds) : 1;
    const std::int64_t last = std::min(run.kept_count, kept + more);
    const std::int64_t end = keeps ? run.keep[last - 1] + 1 : std::min(run.count, made + more);
    if (!rounds.make({made, end, kept})) return {};
    made = end;
    kept = last;
    over = clocked && keeps && now.seconds() >= run.seconds;
  }
  rounds.finish(made);
  if (completes && kept > 0 && !complete(density, run, kept, to, poll)) return {};
  return {made, kept};
}

#define RIBBIT_INSTANTIATE(T) \
  template RunEnd hamiltonian_run(const LogDensity<T>&, const HamiltonianRun<T>&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
