#include "cpu/density/dual_averaging.h"

#include <cmath>

namespace ribbit::cpu {
namespace {

constexpr double kGamma = 0.05, kFirst = 10.0, kKappa = 0.75;  // the paper's gamma, t_0 and kappa
constexpr double kLag = 0.336;                                 // log of 1.4
constexpr int kEnough = 20;  // settled updates: an average of fewer is noise
const double kLogMin = std::log(1e-12), kLogMax = std::log(1e7);

}  // namespace

DualAveraging::DualAveraging(const std::vector<double>& step_size)
    : counts_(step_size.size(), 1), settled_(step_size.size(), 0) {
  const std::vector<double> zeros(step_size.size());
  sums_ = {zeros, zeros, zeros, zeros, zeros};
  for (std::size_t c = 0; c < step_size.size(); ++c) {
    sums_.log_step[c] = std::log(step_size[c]);
    sums_.centre[c] = std::log(10.0 * step_size[c]);
  }
}

void DualAveraging::update(std::size_t chain, double acceptance, double target, bool settled) {
  const int count = counts_[chain]++;
  const double weight = 1.0 / (count + kFirst), decay = std::pow(count, -kKappa);
  const double pull = std::sqrt(count) / kGamma;
  double &log_step = sums_.log_step[chain], &log_average = sums_.log_average[chain];
  double& error = sums_.error[chain];
  error = (1.0 - weight) * error + weight * (target - acceptance);
  log_step = std::fmin(std::fmax(sums_.centre[chain] - pull * error, kLogMin), kLogMax);
  log_average = decay * log_step + (1.0 - decay) * log_average;
  if (!settled) return;
  double& log_settled = sums_.log_settled[chain];
  const double fade = std::pow(++settled_[chain], -kKappa);
  log_settled = fade * log_step + (1.0 - fade) * log_settled;
}

double DualAveraging::step_size(std::size_t chain) const {
  return std::exp(sums_.log_step[chain]);
}

double DualAveraging::average(std::size_t chain) const {
  if (counts_[chain] == 1) return std::exp(sums_.log_step[chain]);
  const double whole = sums_.log_average[chain], settled = sums_.log_settled[chain];
  const bool lags = settled_[chain] >= kEnough && whole > settled + kLag;
  return std::exp(lags ? settled : whole);
}

}  // namespace ribbit::cpu
