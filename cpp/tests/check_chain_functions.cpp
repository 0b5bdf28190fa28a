// Chains on C functions: the same bits on any number of threads, functions that return NaN, and
// functions that fail.

#include <atomic>
#include <cmath>
#include <limits>

#include "chain_runs.h"
#include "cpu/system/threads.h"

using namespace ribbit;

namespace {

// A normal distribution with a standard deviation of 1 in each parameter. The function fails at
// call `fails_at`, and it returns NaN beyond `wall`.
struct Function {
  std::atomic<std::int64_t> calls{0};
  std::int64_t fails_at = -1;
  double wall = std::numeric_limits<double>::infinity();
  std::atomic<std::int64_t> beyond{0};

  static int call(std::size_t n, const double* x, double* grad, double* lp, void* user) {
    Function& self = *static_cast<Function*>(user);
    if (self.calls.fetch_add(1) == self.fails_at) return 42;
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(std::isfinite(x[i]));
      sum += x[i] * x[i];
      grad[i] = -x[i];
    }
    *lp = -0.5 * sum;
    if (x[0] > self.wall) {
      ++self.beyond;
      *lp = grad[0] = std::numeric_limits<double>::quiet_NaN();
    }
    return 0;
  }
};

constexpr std::int64_t kDim = 5;

void check_function() {
  constexpr std::int64_t kDraws = 40;
  for (auto [name, kernel] : kernels(kDim)) {
    std::visit(
        [](auto& options) {
          if (!options.step_size.empty()) options.step_size = {0.5};
        },
        kernel);
    Function free, walled;
    walled.wall = 0.8;
    cpu::set_num_threads(1);
    const Run run = run_of(3, 60);
    const auto density = [](Function& f, bool threadsafe) {
      return cpu::PointerDensity(&Function::call, kDim, &f, threadsafe);
    };
    const Trace<double> single = trace<double>(density(free, false), kernel, run, kDraws);
    const Trace<double> bounded = trace<double>(density(walled, false), kernel, run, kDraws);
    CHECK(walled.beyond > 0 && bounded.divergences > 0);
    for (const std::vector<double>& chain : bounded.draws) {
      for (std::size_t i = 0; i < chain.size(); i += kDim) CHECK(chain[i] <= 0.8);
      CHECK(std::all_of(chain.begin(), chain.end(), [](double v) { return std::isfinite(v); }));
    }
    for (const int threads : {1, 4}) {
      cpu::set_num_threads(threads);
      for (const bool threadsafe : {false, true}) {
        for (const Division& division : kDivisions) {
          expect(trace<double>(density(free, threadsafe), kernel, run, kDraws, division) == single,
                 "a division of the run", name);
        }
        expect(trace<double>(density(walled, threadsafe), kernel, run, kDraws) == bounded,
               "a run near a wall", name);
      }
    }
  }
}

// A code other than 0 ends the call with this code, and the chains are as before.
void check_failing_function() {
  for (auto [name, kernel] : kernels(kDim)) {
    for (const int threads : {1, 4}) {
      cpu::set_num_threads(threads);
      Function function;
      const cpu::PointerDensity density(&Function::call, kDim, &function, true);
      const auto chains = make_chains<double>(density, kernel, run_of(3, 40), {});
      const std::vector<double> start = numbers<double>(3 * kDim, 0.4);
      const auto code = [&](const auto& call) {
        try {
          call();
        } catch (const FunctionFailed& failure) {
          return failure.code;
        }
        return 0;
      };
      function.fails_at = 1;
      CHECK(code([&] { chains->start(start.data(), nullptr); }) == 42);
      CHECK(chains->start(start.data(), nullptr));
      Block<double> block(chains->columns(), 3, 64, kDim);
      for (const bool warm : {true, false}) {
        CHECK(chains->warming_up() == warm);
        const std::string before = chains->save();
        function.fails_at = function.calls + 17;
        CHECK(code([&] { chains->advance(block, 64, 1e9, nullptr); }) == 42);
        expect(chains->save() == before, "a state after a failure", name);
        function.fails_at = -1;
        CHECK(chains->advance(block, 64, 1e9, nullptr));
        CHECK(block.count > 0);
      }
    }
  }
}

}  // namespace

int main() {
  check_function();
  check_failing_function();
  return report("check_chain_functions");
}
