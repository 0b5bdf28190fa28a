// Whole runs of Hamiltonian Monte Carlo.

#include <algorithm>
#include <cmath>

#include "capi/first_step_size.h"
#include "capi/target.h"
#include "core/philox_hd.h"
#include "cpu/density/dual_averaging.h"
#include "cpu/random.h"
#include "cpu/system/memory.h"

namespace ribbit::capi {
namespace {

constexpr const char* kName = "ribbit_hmc";
constexpr int kLengthLayer = 1;  // stream id of lengths under kPurposeJitter; step sizes have 0

ribbit_hmc_options default_options() {
  ribbit_hmc_options options{};
  options.size = sizeof options;
  options.chains = options.thin = options.randomize_length = 1;
  options.divergence_threshold = 1000.0;
  options.max_num_steps = 100000;
  options.target_accept = 0.9;
  return options;
}

ribbit_hmc_statistics no_statistics() {
  ribbit_hmc_statistics statistics{};
  statistics.size = sizeof statistics;
  return statistics;
}

bool positive(double value) {
  return value > 0.0 && std::isfinite(value);
}

void check_options(const ribbit_hmc_options& o, bool single) {
  check_run(kName, o, "warmup >= 0, draws >= 0, thin >= 1 and fewer than 2^40 transitions");
  const auto good = [single](double step_size) {
    return positive(step_size) && (!single || static_cast<float>(step_size) > 0.0F);
  };
  if (o.step_size != 0.0) {
    needs(good(o.step_size), kName, "step_size > 0, finite, or 0");
  } else if (o.warmup == 0) {
    needs(o.step_sizes != nullptr, kName, "a step_size, step_sizes, or warmup to find them in");
    needs(std::all_of(o.step_sizes, o.step_sizes + o.chains, good), kName,
          "step_sizes > 0, finite");
  }
  needs(o.target_accept > 0.0 && o.target_accept < 1.0, kName, "target_accept in (0, 1)");
  needs(o.trajectory_length == 0.0 ? o.num_steps >= 1
                                   : positive(o.trajectory_length) && o.num_steps == 0,
        kName, "either num_steps >= 1 or trajectory_length > 0");
  needs(o.step_size_jitter >= 0.0 && o.step_size_jitter < 1.0, kName, "step_size_jitter in [0, 1)");
  needs(positive(o.divergence_threshold), kName, "divergence_threshold > 0");
  needs(o.max_num_steps >= 1, kName, "max_num_steps >= 1");
  needs(o.randomize_length == 0 || o.randomize_length == 1, kName, "randomize_length 0 or 1");
}

// Step sizes and numbers of steps of the chains' next trajectories.
class Lengths {
 public:
  // first: (chains,) step sizes to begin with, kept unless `finds`.
  Lengths(const ribbit_hmc_options& options, const std::uint32_t* ids, std::vector<double> first,
          bool finds)
      : step_size(first.size()),
        num_steps(first.size()),
        o_(options),
        ids_(ids),
        base_(std::move(first)),
        steps_(base_.size()),
        uniforms_(base_.size()) {
    if (finds) dual_ = cpu::DualAveraging(base_);
    count_steps();
  }
  const std::vector<double>& base() const { return base_; }

  // For the transition that follows `made` of this call.
  void draw(std::int64_t made) {
    const std::uint64_t step = o_.first_step + static_cast<std::uint64_t>(made);
    step_size = base_;
    if (o_.step_size_jitter > 0.0) {
      uniforms(step, 0);
      for (std::size_t c = 0; c < base_.size(); ++c) {
        step_size[c] =
            base_[c] * (1.0 - o_.step_size_jitter + 2.0 * o_.step_size_jitter * uniforms_[c]);
      }
    }
    num_steps = steps_;
    if (!dual_.empty() && !settled(made)) {
      for (std::int64_t& steps : num_steps) steps = std::min<std::int64_t>(steps, kBrief);
    }
    if (o_.randomize_length == 0) return;
    uniforms(step, kLengthLayer);
    for (std::size_t c = 0; c < base_.size(); ++c) {
      num_steps[c] = cap(std::ceil(2.0 * uniforms_[c] * static_cast<double>(num_steps[c])));
    }
  }

  // After a transition; made: those of this call, it included.
  void adapt(const std::vector<cpu::TransitionOutcome>& outcomes, std::int64_t made) {
    if (dual_.empty() || made > o_.warmup) return;
    for (std::size_t c = 0; c < base_.size(); ++c) {
      dual_.update(c, outcomes[c].acceptance, o_.target_accept, settled(made - 1));
    }
    for (std::size_t c = 0; c < base_.size(); ++c) {
      base_[c] = made == o_.warmup ? dual_.average(c) : dual_.step_size(c);
    }
    count_steps();
  }

 private:
  static constexpr std::int64_t kBrief = 20;

  // While step sizes are found, trajectories are kept short until the last tenth of warmup, or 100
  // transitions of one shorter than 500.
  bool settled(std::int64_t made) const {
    const double left = o_.warmup < 500 ? 100.0 : 0.1 * static_cast<double>(o_.warmup);
    return static_cast<double>(o_.warmup - made) <= left;
  }

  void count_steps() {
    for (std::size_t c = 0; c < base_.size(); ++c) {
      double steps = static_cast<double>(o_.num_steps);
      if (o_.num_steps == 0) {
        // A quotient that only rounding has lifted over an integer is that integer.
        steps = std::fmax(std::ceil(o_.trajectory_length / base_[c] * (1.0 - 1e-14)), 1.0);
      }
      steps_[c] = cap(steps);
    }
  }
  std::int64_t cap(double steps) const {
    return steps > static_cast<double>(o_.max_num_steps) ? o_.max_num_steps
                                                         : static_cast<std::int64_t>(steps);
  }
  void uniforms(std::uint64_t step, int layer) {
    cpu::fill_uniform({o_.seed, step, kPurposeJitter, layer}, ids_, o_.chains, 1, uniforms_.data());
  }

 public:
  std::vector<double> step_size;
  std::vector<std::int64_t> num_steps;

 private:
  const ribbit_hmc_options& o_;
  const std::uint32_t* ids_;
  std::vector<double> base_;
  std::vector<std::int64_t> steps_;
  std::vector<double> uniforms_;
  cpu::DualAveraging dual_;
};

// Where the chains are: positions and gradients (chains, dim), terms (chains, 2).
template <class T>
struct Place {
  std::vector<T> position, grad;
  std::vector<double> terms;

  Place(std::int64_t chains, std::int64_t dim)
      : position(static_cast<std::size_t>(chains * dim)),
        grad(position.size()),
        terms(static_cast<std::size_t>(2 * chains)) {}
};

template <class T>
void check_start(const Place<T>& at, std::int64_t chains, std::int64_t dim) {
  for (std::int64_t c = 0; c < chains; ++c) {
    const double value =
        at.terms[static_cast<std::size_t>(2 * c)] + at.terms[static_cast<std::size_t>(2 * c + 1)];
    if (!std::isfinite(value)) {
      refuse(kName, "a finite log density at the initial positions, got " + std::to_string(value) +
                        " in row " + std::to_string(c));
    }
  }
  check_finite(kName, "the initial gradient", at.grad.data(), chains, dim);
}

// What a run keeps of a transition.
void keep(const ribbit_hmc_statistics& s, const cpu::TransitionOutcome& from, double step_size,
          std::int64_t at) {
  const auto put = [at](auto* array, auto value) {
    if (array != nullptr) array[at] = value;
  };
  put(s.lp, from.log_density);
  put(s.acceptance_rate, from.acceptance);
  put(s.energy, from.energy);
  put(s.energy_error, from.energy_error);
  put(s.step_size, step_size);
  put(s.n_steps, from.steps);
  put(s.accepted, static_cast<std::uint8_t>(from.accepted));
  put(s.diverging, static_cast<std::uint8_t>(from.diverging));
}

template <class T>
int run(const Target<T>& target, const ribbit_hmc_options& o, T* position, T* draws,
        const ribbit_hmc_statistics& statistics, std::int64_t& made) {
  const std::int64_t chains = o.chains, dim = target.dim();
  const T* mass = checked_mass<T>(kName, o.inverse_mass, dim);
  const ChainIds ids(o.chain_ids, chains);
  InterruptPoll poll(o.interrupt);

  // Start.
  Place<T> at(chains, dim), next(chains, dim);
  check_finite(kName, "position", position, chains, dim);
  std::copy_n(position, chains * dim, at.position.data());
  if (!target.value_and_grad(at.position.data(), chains, nullptr, 0, at.terms.data(),
                             at.grad.data(), &poll)) {
    return interrupted();
  }
  check_start(at, chains, dim);

  // Step sizes: given, those of a run before, or where dual averaging begins.
  const bool finds = o.step_size == 0.0 && o.warmup > 0;
  std::vector<double> first(static_cast<std::size_t>(chains), o.step_size);
  if (finds) {
    const double least = 0.01 * (o.num_steps > 0 ? 1.0 : std::fmin(1.0, o.trajectory_length));
    if (!reasonable_step_size(target, chains, at.position.data(), at.grad.data(), at.terms.data(),
                              mass, least, o.seed, o.first_step, ids.data(), &poll, first)) {
      return interrupted();
    }
  } else if (o.step_size == 0.0) {
    std::copy_n(o.step_sizes, chains, first.data());
  }

  // Transitions.
  Lengths lengths(o, ids.data(), std::move(first), finds);
  std::vector<cpu::TransitionOutcome> outcomes(static_cast<std::size_t>(chains));
  const std::int64_t total = o.warmup + o.draws * o.thin;
  ribbit_progress progress{sizeof progress, 0, total, 0, 0.0};
  double accepted = 0.0;
  bool stopped = false;
  while (made < total && !stopped) {
    const std::uint64_t step = o.first_step + static_cast<std::uint64_t>(made);
    lengths.draw(made);
    const cpu::Transitions<T> all{chains,
                                  at.position.data(),
                                  at.grad.data(),
                                  at.terms.data(),
                                  mass,
                                  0,
                                  lengths.step_size.data(),
                                  lengths.num_steps.data(),
                                  o.seed,
                                  step,
                                  ids.data(),
                                  o.divergence_threshold,
                                  next.position.data(),
                                  next.grad.data(),
                                  next.terms.data(),
                                  outcomes.data()};
    stopped = poll.stop() || !target.transition(all, &poll);
    if (stopped) break;
    std::swap(at, next);

    // What is kept of it.
    const std::int64_t after = made - o.warmup + 1;
    const bool kept = after > 0 && after % o.thin == 0;
    for (std::int64_t c = 0; c < chains; ++c) {
      const cpu::TransitionOutcome& one = outcomes[static_cast<std::size_t>(c)];
      accepted += one.acceptance;
      progress.divergences += after > 0 && one.diverging ? 1 : 0;
      if (!kept) continue;
      const std::int64_t place = c * o.draws + after / o.thin - 1;
      keep(statistics, one, lengths.step_size[static_cast<std::size_t>(c)], place);
      if (draws != nullptr) std::copy_n(at.position.data() + c * dim, dim, draws + place * dim);
    }
    progress.done = ++made;
    lengths.adapt(outcomes, made);
    progress.acceptance_rate = accepted / (static_cast<double>(made) * static_cast<double>(chains));
    stopped = o.progress != nullptr && o.progress(&progress, o.user) != 0 && made < total;
  }
  std::copy_n(at.position.data(), chains * dim, position);
  if (o.step_sizes != nullptr) std::copy_n(lengths.base().data(), chains, o.step_sizes);
  return stopped ? interrupted() : RIBBIT_OK;
}

}  // namespace
}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_hmc_options_init(ribbit_hmc_options* options, size_t size) {
  return init_options("ribbit_hmc_options_init", options, size, default_options());
}

int ribbit_hmc_statistics_init(ribbit_hmc_statistics* statistics, size_t size) {
  return init_options("ribbit_hmc_statistics_init", statistics, size, no_statistics());
}

int ribbit_hmc(const ribbit_target* target, const ribbit_hmc_options* options, void* position,
               void* draws, const ribbit_hmc_statistics* statistics, int64_t* made) {
  std::int64_t transitions = 0;
  const int status = guarded([&] {
    const ribbit_hmc_options o = read_options(kName, options, default_options());
    const ribbit_hmc_statistics s =
        statistics == nullptr ? no_statistics() : read_options(kName, statistics, no_statistics());
    needs(position != nullptr, kName, "positions, got NULL");
    return on_target(kName, target, [&](const auto& of, auto zero) {
      using T = decltype(zero);
      check_options(o, sizeof(T) == sizeof(float));
      return run(of, o, static_cast<T*>(position), static_cast<T*>(draws), s, transitions);
    });
  });
  if (made != nullptr) *made = transitions;
  return status;
}
