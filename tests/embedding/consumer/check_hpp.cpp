// ribbit.hpp: exceptions that pass through the library, runs in parts, owners.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ribbit/ribbit.hpp>

#define CHECK(good) \
  ((good) ? void() : (std::fprintf(stderr, "%d: %s\n", __LINE__, #good), std::exit(1)))

// The exception of a type that body throws, as text; "" where it throws none.
template <class Thrown, class Body>
std::string thrown(const Body& body) {
  try {
    body();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

int main() {
  using Normal = ribbit::Target<double>;
  const auto target = Normal::function(3, [](std::size_t n, const double* x, double* grad) {
    double lp = 0;
    for (std::size_t i = 0; i < n; ++i) {
      grad[i] = -x[i];
      lp -= 0.5 * x[i] * x[i];
    }
    if (x[0] == 101) throw std::domain_error("too far");
    return lp;
  });
  CHECK(target.dim() == 3);
  const auto [value, grad] = target.value_and_grad({1, 2, 3});
  CHECK(value == -7 && grad[2] == -3);
  CHECK(thrown<std::domain_error>([&] { target.value_and_grad({101, 0, 0}); }) == "too far");
  CHECK(thrown<ribbit::Error>([&] { target.value_and_grad({1}); }) != "");

  // A standard normal, 4 chains: the mean of 12,000 squares is 1 within six standard errors of
  // twice as many as there are (false fail below 1e-6); half of the draws is the control.
  using Chains = ribbit::Chains<double>;
  auto run = ribbit::run_options();
  run.seed = 3;
  run.chains = 4;
  run.warmup = 0;
  const ribbit::Options options{{"step_size", 0.5}, {"num_leapfrog_steps", 3}};
  const auto made = [&] {
    auto chains = Chains::create(target, "hmc", options, run);
    chains.start();
    return chains;
  };
  auto chains = made();
  const auto whole = chains.sample(1000);
  CHECK(whole.draws == 1000 && whole.positions.size() == 12000);
  CHECK(whole.statistics.at("n_steps").size() == 4000);
  double squares = 0, scaled = 0;
  for (const double q : whole.positions) {
    squares += q * q / 12000;
    scaled += 1.5 * q * q / 12000;
  }
  const double bound = 6 * std::sqrt(2 * 2.0 / 12000);
  CHECK(std::abs(squares - 1) < bound);
  CHECK(std::abs(scaled - 1) > bound);

  // Progress that ends a run, an exception of progress, an interrupt; then saved and loaded.
  auto parts = made();
  int calls = 0;
  const auto ended = parts.sample(
      100000, [&](const ribbit_summary& s) { return ++calls == 2 && s.step > 0 && s.chains == 4; });
  CHECK(calls == 2 && ended.draws > 0 && ended.draws < 100000);
  CHECK(thrown<std::logic_error>([&] {
          parts.sample(10, [](const ribbit_summary&) -> bool { throw std::logic_error("stop"); });
        }) == "stop");
  auto rest = made();
  const auto first = rest.advance(10);
  ribbit::Interrupt interrupt;
  interrupt.set();
  const std::string before = rest.save();
  CHECK(thrown<ribbit::Error>([&] { rest.advance(10, 1.0, &interrupt); }) ==
        "[ribbit_chains_advance] interrupted");
  CHECK(rest.save() == before);
  interrupt.clear();
  auto loaded = Chains::load(target, "hmc", before, options);
  CHECK(loaded.chains() == 4);
  const auto second = loaded.sample(990, {}, &interrupt);
  CHECK(loaded.position() == chains.position());
  for (std::size_t c = 0; c < 4; ++c) {
    for (std::size_t i = 0; i < 3000; ++i) {
      const double one = i < 30 ? first.positions[c * 30 + i] : second.positions[c * 2970 + i - 30];
      CHECK(one == whole.positions[c * 3000 + i]);
    }
  }
  CHECK(loaded.statistic("lp", 990).size() == 3960);
  CHECK(thrown<ribbit::Error>([&] { loaded.statistic("nothing", 990); }) != "");

  // Step sizes that NUTS finds in warmup, which gives draws if it is saved.
  run.warmup = 50;
  run.save_warmup = 1;
  auto trees = Chains::create(target, "nuts", {{"target_accept", 0.7}}, run);
  trees.start(std::vector<double>(12, 0.1));
  const auto all = trees.sample(60);
  CHECK(all.statistics.at("step_size").back() > 0.1);
  CHECK(all.draws == 60 && trees.summary().step == 60 && trees.summary().warming_up == 0);
  CHECK(thrown<ribbit::Error>([&] { trees.start({1.0}); }) != "");
  CHECK(thrown<ribbit::Error>([&] { Chains::load(target, "nuts", before); }) ==
        "[ribbit_chains_load] expected chains of kernel 'nuts', got 'hmc'");
  CHECK(thrown<ribbit::Error>([&] { Chains::create(target, "hmc", {{"step_size", "large"}}); }) !=
        "");
  // A function that throws in a call of chains.
  auto far = Chains::create(target, "hmc", options);
  CHECK(thrown<std::domain_error>([&] { far.start({101, 0, 0}); }) == "too far");

  // Errors of networks and posteriors.
  CHECK(thrown<ribbit::Error>([] {
          ribbit::Network(std::vector<ribbit_layer>());
        }).find("at least 1 layer") != std::string::npos);
  const auto net = ribbit::Network::mlp(2, {4}, 3);
  auto classes = ribbit::posterior_options();
  classes.likelihood = RIBBIT_CATEGORICAL;
  const std::vector<float> x{1, 2, 3, 4};
  using Network32 = ribbit::Target<float>;
  CHECK(thrown<ribbit::Error>([&] { Network32::posterior(net, classes, x, {0, 3}); }) ==
        "[ribbit_target_create_posterior] expected labels in 0..K-1 in y, got 3.000000 in row 1");
  auto moved = Network32::posterior(net, classes, x, {0, 2});
  const auto owner = std::move(moved);
  CHECK(owner.start(1, 2).size() == static_cast<std::size_t>(2 * net.dim()));
  std::puts("fine");
}
