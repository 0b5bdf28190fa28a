// Monte Carlo forward passes, mean-field steps with noise for each row, and learned dropout rates:
// the same bits whichever way and on however many threads, also where those get fewer, at odd
// widths (once per instruction set).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "core/likelihood_hd.h"
#include "cpu/density/log_density.h"
#include "cpu/predictive/forward.h"
#include "cpu/random.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

using Values = std::vector<float>;

constexpr std::int64_t kRows = 70, kIn = 3, kHidden = 21, kOut = 2;

constexpr std::int64_t dim_of(std::int64_t hidden) {
  return kIn * hidden + hidden + hidden * kOut + kOut;
}
constexpr std::int64_t kDim = dim_of(kHidden);

// Dropout, 3 -> hidden, ReLU, dropout, hidden -> 2.
Network network(std::int64_t hidden = kHidden) {
  const std::int64_t weights = kIn * hidden;
  const std::int64_t rows[5][7] = {
      {2, kIn, kIn, -1, -1, 0, 0},
      {0, kIn, hidden, 0, weights, 0, 1},
      {1, hidden, hidden, -1, -1, 1, 2},
      {2, hidden, hidden, -1, -1, 0, 3},
      {0, hidden, kOut, weights + hidden, dim_of(hidden) - kOut, 0, 4}};
  std::int64_t table[5][static_cast<std::size_t>(Column::kCount)] = {};
  for (std::int64_t r = 0; r < 5; ++r) {
    std::copy_n(rows[r], 7, table[r]);
    table[r][static_cast<std::size_t>(Column::kInput)] = r;
  }
  const double rates[5] = {0.2, 0, 0, 0.4, 0};
  return Network::from_table(&table[0][0], rates, 5);
}

Values waves(std::int64_t n, double scale, double shift = 0.0) {
  Values out;
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<float>(shift + scale * std::sin(12.9898 * static_cast<double>(i))));
  }
  return out;
}

int halved = 0;  // teams, in all

bool same(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Outputs (samples, rows, kOut) of the first rows.
Values outputs(const WeightSource<float>& source, const Values& x, std::int64_t rows,
               std::int64_t samples) {
  Values out(static_cast<std::size_t>(samples * rows * kOut));
  Forward<float> forward(network(), source, x.data(), rows, samples, nullptr);
  CHECK(forward.run(0, samples, 0, rows, out.data(), nullptr));
  return out;
}

// The first rows of outputs for kRows rows.
Values first_rows(const Values& all, std::int64_t rows, std::int64_t samples) {
  Values out;
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto begin = all.begin() + s * kRows * kOut;
    out.insert(out.end(), begin, begin + rows * kOut);
  }
  return out;
}

void check_forward() {
  const std::int64_t samples = 45;
  const Values x = waves(kRows * kIn, 1.0), mean = waves(kDim, 0.5), scale = waves(kDim, 0.1, 0.3);
  Values drawn(static_cast<std::size_t>(samples * kDim));
  draw_scaled(Stream{5, 0, kPurposeFitDraw, 0}, mean.data(), scale.data(), samples, kDim,
              drawn.data());
  WeightSource<float> stored, fresh, masked;
  stored.dim = fresh.dim = masked.dim = kDim;
  stored.theta = drawn.data();
  stored.draws = samples;
  fresh.mean = mean.data();
  fresh.scale = scale.data();
  fresh.seed = masked.seed = 5;
  masked.theta = mean.data();
  masked.masked = true;
  for (const WeightSource<float>* source : {&stored, &fresh, &masked}) {
    const Values all = outputs(*source, x, kRows, samples);
    for (const std::int64_t rows : {1, 6, 7, 16, 17}) {
      CHECK(same(outputs(*source, x, rows, samples), first_rows(all, rows, samples)));
    }
  }
  CHECK(same(outputs(stored, x, kRows, samples), outputs(fresh, x, kRows, samples)));
  for (int number = 0; number < Likelihoods::kCount; ++number) {
    const auto kind = static_cast<LikelihoodKind>(number);
    std::vector<double> m(4 * kRows * kOut);
    const PredictiveMoments out{m.data(), m.data() + kRows * kOut, m.data() + 2 * kRows * kOut,
                                m.data() + 3 * kRows * kOut};
    if (traits_of(kind).learns_noise) continue;  // has one more parameter
    CHECK(predictive_moments(network(), fresh, kind, {0.3, 4.0}, samples, Rows<float>(x.data()),
                             kRows, out, nullptr));
    for (const double v : m) CHECK(std::isfinite(v));
  }
}

// Batches of 33 rows are one panel and a bit; large ones are spread over the threads.
void check_variational(Estimator estimator, std::int64_t hidden, std::int64_t rows) {
  const std::int64_t dim = dim_of(hidden);
  const Values x = waves(rows * kIn, 1.0), y = waves(rows * kOut, 1.0);
  const LogDensity<float> density(network(hidden), {{0, dim, PriorKind::kNormal, 0.7, 0, 0}},
                                  LikelihoodKind::kGaussian, {0.5}, x.data(), y.data(), rows, {});
  const auto run = [&](std::int64_t batch) {
    constexpr int kSteps = 6;
    const std::vector<double> rate(kSteps, 0.01), weight(kSteps, 0.25);
    std::vector<double> records(3 * kSteps);
    const VariationalSteps steps{3,
                                 0,
                                 kSteps,
                                 batch,
                                 2,
                                 estimator,
                                 false,
                                 rate.data(),
                                 weight.data(),
                                 0.9,
                                 0.999,
                                 1e-8,
                                 records.data(),
                                 records.data() + kSteps,
                                 records.data() + 2 * kSteps};
    Values state(6 * dim);
    const Values mean = waves(dim, 0.5);
    std::copy(mean.begin(), mean.end(), state.begin());
    std::fill_n(state.begin() + dim, dim, -2.0f);
    float* s = state.data();
    StochasticOutcome outcome{};
    CHECK(density.advance_variational(
        steps, {s, s + dim, s + 2 * dim, s + 3 * dim, s + 4 * dim, s + 5 * dim}, &outcome,
        nullptr));
    CHECK(outcome.failed == -1);
    for (const float v : state) CHECK(std::isfinite(v));
    return state;
  };
  for (const std::int64_t batch : {std::int64_t{33}, rows}) {
    set_num_threads(1);
    const Values reference = run(batch);
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      for (const int barriers : {1 << 30, 1, 6}) {
        halve_teams(barriers);
        CHECK(same(reference, run(batch)));
      }
    }
    halved += halve_teams(0);
  }
}

void check_learned_rates(std::int64_t hidden, std::int64_t rows) {
  const std::int64_t dim = dim_of(hidden);
  const Values x = waves(rows * kIn, 1.0), y = waves(rows * kOut, 1.0);
  const std::int64_t weights = kIn * hidden, second = weights + hidden;
  const LogDensity<float> density(network(hidden),
                                  {{0, weights, PriorKind::kNormal, 0.7, 0, 0},
                                   {weights, hidden, PriorKind::kNormal, 0.7, 0, 0},
                                   {second, hidden * kOut, PriorKind::kNormal, 0.7, 0, 0},
                                   {dim - kOut, kOut, PriorKind::kNormal, 0.7, 0, 0}},
                                  LikelihoodKind::kGaussian, {0.5}, x.data(), y.data(), rows, {},
                                  true, true);
  CHECK(density.dim() == dim + 2);
  const auto run = [&](std::int64_t batch) {
    constexpr int kSteps = 6;
    const std::vector<double> rate(kSteps, 0.01), noise(kSteps, 0.0);
    const std::uint32_t chains[2] = {0, 1};
    const StochasticSteps steps{3,         0,   kSteps, batch, chains, rate.data(), noise.data(),
                                kRuleAdam, 1.0, 0.0,    0.01,  0.9,    0.999,       1e-8,
                                0};
    Values theta = waves(2 * density.dim(), 0.5), first(theta.size()), second_moment(theta.size());
    StochasticOutcome outcomes[2];
    CHECK(density.advance(steps, theta.data(), first.data(), second_moment.data(), 2, outcomes,
                          nullptr));
    CHECK(outcomes[0].failed == -1 && outcomes[1].failed == -1);
    for (const float v : theta) CHECK(std::isfinite(v));
    return theta;
  };
  for (const std::int64_t batch : {std::int64_t{33}, rows}) {
    set_num_threads(1);
    const Values reference = run(batch);
    for (const int threads : {2, 4}) {
      set_num_threads(threads);
      for (const int barriers : {1 << 30, 1, 6}) {
        halve_teams(barriers);
        CHECK(same(reference, run(batch)));
      }
    }
    halved += halve_teams(0);
  }
}

}  // namespace

int main() {
  try {
    instruction_set();
  } catch (const std::invalid_argument&) {
    return 77;  // RIBBIT_ISA names a set this CPU lacks
  }
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    check_forward();
  }
  for (const Estimator e : {Estimator::kReparam, Estimator::kLocal, Estimator::kFlipout}) {
    check_variational(e, kHidden, kRows);
    check_variational(e, 400, 330);
  }
  check_learned_rates(kHidden, kRows);
  check_learned_rates(400, 330);
  CHECK(halved > 0);
  return report("check_bayes");
}
