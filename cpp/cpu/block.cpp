#include "cpu/block.h"

#include <utility>

namespace ribbit::cpu {

template <class T>
Workspace<T>::Workspace(const Plan& plan, std::int64_t panels, bool backward) : panels_(panels) {
  std::int64_t size = 0;
  const auto take = [&](std::int64_t width) {
    const std::int64_t offset = size;
    size += panels * width * kPanel;
    return offset;
  };
  values_.push_back(-1);
  for (std::size_t v = 1; v < plan.value_width.size(); ++v) {
    values_.push_back(take(plan.value_width[v]));
  }
  if (backward) {
    for (const std::int64_t width : plan.derivative_width) derivatives_.push_back(take(width));
    delta_[0] = take(plan.widest);
    delta_[1] = take(plan.widest);
    scratch_ = take(plan.widest);
  }
  slab_.resize(size);
}

template <class T>
void pack_weights(const Plan& plan, const T* theta, bool backward, int member, int members,
                  T* packed) {
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op == Op::kDense) {
      dense_pack(stage, theta, backward, member, members, packed);
    }
  }
}

template <class T>
const T* forward_block(const Plan& plan, const T* theta, const T* packed, const T* input,
                       std::int64_t panels, bool derivatives, Workspace<T>& space) {
  const T* current = input;
  for (const Stage& stage : plan.stages) {
    T* out = space.value(stage.out_value);
    if (stage.layer.op == Op::kDense) {
      dense_forward(stage, theta, packed, current, panels, out);
    } else {
      T* derivative =
          derivatives && stage.derivative >= 0 ? space.derivative(stage.derivative) : nullptr;
      activation_forward(stage, current, panels * stage.layer.out_size * kPanel, out, derivative);
    }
    current = out;
  }
  return current;
}

template <class T>
void backward_block(const Plan& plan, const T* packed, const T* input, std::int64_t panels,
                    Workspace<T>& space, T* grad) {
  T* delta = space.delta(0);
  T* below = space.delta(1);
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    const Stage& stage = plan.stages[s];
    if (stage.layer.op == Op::kDense) {
      const T* x = stage.in_value == 0 ? input : space.value(stage.in_value);
      const T* scale = stage.scale_below >= 0 ? space.derivative(stage.scale_below) : nullptr;
      dense_backward(stage, packed, x, delta, scale, panels, space.scratch(),
                     stage.needs_input_delta ? below : nullptr, grad);
      if (!stage.needs_input_delta) return;
      std::swap(delta, below);
    } else if (stage.derivative >= 0 && !stage.applied_above) {
      activation_backward(space.derivative(stage.derivative),
                          panels * stage.layer.out_size * kPanel, delta);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                  \
  template class Workspace<T>;                                                                 \
  template void pack_weights(const Plan&, const T*, bool, int, int, T*);                       \
  template const T* forward_block(const Plan&, const T*, const T*, const T*, std::int64_t, bool, \
                                  Workspace<T>&);                                              \
  template void backward_block(const Plan&, const T*, const T*, std::int64_t, Workspace<T>&, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
