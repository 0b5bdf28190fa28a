// What ribbit.hpp adds: exceptions that come through, runs in parts, owners.

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
  auto options = ribbit::hmc_options();
  options.seed = 3;
  options.chains = 4;
  options.draws = 1000;
  options.step_size = 0.5;
  options.num_steps = 3;
  const auto whole = ribbit::hmc(target, options);
  CHECK(whole.complete && whole.made == 1000 && whole.positions.size() == 12000);
  double squares = 0, scaled = 0;
  for (const double q : whole.positions) {
    squares += q * q / 12000;
    scaled += 1.5 * q * q / 12000;
  }
  const double bound = 6 * std::sqrt(2 * 2.0 / 12000);
  CHECK(std::abs(squares - 1) < bound);
  CHECK(std::abs(scaled - 1) > bound);

  // Ended by the callback, by its exception, by an interrupt; then to the end.
  const auto first =
      ribbit::hmc(target, options, {}, [](const ribbit_progress& p) { return p.done == 10; });
  CHECK(!first.complete && first.made == 10);
  CHECK(thrown<std::logic_error>([&] {
          ribbit::hmc(target, options, {},
                      [](const ribbit_progress&) -> bool { throw std::logic_error("stop"); });
        }) == "stop");
  ribbit::Interrupt interrupt;
  interrupt.set();
  options.interrupt = interrupt.get();
  CHECK(ribbit::hmc(target, options).made == 0);
  interrupt.clear();
  options.first_step = 10;
  options.draws = 990;
  const auto rest = ribbit::hmc(target, options, first.last);
  CHECK(rest.complete && rest.last == whole.last);

  // Step sizes are found in warmup, and taken where a run goes on.
  options.first_step = 0;
  options.step_size = 0;
  options.warmup = 50;
  options.draws = 20;
  const auto found = ribbit::hmc(target, options);
  options.draws = 10;
  auto half = ribbit::hmc(target, options);
  CHECK(half.step_sizes == found.step_sizes && half.step_sizes[0] > 0.1);
  options.first_step = 60;
  options.warmup = 0;
  options.step_sizes = half.step_sizes.data();
  CHECK(ribbit::hmc(target, options, half.last).last == found.last);

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
