// What the draws of a run say about new rows.

#include <cmath>

#include "capi/target.h"
#include "cpu/predictive/forward.h"

namespace ribbit::capi {
namespace {

constexpr const char* kName = "ribbit_predict";

template <class T>
int predict(const Target<T>& target, const T* draws, std::int64_t chains, std::int64_t num_draws,
            const T* x, std::int64_t rows, double* mean, double* epistemic, double* aleatoric,
            const ribbit_interrupt* interrupt) {
  const Predictive* predictive = target.predictive();
  needs(predictive != nullptr, kName, "a posterior, got a function");
  const ribbit_network& network = *predictive->network;
  check_rows(kName, network, x, rows);
  const LikelihoodTraits traits = traits_of(predictive->kind);
  const Units& units = predictive->units;
  std::vector<T> moved;
  if (!units.x_mean.empty()) {
    moved = units.inputs(x, rows);
    x = moved.data();
    check_finite(kName, "standardised x", x, rows, network.network.input_size());
  }
  const std::int64_t width = means_of(traits.shape, network.network.output_size());
  const std::int64_t extras = traits.classes ? 1 : width, samples = chains * num_draws;
  cpu::WeightSource<T> source;
  source.dim = target.dim();
  source.theta = draws;
  source.chains = chains;
  source.draws = num_draws;
  std::vector<double> sums(static_cast<std::size_t>(rows * (3 * width + extras)));
  double *const first = sums.data(), *const sum = first + rows * width;
  double *const squares = sum + rows * width, *const extra = squares + rows * width;
  InterruptPoll poll(interrupt);
  if (!cpu::predictive_moments(network.network, source, predictive->kind, predictive->parameters,
                               samples, cpu::Rows<T>(x), rows, {first, sum, squares, extra},
                               &poll)) {
    return kInterrupted;
  }
  for (std::int64_t i = 0; !units.y_mean.empty() && i < rows * width; ++i) {
    const auto column = static_cast<std::size_t>(i % width);
    const double scale = units.y_scale[column], variance = scale * scale;
    first[i] = first[i] * scale + units.y_mean[column];
    sum[i] *= scale;
    squares[i] *= variance;
    extra[i] *= variance;
  }
  const auto count = static_cast<double>(samples);
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const double shift = sum[i] / count;
    mean[i] = first[i] + shift;
    if (epistemic == nullptr) continue;
    const double variance = squares[i] / count - shift * shift;
    epistemic[i] = std::sqrt(variance < 0.0 ? 0.0 : variance);  // rounding; NaN stays
  }
  for (std::int64_t i = 0; aleatoric != nullptr && i < rows * extras; ++i) {
    const double each = extra[i] / count;
    aleatoric[i] = traits.classes ? each : std::sqrt(each + 0.0 * sum[i]);
  }
  return RIBBIT_OK;
}

}  // namespace
}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_predict(const ribbit_target* target, const void* draws, int64_t chains,
                   int64_t num_draws, const void* x, int64_t rows, double* mean,
                   double* epistemic_sd, double* aleatoric, const ribbit_interrupt* interrupt) {
  return guarded(kName, [&] {
    needs(draws != nullptr && mean != nullptr, kName, "draws and a place for the mean, got NULL");
    needs(chains >= 1 && num_draws >= 1 && num_draws <= (std::int64_t{1} << 40) / chains, kName,
          "at least 1 chain and 1 draw");
    return on_target(kName, target, [&](const auto& of, auto zero) {
      using T = decltype(zero);
      return predict(of, static_cast<const T*>(draws), chains, num_draws, static_cast<const T*>(x),
                     rows, mean, epistemic_sd, aleatoric, interrupt);
    });
  });
}
