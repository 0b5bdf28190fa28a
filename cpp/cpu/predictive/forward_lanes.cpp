// Few rows under many weight vectors: the samples ride in the lanes (isa/lanes-inl.h).

#include <algorithm>

#include "cpu/layers/layers.h"
#include "cpu/network/mlp_plan.h"
#include "cpu/predictive/forward.h"

namespace ribbit::cpu {
namespace {

constexpr std::int64_t kTransposed = 64;  // weights that are transposed at a time
// Those of large layers that a thread passes before it asks whether to go on: 1 to 10 ms.
constexpr std::int64_t kWeightsUnasked = 256 * kTransposed;

}  // namespace

// Elements first .. first + count - 1 of the weight vectors of kPanel samples. first and count are
// multiples of 4, but at the end.
template <class T>
void Forward<T>::load_lanes(const LaneSamples& samples, std::int64_t first, std::int64_t count,
                            T* out) const {
  const KernelTable<T>& k = kernels<T>();
  if (source_.mean == nullptr) {
    k.gather_lanes(samples.theta, first, std::min(count, source_.dim - first), out);
  } else {
    k.draw_lanes(source_.mean, source_.scale, first, count, source_.dim, source_.seed,
                 counter_step(0), counter_purpose(kPurposeFitDraw, 0, 0), samples.number, out);
  }
}

// A piece is kPanel samples at all rows.
template <class T>
void Forward<T>::samples_in_lanes(Space& space, const Request& r, std::int64_t piece) {
  const KernelTable<T>& k = kernels<T>();
  const MlpPlan& plan = *pass_->mlp_plan();
  const std::int64_t begin = piece * kPanel, rows = r.rows;
  const std::int64_t valid = std::min<std::int64_t>(kPanel, r.samples - begin);
  LaneSamples samples;
  for (std::int64_t lane = 0; lane < kPanel; ++lane) {
    const std::int64_t sample = r.first + begin + std::min(lane, valid - 1);
    samples.number[lane] = static_cast<std::uint64_t>(sample);
    samples.theta[lane] = source_.mean == nullptr ? stored(sample) : nullptr;
  }
  const std::int64_t widest = *std::max_element(plan.value_width.begin(), plan.value_width.end());
  // Two values, partial sums (at most 4), transposed weights.
  space.theta.resize((6 * rows * widest + widest + kTransposed + 8) * kPanel);
  T *x = space.theta.data(), *y = x + rows * widest * kPanel, *sums = y + rows * widest * kPanel;
  T *bias = sums + 4 * rows * widest * kPanel, *weights = bias + (widest + 8) * kPanel;
  std::vector<unsigned char> splits(static_cast<std::size_t>(widest));

  const T* input = x_.panel(r.row / kPanel);
  for (std::int64_t i = 0; i < rows * x_.features; ++i) {
    std::fill_n(x + i * kPanel, kPanel, input[i % x_.features * kPanel + i / x_.features]);
  }
  std::int64_t width = x_.features;
  for (const Stage& stage : plan.stages) {
    const Layer& layer = stage.layer;
    if (layer.op != Op::kDense) {
      activation_forward(stage, x, rows * width * kPanel, x, static_cast<T*>(nullptr));
      continue;
    }
    const std::int64_t ins = layer.in_size, outs = layer.out_size;
    const int most = k.lane_splits(outs, splits.data());
    std::fill_n(sums, rows * outs * most * kPanel, T(0));
    if (layer.bias_offset >= 0) {
      const std::int64_t skip = layer.bias_offset % 4;
      load_lanes(samples, layer.bias_offset - skip, (skip + outs + 3) / 4 * 4, bias);
      for (std::int64_t i = 0; i < rows * outs; ++i) {
        std::copy_n(bias + (skip + i % outs) * kPanel, kPanel, sums + i * most * kPanel);
      }
    }
    const std::int64_t begin_at = layer.weight_offset / 4 * 4;
    const std::int64_t end = layer.weight_offset + ins * outs;
    for (std::int64_t at = begin_at; at < end; at += kTransposed) {
      const std::int64_t first = std::max(at, layer.weight_offset);
      const std::int64_t last = std::min(at + kTransposed, end);
      if ((at - begin_at) % kWeightsUnasked == kWeightsUnasked - kTransposed && cancel_.check())
        return;
      load_lanes(samples, at, (last - at + 3) / 4 * 4, weights);
      k.accumulate_lanes(weights + (first - at) * kPanel, first - layer.weight_offset, last - first,
                         x, ins, outs, rows, splits.data(), most, sums);
    }
    k.finish_lanes(sums, splits.data(), outs, most, rows * outs, y);
    std::swap(x, y);
    width = outs;
    if (cancel_.check()) return;
  }
  for (std::int64_t lane = 0; lane < valid; ++lane) {
    T* out = r.out + (begin + lane) * rows * outputs_;
    for (std::int64_t i = 0; i < rows * outputs_; ++i) out[i] = x[i * kPanel + lane];
  }
  for (std::int64_t k = 0; k < noises_; ++k) {
    const std::int64_t at = network_dim_ + k;
    if (k == 0 || at % 4 == 0) load_lanes(samples, at / 4 * 4, 4, weights);
    for (std::int64_t lane = 0; lane < valid; ++lane) {
      r.log_noise[(begin + lane) * noises_ + k] = weights[at % 4 * kPanel + lane];
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template void Forward<T>::load_lanes(const LaneSamples&, std::int64_t, std::int64_t, T*) const; \
  template void Forward<T>::samples_in_lanes(Space&, const Request&, std::int64_t);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
