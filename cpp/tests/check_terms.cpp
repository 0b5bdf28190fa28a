// Checks priors, likelihoods and sums against long double references, through the kernel table of
// every instruction set this CPU has. Prints the largest errors; exit code 1 over a bound.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "core/likelihood_hd.h"
#include "core/ops_hd.h"
#include "core/prior_hd.h"
#include "cpu/isa/kernel_table-inl.h"
#include "tests/accuracy.h"

namespace {

using ribbit::LikelihoodKind;
using ribbit::cpu::KernelTable;

// ---- priors -------------------------------------------------------------------------------------
struct PriorCase {
  ribbit::PriorKind kind;
  double a, b, c;
  const char* name;
  double near_zero = 0.0;  // size of the terms of a score that cancel
};
const PriorCase kPriors[] = {{ribbit::PriorKind::kNormal, 0.7, 0, 0, "normal"},
                             {ribbit::PriorKind::kLaplace, 0.3, 0, 0, "laplace"},
                             {ribbit::PriorKind::kStudentT, 3.5, 0.8, 0, "studentt"},
                             {ribbit::PriorKind::kLogistic, 0.4, 0, 0, "logistic"},
                             {ribbit::PriorKind::kScaleMixture, 0.25, 1.0, 0.05, "scalemixture"},
                             {ribbit::PriorKind::kGammaPrecision, 3.0, 0.8, 0, "gamma", 6.0},
                             {ribbit::PriorKind::kHalfNormal, 0.7, 0, 0, "halfnormal", 1.0},
                             {ribbit::PriorKind::kHalfCauchy, 0.7, 0, 0, "halfcauchy", 1.0}};

Real prior_ref(const PriorCase& p, Real x, bool score) {
  const Real a = p.a, b = p.b, c = p.c;
  switch (p.kind) {
    case ribbit::PriorKind::kNormal:
      return score ? -x / (a * a) : -x * x / (2 * a * a) - std::log(a * std::sqrt(2 * kPi));
    case ribbit::PriorKind::kLaplace:
      return score ? (x == 0 ? 0 : (x > 0 ? -1 : 1) / a) : -std::fabs(x) / a - std::log(2 * a);
    case ribbit::PriorKind::kStudentT:
      return score ? -(a + 1) * x / (a * b * b + x * x)
                   : std::lgamma((a + 1) / 2) - std::lgamma(a / 2) - std::log(a * kPi) / 2 -
                         std::log(b) - (a + 1) / 2 * std::log1p(x * x / (a * b * b));
    case ribbit::PriorKind::kLogistic:
      return score ? -std::tanh(x / (2 * a)) / a
                   : -std::fabs(x) / a - 2 * std::log1p(std::exp(-std::fabs(x) / a)) - std::log(a);
    case ribbit::PriorKind::kScaleMixture: {
      const Real p1 = 1 / (b * b), p2 = 1 / (c * c);
      const Real l1 = std::log(a / b) - x * x * p1 / 2, l2 = std::log((1 - a) / c) - x * x * p2 / 2;
      const Real m = std::fmax(l1, l2);
      const Real e1 = std::exp(l1 - m), e2 = std::exp(l2 - m);
      return score ? -x * (e1 * p1 + e2 * p2) / (e1 + e2)
                   : m + std::log(e1 + e2) - std::log(2 * kPi) / 2;
    }
    case ribbit::PriorKind::kGammaPrecision:
      return score ? 2 * b * std::exp(-2 * x) - 2 * a
                   : a * std::log(b) - std::lgamma(a) + std::log(Real(2)) - 2 * a * x -
                         b * std::exp(-2 * x);
    case ribbit::PriorKind::kHalfNormal:
      return score ? 1 - std::exp(2 * x) / (a * a)
                   : std::log(2 / a) - std::log(2 * kPi) / 2 - std::exp(2 * x) / (2 * a * a) + x;
    case ribbit::PriorKind::kHalfCauchy:
      return score ? -std::tanh(x - std::log(a))
                   : std::log(2 / (kPi * a)) - std::log1p(std::exp(2 * x) / (a * a)) + x;
    case ribbit::PriorKind::kCount:
      break;
  }
  return std::nan("");
}

template <class T>
void check_priors(const char* where, const KernelTable<T>& table, bool fused) {
  const auto theta = grid<T>(-6, 6, false);
  const std::int64_t n = static_cast<std::int64_t>(theta.size());
  for (const PriorCase& p : kPriors) {
    const ribbit::PriorConstants constants = ribbit::prior_constants(p.kind, p.a, p.b, p.c);
    char name[60];
    std::snprintf(name, sizeof name, "%s score", p.name);
    check<T>(
        where, name, theta,
        [&](const T* x, std::int64_t m, T* y) {
          for (std::int64_t i = 0; i < m; ++i) y[i] = T(0);
          table.prior_segment(p.kind, constants, x, m, 1.0, nullptr, y);
        },
        [&](Real x) { return prior_ref(p, x, true); },
        p.kind == ribbit::PriorKind::kScaleMixture ? 20.0
        : fused                                    ? 5.0
                                                   : 8.0,
        p.near_zero > 0.0 ? 4.0 * p.near_zero * std::numeric_limits<T>::epsilon()
        : sizeof(T) == 4  ? 1e-36
                          : 1e-300);
    // one by one: the log density is computed in double whatever T is
    double worst = 0.0;
    Real total = 0;
    for (std::size_t i = 0; i < theta.size(); ++i) {
      double logp = 0.0;
      table.prior_segment(p.kind, constants, &theta[i], 1, 1.0, &logp, nullptr);
      const Real want = prior_ref(p, static_cast<Real>(theta[i]), false);
      total += want;
      worst = std::fmax(worst, static_cast<double>(std::fabs(logp - want) / (1 + std::fabs(want))));
    }
    // the sum, the gradient weight, and unaligned tails
    double logp = 10.0;
    std::vector<T> grad(theta.size() + 1, T(1)), unit(theta.size() + 1, T(0));
    table.prior_segment(p.kind, constants, theta.data(), n, 0.5, &logp, grad.data());
    table.prior_segment(p.kind, constants, theta.data() + 1, n - 1, 1.0, nullptr, unit.data() + 1);
    double worst_grad = 0.0;
    for (std::size_t i = 1; i < theta.size(); ++i)
      worst_grad = std::fmax(worst_grad, std::fabs(static_cast<double>(grad[i]) - 1.0 -
                                                   0.5 * static_cast<double>(unit[i])) /
                                             (1.0 + std::fabs(static_cast<double>(unit[i]))));
    const double worst_sum = static_cast<double>(std::fabs(logp - 10.0 - total) / std::fabs(total));
    std::printf("%-9s %s %-28s max %.2e relative, sum %.2e\n", where, type_name<T>(), p.name, worst,
                worst_sum);
    if (!(worst < 2e-15) || !(worst_sum < 2e-13)) fail(p.name, "log density");
    if (!(worst_grad < 2.0 * static_cast<double>(std::numeric_limits<T>::epsilon())))
      fail(p.name, "accumulated gradient");
    for (const std::int64_t m : {1, 5, 16, 37}) {
      std::vector<T> bad(static_cast<std::size_t>(m), T(0.1));
      bad.back() = std::numeric_limits<T>::quiet_NaN();
      std::vector<T> g(bad.size(), T(0));
      logp = 0.0;
      table.prior_segment(p.kind, constants, bad.data(), m, 1.0, &logp, g.data());
      if (!std::isnan(logp) || !std::isnan(g.back())) fail(p.name, "a NaN did not come through");
    }
  }
}

// ---- likelihoods --------------------------------------------------------------------------------
constexpr double kShape = 4.0;  // of those that have one

// Whether the second half of the outputs are raw sds; the floor of the sd is kShape.
bool has_raw_sd(LikelihoodKind kind) {
  return kind == LikelihoodKind::kHeteroscedastic ||
         kind == LikelihoodKind::kHeteroscedasticFloored;
}

// Row log likelihood (without what depends on y alone) and its gradient, all in long double.
Real likelihood_ref(LikelihoodKind kind, const Real* f, const Real* y, int outputs, Real parameter,
                    Real* gradient, Real* noise) {
  const Real half_log_two_pi = std::log(2 * kPi) / 2;
  Real ll = 0;
  *noise = 0;
  if (kind <= LikelihoodKind::kGaussianLearned) {
    const Real scale = kind == LikelihoodKind::kGaussian ? parameter : std::exp(parameter);
    for (int k = 0; k < outputs; ++k) {
      const Real r = (y[k] - f[k]) / scale;
      ll += -r * r / 2 - std::log(scale) - half_log_two_pi;
      gradient[k] = r / scale;
      *noise += r * r - 1;
    }
  } else if (kind == LikelihoodKind::kStudentT || kind == LikelihoodKind::kStudentTLearned) {
    const Real scale = kind == LikelihoodKind::kStudentT ? parameter : std::exp(parameter);
    const Real df = kShape, norm = std::lgamma((df + 1) / 2) - std::lgamma(df / 2);
    for (int k = 0; k < outputs; ++k) {
      const Real r = (y[k] - f[k]) / scale, pull = (df + 1) * r / (df + r * r);
      ll += norm - std::log(df * kPi) / 2 - std::log(scale) - (df + 1) / 2 * std::log1p(r * r / df);
      gradient[k] = pull / scale;
      *noise += r * pull - 1;
    }
  } else if (has_raw_sd(kind)) {
    const Real floor = kind == LikelihoodKind::kHeteroscedastic ? 0.0 : kShape;
    for (int k = 0; k < outputs / 2; ++k) {
      const Real raw = f[outputs / 2 + k], own = softplus_ref(raw);
      const Real sd = std::sqrt(floor * floor + own * own), r = (y[k] - f[k]) / sd;
      ll += -r * r / 2 - std::log(sd) - half_log_two_pi;
      gradient[k] = r / sd;
      gradient[outputs / 2 + k] = (r * r - 1) * sigmoid_ref(raw) / sd * (own / sd);
    }
  } else if (kind == LikelihoodKind::kCategorical) {
    Real m = f[0], sum = 0;
    for (int k = 1; k < outputs; ++k) m = std::fmax(m, f[k]);
    for (int k = 0; k < outputs; ++k) sum += std::exp(f[k] - m);
    for (int k = 0; k < outputs; ++k)
      gradient[k] = (static_cast<Real>(k) == y[0] ? 1 : 0) - std::exp(f[k] - m) / sum;
    ll = f[static_cast<int>(y[0])] - m - std::log(sum);
  } else if (kind == LikelihoodKind::kBernoulli || kind == LikelihoodKind::kPoisson) {
    for (int k = 0; k < outputs; ++k) {
      const bool bernoulli = kind == LikelihoodKind::kBernoulli;
      ll += y[k] * f[k] - (bernoulli ? softplus_ref(f[k]) : std::exp(f[k]));
      gradient[k] = y[k] - (bernoulli ? sigmoid_ref(f[k]) : std::exp(f[k]));
    }
  }
  return ll;
}

template <class T>
void check_likelihoods(const char* where, const KernelTable<T>& table) {
  constexpr int kMost = 12;
  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  ribbit::Word64 state = 88172645463325252ull;
  const auto uniform = [&state] {  // xorshift; the values only have to be varied
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<double>(state >> 11) * 0x1p-53;
  };
  for (int number = 0; number < ribbit::Likelihoods::kCount; ++number) {
    const auto kind = static_cast<LikelihoodKind>(number);
    const char* const name =
        ribbit::with_likelihood(kind, [](auto likelihood) { return decltype(likelihood)::kName; });
    const bool learned = ribbit::traits_of(kind).learns_noise;
    double worst_ll = 0.0, worst_delta = 0.0, worst_noise = 0.0;
    for (int trial = 0; trial < 3000 / kReduction; ++trial) {
      const int rows = 1 + trial % 32;
      int outputs = 1 + trial % kMost;
      if (has_raw_sd(kind)) outputs += outputs % 2;
      const double spread = trial % 7 == 0 ? 30.0 : 3.0;
      alignas(64) T f[kMost * 32], y[kMost * 32], delta[kMost * 32];
      for (int i = 0; i < kMost * 32; ++i) {
        const bool used = i % 32 < rows;
        // unused lanes hold anything
        f[i] = used ? static_cast<T>(spread * (2.0 * uniform() - 1.0))
                    : std::numeric_limits<T>::quiet_NaN();
        delta[i] = std::numeric_limits<T>::quiet_NaN();
        double target = 4.0 * uniform() - 2.0;
        if (kind == LikelihoodKind::kCategorical) target = std::floor(uniform() * outputs);
        if (kind == LikelihoodKind::kBernoulli) target = uniform() < 0.5 ? 0.0 : 1.0;
        if (kind == LikelihoodKind::kPoisson) target = std::floor(20.0 * uniform());
        y[i] = used ? static_cast<T>(target) : std::numeric_limits<T>::quiet_NaN();
      }
      if (has_raw_sd(kind) && trial % 7 == 0)  // keep the residual over sd finite
        for (int i = 0; i < outputs / 2 * 32; ++i) f[i] = y[i] + f[i] * T(1e-9);
      const T parameter = learned ? T(-1.2) : T(0.3);
      const auto constants =
          ribbit::likelihood_constants(kind, {static_cast<double>(parameter), kShape});
      const double weight = 1.75;
      double ll = 5.0, noise = 2.0;
      table.likelihood_panel(kind, constants, f, y, outputs, rows, parameter, weight, delta, &ll,
                             &noise);
      // Every third row counts for nothing, so that it may hold anything.
      alignas(64) T weights[32] = {}, ones[32] = {}, kept_f[kMost * 32], weighted[kMost * 32],
                    plain[kMost * 32];
      std::copy_n(f, kMost * 32, kept_f);
      for (int r = 0; r < rows; ++r) {
        ones[r] = T(1);
        if (r % 3 != 2) weights[r] = static_cast<T>(1.0 + 3.0 * uniform());
        for (int k = 0; k < outputs && r % 3 == 2; ++k) {
          kept_f[k * 32 + r] = std::numeric_limits<T>::quiet_NaN();
        }
      }
      double weighted_ll = 5.0, weighted_noise = 2.0, plain_ll = 5.0, plain_noise = 2.0;
      table.weighted_likelihood_panel(kind, constants, kept_f, y, weights, outputs, parameter,
                                      weight, weighted, &weighted_ll, &weighted_noise);
      table.weighted_likelihood_panel(kind, constants, f, y, ones, outputs, parameter, weight,
                                      plain, &plain_ll, &plain_noise);
      if (plain_ll != ll || plain_noise != noise ||
          std::memcmp(plain, delta, sizeof(T) * static_cast<std::size_t>(outputs) * 32) != 0) {
        fail(name, "weights of 1 are not rows");
      }
      Real want_ll = 0, want_noise = 0, magnitude = 0, want_weighted = 0, want_weighted_noise = 0;
      for (int r = 0; r < rows; ++r) {
        Real row_f[kMost + 1], row_y[kMost + 1], gradient[kMost + 1], row_noise;
        for (int k = 0; k < outputs; ++k) {
          row_f[k] = static_cast<Real>(f[k * 32 + r]);
          row_y[k] = static_cast<Real>(y[k * 32 + r]);
        }
        const Real row = likelihood_ref(kind, row_f, row_y, outputs, static_cast<Real>(parameter),
                                        gradient, &row_noise);
        want_ll += row;
        want_noise += row_noise;
        want_weighted += static_cast<Real>(weights[r]) * row;
        want_weighted_noise += static_cast<Real>(weights[r]) * row_noise;
        magnitude += std::fabs(row) + outputs;
        for (int k = 0; k < outputs; ++k) {
          const auto own = static_cast<double>(weights[r]);
          if (!(std::fabs(static_cast<double>(weighted[k * 32 + r]) -
                          own * static_cast<double>(delta[k * 32 + r])) <=
                4.0 * eps * own * std::fabs(static_cast<double>(delta[k * 32 + r])) +
                    (kind == LikelihoodKind::kCategorical ? 4.0 * eps * own : 0.0))) {
            fail(name, "a weighted delta");
          }
          const Real scale =
              std::fabs(gradient[k]) + (kind == LikelihoodKind::kCategorical ? 1 : 0) +
              (kind == LikelihoodKind::kBernoulli ? 1 : 0) +
              (kind == LikelihoodKind::kPoisson ? 1 + row_y[k] : 0) + (has_raw_sd(kind) ? 1 : 0);
          const Real e = std::fabs(static_cast<Real>(delta[k * 32 + r]) / weight - gradient[k]);
          worst_delta = std::fmax(worst_delta, static_cast<double>(e / scale) / eps);
          if (std::isnan(delta[k * 32 + r])) worst_delta = INFINITY;
        }
      }
      for (int k = 0; k < outputs; ++k)
        for (int r = rows; r < 32; ++r)
          if (delta[k * 32 + r] != T(0) || weighted[k * 32 + r] != T(0))
            fail(name, "an unused lane is not zero");
      const Real few = 24 * static_cast<Real>(eps) * magnitude;  // weights to 4, accuracy of 6
      if (!(std::fabs(weighted_ll - 5.0 - want_weighted) <= few)) fail(name, "a weighted sum");
      if (learned && !(std::fabs(weighted_noise - 2.0 - want_weighted_noise) <= few))
        fail(name, "a weighted noise gradient");
      const double e = static_cast<double>(std::fabs(ll - 5.0 - want_ll) / magnitude) / eps;
      worst_ll = std::fmax(worst_ll, e);
      if (std::isnan(ll)) worst_ll = INFINITY;
      if (learned)
        worst_noise =
            std::fmax(worst_noise,
                      static_cast<double>(std::fabs(noise - 2.0 - want_noise) / magnitude) / eps);
      else if (noise != 2.0)
        fail(name, "touched the noise gradient");
      // a NaN in a row in use reaches ll and delta; null ll gives the same delta
      if (trial % 50 == 0) {
        alignas(64) T again[kMost * 32];
        table.likelihood_panel(kind, constants, f, y, outputs, rows, parameter, weight, again,
                               nullptr, nullptr);
        for (int i = 0; i < outputs * 32; ++i)
          if (again[i] != delta[i]) fail(name, "delta depends on ll being asked for");
        for (int k = 0; k < outputs; ++k) {
          const T kept = f[k * 32 + rows - 1];
          f[k * 32 + rows - 1] = std::numeric_limits<T>::quiet_NaN();
          ll = 0.0;
          table.likelihood_panel(kind, constants, f, y, outputs, rows, parameter, weight, again,
                                 &ll, &noise);
          if (!std::isnan(ll) || !std::isnan(again[k * 32 + rows - 1]))
            fail(name, "a NaN did not come through");
          f[k * 32 + rows - 1] = kept;
          noise = 2.0;
        }
      }
    }
    std::printf("%-9s %s %-28s ll %.2f delta %.2f noise %.2f (in epsilon, relative)\n", where,
                type_name<T>(), name, worst_ll, worst_delta, worst_noise);
    if (!(worst_ll < 6.0) || !(worst_delta < 10.0) || !(worst_noise < 6.0)) fail(name, "accuracy");
  }
}

// ---- sums ---------------------------------------------------------------------------------------
template <class T>
void check_dot(const char* where, const KernelTable<T>& table, const KernelTable<T>& other) {
  const auto p = grid<T>(-3, 3, false);
  std::vector<T> m(p.size());
  for (std::size_t i = 0; i < m.size(); ++i)
    m[i] = static_cast<T>(1.0 + 0.01 * static_cast<double>(i % 77));
  for (const std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(15), std::size_t(16),
                              std::size_t(1000), p.size()}) {
    Real plain = 0, weighted = 0;
    for (std::size_t i = 0; i < n; ++i) {
      plain += static_cast<Real>(p[i]) * p[i];
      weighted += static_cast<Real>(p[i]) * p[i] * m[i];
    }
    const std::int64_t count = static_cast<std::int64_t>(n);
    const double a = table.dot_weighted(p.data(), nullptr, count);
    const double b = table.dot_weighted(p.data(), m.data(), count);
    if (!(std::fabs(a - plain) <= 1e-13L * plain) ||
        !(std::fabs(b - weighted) <= 1e-13L * weighted))
      fail(where, "dot_weighted");
    if (a != other.dot_weighted(p.data(), nullptr, count) ||
        b != other.dot_weighted(p.data(), m.data(), count))
      fail(where, "dot_weighted differs between instruction sets");
  }
}

// Sums, moves and refreshments of isokinetic steps: near the exact ones, and the same bits on every
// instruction set.
template <class T>
void check_isokinetic(const char* where, const KernelTable<T>& table, const KernelTable<T>& other) {
  for (const std::int64_t n : {1, 15, 16, 33, 1000}) {
    const auto size = static_cast<std::size_t>(n);
    std::vector<T> g(size), s(size), u(size), q(size), z(size);
    for (std::size_t i = 0; i < size; ++i) {
      const auto x = static_cast<double>(i);
      g[i] = static_cast<T>(3.0 * std::sin(x));
      s[i] = static_cast<T>(0.5 + 0.01 * static_cast<double>(i % 77));
      u[i] = static_cast<T>(0.1 * std::cos(1.3 * x));
      q[i] = static_cast<T>(std::sin(2.1 * x));
      z[i] = static_cast<T>(std::cos(0.7 * x));
    }
    for (const bool scaled : {false, true}) {
      const T* scale = scaled ? s.data() : nullptr;
      double sums[3], others[3];
      table.isokinetic_sums(g.data(), scale, u.data(), n, sums);
      other.isokinetic_sums(g.data(), scale, u.data(), n, others);
      Real exact[3] = {0, 0, 0}, sizes[3] = {0, 0, 0};
      std::vector<T> turned(size), moved(size), again(size), far(size), noisy(size), loud(size);
      const T along = T(0.3), keep = T(0.8), drift = T(0.05), level = T(0.2);
      table.isokinetic_move(g.data(), scale, u.data(), q.data(), n, along, keep, drift,
                            turned.data(), moved.data());
      other.isokinetic_move(g.data(), scale, u.data(), q.data(), n, along, keep, drift,
                            again.data(), far.data());
      table.isokinetic_refresh(g.data(), scale, u.data(), z.data(), n, along, keep, level,
                               noisy.data());
      other.isokinetic_refresh(g.data(), scale, u.data(), z.data(), n, along, keep, level,
                               loud.data());
      const Real ulp = 8 * static_cast<Real>(std::numeric_limits<T>::epsilon());
      for (std::size_t i = 0; i < size; ++i) {
        const Real a = static_cast<Real>(g[i]) * (scaled ? s[i] : T(1)), b = u[i];
        const Real terms[3] = {a * a, a * b, b * b};
        for (int k = 0; k < 3; ++k) {
          exact[k] += terms[k];
          sizes[k] += std::fabs(terms[k]);
        }
        const Real direction = along * a + keep * b;
        const Real place = q[i] + drift * (scaled ? s[i] : T(1)) * direction;
        if (!(std::fabs(turned[i] - direction) <= ulp) || !(std::fabs(moved[i] - place) <= ulp) ||
            !(std::fabs(noisy[i] - (direction + level * z[i])) <= ulp))
          fail(where, "isokinetic_move or isokinetic_refresh");
      }
      for (int k = 0; k < 3; ++k) {
        if (!(std::fabs(sums[k] - exact[k]) <= 1e-13L * sizes[k])) fail(where, "isokinetic_sums");
        if (sums[k] != others[k]) fail(where, "isokinetic_sums differ between instruction sets");
      }
      if (turned != again || moved != far || noisy != loud)
        fail(where, "isokinetic steps differ between instruction sets");
    }
  }
}

}  // namespace

int main() {
  for_each_table([](const auto& set, const auto& table, const auto& first) {
    check_priors(set.name, table, std::strcmp(set.name, "baseline") != 0);
    check_likelihoods(set.name, table);
    check_dot(set.name, table, first);
    check_isokinetic(set.name, table, first);
  });
  return report("check_terms");
}
