#include "chains/tuner_hmc.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "chains/chains.h"
#include "chains/fields.h"
#include "core/philox_hd.h"
#include "cpu/random.h"

namespace ribbit {
namespace {

constexpr int kSizeLayer = 0, kLengthLayer = 1;  // layers of the stream kPurposeJitter
constexpr std::int64_t kBriefSteps = 20;         // limit of L until step sizes have settled
constexpr std::int64_t kEarlyDepth = 6;          // depth limit until the mass is adapted

double uniform_of(std::uint64_t seed, std::uint64_t step, std::uint32_t chain, int layer) {
  double value;
  cpu::fill_uniform({seed, step, kPurposeJitter, layer}, &chain, 1, 1, &value);
  return value;
}

}  // namespace

MassWindows::MassWindows(std::uint64_t warmup) : first(warmup) {
  if (warmup < 20) return;
  std::uint64_t start = 75, base = 25, end = 50;
  if (start + base + end > warmup) {
    start = static_cast<std::uint64_t>(0.15 * static_cast<double>(warmup));
    end = static_cast<std::uint64_t>(0.1 * static_cast<double>(warmup));
    base = warmup - start - end;
  }
  first = start;
  const std::uint64_t last = warmup - end;
  if (last < start + 2 * base) {  // a second window would be shorter than the first
    ends = {last};
    return;
  }
  std::uint64_t close = start + base, size = base;
  for (ends = {close}; close != last; ends.push_back(close)) {
    size *= 2;
    close += size;
    // A window extends to the end if the next one, of twice its size, would not fit.
    if (close != last && close + 2 * size > last) close = last;
  }
}

bool MassWindows::closes(std::uint64_t done) const {
  return std::find(ends.begin(), ends.end(), done) != ends.end();
}

std::uint64_t MassWindows::next(std::uint64_t done) const {
  const auto found = std::upper_bound(ends.begin(), ends.end(), done);
  return found == ends.end() ? 0 : *found;
}

HamiltonianTuner::HamiltonianTuner(const Hmc& options, std::uint64_t seed,
                                   std::vector<std::uint32_t> chain_ids, std::uint64_t warmup)
    : options_(options),
      hmc_(options),
      seed_(seed),
      warmup_(warmup),
      chain_ids_(std::move(chain_ids)),
      windows_(warmup) {
  check_step_size();
}

HamiltonianTuner::HamiltonianTuner(const Nuts& options, std::uint64_t seed,
                                   std::vector<std::uint32_t> chain_ids, std::uint64_t warmup)
    : options_(options),
      max_tree_depth_(options.max_tree_depth),
      seed_(seed),
      warmup_(warmup),
      chain_ids_(std::move(chain_ids)),
      windows_(warmup) {
  check_step_size();
}

void HamiltonianTuner::check_step_size() const {
  const std::size_t given = options_.step_size.size();
  if (given <= 1 || given == chains()) return;
  throw std::invalid_argument("step_size must be one number or one for each of the " +
                              std::to_string(chains()) + " chains, got " + std::to_string(given) +
                              " numbers");
}

void HamiltonianTuner::check_warmup() const {
  const std::uint64_t least = options_.needs_windows ? 20 : finds_step() ? 1 : 0;
  if (warmup_ >= least) return;
  const std::string got = ", got " + std::to_string(warmup_);
  if (least == 1) {
    throw std::invalid_argument("warmup must be at least 1 for step_size='auto'" + got);
  }
  // Also a default may adapt the mass.
  const char* more = warmup_ == 0 && finds_step() ? " and step_size" : "";
  throw std::invalid_argument("warmup must be at least 20 to adapt the inverse mass matrix" + got +
                              ". Give inverse_mass_matrix (ones, or your own variances)" + more +
                              ", or a longer warmup");
}

void HamiltonianTuner::check_fields() const {
  const auto finite = [](double v) { return std::isfinite(v); };
  const auto positive = [](double v) { return std::isfinite(v) && v > 0.0; };
  // Counts of steps, which more steps must not overflow.
  const auto counts = [](std::int64_t v) {
    return v >= 0 && v <= static_cast<std::int64_t>(kMostSteps);
  };
  const auto require = [](const char* field, const auto& values, std::size_t size,
                          const auto& good) {
    if (values.size() == size && std::all_of(values.begin(), values.end(), good)) return;
    FieldReader::fail(field);
  };
  require("step_size", step_size, chains(), positive);
  const std::size_t adapted = dual.empty() ? 0 : chains();
  for (const auto* one :
       {&dual.log_step, &dual.log_average, &dual.error, &dual.centre, &dual.log_settled}) {
    require("dual", *one, adapted, finite);
  }
  for (const auto* one : {&dual.updates, &dual.settled}) require("dual", *one, adapted, counts);
}

double HamiltonianTuner::first_try() const {
  const double length = hmc_.trajectory_length;
  return 0.01 * (length == 0.0 ? 1.0 : std::min(1.0, length));
}

std::uint64_t HamiltonianTuner::brief_until() const {
  if (!finds_step() || max_tree_depth_ > 0) return 0;
  // A short warmup needs a larger share of full trajectories, because its average of step sizes
  // still remembers the first ones.
  const auto all = static_cast<double>(warmup_);
  const double left = warmup_ < 500 ? 100.0 : 0.1 * all;
  return static_cast<std::uint64_t>(std::max(0.0, std::ceil(all - left)));
}

std::vector<double> HamiltonianTuner::given() const {
  if (options_.step_size.size() == 1) {
    return std::vector<double>(chains(), options_.step_size.front());
  }
  return options_.step_size;
}

void HamiltonianTuner::begin(const std::vector<double>& first, bool renewed) {
  step_size = finds_step() ? first : given();
  num_steps.resize(chains());
  capped.resize(chains());
  if (finds_step() && warmup_ > 0) {
    dual = cpu::DualAveraging(first);
    // Takes the logarithm and its inverse, like every update.
    for (std::size_t c = 0; renewed && c < chains(); ++c) step_size[c] = dual.step_size(c);
  }
  for (std::size_t c = 0; c < chains(); ++c) count_steps(c);
}

// True if the mass of a state is the one of the options, as far as their dtypes say.
bool HamiltonianTuner::has_mass(const std::vector<double>& inverse_mass) const {
  const std::vector<double>& mine = options_.inverse_mass;
  const std::size_t size = std::max(mine.size(), inverse_mass.size());
  const auto at = [](const std::vector<double>& mass, std::size_t i) {
    return mass.empty() ? 1.0 : mass[i % mass.size()];
  };
  constexpr double kFloat = 1e-6;
  for (std::size_t i = 0; i < size; ++i) {
    if (!(std::fabs(at(inverse_mass, i) - at(mine, i)) <= kFloat * at(mine, i))) return false;
  }
  return true;
}

void HamiltonianTuner::adopt(std::uint64_t step, const std::vector<double>& inverse_mass,
                             bool own) {
  // In warmup the step sizes still follow the mass.
  if (step >= warmup_ && finds_step() && !adapts_mass() && !has_mass(inverse_mass)) {
    const char* how = own ? "Give inverse_mass_matrix='adapt' to keep it"
                          : "Give that one (the default may be 'prior')";
    throw std::invalid_argument(
        std::string("the step sizes of the chains were found with another inverse mass matrix. ") +
        how + ", or give a step_size for the new one");
  }
  if (!finds_step()) {
    step_size = given();
    dual = {};
  } else if (step >= warmup_) {
    dual = {};
  } else if (dual.empty()) {
    dual = cpu::DualAveraging(step_size);
  }
  num_steps.resize(chains());
  capped.resize(chains());
  for (std::size_t c = 0; c < chains(); ++c) count_steps(c);
}

HamiltonianTuner::Plan HamiltonianTuner::plan(std::size_t chain, std::uint64_t step) const {
  Plan plan{step_size[chain], num_steps[chain], capped[chain] != 0};
  if (max_tree_depth_ > 0) {
    const bool early = finds_step() && step < windows_.last();
    plan.steps = early ? std::min(max_tree_depth_, kEarlyDepth) : max_tree_depth_;
    return plan;
  }
  if (const double j = hmc_.step_size_jitter; j > 0.0) {
    plan.step_size *= 1.0 - j + 2.0 * j * uniform_of(seed_, step, chain_ids_[chain], kSizeLayer);
  }
  // A step size that is still too small must not cost long trajectories.
  if (step < brief_until()) {
    plan.capped = plan.capped && plan.steps <= kBriefSteps;
    plan.steps = std::min(plan.steps, kBriefSteps);
  }
  if (hmc_.randomize_length) {
    const double u = uniform_of(seed_, step, chain_ids_[chain], kLengthLayer);
    const double wanted = std::ceil(2.0 * u * static_cast<double>(plan.steps));
    const bool longer = wanted > static_cast<double>(hmc_.max_num_leapfrog_steps);
    plan.capped = plan.capped || longer;
    plan.steps = longer ? hmc_.max_num_leapfrog_steps : static_cast<std::int64_t>(wanted);
  }
  return plan;
}

void HamiltonianTuner::observe(std::size_t chain, std::uint64_t step, double acceptance) {
  if (dual.empty() || step >= warmup_) return;
  const bool full = max_tree_depth_ == 0 && step >= brief_until();
  dual.update(chain, acceptance, options_.target_accept, full);
  step_size[chain] = step + 1 == warmup_ ? dual.average(chain) : dual.step_size(chain);
  count_steps(chain);
}

void HamiltonianTuner::count_steps(std::size_t chain) {
  const Length length = length_of(hmc_, step_size[chain]);
  num_steps[chain] = length.steps;
  capped[chain] = length.capped ? 1 : 0;
}

Length length_of(const Hmc& options, double step_size) {
  auto steps = static_cast<double>(options.num_leapfrog_steps);
  if (options.trajectory_length != 0.0) {
    // Rounding may lift a whole quotient above its integer.
    steps = std::fmax(std::ceil(options.trajectory_length / step_size * (1.0 - 1e-14)), 1.0);
  }
  const bool capped = steps > static_cast<double>(options.max_mean_leapfrog_steps);
  return {capped ? options.max_mean_leapfrog_steps : static_cast<std::int64_t>(steps), capped};
}

bool is_shortened(const Hmc& options, double step_size) {
  const Length length = length_of(options, step_size);
  const bool longer = options.randomize_length && length.steps > options.max_num_leapfrog_steps / 2;
  return length.capped || longer;
}

}  // namespace ribbit
