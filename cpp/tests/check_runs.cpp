// Runs of transitions of Hamiltonian Monte Carlo: the bits of transitions one by one, with the
// adaptation of warmup between them, on any number of threads, also where teams get smaller; a wish
// to stop ends them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "check.h"
#include "cpu/density/hamiltonian_run.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

using Values = std::vector<float>;

constexpr std::int64_t kIn = 3;

std::int64_t dim_of(std::int64_t hidden) {
  return (kIn + 1) * hidden + hidden + 1;
}

// 3 -> hidden, tanh, hidden -> 1.
Network network(std::int64_t hidden) {
  const std::int64_t weights = kIn * hidden;
  const std::int64_t rows[3][7] = {{0, kIn, hidden, 0, weights, 0, 0},
                                   {1, hidden, hidden, -1, -1, 2, 1},
                                   {0, hidden, 1, weights + hidden, dim_of(hidden) - 1, 0, 2}};
  std::int64_t table[3][static_cast<std::size_t>(Column::kCount)] = {};
  for (std::int64_t r = 0; r < 3; ++r) {
    std::copy_n(rows[r], 7, table[r]);
    table[r][static_cast<std::size_t>(Column::kInput)] = r;
  }
  const double rates[3] = {};
  return Network::from_table(&table[0][0], rates, 3);
}

Values waves(std::int64_t n, double scale) {
  Values out;
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<float>(scale * std::sin(12.9898 * static_cast<double>(i))));
  }
  return out;
}

template <class V>
bool same(const V& a, const V& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(typename V::value_type)) == 0;
}

// Where the chains are, what is adapted, and what was kept of them.
struct State {
  Values position, grad, kept;
  std::vector<double> terms, step_size, energy_error;
  std::vector<std::int64_t> num_steps;

  bool operator==(const State& other) const {
    return same(position, other.position) && same(grad, other.grad) && same(kept, other.kept) &&
           same(terms, other.terms) && same(step_size, other.step_size) &&
           same(energy_error, other.energy_error) && same(num_steps, other.num_steps);
  }
};

struct Wish final : Poll {
  bool stop() override { return true; }
};

struct Problem {
  std::int64_t rows, hidden, dim;
  double step_size = 0.01;
  Values x, y;
  LogDensity<float> density;

  Problem(std::int64_t rows_, std::int64_t hidden_)
      : rows(rows_),
        hidden(hidden_),
        dim(dim_of(hidden_)),
        x(waves(rows * kIn, 1.0)),
        y(waves(rows, 0.5)),
        density(network(hidden), {{0, dim, PriorKind::kNormal, 0.7, 0, 0}},
                LikelihoodKind::kGaussian, {0.3}, x.data(), y.data(), rows, {}) {}

  State start(std::int64_t chains) const {
    State at;
    at.position = waves(chains * dim, 0.4);
    at.grad.resize(at.position.size());
    std::vector<double> likelihood(static_cast<std::size_t>(chains)), prior(likelihood);
    CHECK(density.evaluate(at.position.data(), chains, nullptr, 0, likelihood.data(), prior.data(),
                           at.grad.data(), nullptr));
    for (std::size_t c = 0; c < likelihood.size(); ++c) {
      at.terms.push_back(likelihood[c]);
      at.terms.push_back(prior[c]);
      at.step_size.push_back(step_size + 0.002 * static_cast<double>(c));
      at.num_steps.push_back(6);
    }
    return at;
  }

  // `count` transitions in calls of `each`, of which every other one is kept; all of warmup.
  State run(std::int64_t chains, std::int64_t count, std::int64_t each, double seconds) const {
    State at = start(chains);
    const auto some = static_cast<std::size_t>(chains);
    std::vector<std::uint32_t> ids;
    for (std::int64_t c = 0; c < chains; ++c) ids.push_back(static_cast<std::uint32_t>(c));
    const std::unique_ptr<bool[]> capped(new bool[some]());
    DualAveraging dual(at.step_size);
    std::vector<Values> kept(some);
    for (std::int64_t made = 0; made < count;) {
      const std::int64_t now = std::min(each, count - made);
      std::vector<std::int64_t> keep;
      for (std::int64_t i = 0; i < now; ++i) {
        if ((made + i) % 2 == 1 || i + 1 == now) keep.push_back(i);
      }
      const std::size_t places = keep.size(), all = some * places;
      Values draws(all * static_cast<std::size_t>(dim));
      std::vector<double> reals(5 * all);
      std::vector<std::int64_t> steps(all);
      const std::unique_ptr<bool[]> flags(new bool[3 * all]);
      double* real = reals.data();
      const HamiltonianRun<float> request{
          chains,
          now,
          at.position.data(),
          at.grad.data(),
          at.terms.data(),
          nullptr,
          0,
          7,
          static_cast<std::uint64_t>(made),
          ids.data(),
          1000.0,
          at.step_size.data(),
          at.num_steps.data(),
          capped.get(),
          {true, 8, 3, 4, 0.8, 0.05, 6, made + now == count},
          &dual,
          keep.data(),
          static_cast<std::int64_t>(places),
          draws.data(),
          {real, real + all, real + 2 * all, real + 3 * all, real + 4 * all, steps.data(),
           flags.get(), flags.get() + all, flags.get() + 2 * all},
          seconds};
      const RunEnd end = hamiltonian_run(density, request, nullptr);
      CHECK(end.kept >= 1);
      CHECK(end.made == keep[static_cast<std::size_t>(end.kept - 1)] + 1);
      if (end.kept < 1) return at;
      for (std::size_t c = 0; c < some; ++c) {
        for (std::size_t k = 0; k < static_cast<std::size_t>(end.kept); ++k) {
          if ((made + keep[k]) % 2 == 0) continue;
          const float* from = draws.data() + (c * places + k) * static_cast<std::size_t>(dim);
          kept[c].insert(kept[c].end(), from, from + dim);
          at.energy_error.push_back(real[2 * all + c * places + k]);
        }
      }
      made += end.made;
    }
    std::sort(at.energy_error.begin(), at.energy_error.end());
    for (const Values& one : kept) at.kept.insert(at.kept.end(), one.begin(), one.end());
    return at;
  }
};

constexpr double kForever = 1e9;  // seconds

// Any thread makes the next transition of any chain.
void check_small() {
  const Problem problem(40, 4);
  constexpr std::int64_t kCount = 30;
  for (const std::int64_t chains : {1, 2, 5}) {
    set_num_threads(1);
    const State single = problem.run(chains, kCount, 1, kForever);
    CHECK(std::any_of(single.energy_error.begin(), single.energy_error.end(),
                      [](double e) { return std::isfinite(e) && e != 0.0; }));
    for (const int threads : {1, 2, 4}) {
      set_num_threads(threads);
      CHECK(problem.run(chains, kCount, kCount, kForever) == single);
      CHECK(problem.run(chains, kCount, 7, kForever) == single);
      CHECK(problem.run(chains, kCount, 7, 0.0) == single);
    }
    CHECK(!(problem.run(chains, kCount + 2, kCount + 2, kForever) == single));  // control
  }
}

// Chains have several threads each, of which some leave: members that are twins, and members that
// share what they move (two chunks of theta); four shards, taken by two or four.
void check_teams() {
  Problem twins(1500, 120), shared(1500, 420);
  constexpr std::int64_t kCount = 3;
  CHECK(twins.density.evaluator().may_be_twins(4));
  CHECK(!shared.density.evaluator().may_be_twins(4));
  for (Problem* problem : {&twins, &shared}) {
    for (const double step_size : {0.01, 1e12}) {  // the second: every trajectory is lost
      problem->step_size = step_size;
      for (const std::int64_t chains : {1, 3}) {
        set_num_threads(1);
        const State single = problem->run(chains, kCount, 1, kForever);
        CHECK(std::all_of(single.energy_error.begin(), single.energy_error.end(),
                          [&](double e) { return std::isfinite(e) == (step_size < 1.0); }));
        for (const int threads : {2, 6}) {
          set_num_threads(threads);
          CHECK(problem->run(chains, kCount, kCount, kForever) == single);
          halve_teams(11);
          CHECK(problem->run(chains, kCount, kCount, kForever) == single);
          CHECK(halve_teams(0) > 0 || step_size > 1.0 || (threads == 2 && chains == 3));
        }
      }
    }
  }
}

void check_stop() {
  const Problem problem(40, 4);
  State at = problem.start(3);
  const std::uint32_t ids[3] = {0, 1, 2};
  bool capped[3] = {};
  Wish wish;
  const HamiltonianRun<float> request{3,
                                      1'000'000'000,
                                      at.position.data(),
                                      at.grad.data(),
                                      at.terms.data(),
                                      nullptr,
                                      0,
                                      7,
                                      0,
                                      ids,
                                      1000.0,
                                      at.step_size.data(),
                                      at.num_steps.data(),
                                      capped,
                                      {false, 1000, 3, 0, 0.8, 0.0, 40, false},
                                      nullptr,
                                      nullptr,
                                      0,
                                      nullptr,
                                      {},
                                      1e9};
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    CHECK(hamiltonian_run(problem.density, request, &wish).made == 0);
  }
}

}  // namespace

int main() {
  check_small();
  check_teams();
  check_stop();
  return report("check_runs");
}
