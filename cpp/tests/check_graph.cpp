// Networks of all layers: gradients against differences, bits for every number of threads, rows of
// bytes, masks, two paths, forward passes.

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "cpu/density/log_density.h"
#include "cpu/predictive/forward.h"
#include "writer.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

constexpr double kStep = 1e-5;

double wave(std::int64_t i) {
  return std::sin(12.9898 * static_cast<double>(i) + 1.0);
}

// An image of 7 x 5 x 3 through two convolutions with norms, a sum, pools, dropout; 2 outputs.
Writer images() {
  Writer w;
  w.conv(7, 5, 3, 3, 2, 1, 4, 3, 17);
  w.norm(Op::kFilterResponseNorm, 12, 17);
  w.activation(12 * 17, 3);
  const std::int64_t start = w.rows();
  w.conv(4, 3, 17, 3, 1, 1, 4, 3, 17);
  w.norm(Op::kFilterResponseNorm, 12, 17);
  w.activation(12 * 17, 2);
  w.conv(4, 3, 17, 3, 1, 1, 4, 3, 17);
  w.norm(Op::kFilterResponseNorm, 12, 17);
  w.row(Op::kAdd, 12 * 17, 12 * 17, {{Column::kSecond, start}});
  w.activation(12 * 17, 3);
  const std::int64_t sum = w.rows();  // a norm of this value is added to it
  w.norm(Op::kFilterResponseNorm, 12, 17);
  w.row(Op::kAdd, 12 * 17, 12 * 17, {{Column::kSecond, sum}});
  w.row(Op::kDropout, 12 * 17, 12 * 17, {{Column::kArgument, 1}, {Column::kChannels, 17}}, 0.3);
  w.row(Op::kMaxPool, 12 * 17, 3 * 2 * 17, w.window(4, 3, 17, 2, 1, 0, 3, 2, 17));
  w.norm(Op::kLayerNorm, 6, 17);
  w.row(Op::kAveragePool, 6 * 17, 2 * 17, w.window(3, 2, 17, 2, 2, 0, 2, 1, 17));
  w.row(Op::kDropout, 2 * 17, 2 * 17, {{Column::kChannels, 17}}, 0.4);
  w.dense(2 * 17, 2);
  return w;
}

// Nine tokens through an embedding, a convolution, a pool and two LSTMs; 2 outputs.
Writer tokens() {
  Writer w;
  const std::int64_t weight = w.take(11 * 3);
  w.row(Op::kEmbedding, 9, 27,
        {{Column::kWeightOffset, weight}, {Column::kArgument, 11}, {Column::kChannels, 3}});
  w.conv(1, 9, 3, 2, 1, 0, 1, 8, 5);
  w.row(Op::kMaxPool, 40, 20, w.window(1, 8, 5, 2, 2, 0, 1, 4, 5));
  for (const bool sequence : {true, false}) {
    const std::int64_t ins = sequence ? 5 : 6, units = sequence ? 6 : 3;
    const std::int64_t input = w.take(ins * 4 * units), recurrent = w.take(units * 4 * units);
    w.row(Op::kLstm, 4 * ins, sequence ? 4 * units : units,
          {{Column::kWeightOffset, input},
           {Column::kThirdOffset, recurrent},
           {Column::kBiasOffset, w.take(4 * units)},
           {Column::kArgument, sequence},
           {Column::kHeight, 1},
           {Column::kWidth, 4},
           {Column::kChannels, ins},
           {Column::kOutChannels, units}});
  }
  w.dense(3, 2);
  return w;
}

struct Data {
  std::vector<double> x, y, theta;
};

Data data_of(const Writer& w, std::int64_t rows, bool integers) {
  Data d;
  const std::int64_t features = w.network().input_size();
  for (std::int64_t i = 0; i < rows * features; ++i) {
    d.x.push_back(integers ? static_cast<double>((i * 7) % 11) : wave(i));
  }
  for (std::int64_t i = 0; i < rows * 2; ++i) d.y.push_back(wave(7 * i + 3));
  for (std::int64_t i = 0; i < 2 * w.dim; ++i) d.theta.push_back(0.4 * wave(3 * i + 1));
  return d;
}

void check_differences(const Writer& w, bool integers, bool masked) {
  const std::int64_t rows = 37;
  const Data d = data_of(w, rows, integers);
  const LogDensity<double> density(w.network(), {{0, w.dim, PriorKind::kNormal, 0.7, 0, 0}},
                                   LikelihoodKind::kGaussian, {0.5}, d.x.data(), d.y.data(), rows,
                                   {}, masked);
  const Masks masks{9, 4};
  const auto value = [&](const std::vector<double>& theta, double* grad) {
    double a = 0, b = 0;
    CHECK(density.evaluate(theta.data(), 1, nullptr, 0, &a, &b, grad, nullptr,
                           masked ? &masks : nullptr));
    return a + b;
  };
  std::vector<double> theta(d.theta.begin(), d.theta.begin() + w.dim), grad(theta.size());
  value(theta, grad.data());
  double scale = 0;
  for (const double g : grad) scale = std::max(scale, std::fabs(g));
  CHECK(scale > 0);
  for (std::int64_t i = 0; i < w.dim; i += 1 + w.dim / 61) {
    const auto at = static_cast<std::size_t>(i);
    const double before = theta[at];
    theta[at] = before + kStep;
    const double up = value(theta, nullptr);
    theta[at] = before - kStep;
    const double difference = (up - value(theta, nullptr)) / (2 * kStep);
    theta[at] = before;
    CHECK(std::fabs(difference - grad[at]) <= 1e-7 * scale);
  }
}

// The same bits for every number of threads, chains together or alone, a batch or all rows.
void check_bits(const Writer& w, bool integers) {
  const std::int64_t rows = 200;
  const Data d = data_of(w, rows, integers);
  const std::vector<float> x(d.x.begin(), d.x.end()), y(d.y.begin(), d.y.end());
  const std::vector<float> theta(d.theta.begin(), d.theta.end());
  const auto n = static_cast<std::size_t>(w.dim);
  const LogDensity<float> density(w.network(), {{0, w.dim, PriorKind::kNormal, 0.7, 0, 0}},
                                  LikelihoodKind::kGaussian, {0.5}, x.data(), y.data(), rows, {});
  std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<float> grad(2 * n), one(n), batch(n);
    double ll[2], lp[2];
    CHECK(density.evaluate(theta.data(), 2, nullptr, 0, ll, lp, grad.data(), nullptr));
    CHECK(density.evaluate(theta.data() + n, 1, nullptr, 0, ll, lp, one.data(), nullptr));
    CHECK(density.evaluate(theta.data() + n, 1, all.data(), rows, ll, lp, batch.data(), nullptr));
    CHECK(std::memcmp(one.data(), grad.data() + n, n * sizeof(float)) == 0);
    CHECK(std::memcmp(one.data(), batch.data(), n * sizeof(float)) == 0);
    if (first.empty()) first = grad;
    CHECK(first == grad);
  }
  set_num_threads(2);
}

void check_bytes() {
  const Writer w = images();
  const std::int64_t rows = 40, features = w.network().input_size();
  std::vector<std::uint8_t> bytes;
  std::vector<float> x, y(static_cast<std::size_t>(2 * rows), 0.5f);
  for (std::int64_t i = 0; i < rows * features; ++i) {
    bytes.push_back(static_cast<std::uint8_t>(i * 37 % 256));
    x.push_back(static_cast<float>(bytes.back()) / 255.0f);
  }
  std::vector<float> theta, outputs[2];
  for (std::int64_t i = 0; i < w.dim; ++i) theta.push_back(static_cast<float>(0.4 * wave(i)));
  WeightSource<float> source;
  source.theta = theta.data();
  source.dim = w.dim;
  const Network network = w.network();
  for (int k = 0; k < 2; ++k) {
    const Rows<float> data = k == 0 ? Rows<float>(x.data()) : Rows<float>(bytes.data());
    outputs[k].resize(static_cast<std::size_t>(2 * rows));
    Forward<float> forward(network, source, data, rows, 1, nullptr);
    CHECK(forward.run(0, 1, 0, rows, outputs[k].data(), nullptr));
  }
  CHECK(outputs[0] == outputs[1]);
  // Masks: few rows and many give a row the same outputs.
  source.masked = true;
  source.seed = 3;
  for (const std::int64_t few : {5, 17}) {
    std::vector<float> some(static_cast<std::size_t>(6 * few)),
        many(static_cast<std::size_t>(6 * rows));
    Forward<float> a(network, source, Rows<float>(x.data()), few, 3, nullptr);
    Forward<float> b(network, source, Rows<float>(x.data()), rows, 3, nullptr);
    CHECK(a.run(0, 3, 0, few, some.data(), nullptr) && b.run(0, 3, 0, rows, many.data(), nullptr));
    for (std::int64_t s = 0; s < 3; ++s) {
      CHECK(std::memcmp(some.data() + s * few * 2, many.data() + s * rows * 2,
                        static_cast<std::size_t>(few * 2) * sizeof(float)) == 0);
    }
  }
}

// Steps of a mean-field Gaussian: the same bits on one thread and on three.
void check_variational(const Writer& w, bool integers, Estimator estimator) {
  const std::int64_t rows = 100;
  const Data d = data_of(w, rows, integers);
  const std::vector<float> x(d.x.begin(), d.x.end()), y(d.y.begin(), d.y.end());
  const LogDensity<float> density(w.network(), {{0, w.dim, PriorKind::kNormal, 0.7, 0, 0}},
                                  LikelihoodKind::kGaussian, {0.5}, x.data(), y.data(), rows, {});
  const auto n = static_cast<std::size_t>(w.dim);
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    std::vector<float> s(6 * n, 0.0f);
    for (std::size_t i = 0; i < n; ++i) {
      s[i] = static_cast<float>(d.theta[i]);
      s[n + i] = -2.0f;
    }
    const std::vector<double> eps(3, 0.01), weight(3, 1.0);
    std::vector<double> records(9);
    const VariationalSteps steps{11,
                                 0,
                                 3,
                                 50,
                                 2,
                                 estimator,
                                 true,
                                 eps.data(),
                                 weight.data(),
                                 0.9,
                                 0.999,
                                 1e-8,
                                 records.data(),
                                 records.data() + 3,
                                 records.data() + 6};
    const VariationalState<float> state{s.data(),         s.data() + n,     s.data() + 2 * n,
                                        s.data() + 3 * n, s.data() + 4 * n, s.data() + 5 * n};
    StochasticOutcome outcome{-1, 0.0};
    CHECK(density.advance_variational(steps, state, &outcome, nullptr));
    CHECK(outcome.failed == -1);
    for (const float v : s) CHECK(std::isfinite(v));
    if (first.empty()) first = s;
    CHECK(first == s);
  }
  set_num_threads(2);
}

// Tables that would lead outside an array are refused.
void check_refusals() {
  const auto refused = [](const Writer& w) {
    try {
      w.network();
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  Writer wide;  // one row of windows too many
  wide.conv(7, 5, 3, 3, 2, 1, 6, 3, 4);
  CHECK(refused(wide));
  Writer channels;
  channels.dense(10, 10);
  channels.norm(Op::kFilterResponseNorm, 3, 4);
  CHECK(refused(channels));
  Writer later;
  later.dense(4, 4);
  later.row(Op::kAdd, 4, 4, {{Column::kSecond, 2}});
  CHECK(refused(later));
  CHECK(!refused(images()));
}

}  // namespace

int main() {
  try {
    instruction_set();
  } catch (const std::invalid_argument&) {
    return 77;  // RIBBIT_ISA names a set this CPU lacks
  }
  check_refusals();
  check_differences(images(), false, false);
  check_differences(images(), false, true);
  check_differences(tokens(), true, false);
  check_bits(images(), false);
  check_bits(tokens(), true);
  check_bytes();
  for (const Estimator e : {Estimator::kReparam, Estimator::kLocal, Estimator::kFlipout}) {
    check_variational(images(), false, e);
    check_variational(tokens(), true, e);
  }
  return report("check_graph");
}
