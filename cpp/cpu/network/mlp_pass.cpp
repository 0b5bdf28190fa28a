#include "cpu/network/mlp_pass.h"

#include <algorithm>
#include <cmath>

namespace ribbit::cpu {

template <class T>
Workspace<T>::Workspace(const MlpPlan& plan, bool backward)
    : block_(plan.block_panels(sizeof(T))), group_(kGroupPanels) {
  allocate(plan, backward, true);
}

template <class T>
Workspace<T>::Workspace(const MlpPlan& plan, std::int64_t panels) : block_(panels), group_(panels) {
  allocate(plan, true, false);
}

template <class T>
void Workspace<T>::allocate(const MlpPlan& plan, bool backward, bool share) {
  constexpr std::int64_t kAlign = 64 / sizeof(T);
  std::int64_t size = 0;
  const auto take = [&](std::int64_t scalars) {
    const std::int64_t offset = size;
    size += (scalars + kAlign - 1) / kAlign * kAlign;
    return offset;
  };
  values_.push_back(-1);  // the input lies elsewhere
  // Forwards alone a layer's values are wanted by the next one only: two buffers take turns, whose
  // lines stay in the first-level cache.
  std::int64_t widest_value = 0;
  for (std::size_t v = 1; v < plan.value_width.size(); ++v) {
    widest_value = std::max(widest_value, plan.value_width[v]);
  }
  for (std::size_t v = 1; v < plan.value_width.size(); ++v) {
    const std::int64_t width = backward ? plan.value_width[v] : widest_value;
    values_.push_back(backward || v < 3 ? take(block_ * width * kPanel) : values_[v - 2]);
  }
  if (backward) {
    std::int64_t widest = 0;
    for (const std::int64_t width : plan.delta_width) {
      deltas_.push_back(take(block_ * width * kPanel));
      widest = std::max(widest, width);
    }
    derivatives_.assign(plan.derivative_width.size(), {-1, true});
    for (const Stage& stage : plan.stages) {
      if (!share || stage.layer.op != Op::kDense || stage.scale_below < 0) continue;
      derivatives_[static_cast<std::size_t>(stage.scale_below)].offset =
          deltas_[static_cast<std::size_t>(stage.delta - 1)];
    }
    for (std::size_t d = 0; d < derivatives_.size(); ++d) {
      if (derivatives_[d].offset >= 0) continue;
      derivatives_[d] = {take(group_ * plan.derivative_width[d] * kPanel), group_ == block_};
    }
    const std::int64_t lanes = kernels<T>().lanes;
    narrow_ = take(plan.narrow_size * lanes);
    scratch_ = take((widest + lanes - 1) / lanes * lanes * block_ * kPanel);
    std::int64_t tile = 0;
    for (const Stage& stage : plan.stages) {
      if (stage.layer.op == Op::kDense) tile = std::max(tile, dense_tile<T>(stage.layer));
    }
    tile_ = take(tile);
  }
  slab_.resize(size);
}

template <class T>
void pack_weights(const MlpPlan& plan, const T* theta, bool backward, const Part& part, T* packed) {
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op == Op::kDense) {
      dense_pack(stage, theta, backward, part, packed);
    }
  }
}

namespace {

template <class T>
void mask_group(const Stage& stage, const T* logits, const Masks& masks, std::int64_t first,
                std::int64_t rows, const T* from, T* value, T* derivative, T* ratio,
                std::int64_t panels) {
  const MaskStream stream = masks.stream(stage.layer);
  const std::int64_t width = stage.layer.out_size * kPanel;
  for (std::int64_t p = 0; p < panels; ++p) {
    const std::int64_t begin = first + p * kPanel;
    const auto valid = static_cast<int>(std::min<std::int64_t>(kPanel, rows - p * kPanel));
    T* slope = derivative != nullptr ? derivative + p * width : nullptr;
    if (stage.rate >= 0) {
      kernels<T>().concrete_panel(
          stream, logits[stage.rate], masks.rows != nullptr ? masks.rows + begin : nullptr,
          masks.first + begin, valid, stage.layer.out_size, from + p * width, value + p * width,
          slope, !stage.merged, ratio != nullptr ? ratio + p * width : nullptr);
      continue;
    }
    kernels<T>().mask_panel(stream, masks.rows != nullptr ? masks.rows + begin : nullptr,
                            masks.samples != nullptr ? masks.samples + begin : nullptr,
                            masks.first + begin, valid, stage.layer.out_size, from + p * width,
                            value + p * width, slope, !stage.merged);
  }
}

}  // namespace

template <class T>
const T* forward_group(const MlpPlan& plan, const T* theta, const T* packed, const T* input,
                       std::int64_t at, std::int64_t panels, bool derivatives, Workspace<T>& space,
                       const Masks* masks, std::int64_t first, std::int64_t rows, StageRange range,
                       Cancel* cancel) {
  const T* current = input;
  const std::size_t last = std::min(range.last, plan.stages.size());
  for (std::size_t s = range.first; s < last; ++s) {
    if (stops(cancel)) return nullptr;
    const Stage& stage = plan.stages[s];
    const std::int64_t width = stage.layer.out_size * kPanel;
    T* out = space.value(stage.out_value) + at * width;
    T* derivative = derivatives && stage.derivative >= 0
                        ? space.derivative(stage.derivative, at, stage.layer.out_size)
                        : nullptr;
    if (stage.layer.op == Op::kDense) {
      // Where no derivative is wanted a ReLU costs nothing on the way out of the multiplication.
      const bool relu = s + 1 < last && plan.stages[s + 1].is_relu() &&
                        (!derivatives || plan.stages[s + 1].derivative < 0);
      dense_forward(stage, theta, packed, current, panels, out, relu ? kFinishRelu : kFinishPlain,
                    space.tile());
      if (relu) ++s;
    } else if (stage.layer.op == Op::kDropout) {
      T* ratio = derivatives && stage.ratio >= 0
                     ? space.derivative(stage.ratio, at, stage.layer.out_size)
                     : nullptr;
      mask_group(stage, theta + masks->logits, *masks, first, rows, current, out, derivative, ratio,
                 panels);
    } else {
      activation_forward(stage, current, panels * width, out, derivative);
    }
    current = out;
  }
  return current;
}

template <class T>
T* output_delta(const MlpPlan& plan, std::int64_t at, Workspace<T>& space) {
  const int last = static_cast<int>(plan.delta_width.size()) - 1;
  return space.delta(last) + at * plan.delta_width.back() * kPanel;
}

template <class T>
void backward_group(const MlpPlan& plan, const T* theta, const T* packed, const T* input,
                    std::int64_t at, std::int64_t panels, bool narrow, Workspace<T>& space,
                    double* rates, Cancel* cancel) {
  const KernelTable<T>& k = kernels<T>();
  const auto derivative = [&](int d, std::int64_t size) { return space.derivative(d, at, size); };
  T* delta = output_delta(plan, at, space);
  for (std::size_t s = plan.stages.size(); s-- > 0 && !stops(cancel);) {
    const Stage& stage = plan.stages[s];
    if (stage.layer.op != Op::kDense) {
      const std::int64_t size = stage.layer.out_size * kPanel;
      for (std::int64_t p = 0; stage.rate >= 0 && p < panels; ++p) {
        rates[p * plan.rates + stage.rate] +=
            k.dot3(delta + p * size, space.value(stage.out_value) + (at + p) * size,
                   derivative(stage.ratio, stage.layer.out_size) + p * size, size);
      }
      if (stage.derivative >= 0 && !stage.applied_above && !stage.merged) {
        activation_backward(derivative(stage.derivative, stage.layer.out_size),
                            panels * stage.layer.out_size * kPanel, delta);
      }
      continue;
    }
    if (narrow && stage.narrow >= 0) {
      const T* x = stage.in_value == 0
                       ? input
                       : space.value(stage.in_value) + at * stage.layer.in_size * kPanel;
      k.narrow_accumulate(x, delta, panels, stage.layer.in_size,
                          space.narrow_sums() + stage.narrow * k.lanes);
    }
    if (!stage.needs_input_delta) return;
    T* below = space.delta(stage.delta - 1) + at * stage.layer.in_size * kPanel;
    const T* scale = stage.step_below
                         ? space.value(stage.in_value) + at * stage.layer.in_size * kPanel
                     : stage.scale_below >= 0 ? derivative(stage.scale_below, stage.layer.in_size)
                                              : nullptr;
    dense_backward(stage, packed, delta, scale, stage.step_below ? kFinishStep : kFinishPlain,
                   panels, below, theta, space.tile());
    delta = below;
  }
}

template <class T>
void clear_part(const MlpPlan& plan, const Part& part, T* grad) {
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op != Op::kDense) continue;
    const Layer& layer = stage.layer;
    const std::int64_t ins = layer.in_size, outs = layer.out_size;
    const auto [first, last] = part.rows(layer.weight_offset, ins, outs);
    T* weights = grad + layer.weight_offset;
    std::fill(weights + first * outs, weights + last * outs, T(0));
    if (first == 0 && last > 0 && layer.bias_offset >= 0) {
      std::fill_n(grad + layer.bias_offset, outs, T(0));
    }
  }
}

template <class T>
void block_gradient(const MlpPlan& plan, const T* input, std::int64_t at, std::int64_t rows,
                    const Part& part, Workspace<T>& space, T* scratch, T* grad, Cancel* cancel) {
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op != Op::kDense || stage.narrow >= 0) continue;
    if (stops(cancel)) return;
    const std::int64_t ins = stage.layer.in_size, outs = stage.layer.out_size, place = at * kPanel;
    const T* x = stage.in_value == 0 ? input : space.value(stage.in_value) + place * ins;
    const T* delta = space.delta(stage.delta) + place * outs;
    const auto [first, last] = part.rows(stage.layer.weight_offset, ins, outs);
    dense_gradient(stage, x, delta, rows, first, last, scratch, grad);
  }
}

template <class T>
void narrow_gradient(const MlpPlan& plan, const T* input, std::int64_t at, std::int64_t panels,
                     Workspace<T>& space, T* sums) {
  const KernelTable<T>& k = kernels<T>();
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op != Op::kDense || stage.narrow < 0) continue;
    const std::int64_t ins = stage.layer.in_size, place = at * kPanel;
    const T* x = stage.in_value == 0 ? input : space.value(stage.in_value) + place * ins;
    const T* delta = space.delta(stage.delta) + place * stage.layer.out_size;
    k.narrow_accumulate(x, delta, panels, ins, sums + stage.narrow * k.lanes);
  }
}

template <class T>
void clear_narrow_sums(const MlpPlan& plan, Workspace<T>& space) {
  std::fill_n(space.narrow_sums(), plan.narrow_size * kernels<T>().lanes, T(0));
}

template <class T>
void add_narrow_sums(const MlpPlan& plan, Workspace<T>& space, T* grad) {
  const KernelTable<T>& k = kernels<T>();
  for (const Stage& stage : plan.stages) {
    if (stage.narrow < 0) continue;
    const Layer& layer = stage.layer;
    const T* sums = space.narrow_sums() + stage.narrow * k.lanes;
    k.narrow_reduce(sums, layer.in_size, grad + layer.weight_offset);
    if (layer.bias_offset >= 0) {
      k.narrow_reduce(sums + layer.in_size * k.lanes, 1, grad + layer.bias_offset);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template class Workspace<T>;                                                                    \
  template void pack_weights(const MlpPlan&, const T*, bool, const Part&, T*);                    \
  template const T* forward_group(const MlpPlan&, const T*, const T*, const T*, std::int64_t,     \
                                  std::int64_t, bool, Workspace<T>&, const Masks*, std::int64_t,  \
                                  std::int64_t, StageRange, Cancel*);                             \
  template T* output_delta(const MlpPlan&, std::int64_t, Workspace<T>&);                          \
  template void backward_group(const MlpPlan&, const T*, const T*, const T*, std::int64_t,        \
                               std::int64_t, bool, Workspace<T>&, double*, Cancel*);              \
  template void clear_part(const MlpPlan&, const Part&, T*);                                      \
  template void block_gradient(const MlpPlan&, const T*, std::int64_t, std::int64_t, const Part&, \
                               Workspace<T>&, T*, T*, Cancel*);                                   \
  template void narrow_gradient(const MlpPlan&, const T*, std::int64_t, std::int64_t,             \
                                Workspace<T>&, T*);                                               \
  template void clear_narrow_sums(const MlpPlan&, Workspace<T>&);                                 \
  template void add_narrow_sums(const MlpPlan&, Workspace<T>&, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
