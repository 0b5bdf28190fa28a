// Checks quantiles, distribution functions and scores of mixtures over draws against long double
// references, with the kernels of one instruction set. Prints the largest errors; exit code 1 over
// a bound.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "cpu/predictive/mixture.h"
#include "tests/accuracy.h"

namespace {

using ribbit::cpu::MixtureDraws;
using ribbit::cpu::Noise;

struct Law {
  Noise noise;
  double df;
  const char* name;
};
const Law kLaws[] = {{Noise::kNormal, 0.0, "normal"},
                     {Noise::kStudent, 1.0, "t of 1"},
                     {Noise::kStudent, 2.0, "t of 2"},
                     {Noise::kStudent, 4.0, "t of 4"}};

// P(Z < -a), a >= 0.
Real tail_ref(const Law& law, Real a) {
  if (law.noise == Noise::kNormal) return std::erfc(a / std::sqrt(Real(2))) / 2;
  if (law.df == 1.0) return std::atan2(Real(1), a) / kPi;
  const Real root = std::sqrt(static_cast<Real>(law.df) + a * a), w = a / root;
  const Real left = law.df / (root * root * (1 + w));  // 1 - w
  return law.df == 2.0 ? left / 2 : left * left * (2 + w) / 4;
}
Real cdf_ref(const Law& law, Real z) {
  return z < 0 ? tail_ref(law, -z) : 1 - tail_ref(law, z);
}

// Draws of one row and output.
MixtureDraws draws_of(const std::vector<double>& values, const std::vector<double>& widths) {
  MixtureDraws d;
  d.values = {values.data(), false, {1, 1, 0}};
  if (!widths.empty()) d.widths = {widths.data(), false, {1, 1, 0}};
  d.draws = static_cast<std::int64_t>(values.size());
  d.rows = d.outputs = 1;
  return d;
}

void check_law(const Law& law) {
  double worst_tail = 0.0, worst_level = 0.0;
  for (const std::size_t size : {std::size_t(1), std::size_t(16), std::size_t(37)}) {
    std::vector<double> means(size), widths(size);
    for (std::size_t s = 0; s < size; ++s) {
      means[s] = 3.0 * std::sin(static_cast<double>(s));
      widths[s] = std::exp(std::cos(2.1 * static_cast<double>(s)));
    }
    const auto d = draws_of(means, widths);
    const auto reference = [&](Real x, Real sign) {
      Real sum = 0;
      for (std::size_t s = 0; s < size; ++s) sum += cdf_ref(law, sign * (x - means[s]) / widths[s]);
      return sum / static_cast<Real>(size);
    };
    for (double y = -60.0; y < 60.0; y += 1.37 * kReduction) {
      double got = 0.0;
      CHECK(ribbit::cpu::mixture_cdf(law.noise, law.df, d, &y, &got, nullptr));
      worst_tail = std::fmax(worst_tail, static_cast<double>(std::fabs(got - reference(y, 1))));
    }
    const double levels[] = {1e-6, 0.025, 0.5, 0.9, 1 - 1e-6};
    double x[5];
    CHECK(ribbit::cpu::mixture_quantiles(law.noise, law.df, d, levels, 5, x, nullptr));
    for (int q = 0; q < 5; ++q) {
      const bool lower = levels[q] <= 0.5;
      const Real p = lower ? levels[q] : 1 - static_cast<Real>(levels[q]);
      const Real off = std::fabs(reference(x[q], lower ? 1 : -1) / p - 1);
      worst_level = std::fmax(worst_level, static_cast<double>(off));
    }
  }
  std::printf("%-8s cdf %.1e level %.1e\n", law.name, worst_tail, worst_level);
  if (!(worst_tail < 1e-15) || !(worst_level < 1e-10)) fail(law.name, "accuracy");
}

// The closed form of normals, by pairs and by the integral; a Cauchy variable has no mean, of 2
// degrees of freedom E|Z - z| - E|Z - Z'| / 2 = sqrt(2 + z^2) - pi / (2 sqrt(2)).
void check_scores() {
  const auto distance = [](Real mean, Real sd) {
    const Real z = mean / sd;
    return mean * std::erf(z / std::sqrt(Real(2))) +
           2 * sd * std::exp(-z * z / 2) / std::sqrt(2 * kPi);
  };
  double worst = 0.0;
  for (const std::size_t size : {std::size_t(1), std::size_t(20), std::size_t(150)}) {
    std::vector<double> means(size), widths(size);
    Real expected = 0;
    const double y = 0.7;
    for (std::size_t s = 0; s < size; ++s) {
      means[s] = std::sin(static_cast<double>(s));
      widths[s] = 1.0 + 0.2 * std::cos(2.1 * static_cast<double>(s));
    }
    const auto n = static_cast<Real>(size);
    for (std::size_t s = 0; s < size; ++s) {
      expected += distance(y - means[s], widths[s]) / n;
      for (std::size_t t = 0; t < size; ++t) {
        const Real root = std::hypot(static_cast<Real>(widths[s]), static_cast<Real>(widths[t]));
        expected -= distance(static_cast<Real>(means[s]) - means[t], root) / (2 * n * n);
      }
    }
    double got = 0.0;
    CHECK(
        ribbit::cpu::mixture_crps(Noise::kNormal, 0.0, draws_of(means, widths), &y, &got, nullptr));
    worst = std::fmax(worst, static_cast<double>(std::fabs(got - expected)));
  }
  for (const double y : {-30.0, -1.0, 0.0, 0.2, 5.0}) {
    double got = 0.0;
    CHECK(
        ribbit::cpu::mixture_crps(Noise::kStudent, 2.0, draws_of({0.0}, {1.0}), &y, &got, nullptr));
    const Real expected = std::sqrt(2 + Real(y) * y) - kPi / (2 * std::sqrt(Real(2)));
    worst = std::fmax(worst, static_cast<double>(std::fabs(got - expected)));
  }
  std::printf("%-8s %.1e\n", "crps", worst);
  if (!(worst < 1e-10)) fail("crps", "accuracy");
}

void check_counts() {
  double worst = 0.0;
  for (double rate = 1e-3; rate < 3e4; rate *= 3.0) {
    const std::vector<double> rates = {rate}, none;
    const auto d = draws_of(rates, none);
    Real below = 0, sum = 0;
    const double levels[] = {0.01, 0.5, 0.99};
    double found[3];
    CHECK(ribbit::cpu::mixture_quantiles(Noise::kPoisson, 0.0, d, levels, 3, found, nullptr));
    const double end = rate + 10.0 * std::sqrt(rate) + 20.0;
    for (double k = 0.0; k < end; k += 1.0) {
      below = sum;
      const Real log_rate = std::log(static_cast<Real>(rate));
      sum += std::exp(Real(k) * log_rate - rate - std::lgamma(Real(k) + 1));
      for (int q = 0; q < 3; ++q) {
        if (found[q] == k) CHECK(below < levels[q] && sum >= levels[q]);
      }
      if (std::fmod(k, 1.0 + std::floor(end / 50.0)) != 0.0) continue;
      double got = 0.0;
      CHECK(ribbit::cpu::mixture_cdf(Noise::kPoisson, 0.0, d, &k, &got, nullptr));
      worst = std::fmax(worst, static_cast<double>(std::fabs(got - sum)));
    }
  }
  std::printf("%-8s %.1e\n", "counts", worst);
  if (!(worst < 2e-13)) fail("counts", "accuracy");
}

}  // namespace

int main() {
  try {
    ribbit::cpu::instruction_set();
  } catch (const std::invalid_argument&) {
    return 77;  // RIBBIT_ISA names a set this CPU lacks
  }
  for (const Law& law : kLaws) check_law(law);
  check_scores();
  check_counts();
  return report("check_mixtures");
}
