// Chains of HMC and NUTS: any division of a run into calls, any number of threads and any reload
// from bytes give the bits of single calls on one thread. Stop requests and failures change
// nothing.

#include "chain_runs.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "chains/tuner_hmc.h"
#include "cpu/system/threads.h"

using namespace ribbit;

namespace {

// Each thread makes the next transition of any chain.
template <class T>
void check_small() {
  const Regression<T> problem(40, 4);
  const Thinning schedules[] = {{1, 1, 1}, {10, 3, 2}};
  constexpr std::uint64_t kWarmup = 60;  // it has one window
  constexpr std::int64_t kDraws = 12;
  for (const std::int64_t chains : {1, 3}) {
    for (const auto& [name, kernel] : kernels(dim_of(4))) {
      for (const Thinning& thinning : schedules) {
        const Run run = run_of(chains, kWarmup, thinning);
        cpu::set_num_threads(1);
        const Trace<T> single = trace<T>(problem.density, kernel, run, kDraws);
        const auto size = static_cast<std::size_t>(dim_of(4));
        CHECK(single.draws.back().size() == static_cast<std::size_t>(kDraws) * size);
        CHECK(single.warmup.back().size() == kWarmup * size);
        CHECK(single.acceptance > 0.5);
        for (const int threads : {1, 4}) {
          if (threads > 1 && chains == 1) continue;
          cpu::set_num_threads(threads);
          for (const Division& division : kDivisions) {
            const Trace<T> other = trace<T>(problem.density, kernel, run, kDraws, division);
            expect(other == single, "a division of the run", name);
          }
        }
      }
    }
  }
  // The control: another seed and one more draw give other bits.
  Run run = run_of(2, kWarmup);
  const Trace<T> one = trace<T>(problem.density, fixed_hmc(), run, kDraws);
  CHECK(!(trace<T>(problem.density, fixed_hmc(), run, kDraws + 1) == one));
  run.seed = 8;
  CHECK(!(trace<T>(problem.density, fixed_hmc(), run, kDraws) == one));
}

// A mass that changes at the ends of several windows.
void check_windows() {
  const Regression<float> problem(40, 4);
  const MassWindows windows(230);
  CHECK(windows.ends == (std::vector<std::uint64_t>{100, 180}));
  for (const Kernel& kernel : {Kernel(adapting_hmc()), Kernel(nuts_of(true))}) {
    cpu::set_num_threads(1);
    const Trace<float> single = trace<float>(problem.density, kernel, run_of(3, 230), 5);
    cpu::set_num_threads(4);
    for (const Division& division : {Division{1'000'000, 1e9, false}, {40, 0.0, true}}) {
      CHECK(trace<float>(problem.density, kernel, run_of(3, 230), 5, division) == single);
    }
  }
}

// The draws of a thinned run are draws of the run without thinning.
void check_thinning() {
  const Regression<float> problem(40, 4);
  const auto dim = static_cast<std::size_t>(dim_of(4));
  const Thinning thinning{10, 3, 2};  // steps 6, 8, 10, 16, ...
  for (const Kernel& kernel : {Kernel(fixed_hmc()), Kernel(nuts_of(true))}) {
    const Trace<float> all = trace<float>(problem.density, kernel, run_of(2, 30), 20);
    const Trace<float> some = trace<float>(problem.density, kernel, run_of(2, 30, thinning), 6);
    const std::int64_t steps[] = {6, 8, 10, 16, 18, 20};
    for (std::size_t c = 0; c < 2; ++c) {
      for (std::size_t i = 0; i < 6; ++i) {
        const float* from = all.draws[c].data() + static_cast<std::size_t>(steps[i] - 1) * dim;
        CHECK(std::memcmp(some.draws[c].data() + i * dim, from, dim * sizeof(float)) == 0);
      }
    }
    Run silent = run_of(2, 30);
    silent.save_warmup = false;
    const Trace<float> other = trace<float>(problem.density, kernel, silent, 20);
    CHECK(other.warmup.front().empty() && other.draws == all.draws && other.end == all.end);
    CHECK(other.statistics == all.statistics);
  }
}

// Several threads move one chain, and some of them leave: as replicas, or with a share of the
// parameters each. Four partitions of the rows go to two or four threads.
void check_groups() {
  const Regression<float> replicas(1500, 120), shares(1500, 420);
  constexpr std::int64_t kDraws = 3;
  CHECK(replicas.density.evaluator().may_be_twins(4));
  CHECK(!shares.density.evaluator().may_be_twins(4));
  for (const Regression<float>* problem : {&replicas, &shares}) {
    for (const double step_size : {5e-4, 1e12}) {  // the second makes every transition diverge
      Hmc hmc = fixed_hmc();
      Nuts nuts = nuts_of(false);
      hmc.step_size = nuts.step_size = {step_size};
      for (const Kernel& kernel : {Kernel(hmc), Kernel(nuts)}) {
        for (const std::int64_t chains : {1, 3}) {
          const Run run = run_of(chains, 0);
          cpu::set_num_threads(1);
          const Trace<float> single = trace<float>(problem->density, kernel, run, kDraws);
          CHECK(single.divergences == (step_size < 1.0 ? 0 : chains * kDraws));
          for (const int threads : {2, 6}) {
            cpu::set_num_threads(threads);
            CHECK(trace<float>(problem->density, kernel, run, kDraws) == single);
            cpu::halve_teams(11);
            CHECK(trace<float>(problem->density, kernel, run, kDraws) == single);
            const int halved = cpu::halve_teams(0);
            CHECK(halved > 0 || step_size > 1.0 || (threads == 2 && chains == 3));
          }
        }
      }
    }
  }
}

// Asks to stop at its n-th check.
struct StopRequest final : cpu::Poll {
  explicit StopRequest(int checks) : left(checks) {}
  bool stop() override { return --left <= 0; }
  int left;
};

void check_stop() {
  const Regression<float> problem(40, 4);
  const std::int64_t dim = dim_of(4);
  for (const auto& [name, kernel] : kernels(dim)) {
    for (const int threads : {1, 2}) {
      cpu::set_num_threads(threads);
      const auto chains =
          make_chains<float>(problem.density, kernel, run_of(3, 40, {1000, 1, 1}), {});
      StopRequest at_once(1);
      const std::vector<float> start = numbers<float>(3 * dim, 0.4);
      CHECK(chains->start(start.data(), nullptr));
      Block<float> block(chains->columns(), 3, 4096, dim);
      CHECK(chains->advance(block, 25, 1e9, nullptr));
      CHECK(chains->advance(block, 1000, 1e9, nullptr));
      CHECK(!chains->warming_up());
      const std::string before = chains->save();
      const Summary summary = chains->summary();
      StopRequest later(3);
      // Thousands of draws, each of 1,000 steps: a stop request alone can end these calls.
      for (StopRequest* request : {&at_once, &later}) {
        CHECK(!chains->advance(block, 4096, 1e9, request));
        expect(chains->save() == before, "a state after a stop request", name);
        CHECK(chains->summary().gradients == summary.gradients);
      }
    }
  }
}

// The average of full trajectories is used if the other lags behind. Chain 0 accepts all and then
// little, chain 1 stays as it is.
void check_dual_averaging() {
  cpu::DualAveraging dual({0.1, 0.1});
  const auto first = [&](std::size_t chain) { return std::exp(dual.log_average[chain]); };
  const auto update = [&](double acceptance, bool full) {
    dual.update(0, acceptance, 0.8, full);
    dual.update(1, 0.8, 0.8, full);
  };
  CHECK(dual.average(0) == dual.step_size(0));
  for (int i = 0; i < 100; ++i) update(0.95, false);
  double average = 0.0;
  for (int i = 1; i <= 20; ++i) {
    CHECK(dual.average(0) == first(0) && dual.average(1) == first(1));
    update(0.3, true);
    const double fade = std::pow(i, -0.75);
    average = fade * dual.log_step[0] + (1.0 - fade) * average;
  }
  CHECK(dual.updates[0] == 120 && dual.settled[0] == 20);
  CHECK(std::abs(dual.average(0) / std::exp(average) - 1.0) < 1e-12);
  CHECK(dual.average(0) < first(0) / 1.4 && dual.average(1) == first(1));
}

// ---- errors -------------------------------------------------------------------------------------

template <class Body>
void refused(const char* wanted, const Body& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    const bool found = std::strstr(error.what(), wanted) != nullptr;
    if (!found) std::printf("%s\n", error.what());
    CHECK(found);
    return;
  }
  std::printf("accepted: %s\n", wanted);
  CHECK(false);
}

void check_refused() {
  const Regression<float> problem(40, 4);
  const std::int64_t dim = dim_of(4);
  const auto& density = problem.density;
  const auto made = [&](const Kernel& kernel, const Run& run) {
    return make_chains<float>(density, kernel, run, {{"data", "a"}, {"prior", "b"}});
  };
  const auto with = [](const auto& change) {
    Hmc hmc = fixed_hmc();
    change(hmc);
    return Kernel(hmc);
  };
  refused("at least 1 chain", [&] { made(fixed_hmc(), run_of(0, 10)); });
  refused("below 2^40", [&] { made(fixed_hmc(), run_of(1, std::uint64_t{1} << 40)); });
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const Thinning& wrong :
       {Thinning{0, 1, 1}, {3, 0, 1}, {3, 1, 0}, {3, 2, 2}, {kHuge, 1, 1}, {10, kHuge, 2}}) {
    refused("many * gap", [&] { made(fixed_hmc(), run_of(1, 10, wrong)); });
  }
  refused("3 chains, got 2 numbers",
          [&] { made(with([](Hmc& hmc) { hmc.step_size = {0.1, 0.2}; }), run_of(3, 10)); });
  refused("21 numbers, got 2",
          [&] { made(with([](Hmc& hmc) { hmc.inverse_mass = {1.0, 2.0}; }), run_of(1, 10)); });
  refused("in the dtype of the target",
          [&] { made(with([](Hmc& hmc) { hmc.inverse_mass.assign(21, 1e-60); }), run_of(1, 10)); });
  const std::vector<float> start = numbers<float>(dim, 0.4);
  refused("warmup must be at least 1", [&] {
    made(with([](Hmc& hmc) { hmc.step_size.clear(); }), run_of(1, 0))->start(start.data(), nullptr);
  });
  refused("warmup must be at least 20",
          [&] { made(adapting_hmc(), run_of(1, 19))->start(start.data(), nullptr); });
  const auto chains = made(fixed_hmc(), run_of(1, 10));
  Block<float> block(chains->columns(), 1, 8, dim);
  refused("start the chains", [&] { chains->advance(block, 1, 1.0, nullptr); });
  std::vector<float> wrong = start;
  wrong[3] = std::numeric_limits<float>::quiet_NaN();
  refused("chain 0, parameter 3", [&] { chains->start(wrong.data(), nullptr); });
  CHECK(chains->start(start.data(), nullptr));
  refused("most must be", [&] { chains->advance(block, 0, 1.0, nullptr); });

  const std::string bytes = chains->save();
  const auto load = [&](const Kernel& kernel, const Fingerprint& target) {
    load_chains<float>(density, kernel, Run{}, target, bytes);
  };
  load(fixed_hmc(), {{"data", "a"}, {"prior", "b"}});
  refused("another prior", [&] { load(fixed_hmc(), {{"data", "a"}, {"prior", "c"}}); });
  // Fingerprints with other parts: the log density decides.
  load(fixed_hmc(), {{"rows", "a"}});
  load(fixed_hmc(), {{"data", "a"}});
  const Regression<float> fewer(39, 4);
  refused("chain 0 had the log density",
          [&] { load_chains<float>(fewer.density, fixed_hmc(), Run{}, {{"rows", "a"}}, bytes); });
  load_chains<float>(fewer.density, fixed_hmc(), Run{}, {}, bytes);  // it may be any target
  refused("expected chains of kernel 'nuts', got 'hmc'", [&] { load(nuts_of(true), {}); });
  const Regression<double> twice(40, 4);
  refused("chains of float64, got chains of float32",
          [&] { load_chains<double>(twice.density, fixed_hmc(), Run{}, {}, bytes); });
  const Regression<float> larger(40, 5);
  refused("position", [&] { load_chains<float>(larger.density, fixed_hmc(), Run{}, {}, bytes); });
}

// Loading keeps the results of warmup and takes the new options.
void check_new_options() {
  const Regression<float> problem(40, 4);
  const std::int64_t dim = dim_of(4);
  const Run run = run_of(2, 60);
  Hmc adapting = adapting_hmc(), other = fixed_hmc();
  other.step_size = {0.007};
  const auto chains = make_chains<float>(problem.density, adapting, run, {});
  CHECK(chains->start(numbers<float>(2 * dim, 0.4).data(), nullptr));
  Block<float> block(chains->columns(), 2, 64, dim);
  CHECK(chains->advance(block, 29, 1e9, nullptr));  // in the middle of a window
  const auto fixed = load_chains<float>(problem.density, other, Run{}, {}, chains->save());
  CHECK(fixed->step() == 29 && fixed->summary().step_size == std::vector<double>(2, 0.007));
  CHECK(fixed->advance(block, 24, 1e9, nullptr));
  // Here adaptation begins again, one step before the last window ends.
  const auto again = load_chains<float>(problem.density, adapting, Run{}, {}, fixed->save());
  CHECK(again->advance(block, 64, 1e9, nullptr));
  CHECK(!again->warming_up());
  CHECK(again->advance(block, 64, 1e9, nullptr));
  CHECK(again->summary().acceptance_rate[0] > 0.1);

  // After warmup a step size that was found needs its mass.
  const auto whole = make_chains<float>(problem.density, adapting, run, {});
  CHECK(whole->start(numbers<float>(2 * dim, 0.4).data(), nullptr));
  while (whole->warming_up()) CHECK(whole->advance(block, 64, 1e9, nullptr));
  const auto load = [&](const Hmc& hmc) {
    load_chains<float>(problem.density, hmc, Run{}, {}, whole->save());
  };
  load(adapting);
  load(other);
  Hmc ones = adapting;
  ones.mass = MassRule::kGiven;
  refused("another inverse mass matrix", [&] { load(ones); });
}

}  // namespace

int main() {
  check_small<float>();
  check_small<double>();
  check_windows();
  check_dual_averaging();
  check_thinning();
  check_groups();
  check_stop();
  check_refused();
  check_new_options();
  return report("check_chains");
}
