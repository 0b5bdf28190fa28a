// The native gradient against a scalar forward pass and central differences, at odd widths (run
// once per instruction set); and the same bits from any number of threads and chains.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "chains/nuts.h"
#include "check.h"
#include "cpu/density/log_density.h"
#include "cpu/predictive/forward.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

struct Problem {
  Network network;
  std::vector<double> x, y, theta;
  std::int64_t rows, dim;
};

// A deterministic stand-in for random numbers in (-1, 1).
double wave(std::int64_t i) {
  return std::sin(12.9898 * static_cast<double>(i) + 1.0);
}

Problem make(const std::vector<std::int64_t>& widths, int activation, std::int64_t rows,
             std::int64_t targets) {
  std::vector<std::int64_t> table;
  std::vector<double> rates;
  std::int64_t offset = 0;
  const auto row = [&](std::vector<std::int64_t> start) {
    start.push_back(static_cast<std::int64_t>(rates.size()));  // input value
    start.push_back(-1);
    start.push_back(-1);
    start.resize(static_cast<std::size_t>(Column::kCount), 0);
    table.insert(table.end(), start.begin(), start.end());
    rates.push_back(0);
  };
  for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
    const std::int64_t in = widths[l], out = widths[l + 1];
    const std::int64_t index = static_cast<std::int64_t>(rates.size());
    row({0, in, out, offset, offset + in * out, 0, index});
    offset += in * out + out;
    if (l + 2 < widths.size()) {
      row({1, out, out, -1, -1, activation, index + 1});
    }
  }
  Problem p{
      Network::from_table(table.data(), rates.data(), static_cast<std::int64_t>(rates.size())),
      {},
      {},
      {},
      rows,
      offset};
  for (std::int64_t i = 0; i < rows * widths.front(); ++i) p.x.push_back(wave(i));
  for (std::int64_t i = 0; i < rows * targets; ++i) p.y.push_back(wave(7 * i + 3));
  for (std::int64_t i = 0; i < 3 * offset; ++i) p.theta.push_back(0.4 * wave(3 * i + 1));
  return p;
}

void check_differences(const std::vector<std::int64_t>& widths, int activation, std::int64_t rows) {
  const Problem p = make(widths, activation, rows, widths.back());
  const LogDensity<double> density(p.network, {{0, p.dim, PriorKind::kNormal, 0.7, 0, 0}},
                                   LikelihoodKind::kGaussian, {0.5}, p.x.data(), p.y.data(), rows,
                                   {1.5, 0.5});
  std::vector<double> grad(static_cast<std::size_t>(p.dim));
  double ll = 0, lp = 0;
  CHECK(density.evaluate(p.theta.data(), 1, nullptr, 0, &ll, &lp, grad.data(), nullptr));
  const auto value = [&](std::vector<double> theta) {
    double a = 0, b = 0;
    CHECK(density.evaluate(theta.data(), 1, nullptr, 0, &a, &b, nullptr, nullptr));
    return (a / 0.5 + b) / 1.5;
  };
  double scale = 0;
  for (const double g : grad) scale = std::max(scale, std::fabs(g));
  for (std::int64_t i = 0; i < p.dim; i += 1 + p.dim / 17) {
    std::vector<double> theta(p.theta.begin(), p.theta.begin() + p.dim);
    const double h = 1e-5;
    theta[static_cast<std::size_t>(i)] += h;
    const double up = value(theta);
    theta[static_cast<std::size_t>(i)] -= 2 * h;
    const double difference = (up - value(theta)) / (2 * h);
    CHECK(std::fabs(difference - grad[static_cast<std::size_t>(i)]) <= 1e-7 * scale);
  }
  // Control: a gradient that is 1e-5 off must be noticed.
  CHECK(std::fabs(grad[0] * (1 + 1e-5) - grad[0]) > 0 || grad[0] == 0);
}

// Two transitions of the no-U-turn sampler from theta.
template <class Density>
void add_trees(const Density& density, const std::vector<float>& theta,
               const std::vector<float>& slope, bool together, std::vector<float>& out) {
  const std::uint32_t ids[3] = {0, 1, 2};
  const double eps[3] = {0.02, 0.01, 0.04};
  const std::size_t chains = 3, n = theta.size() / chains, each = together ? chains : 1;
  std::vector<float> start(theta), slopes(slope), q(chains * n), g(chains * n);
  std::vector<double> terms(2 * chains), start_terms(2 * chains);
  std::vector<TreeOutcome> outcomes(chains);
  for (std::size_t c = 0; c < chains; ++c) {
    CHECK(density.evaluate(&theta[c * n], 1, nullptr, 0, &start_terms[2 * c],
                           &start_terms[2 * c + 1], nullptr, nullptr));
  }
  for (std::uint64_t step = 0; step < 2; ++step) {
    for (std::size_t c = 0; c < chains; c += each) {
      Nuts options;
      options.max_tree_depth = 4;
      options.step_size.assign(eps + c, eps + c + each);
      HamiltonianTuner tuner(options, 5, {ids + c, ids + c + each}, 0);
      tuner.begin(options.step_size);
      const NutsCall<float> call{
          {&start[c * n], &slopes[c * n], &start_terms[2 * c], nullptr, 0, step, &tuner},
          1000.0,
          &q[c * n],
          &g[c * n],
          &terms[2 * c],
          &outcomes[c]};
      CHECK(nuts(density, call, nullptr).done());
    }
    out.insert(out.end(), q.begin(), q.end());
    out.insert(out.end(), g.begin(), g.end());
    for (const double term : terms) out.push_back(static_cast<float>(term));
    for (const TreeOutcome& one : outcomes) {
      CHECK(one.steps >= 1 && one.steps <= 15 && one.depth <= 4);
      out.push_back(static_cast<float>(one.acceptance));
      out.push_back(static_cast<float>(one.steps));
    }
  }
}

int halved = 0;  // how often a thread group got smaller

// evaluate, leapfrog and nuts give the same bits on 1 to 4 threads, with thread groups that get
// smaller, and for chains alone or together.
void check_bits(const std::vector<std::int64_t>& sizes, std::int64_t rows) {
  const Problem p = make(sizes, 3, rows, 2);
  std::vector<float> x(p.x.begin(), p.x.end()), y(p.y.begin(), p.y.end()),
      theta(p.theta.begin(), p.theta.end());
  const LogDensity<float> density(p.network, {{0, p.dim, PriorKind::kNormal, 0.7, 0, 0}},
                                  LikelihoodKind::kGaussian, {0.5}, x.data(), y.data(), rows, {});
  const auto chains = static_cast<std::size_t>(3), n = static_cast<std::size_t>(p.dim);
  const double eps[3] = {1e-3, 2e-3, 5e-4};
  const std::int64_t steps[3] = {7, 4, 9};
  const auto run = [&](int threads, bool together) {
    set_num_threads(threads);
    std::vector<float> kicks(chains * n), slope(chains * n), q(chains * n), m(chains * n),
        g(chains * n);
    for (std::size_t i = 0; i < m.size(); ++i)
      kicks[i] = static_cast<float>(wave(static_cast<std::int64_t>(i)));
    std::vector<double> ll(chains), lp(chains);
    std::int64_t made[3] = {};
    CHECK(
        density.evaluate(theta.data(), 3, nullptr, 0, ll.data(), lp.data(), slope.data(), nullptr));
    const auto move = [&](std::size_t c, std::int64_t count, const float* grad) {
      return density.leapfrog(
          {count, &theta[c * n], &kicks[c * n], grad, nullptr, 0, eps + c, steps + c, &q[c * n],
           &m[c * n], &g[c * n], &ll[c], &lp[c], made + c},
          nullptr);
    };
    if (together) {
      CHECK(move(0, 3, slope.data()));
    } else {
      // The second chain's gradient at the start is left to the call.
      for (std::size_t c = 0; c < chains; ++c) {
        CHECK(move(c, 1, c == 1 ? nullptr : &slope[c * n]));
      }
    }
    for (std::size_t c = 0; c < chains; ++c) CHECK(made[c] == steps[c]);
    q.insert(q.end(), m.begin(), m.end());
    q.insert(q.end(), g.begin(), g.end());
    // Values alone take the same panels through the same space, without the waits of gradients.
    for (std::size_t c = 0; c < chains; ++c) {
      double value = 0, prior = 0;
      CHECK(density.evaluate(&theta[c * n], 1, nullptr, 0, &value, &prior, nullptr, nullptr));
      q.push_back(static_cast<float>(value + prior));
    }
    for (std::size_t c = 0; c < chains; ++c) q.push_back(static_cast<float>(ll[c] + lp[c]));
    add_trees(density, {theta.begin(), theta.begin() + static_cast<std::ptrdiff_t>(chains * n)},
              slope, together, q);
    return q;
  };
  const auto reference = run(1, true);
  for (const int threads : {1, 2, 3, 4}) {
    for (const bool together : {true, false}) {
      for (const int barriers : {1 << 30, 2, 7}) {
        halve_teams(barriers);
        const auto other = run(threads, together);
        CHECK(std::memcmp(reference.data(), other.data(), reference.size() * sizeof(float)) == 0);
      }
    }
  }
  halved += halve_teams(0);
}

// Rows that lie in a file: the bits of rows in memory, from any number of threads, on one shard and
// on several; whole numbers, moved by a mean and a scale.
template <class Stored>
void check_streamed(RowFormat format, std::int64_t rows) {
  const std::int64_t features = 70;  // more than are converted at a time
  const Problem p = make({features, 21, 2}, 2, rows, 2);
  std::vector<Stored> stored;
  std::vector<float> x, y, theta(p.theta.begin(), p.theta.end());
  std::vector<double> mean, scale;
  for (std::int64_t f = 0; f < features; ++f) {
    mean.push_back(3.0 * wave(f));
    scale.push_back(20.0 + wave(f + 1));
  }
  for (std::int64_t i = 0; i < rows * features; ++i) {
    const auto f = static_cast<std::size_t>(i % features);
    stored.push_back(static_cast<Stored>(100.0 * std::fabs(wave(i))));
    x.push_back(static_cast<float>((static_cast<double>(stored.back()) - mean[f]) / scale[f]));
  }
  for (const double v : p.y) y.push_back(static_cast<float>(v));
  Rows<float> there;
  there.stored = stored.data();
  there.format = format;
  there.mean = mean.data();
  there.scale = scale.data();
  there.streamed = true;
  const auto run = [&](const Rows<float>& data, int threads) {
    set_num_threads(threads);
    const LogDensity<float> density(p.network, {{0, p.dim, PriorKind::kNormal, 0.7, 0, 0}},
                                    LikelihoodKind::kGaussian, {0.5}, data, y.data(), rows,
                                    {1.0, 1.0});
    std::vector<float> grad(static_cast<std::size_t>(2 * p.dim));
    std::vector<double> ll(2), lp(2);
    const std::int64_t some[3] = {rows - 1, 0, rows / 2};
    CHECK(density.evaluate(theta.data(), 1, nullptr, 0, &ll[0], &lp[0], &grad[0], nullptr));
    CHECK(density.evaluate(theta.data(), 1, some, 3, &ll[1], &lp[1],
                           &grad[static_cast<std::size_t>(p.dim)], nullptr));
    for (const double v : ll) grad.push_back(static_cast<float>(v));
    return grad;
  };
  const auto reference = run(x.data(), 1);
  for (const int threads : {1, 3}) {
    const auto found = run(there, threads);
    CHECK(std::memcmp(reference.data(), found.data(), reference.size() * sizeof(float)) == 0);
  }
  stored.back() = static_cast<Stored>(stored.back() + Stored(1));  // a control
  const auto other = run(there, 1);
  CHECK(std::memcmp(reference.data(), other.data(), reference.size() * sizeof(float)) != 0);
  set_num_threads(2);
}

void check_forward() {
  const Problem p = make({3, 19, 4}, 2, 70, 4);
  std::vector<double> out(2 * 70 * 4);
  WeightSource<double> source;
  source.theta = p.theta.data();
  source.chains = 2;
  source.dim = p.dim;
  Forward<double> forward(p.network, source, p.x.data(), 70, 2, nullptr);
  CHECK(forward.run(0, 2, 0, 70, out.data(), nullptr));
  for (std::size_t s = 0; s < 2; ++s) {
    const double* w = p.theta.data() + static_cast<std::int64_t>(s) * p.dim;
    for (std::size_t r = 0; r < 70; ++r) {
      for (std::size_t k = 0; k < 4; ++k) {
        double f = w[3 * 19 + 19 + 19 * 4 + k];
        for (std::size_t h = 0; h < 19; ++h) {
          double z = w[3 * 19 + h];
          for (std::size_t i = 0; i < 3; ++i) z += p.x[r * 3 + i] * w[i * 19 + h];
          f += std::tanh(z) * w[3 * 19 + 19 + h * 4 + k];
        }
        CHECK(std::fabs(f - out[(s * 70 + r) * 4 + k]) < 1e-12);
      }
    }
  }
}

// The rows of every matrix fall to one member each, in order, however ranges of theta lie over it.
void check_parts() {
  constexpr std::int64_t kOffsets[] = {0, 7, 640}, kRows[] = {1, 9, 31}, kColumns[] = {1, 13, 64};
  for (const int members : {1, 2, 3, 7}) {
    for (const bool ranges : {false, true}) {
      for (const std::int64_t offset : kOffsets) {
        for (const std::int64_t rows : kRows) {
          for (const std::int64_t columns : kColumns) {
            const std::int64_t dim = offset + rows * columns + 5;
            std::int64_t next = 0, end = 0;
            for (int member = 0; member < members; ++member) {
              Part part{member, members};
              if (ranges) {
                part.begin = end;
                part.end = end = dim * (member + 1) / members;
              }
              const auto [first, last] = part.rows(offset, rows, columns);
              CHECK(first == next && last >= first);
              // A row belongs to whom its first element does.
              for (std::int64_t r = first; ranges && r < last; ++r) {
                const std::int64_t at = offset + r * columns;
                CHECK(at >= part.begin && at < part.end);
              }
              next = last;
            }
            CHECK(next == rows);
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  try {
    instruction_set();
  } catch (const std::invalid_argument&) {
    return 77;  // RIBBIT_ISA names a set this CPU lacks
  }
  check_parts();
  for (int activation = 0; activation < kActivationCount; ++activation) {
    check_differences({3, 7, 2}, activation, 33);
  }
  check_differences({1, 17, 14, 13, 1}, 3, 100);
  check_differences({65, 1, 50, 3}, 2, 31);
  check_differences({40, 35}, 0, 64);
  constexpr bool kReduced = kReduction > 1;
  for (const std::int64_t rows : {1, kReduced ? 170 : 700}) check_bits({5, 33, 18, 2}, rows);
  // One shard, spread over the threads.
  const std::vector<std::int64_t> wide = kReduced ? std::vector<std::int64_t>{5, 90, 190, 2}
                                                  : std::vector<std::int64_t>{5, 130, 270, 2};
  for (const std::int64_t rows : {40, kReduced ? 49 : 333}) check_bits(wide, rows);
  CHECK(halved > 0);
  for (const std::int64_t rows : {90, kReduced ? 400 : 1300}) {
    check_streamed<std::uint8_t>(RowFormat::kUint8, rows);
    check_streamed<std::int64_t>(RowFormat::kInt64, rows);
    check_streamed<double>(RowFormat::kFloat64, rows);
  }
  check_forward();
  return report("check_gradient");
}
