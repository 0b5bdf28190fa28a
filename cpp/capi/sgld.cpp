// Whole runs of stochastic gradient Langevin dynamics.

#include <cmath>

#include "capi/target.h"

namespace ribbit::capi {
namespace {

constexpr const char* kName = "ribbit_sgld";
constexpr std::int64_t kMostSteps = 1000;  // of a call of the core

ribbit_sgld_options default_options() {
  ribbit_sgld_options options{};
  options.size = sizeof options;
  options.chains = options.thin = 1;
  options.batch_rows = 128;
  return options;
}

void check_options(const ribbit_sgld_options& o) {
  check_run(kName, o, "warmup >= 0, draws >= 0, thin >= 1 and fewer than 2^40 steps");
  needs(o.step_size > 0.0 && std::isfinite(o.step_size), kName, "step_size > 0, finite");
  needs(o.batch_rows >= 1, kName, "batch_rows >= 1");
  const std::int64_t total = o.warmup + o.draws * o.thin;
  for (std::int64_t i = 0; o.factors != nullptr && i < total; ++i) {
    needs(o.factors[i] >= 0.0 && std::isfinite(o.factors[i]), kName, "factors >= 0, finite");
  }
}

template <class T>
int run(const Target<T>& target, const ribbit_sgld_options& o, T* position, T* draws,
        std::int64_t& made) {
  const std::int64_t chains = o.chains, dim = target.dim(), size = chains * dim;
  const ChainIds ids(o.chain_ids, chains);
  check_distinct(kName, ids, chains);
  InterruptPoll poll(o.interrupt);

  // Start.
  check_finite(kName, "position", position, chains, dim);
  std::vector<T> moved(position, position + size);
  std::vector<double> terms(static_cast<std::size_t>(2 * chains));
  std::vector<T> grad(moved.size());
  if (!target.value_and_grad(position, chains, nullptr, 0, terms.data(), grad.data(), &poll)) {
    return kInterrupted;
  }
  check_finite(kName, "the initial log density", terms.data(), chains, 2);
  check_finite(kName, "the initial gradient", grad.data(), chains, dim);

  // Steps, up to the next draw at a time.
  const std::int64_t total = o.warmup + o.draws * o.thin;
  ribbit_progress progress{sizeof progress, 0, total, 0, 1.0};
  std::vector<double> step_size(static_cast<std::size_t>(kMostSteps)), noise(step_size.size(), 1.0);
  std::vector<cpu::StochasticOutcome> outcomes(static_cast<std::size_t>(chains));
  while (made < total) {
    const std::int64_t next =
        made < o.warmup ? o.warmup : made + o.thin - (made - o.warmup) % o.thin;
    const std::int64_t count = std::min(next - made, kMostSteps);
    for (std::int64_t i = 0; i < count; ++i) {
      step_size[static_cast<std::size_t>(i)] =
          o.step_size * (o.factors != nullptr ? o.factors[made + i] : 1.0);
    }
    cpu::StochasticSteps steps{};
    steps.seed = o.seed;
    steps.first_step = o.first_step + static_cast<std::uint64_t>(made);
    steps.num_steps = count;
    steps.batch_rows = o.batch_rows;
    steps.chain_ids = ids.data();
    steps.step_size = step_size.data();
    steps.noise = noise.data();
    steps.rule = cpu::kRuleLangevin;
    steps.prior = 1.0;
    if (poll.stop() || !target.advance(steps, moved.data(), chains, outcomes.data(), &poll)) {
      return kInterrupted;
    }
    for (std::int64_t c = 0; c < chains; ++c) {
      const cpu::StochasticOutcome& one = outcomes[static_cast<std::size_t>(c)];
      if (one.failed < 0) continue;
      throw NotFinite(
          "[ribbit_sgld] expected finite parameters, got others in row " + std::to_string(c) +
          " at step " + std::to_string(steps.first_step + static_cast<std::uint64_t>(one.failed)) +
          ", largest |gradient| " + std::to_string(one.largest) + ": use a smaller step_size");
    }
    made += count;
    std::copy_n(moved.data(), size, position);
    const std::int64_t after = made - o.warmup;
    if (draws != nullptr && after > 0 && after % o.thin == 0) {
      for (std::int64_t c = 0; c < chains; ++c) {
        std::copy_n(position + c * dim, dim, draws + (c * o.draws + after / o.thin - 1) * dim);
      }
    }
    progress.done = made;
    if (o.progress != nullptr && o.progress(&progress, o.user) != 0 && made < total) {
      return kInterrupted;
    }
  }
  return RIBBIT_OK;
}

}  // namespace
}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_sgld_options_init(ribbit_sgld_options* options, size_t size) {
  return init_options("ribbit_sgld_options_init", options, size, default_options());
}

int ribbit_sgld(const ribbit_target* target, const ribbit_sgld_options* options, void* position,
                void* draws, int64_t* made) {
  std::int64_t steps = 0;
  const int status = guarded(kName, [&] {
    const ribbit_sgld_options o = read_options(kName, options, default_options());
    needs(position != nullptr, kName, "positions, got NULL");
    check_options(o);
    return on_target(kName, target, [&](const auto& of, auto zero) {
      using T = decltype(zero);
      return run(of, o, static_cast<T*>(position), static_cast<T*>(draws), steps);
    });
  });
  if (made != nullptr) *made = steps;
  return status;
}
