// The paths of tools/hot_paths.py without Python, and kernels of their own, to be counted by
// tools/aarch64.py: `hot_paths NAME` does so many units of work few times, then many times, and
// calls getppid(2) before, between and after. Counts of what happens once drop out of the
// difference. `hot_paths` alone prints a line for each: name, few, many.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/density/log_density.h"
#include "cpu/predictive/forward.h"
#include "writer.h"

using namespace ribbit;
using namespace ribbit::cpu;

namespace {

using Values = std::vector<float>;
using Run = std::function<void(std::int64_t)>;  // does so many units

Values waves(std::int64_t n, double scale, double shift = 0.0) {
  Values out;
  for (std::int64_t i = 0; i < n; ++i) {
    out.push_back(static_cast<float>(shift + scale * std::sin(12.9898 * static_cast<double>(i))));
  }
  return out;
}

Values labels(std::int64_t rows) {
  Values out;
  for (std::int64_t i = 0; i < rows; ++i) out.push_back(static_cast<float>(7 * i % 10));
  return out;
}

void require(bool done) {
  if (!done) std::abort();
}

// Dense layers with activations between them.
Writer mlp(const std::vector<std::int64_t>& widths, std::int64_t code) {
  Writer w;
  for (std::size_t i = 1; i < widths.size(); ++i) {
    if (i > 1) w.activation(widths[i - 1], code);
    w.dense(widths[i - 1], widths[i]);
  }
  return w;
}

// ---- paths --------------------------------------------------------------------------------------
Run leapfrog(const Writer& w, std::int64_t rows, std::int64_t outputs) {
  const Network network = w.network();
  const LikelihoodKind kind =
      outputs > 1 ? LikelihoodKind::kCategorical : LikelihoodKind::kGaussian;
  const auto x = std::make_shared<Values>(waves(rows * network.input_size(), 1.0));
  const auto y = std::make_shared<Values>(outputs > 1 ? labels(rows) : waves(rows, 1.0));
  const std::shared_ptr<LogDensity<float>> density(
      new LogDensity<float>(network, {{0, w.dim, PriorKind::kNormal, 0.5, 0, 0}}, kind, {0.1},
                            Rows<float>(x->data()), y->data(), rows, {}));
  return [density, x, y, dim = w.dim](std::int64_t steps) {
    const Values start = waves(dim, 0.3), momentum = waves(dim, 1.0, 0.1);
    Values q(start), p(start), g(start);
    const double size = 1e-6;
    double likelihood = 0.0, prior = 0.0;
    std::int64_t made = 0;
    require(density->leapfrog({1, start.data(), momentum.data(), nullptr, nullptr, 0, &size, &steps,
                               q.data(), p.data(), g.data(), &likelihood, &prior, &made},
                              nullptr));
    require(made == steps);
  };
}

Run convolution() {
  constexpr std::int64_t kSide = 8, kSites = kSide * kSide, kWide = 16, kSize = kSites * kWide;
  Writer w;
  const auto unit = [&](std::int64_t channels) {
    w.conv(kSide, kSide, channels, 3, 1, 1, kSide, kSide, kWide);
    w.norm(Op::kFilterResponseNorm, kSites, kWide);
  };
  unit(3);
  w.activation(kSize, kSilu);
  const std::int64_t start = w.rows();
  unit(kWide);
  w.activation(kSize, kSilu);
  unit(kWide);
  w.row(Op::kAdd, kSize, kSize, {{Column::kSecond, start}});
  w.activation(kSize, kSilu);
  w.row(Op::kAveragePool, kSize, kWide, w.window(kSide, kSide, kWide, kSide, 1, 0, 1, 1, kWide));
  w.dense(kWide, 10);
  return leapfrog(w, 4, 10);
}

Run variational() {
  const Writer w = mlp({784, 50, 10}, kRelu);
  const auto x = std::make_shared<Values>(waves(4 * 784, 1.0));
  const auto y = std::make_shared<Values>(labels(4));
  const std::shared_ptr<LogDensity<float>> density(new LogDensity<float>(
      w.network(), {{0, w.dim, PriorKind::kNormal, 1.0, 0, 0}}, LikelihoodKind::kCategorical, {},
      Rows<float>(x->data()), y->data(), 4, {}));
  return [density, x, y, dim = w.dim](std::int64_t count) {
    const auto size = static_cast<std::size_t>(count);
    const std::vector<double> rate(size, 0.01), weight(size, 1.0);
    std::vector<double> records(3 * size);
    const VariationalSteps steps{1,
                                 0,
                                 count,
                                 4,
                                 1,
                                 Estimator::kReparam,
                                 true,
                                 rate.data(),
                                 weight.data(),
                                 0.9,
                                 0.999,
                                 1e-8,
                                 records.data(),
                                 records.data() + count,
                                 records.data() + 2 * count};
    Values state(static_cast<std::size_t>(6 * dim));
    std::fill_n(state.begin() + dim, dim, -3.0f);
    float* s = state.data();
    StochasticOutcome outcome{};
    require(density->advance_variational(
        steps, {s, s + dim, s + 2 * dim, s + 3 * dim, s + 4 * dim, s + 5 * dim}, &outcome,
        nullptr));
    require(outcome.failed == -1);
  };
}

// Predictive moments of samples of weights, or of masks.
Run moments(const Writer& w, std::int64_t rows, LikelihoodKind kind, bool masked) {
  const auto network = std::make_shared<Network>(w.network());
  const auto mean = std::make_shared<Values>(waves(w.dim, 0.25));
  const auto scale = std::make_shared<Values>(waves(w.dim, 0.02, 0.1));
  const auto x = std::make_shared<Values>(waves(rows * network->input_size(), 1.0));
  return [=, dim = w.dim](std::int64_t samples) {
    WeightSource<float> source;
    source.dim = dim;
    source.seed = 1;
    source.masked = masked;
    if (masked) {
      source.theta = mean->data();
    } else {
      source.mean = mean->data();
      source.scale = scale->data();
    }
    const std::int64_t n = rows * network->output_size();
    std::vector<double> m(static_cast<std::size_t>(4 * n));
    double* at = m.data();
    require(predictive_moments(*network, source, kind, {0.1}, samples, Rows<float>(x->data()), rows,
                               {at, at + n, at + 2 * n, at + 3 * n}, nullptr));
  };
}

Run masks() {
  Writer w;
  for (const std::int64_t in : {100, 200}) {
    w.dense(in, 200);
    w.activation(200, kRelu);
    w.row(Op::kDropout, 200, 200, {}, 0.5);
  }
  w.dense(200, 10);
  return moments(w, 32, LikelihoodKind::kCategorical, true);
}

// ---- kernels ------------------------------------------------------------------------------------
// y = x W for 48 inputs and outputs, 64 rows: 147,456 multiply-adds a unit.
template <class T>
Run product() {
  return [](std::int64_t count) {
    constexpr std::int64_t kSize = 48, kPanels = 2;
    const std::vector<T> w(kSize * kSize, T(0.5)), x(kPanels * kSize * kPanel, T(0.25));
    std::vector<T> packed(w.size()), y(x.size());
    const KernelTable<T>& table = kernels<T>();
    const std::int64_t tiles = (kSize + table.tile_outputs - 1) / table.tile_outputs;
    table.pack_tiles(w.data(), kSize, kSize, false, 0, tiles, kSize, 0, packed.data());
    for (std::int64_t i = 0; i < count; ++i) {
      table.multiply(packed.data(), nullptr, x.data(), y.data(), nullptr, kFinishPlain, kSize,
                     kSize, kPanels);
    }
  };
}

// Gradient of those weights.
template <class T>
Run weight_gradient() {
  return [](std::int64_t count) {
    constexpr std::int64_t kSize = 48, kPanels = 2;
    const std::vector<T> a(kPanels * kSize * kPanel, T(0.5)), d(a.size(), T(0.25));
    std::vector<T> grad(kSize * kSize), scratch(4 * a.size());
    for (std::int64_t i = 0; i < count; ++i) {
      kernels<T>().weight_gradient(a.data(), d.data(), kPanels * kPanel, kSize, kSize, 0, kSize,
                                   scratch.data(), grad.data(), nullptr);
    }
  };
}

template <class T>
Run normals() {
  return [](std::int64_t count) {
    std::vector<T> z(4096);
    for (std::int64_t i = 0; i < count; ++i) {
      kernels<T>().fill_normal(z.data(), 4096, 0, 7, static_cast<std::uint32_t>(i), 2, 3);
    }
  };
}

template <class T>
Run activation() {
  return [](std::int64_t count) {
    std::vector<T> z(4096, T(0.7)), value(4096), derivative(4096);
    for (std::int64_t i = 0; i < count; ++i) {
      kernels<T>().activation_forward_derivative(kSilu, z.data(), 4096, value.data(),
                                                 derivative.data());
    }
  };
}

struct Path {
  const char* name;
  std::int64_t few, many;
  std::function<Run()> prepare;
};

const std::vector<Path>& paths() {
  static const std::vector<Path> all = {
      {"leapfrog", 5, 20, [] { return leapfrog(mlp({8, 50, 1}, kSilu), 320, 1); }},
      {"dense", 1, 2, [] { return leapfrog(mlp({256, 256, 256, 10}, kSilu), 64, 10); }},
      {"convolution", 1, 2, convolution},
      {"variational", 1, 4, variational},
      {"weight-draws", 5, 20,
       [] {
         return moments(mlp({1, 20, 20, 20, 20, 1}, kRelu), 1000, LikelihoodKind::kGaussian, false);
       }},
      {"mask-draws", 4, 16, masks},
      {"product-f32", 1, 5, product<float>},
      {"product-f64", 1, 5, product<double>},
      {"gradient-f32", 1, 5, weight_gradient<float>},
      {"gradient-f64", 1, 5, weight_gradient<double>},
      {"normals-f32", 1, 5, normals<float>},
      {"normals-f64", 1, 5, normals<double>},
      {"silu-f32", 1, 5, activation<float>},
      {"silu-f64", 1, 5, activation<double>},
  };
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(1);
  for (const Path& path : paths()) {
    if (argc < 2) {
      std::printf("%s %lld %lld\n", path.name, static_cast<long long>(path.few),
                  static_cast<long long>(path.many));
    } else if (std::strcmp(argv[1], path.name) == 0) {
      const Run run = path.prepare();
      run(path.few);
      static_cast<void>(getppid());
      run(path.few);
      static_cast<void>(getppid());
      run(path.many);
      static_cast<void>(getppid());
      return 0;
    }
  }
  return argc < 2 ? 0 : 1;
}
