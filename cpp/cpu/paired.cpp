#include "cpu/paired.h"

#include <algorithm>

namespace ribbit::cpu {

namespace {

constexpr std::int64_t kMostPanels = 8;

}  // namespace

template <class T>
PairSpace<T>::PairSpace(const Plan& plan)
    : first(plan, std::min(kMostPanels, plan.block_panels(sizeof(T)))), block_(first.block()) {
  std::int64_t size = 0, widest = 0;
  const auto take = [&](std::int64_t width) {
    const std::int64_t offset = size;
    size += block_ * width * kPanel;
    return offset;
  };
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op != Op::kDense) continue;
    inputs_.push_back(take(stage.layer.in_size));
    signs_.push_back(take(stage.layer.in_size));
    factors_.push_back(take(stage.layer.out_size));
    deltas_.push_back(take(stage.layer.out_size));
    widest = std::max({widest, stage.layer.in_size, stage.layer.out_size});
  }
  below_ = take(widest);
  slab_.resize(size);
}

template <class T>
MaskStream PairedWeights<T>::stream(const Layer& layer, int side) const {
  const Purpose purpose = estimator == Estimator::kLocal ? kPurposeRowNoise : kPurposeSigns;
  const auto number = static_cast<Word>(2 * layer.index + side);
  return {seed, counter_step(step), sample, counter_purpose(purpose, number, step), 0, 1.0, false};
}

template <class T>
const T* paired_forward(const Plan& plan, const PairedWeights<T>& weights, const T* input,
                        std::int64_t panels, const std::int64_t* rows, std::int64_t first_row,
                        std::int64_t count, PairSpace<T>& space) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  const auto each_panel = [&](const auto& body) {
    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t begin = p * kPanel;
      body(p, rows != nullptr ? rows + begin : nullptr, first_row + begin,
           static_cast<int>(std::min<std::int64_t>(kPanel, count - begin)));
    }
  };
  const T* current = input;
  std::size_t d = 0;
  for (const Stage& stage : plan.stages) {
    const Layer& layer = stage.layer;
    const std::int64_t ins = layer.in_size, outs = layer.out_size;
    T* out = space.first.value(stage.out_value);
    if (layer.op != Op::kDense) {
      T* derivative = stage.derivative >= 0 ? space.first.derivative(stage.derivative) : nullptr;
      activation_forward(stage, current, panels * outs * kPanel, out, derivative);
      current = out;
      continue;
    }
    T *x = space.second_input(d), *factor = space.factor(d);
    if (local) {
      k.product(current, current, panels * ins * kPanel, x);
    } else {
      const MaskStream inward = weights.stream(layer, 0), outward = weights.stream(layer, 1);
      each_panel([&](std::int64_t p, const std::int64_t* numbers, std::int64_t at, int n) {
        k.sign_panel(inward, numbers, at, n, ins, space.signs(d) + p * ins * kPanel);
        k.sign_panel(outward, numbers, at, n, outs, factor + p * outs * kPanel);
      });
      k.product(current, space.signs(d), panels * ins * kPanel, x);
    }
    dense_forward(stage, weights.first, weights.packed_first, current, panels, out);
    if (local) {
      dense_forward(stage, weights.second, weights.packed_second, x, panels, factor);
      const MaskStream noise = weights.stream(layer, 0);
      each_panel([&](std::int64_t p, const std::int64_t* numbers, std::int64_t at, int n) {
        k.local_noise(noise, numbers, at, n, outs, out + p * outs * kPanel,
                      factor + p * outs * kPanel);
      });
    } else {
      T* path = space.below();
      k.multiply(weights.packed_second + stage.packed, nullptr, x, path, nullptr, kFinishPlain, ins,
                 outs, panels);
      k.add_product(T(1), factor, path, nullptr, panels * outs * kPanel, out);
    }
    current = out;
    ++d;
  }
  return current;
}

template <class T>
void paired_backward(const Plan& plan, const PairedWeights<T>& weights, const T* input,
                     std::int64_t panels, PairSpace<T>& space, T* first, T* second) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  Workspace<T>& w = space.first;
  T* delta = output_delta(plan, 0, w);
  std::size_t d = 0;
  for (const Stage& stage : plan.stages) d += stage.layer.op == Op::kDense ? 1 : 0;
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    const Stage& stage = plan.stages[s];
    const std::int64_t ins = stage.layer.in_size, outs = stage.layer.out_size;
    if (stage.layer.op != Op::kDense) {
      if (stage.derivative >= 0 && !stage.applied_above) {
        activation_backward(w.derivative(stage.derivative), panels * outs * kPanel, delta);
      }
      continue;
    }
    --d;
    const T* x = stage.in_value == 0 ? input : w.value(stage.in_value);
    T* along = space.second_delta(d);
    k.product(delta, space.factor(d), panels * outs * kPanel, along);
    dense_gradient(stage, x, delta, panels * kPanel, 0, ins, w.scratch(), first);
    // Flipout's biases have no second path: their noise is the same for all rows.
    T* bias = local && stage.layer.bias_offset >= 0 ? second + stage.layer.bias_offset : nullptr;
    k.weight_gradient(space.second_input(d), along, panels * kPanel, ins, outs, 0, ins, w.scratch(),
                      second + stage.layer.weight_offset, bias);
    if (!stage.needs_input_delta) return;
    T* below = w.delta(stage.delta - 1);
    const T* scale = stage.scale_below >= 0 ? w.derivative(stage.scale_below) : nullptr;
    dense_backward(stage, weights.packed_first, delta, static_cast<const T*>(nullptr), kFinishPlain,
                   panels, below);
    dense_backward(stage, weights.packed_second, along, static_cast<const T*>(nullptr),
                   kFinishPlain, panels, space.below());
    // d(x^2) / dx = 2 x, d(x s) / dx = s
    k.add_product(local ? T(2) : T(1), local ? x : space.signs(d), space.below(), scale,
                  panels * ins * kPanel, below);
    if (stage.step_below) k.step_in_place(below, x, panels * ins * kPanel);
    delta = below;
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template struct PairedWeights<T>;                                                              \
  template class PairSpace<T>;                                                                   \
  template const T* paired_forward(const Plan&, const PairedWeights<T>&, const T*, std::int64_t, \
                                   const std::int64_t*, std::int64_t, std::int64_t,              \
                                   PairSpace<T>&);                                               \
  template void paired_backward(const Plan&, const PairedWeights<T>&, const T*, std::int64_t,    \
                                PairSpace<T>&, T*, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
