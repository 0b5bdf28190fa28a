#include "chains/hamiltonian_chains.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "chains/first_step_size.h"
#include "cpu/system/dispatch.h"

namespace ribbit {
template <class T, class D, class K>
HamiltonianChains<T, D, K>::HamiltonianChains(const D& density, const K& kernel, Run run,
                                              Fingerprint fingerprint)
    : Chains<T>(std::move(run), std::move(fingerprint)),
      density_(density),
      kernel_(kernel),
      weights_(cpu::integrated_weights(density)),
      columns_(kTrees ? nuts_columns(this->run_.thinning.period > 1)
                      : hmc_columns(this->run_.thinning.period > 1)),
      state_(HamiltonianTuner(kernel, this->run_.seed, this->run_.chain_ids, this->run_.warmup)),
      totals_(this->run_.chain_ids.size()) {
  state_.inverse_mass.assign(kernel.inverse_mass.begin(), kernel.inverse_mass.end());
  state_.divergences.resize(count());
  check_kernel();
}

// ---- checks -------------------------------------------------------------------------------------

// The kernel must fit these chains, and its mass must be positive in their dtype.
template <class T, class D, class K>
void HamiltonianChains<T, D, K>::check_kernel() const {
  const std::size_t mass = kernel_.inverse_mass.size();
  if (mass > 0 && mass != static_cast<std::size_t>(dim())) {
    throw std::invalid_argument("inverse_mass_matrix must have " + std::to_string(dim()) +
                                " numbers, got " + std::to_string(mass));
  }
  const auto positive = [](T v) { return std::isfinite(v) && v > T(0); };
  if (!std::all_of(state_.inverse_mass.begin(), state_.inverse_mass.end(), positive)) {
    throw std::invalid_argument(
        "inverse_mass_matrix must be positive and finite in the dtype of "
        "the target");
  }
}

template <class T, class D, class K>
void HamiltonianChains<T, D, K>::check_finite(const char* name,
                                              const std::vector<T>& values) const {
  const auto found =
      std::find_if_not(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
  if (found == values.end()) return;
  const auto index = static_cast<std::size_t>(found - values.begin());
  const std::size_t size = values.size() / count();
  throw std::invalid_argument(std::string("the initial ") + name + " must be finite, got " +
                              std::to_string(*found) + " for chain " +
                              std::to_string(this->run_.chain_ids[index / size]) + ", parameter " +
                              std::to_string(index % size));
}

// ---- bytes --------------------------------------------------------------------------------------

template <class T, class D, class K>
std::string HamiltonianChains<T, D, K>::save() const {
  constexpr std::size_t kHeads = 4096;
  const std::size_t size = state_.position.size();
  FieldWriter writer(kHeads + size * 2 * sizeof(T) + state_.inverse_mass.size() * sizeof(T) +
                     (state_.mean.size() + state_.squares.size()) * sizeof(double));
  writer("kernel", std::string(kTrees ? "nuts" : "hmc"));
  writer("instruction set", std::string(cpu::instruction_set().name));
  std::string parts;
  for (const auto& [name, value] : this->fingerprint_) parts += name + "=" + value + "\n";
  writer("target", parts);
  writer("seed", this->run_.seed);
  writer("chains", this->run_.chain_ids, chains());
  writer("warmup", this->run_.warmup);
  const_cast<State&>(state_).fields(writer);  // the writer does not change the state
  return writer.finish();
}

template <class T, class D, class K>
void HamiltonianChains<T, D, K>::read(const FieldReader& reader, Match match) {
  State s = state_;
  s.inverse_mass.clear();
  s.own_masses = false;
  s.fields(reader);
  s.check(dim());
  if (match == Match::kSame) {
    if (s.terms.size() != 2 * count()) FieldReader::fail("terms");
  } else {
    const State before = s;
    evaluate_all(s, nullptr);
    if (match == Match::kOtherParts) check_same_density(before, s);
  }
  s.tuner.adopt(s.step, {s.inverse_mass.begin(), s.inverse_mass.end()}, s.own_masses);
  if (!s.tuner.adapts_mass()) {
    s.inverse_mass = state_.inverse_mass;
    s.own_masses = false;
    s.moments = 0;
  }
  if (s.moments == 0) {
    s.mean.clear();
    s.squares.clear();
  }
  state_ = std::move(s);
}

// Throws unless the log densities of the chains agree. The bound is far above the rounding of other
// kernels and of other partitions of the rows, and far below what other data give.
template <class T, class D, class K>
void HamiltonianChains<T, D, K>::check_same_density(const State& before, const State& now) const {
  constexpr double kRounding = 1e-4;
  const std::size_t terms = before.terms.size() / count();
  for (std::size_t c = 0; c < count(); ++c) {
    const auto first = before.terms.begin() + static_cast<std::ptrdiff_t>(c * terms);
    const double was = std::accumulate(first, first + static_cast<std::ptrdiff_t>(terms), 0.0);
    const double is = now.terms[2 * c] + now.terms[2 * c + 1];
    if (std::fabs(is - was) <= kRounding * std::max(1.0, std::fabs(was))) continue;
    throw std::invalid_argument("the chains belong to another target: chain " +
                                std::to_string(this->run_.chain_ids[c]) + " had the log density " +
                                std::to_string(was) + ", here it is " + std::to_string(is) +
                                ". Use the data and options of the first run, or start new chains");
  }
}

// ---- calls --------------------------------------------------------------------------------------

template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::start(const T* position, cpu::Poll* poll) {
  state_.tuner.check_warmup();
  State s = state_;
  const std::int64_t below = cpu::integrated_offset(density_), full = full_dim();
  s.position.resize(count() * static_cast<std::size_t>(dim()));
  for (std::int64_t c = 0; c < chains(); ++c) {
    const T* from = position + c * full;
    T* to = s.position.data() + c * dim();
    std::copy_n(from, below, to);
    std::copy(from + below + weights_, from + full, to + below);
  }
  check_finite("position", s.position);
  if (!evaluate_all(s, poll)) return false;
  check_finite("gradient", s.grad);
  std::vector<double> first(count(), 1.0);
  if (s.tuner.finds_step()) {
    first = find_first_step_size(density_, s.view(dim()), poll);
    if (first.empty()) return false;
  }
  s.tuner.begin(first);
  state_ = std::move(s);
  return true;
}

template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::advance(Block<T>& block, std::int64_t most, double seconds,
                                         cpu::Poll* poll) {
  if (most < 1) throw std::invalid_argument("most must be at least 1, got " + std::to_string(most));
  if (state_.position.empty()) throw std::invalid_argument("start the chains before they advance");
  const std::vector<std::int64_t> keep = kept_transitions(block, most);
  const std::int64_t count = keep.back() + 1;
  if (state_.step + static_cast<std::uint64_t>(count) >= kMostSteps) {
    throw std::invalid_argument("the steps of a chain must stay below 2^40");
  }
  block.positions = !this->warming_up() || this->run_.save_warmup;
  State s = state_;
  Totals totals = totals_;
  Call call{s, totals, block, keep, seconds, poll};
  if (block.positions && weights_ > 0) {
    call.reduced.resize(chains() * block.capacity * dim());
    call.kept = call.reduced.data();
  } else if (block.positions) {
    call.kept = block.position();
  }
  block.count = 0;
  try {
    if (!move(call, count) || !complete_rows(call)) {
      block.count = 0;  // the rows of discarded transitions
      return false;
    }
  } catch (...) {
    block.count = 0;
    throw;
  }
  if (s.step >= this->run_.warmup) s.tuner.end_warmup();
  state_ = std::move(s);
  totals_ = std::move(totals);
  return true;
}

template <class T, class D, class K>
Summary HamiltonianChains<T, D, K>::summary() const {
  Summary found{totals_.acceptance, totals_.divergences, totals_.leapfrogs, state_.tuner.step_size};
  for (double& rate : found.acceptance_rate) {
    rate /= static_cast<double>(std::max<std::int64_t>(totals_.transitions, 1));
  }
  return found;
}

template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::position(T* out, cpu::Poll* poll) const {
  if (state_.position.empty()) throw std::invalid_argument("start the chains first");
  if (weights_ == 0) {
    std::copy(state_.position.begin(), state_.position.end(), out);
    return true;
  }
  return cpu::complete(density_, state_.position.data(), chains(), 1, this->run_.seed, &state_.step,
                       this->run_.chain_ids.data(), out, poll);
}

template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::evaluate_all(State& s, cpu::Poll* poll) const {
  s.grad.resize(s.position.size());
  s.terms.resize(2 * count());
  if (!succeeded(cpu::evaluate(density_, s.position.data(), chains(), s.terms.data(), s.grad.data(),
                               poll))) {
    return false;
  }
  for (std::size_t c = 0; c < count(); ++c) {
    const double lp = s.terms[2 * c] + s.terms[2 * c + 1];
    if (std::isfinite(lp)) continue;
    throw std::invalid_argument("the log density at the initial positions must be finite, got " +
                                std::to_string(lp) + " for chain " +
                                std::to_string(this->run_.chain_ids[c]));
  }
  return true;
}

// ---- transitions --------------------------------------------------------------------------------

// Returns the transitions that fill the rows of the block, counted from the current step.
template <class T, class D, class K>
std::vector<std::int64_t> HamiltonianChains<T, D, K>::kept_transitions(const Block<T>& block,
                                                                       std::int64_t most) const {
  const Run& run = this->run_;
  std::int64_t rows = std::min(most, block.capacity);
  std::vector<std::int64_t> keep;
  if (this->warming_up()) {
    rows = std::min(rows, static_cast<std::int64_t>(run.warmup - state_.step));
    for (std::int64_t i = 0; i < rows; ++i) keep.push_back(i);
    return keep;
  }
  const auto past = static_cast<std::int64_t>(state_.step - run.warmup);
  const std::int64_t before = run.thinning.count(past);
  for (std::int64_t i = 1; i <= rows; ++i) {
    keep.push_back(run.thinning.step(before + i) - past - 1);
  }
  return keep;
}

// Makes at most `most` transitions.
template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::move(Call& call, std::int64_t most) const {
  State& s = call.state;
  const auto begun = std::chrono::steady_clock::now();
  const std::uint64_t from = s.step, last = from + static_cast<std::uint64_t>(most);
  while (s.step < last) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begun;
    if (passed.count() >= call.seconds && s.step > from) break;
    const std::int64_t row = call.block.count;
    if constexpr (kTrees) {
      if (!move_nuts(call, from)) return false;
    } else {
      // A window starts or ends for all chains at once, because a new mass changes all chains.
      const std::uint64_t boundary = s.tuner.next_boundary(s.step);
      const std::uint64_t stop = boundary > 0 ? std::min(last, boundary) : last;
      if (!move_hmc(call, from, stop, call.seconds - passed.count())) return false;
    }
    for (std::int64_t i = row; i < call.block.count; ++i) {
      const std::int64_t kept = call.keep[static_cast<std::size_t>(i)];
      call.steps.push_back(from + static_cast<std::uint64_t>(kept) + 1);
    }
    const bool adapts = s.step <= this->run_.warmup && s.tuner.adapts_mass();
    if (adapts && s.tuner.windows().closes(s.step) && !renew_mass(s, call.poll)) return false;
  }
  return true;
}

// Makes transitions up to step `stop` or until the time is over. from: the step before the call.
template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::move_hmc(Call& call, std::uint64_t from, std::uint64_t stop,
                                          double seconds) const {
  State& s = call.state;
  const auto made = static_cast<std::int64_t>(s.step - from);
  const auto most = static_cast<std::int64_t>(stop - s.step);
  std::vector<std::int64_t> keep;
  for (auto i = static_cast<std::size_t>(call.block.count); i < call.keep.size(); ++i) {
    if (call.keep[i] - made < most) keep.push_back(call.keep[i] - made);
  }
  const Moments moments = s.next_moments();
  const HmcCall<T> all{s.view(dim()),
                       most,
                       kernel_.divergence_threshold,
                       keep.data(),
                       static_cast<std::int64_t>(keep.size()),
                       call.block.count,
                       &call.block,
                       call.kept,
                       s.divergences.data(),
                       moments,
                       &call.totals,
                       seconds};
  const HmcEnd end = hmc(density_, all, call.poll);
  if (!succeeded(end.call)) return false;
  s.step += static_cast<std::uint64_t>(end.made);
  if (moments.mean != nullptr) s.moments += static_cast<std::uint64_t>(end.made);
  call.block.count += end.kept;
  call.totals.transitions += end.made;
  return true;
}

// Makes one transition.
template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::move_nuts(Call& call, std::uint64_t from) const {
  State& s = call.state;
  Block<T>& block = call.block;
  // With MPI ranks, all ranks stop at the same gradient.
  if (call.poll != nullptr && !cpu::has_ranks(density_) && call.poll->stop()) return false;
  std::vector<T> position(s.position.size()), grad(s.grad.size());
  std::vector<double> terms(s.terms.size());
  std::vector<TreeOutcome> outcomes(count());
  const Moments moments = s.next_moments();
  const NutsCall<T> all{s.view(dim()),   kernel_.divergence_threshold,
                        position.data(), grad.data(),
                        terms.data(),    outcomes.data()};
  if (!succeeded(nuts(density_, all, call.poll))) return false;
  s.position = std::move(position);
  s.grad = std::move(grad);
  s.terms = std::move(terms);
  const auto made = static_cast<std::int64_t>(s.step - from);
  const auto row = static_cast<std::size_t>(block.count);
  const bool keeps = row < call.keep.size() && call.keep[row] == made;
  for (std::size_t c = 0; c < count(); ++c) {
    const TreeOutcome& one = outcomes[c];
    s.divergences[c] += one.diverging;
    call.totals.add(c, one.acceptance, one.steps, one.diverging != 0);
    if (keeps) {
      const auto chain = static_cast<std::int64_t>(c);
      const std::int64_t at = chain * block.capacity + block.count;
      const double lp = s.terms[2 * c] + s.terms[2 * c + 1];
      put_outcome(block, at, one, lp, s.tuner.step_size[c], s.divergences[c]);
      s.divergences[c] = 0;
      if (call.kept != nullptr) {
        std::copy_n(s.position.data() + chain * dim(), dim(), call.kept + at * dim());
      }
    }
    s.tuner.observe(c, s.step, one.acceptance);
  }
  ++s.step;
  if (keeps) ++block.count;
  ++call.totals.transitions;
  if (moments.mean != nullptr) s.collect(moments);
  return true;
}

// Renews the mass and finds step sizes for it.
template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::renew_mass(State& s, cpu::Poll* poll) const {
  s.renew_mass();
  if (!s.tuner.finds_step()) return true;
  const std::vector<double> first = find_first_step_size(density_, s.view(dim()), poll);
  if (first.empty()) return false;
  s.tuner.begin(first, true);
  return true;
}

// Adds draws of the integrated layer to the positions of the rows.
template <class T, class D, class K>
bool HamiltonianChains<T, D, K>::complete_rows(Call& call) const {
  const std::int64_t rows = call.block.count, capacity = call.block.capacity, n = dim(),
                     full = full_dim();
  if (call.reduced.size() == 0 || rows == 0) return true;
  // complete() takes and gives arrays without gaps between the chains.
  T* const reduced = call.reduced.data();
  for (std::int64_t c = 1; c < chains(); ++c) {
    std::copy_n(reduced + c * capacity * n, rows * n, reduced + c * rows * n);
  }
  T* const out = call.block.position();
  if (!cpu::complete(density_, reduced, chains(), rows, this->run_.seed, call.steps.data(),
                     this->run_.chain_ids.data(), out, call.poll)) {
    return false;
  }
  for (std::int64_t c = chains() - 1; c > 0 && rows < capacity; --c) {
    std::copy_backward(out + c * rows * full, out + (c + 1) * rows * full,
                       out + (c * capacity + rows) * full);
  }
  return true;
}

#define RIBBIT_INSTANTIATE(T, D)               \
  template class HamiltonianChains<T, D, Hmc>; \
  template class HamiltonianChains<T, D, Nuts>;
RIBBIT_INSTANTIATE(float, cpu::LogDensity<float>)
RIBBIT_INSTANTIATE(double, cpu::LogDensity<double>)
RIBBIT_INSTANTIATE(double, cpu::PointerDensity)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit
