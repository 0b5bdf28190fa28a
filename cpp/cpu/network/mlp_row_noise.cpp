#include "cpu/network/mlp_row_noise.h"

#include <algorithm>

namespace ribbit::cpu {

namespace {

constexpr std::int64_t kMostPanels = 8;

std::int64_t dense_stages(const MlpPlan& plan) {
  return std::count_if(plan.stages.begin(), plan.stages.end(),
                       [](const Stage& stage) { return stage.layer.op == Op::kDense; });
}

}  // namespace

bool has_row_noise(const Layer& layer) {
  return layer.op == Op::kDense || layer.op == Op::kConv;
}

template <class T>
RowNoiseSpace<T>::RowNoiseSpace(const MlpPlan& plan)
    : RowNoiseSpace(plan, std::min(kMostPanels, plan.block_panels(sizeof(T)))) {}

template <class T>
RowNoiseSpace<T>::RowNoiseSpace(const MlpPlan& plan, std::int64_t panels)
    : first(plan, panels), block_(panels) {
  std::int64_t size = 0;
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
    widest_ = std::max({widest_, stage.layer.in_size, stage.layer.out_size});
  }
  below_ = take(widest_);
  slab_.resize(size);
}

template <class T>
MaskStream RowNoiseWeights<T>::stream(const Layer& layer, int side) const {
  const Purpose purpose = estimator == Estimator::kLocal ? kPurposeRowNoise : kPurposeSigns;
  const auto number = static_cast<Word>(2 * layer.index + side);
  return {seed, counter_step(step), sample, counter_purpose(purpose, number, step), 0, 1.0, false};
}

template <class T>
const T* row_noise_forward(const MlpPlan& plan, const RowNoiseWeights<T>& weights, const T* input,
                           std::int64_t at, std::int64_t panels, const std::int64_t* rows,
                           std::int64_t first_row, std::int64_t count, RowNoiseSpace<T>& space,
                           Cancel* cancel) {
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
    if (stops(cancel)) return nullptr;
    const Layer& layer = stage.layer;
    const std::int64_t ins = layer.in_size, outs = layer.out_size;
    const std::int64_t in_place = at * ins * kPanel, place = at * outs * kPanel;
    T* out = space.first.value(stage.out_value) + place;
    if (layer.op != Op::kDense) {
      T* derivative =
          stage.derivative >= 0 ? space.first.derivative(stage.derivative, at, outs) : nullptr;
      activation_forward(stage, current, panels * outs * kPanel, out, derivative);
      current = out;
      continue;
    }
    T *x = space.second_input(d) + in_place, *factor = space.factor(d) + place;
    if (local) {
      k.product(current, current, panels * ins * kPanel, x);
      dense_forward(stage, weights.first, weights.packed_first, current, panels, out);
      dense_forward(stage, weights.second, weights.packed_second, x, panels, factor);
      const MaskStream noise = weights.stream(layer, 0);
      each_panel([&](std::int64_t p, const std::int64_t* numbers, std::int64_t row, int n) {
        k.local_noise(noise, numbers, row, n, outs, out + p * outs * kPanel,
                      factor + p * outs * kPanel);
      });
    } else {
      const MaskStream inward = weights.stream(layer, 0), outward = weights.stream(layer, 1);
      T* signs = space.signs(d) + in_place;
      each_panel([&](std::int64_t p, const std::int64_t* numbers, std::int64_t row, int n) {
        k.sign_panel(inward, numbers, row, n, ins, signs + p * ins * kPanel);
        k.sign_panel(outward, numbers, row, n, outs, factor + p * outs * kPanel);
      });
      k.product(current, signs, panels * ins * kPanel, x);
      dense_forward(stage, weights.first, weights.packed_first, current, panels, out);
      T* path = space.below(at);
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
void row_noise_backward(const MlpPlan& plan, const RowNoiseWeights<T>& weights, std::int64_t at,
                        std::int64_t panels, RowNoiseSpace<T>& space, Cancel* cancel) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  Workspace<T>& w = space.first;
  T* delta = output_delta(plan, at, w);
  auto d = static_cast<std::size_t>(dense_stages(plan));
  for (std::size_t s = plan.stages.size(); s-- > 0 && !stops(cancel);) {
    const Stage& stage = plan.stages[s];
    const std::int64_t ins = stage.layer.in_size, outs = stage.layer.out_size;
    const std::int64_t in_place = at * ins * kPanel, place = at * outs * kPanel;
    if (stage.layer.op != Op::kDense) {
      if (stage.derivative >= 0 && !stage.applied_above) {
        activation_backward(w.derivative(stage.derivative, at, outs), panels * outs * kPanel,
                            delta);
      }
      continue;
    }
    --d;
    T* along = space.second_delta(d) + place;
    k.product(delta, space.factor(d) + place, panels * outs * kPanel, along);
    if (!stage.needs_input_delta) return;
    const T* x = w.value(stage.in_value) + in_place;
    T *below = w.delta(stage.delta - 1) + in_place, *path = space.below(at);
    const T* scale = stage.scale_below >= 0 ? w.derivative(stage.scale_below, at, ins) : nullptr;
    dense_backward(stage, weights.packed_first, delta, static_cast<const T*>(nullptr), kFinishPlain,
                   panels, below);
    dense_backward(stage, weights.packed_second, along, static_cast<const T*>(nullptr),
                   kFinishPlain, panels, path);
    // d(x^2) / dx = 2 x, d(x s) / dx = s
    k.add_product(local ? T(2) : T(1), local ? x : space.signs(d) + in_place, path, scale,
                  panels * ins * kPanel, below);
    if (stage.step_below) k.step_in_place(below, x, panels * ins * kPanel);
    delta = below;
  }
}

template <class T>
void row_noise_gradients(const MlpPlan& plan, Estimator estimator, const T* input, std::int64_t at,
                         std::int64_t rows, const Part& part, RowNoiseSpace<T>& space, T* scratch,
                         T* first, T* second, Cancel* cancel) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = estimator == Estimator::kLocal;
  std::size_t d = 0;
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op != Op::kDense) continue;
    if (stops(cancel)) return;
    const std::size_t number = d++;
    const Layer& layer = stage.layer;
    const std::int64_t ins = layer.in_size, outs = layer.out_size;
    const auto [begin, end] = part.rows(layer.weight_offset, ins, outs);
    const std::int64_t in_place = at * ins * kPanel, place = at * outs * kPanel;
    const T* x = stage.in_value == 0 ? input : space.first.value(stage.in_value) + in_place;
    dense_gradient(stage, x, space.first.delta(stage.delta) + place, rows, begin, end, scratch,
                   first);
    const bool bias = layer.bias_offset >= 0;
    k.weight_gradient(space.second_input(number) + in_place, space.second_delta(number) + place,
                      rows, ins, outs, begin, end, scratch, second + layer.weight_offset,
                      local && bias ? second + layer.bias_offset : nullptr);
    // Flipout's biases have no second path: their one noise is for all rows.
    if (!local && bias && begin == 0 && end > 0) {
      std::copy_n(first + layer.bias_offset, outs, second + layer.bias_offset);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                  \
  template struct RowNoiseWeights<T>;                                                          \
  template class RowNoiseSpace<T>;                                                             \
  template const T* row_noise_forward(const MlpPlan&, const RowNoiseWeights<T>&, const T*,     \
                                      std::int64_t, std::int64_t, const std::int64_t*,         \
                                      std::int64_t, std::int64_t, RowNoiseSpace<T>&, Cancel*); \
  template void row_noise_backward(const MlpPlan&, const RowNoiseWeights<T>&, std::int64_t,    \
                                   std::int64_t, RowNoiseSpace<T>&, Cancel*);                  \
  template void row_noise_gradients(const MlpPlan&, Estimator, const T*, std::int64_t,         \
                                    std::int64_t, const Part&, RowNoiseSpace<T>&, T*, T*, T*,  \
                                    Cancel*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
