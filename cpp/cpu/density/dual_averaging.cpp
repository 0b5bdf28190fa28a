#include "cpu/density/dual_averaging.h"

#include <cmath>

namespace ribbit::cpu {
namespace {

constexpr double kGamma = 0.05, kFirst = 10.0, kKappa = 0.75;  // the paper's gamma, t_0 and kappa
constexpr double kLag = 0.336;                                 // log of 1.4
constexpr std::int64_t kEnough = 20;  // settled updates: an average of fewer is noise
const double kLogMin = std::log(1e-12), kLogMax = std::log(1e7);

}  // namespace

DualAveraging::DualAveraging(const std::vector<double>& step_size)
    : log_step(step_size.size()),
      log_average(step_size.size()),
      error(step_size.size()),
      centre(step_size.size()),
      log_settled(step_size.size()),
      updates(step_size.size()),
      settled(step_size.size()) {
  for (std::size_t c = 0; c < step_size.size(); ++c) {
    log_step[c] = std::log(step_size[c]);
    centre[c] = std::log(10.0 * step_size[c]);
  }
}

void DualAveraging::update(std::size_t c, double acceptance, double target, bool full) {
  const auto count = static_cast<double>(++updates[c]);
  const double weight = 1.0 / (count + kFirst), decay = std::pow(count, -kKappa);
  const double pull = std::sqrt(count) / kGamma;
  error[c] = (1.0 - weight) * error[c] + weight * (target - acceptance);
  log_step[c] = std::fmin(std::fmax(centre[c] - pull * error[c], kLogMin), kLogMax);
  log_average[c] = decay * log_step[c] + (1.0 - decay) * log_average[c];
  if (!full) return;
  const double fade = std::pow(static_cast<double>(++settled[c]), -kKappa);
  log_settled[c] = fade * log_step[c] + (1.0 - fade) * log_settled[c];
}

double DualAveraging::step_size(std::size_t c) const {
  return std::exp(log_step[c]);
}

double DualAveraging::average(std::size_t c) const {
  if (updates[c] == 0) return std::exp(log_step[c]);
  const bool lags = settled[c] >= kEnough && log_average[c] > log_settled[c] + kLag;
  return std::exp(lags ? log_settled[c] : log_average[c]);
}

}  // namespace ribbit::cpu
