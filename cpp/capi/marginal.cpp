#include "capi/marginal.h"

#include <algorithm>

namespace ribbit::capi {
namespace {

// Multiplications of a plain gradient that a gradient of the marginal density may cost. With 3.7
// (8-30-1) effective samples per second doubled, with 4.8 (8-50-1) they did not.
constexpr double kMost = 4.0;

// Counts multiplications of a row: 3 dim in a plain gradient. The marginal density adds a second
// forward pass, products in float64, which count twice, deltas, and its share of an inverse.
bool pays(std::int64_t dim, const Layer& last, std::int64_t rows) {
  const auto inputs = static_cast<double>(last.in_size);
  const auto outputs = static_cast<double>(last.out_size);
  const double plain = 3.0 * static_cast<double>(dim);
  const double terms = inputs + (last.bias_offset >= 0 ? 1.0 : 0.0), columns = terms + outputs;
  const double again = static_cast<double>(dim) - terms * outputs;
  const double extra = again + columns * (columns + 1.0) + inputs * inputs +
                       terms * terms * terms / static_cast<double>(rows);
  return plain + extra <= kMost * plain;
}

}  // namespace

std::optional<Marginal> marginal_of(const ribbit_network& network,
                                    const std::vector<cpu::PriorSegment>& prior,
                                    LikelihoodKind kind, const LikelihoodParameters& parameters,
                                    const std::vector<double>& mean, std::int64_t rows) {
  const Layer& last = network.network.layers().back();
  const std::int64_t dim = network.network.dim(), begin = last.weight_offset;
  const std::int64_t weights = last.in_size * last.out_size;
  const bool bias = last.bias_offset >= 0;
  const bool gaussian =
      kind == LikelihoodKind::kGaussian || kind == LikelihoodKind::kGaussianLearned;
  if (!network.below || !gaussian || parameters.noises > 1 || last.op != Op::kDense || begin < 1 ||
      network.below->dim() != begin ||
      last.input != static_cast<std::int64_t>(network.network.layers().size()) - 1 ||
      (bias && last.bias_offset != begin + weights) || !pays(dim, last, rows)) {
    return std::nullopt;
  }
  const std::int64_t size = weights + (bias ? last.out_size : 0), end = begin + size;
  if (end != dim) return std::nullopt;

  Marginal found{*network.below, {}, {}, {}};
  std::vector<double> sd;  // of each weight of the layer
  for (const cpu::PriorSegment& segment : prior) {
    const std::int64_t first = segment.offset, behind = first + segment.size;
    const std::int64_t inside = std::min(behind, end) - std::max(first, begin);
    if (inside > 0 && segment.kind != PriorKind::kNormal) return std::nullopt;
    if (inside > 0) sd.insert(sd.end(), static_cast<std::size_t>(inside), segment.a);
    cpu::PriorSegment part = segment;
    if (first < begin) {
      part.size = std::min(behind, begin) - first;
      found.prior.push_back(part);
    }
    if (behind > end) {
      part.offset = std::max(first, end) - size;
      part.size = behind - std::max(first, end);
      found.prior.push_back(part);
    }
  }
  if (static_cast<std::int64_t>(sd.size()) != size) return std::nullopt;
  cpu::LastLayer& layer = found.last;
  layer.inputs = last.in_size;
  layer.outputs = last.out_size;
  layer.bias = bias;
  layer.alone = false;
  for (std::int64_t i = 0; i < size; ++i) {
    const double value = sd[static_cast<std::size_t>(i)];
    if (i % layer.outputs == 0) layer.sd.push_back(value);
    if (value != layer.sd.back()) return std::nullopt;  // outputs share the weights' covariance
  }
  if (mean.empty()) {
    layer.mean.assign(static_cast<std::size_t>(size), 0.0);
    return found;
  }
  layer.mean.assign(mean.begin() + begin, mean.begin() + end);
  found.mean.assign(mean.begin(), mean.begin() + begin);
  found.mean.insert(found.mean.end(), mean.begin() + end, mean.end());
  if (std::all_of(found.mean.begin(), found.mean.end(), [](double m) { return m == 0.0; })) {
    found.mean.clear();
  }
  return found;
}

}  // namespace ribbit::capi
