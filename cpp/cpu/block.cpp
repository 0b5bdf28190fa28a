#include "cpu/block.h"

#include <algorithm>

namespace ribbit::cpu {

template <class T>
Workspace<T>::Workspace(const Plan& plan, bool backward)
    : block_(plan.block_panels(sizeof(T))), group_(plan.group_panels(sizeof(T))) {
  allocate(plan, backward);
}

template <class T>
Workspace<T>::Workspace(const Plan& plan, std::int64_t panels) : block_(panels), group_(panels) {
  allocate(plan, true);
}

template <class T>
void Workspace<T>::allocate(const Plan& plan, bool backward) {
  constexpr std::int64_t kAlign = 64 / sizeof(T);
  std::int64_t size = 0;
  const auto take = [&](std::int64_t scalars) {
    const std::int64_t offset = size;
    size += (scalars + kAlign - 1) / kAlign * kAlign;
    return offset;
  };
  values_.push_back(-1);  // the input lies elsewhere
  for (std::size_t v = 1; v < plan.value_width.size(); ++v) {
    values_.push_back(take(block_ * plan.value_width[v] * kPanel));
  }
  if (backward) {
    for (const std::int64_t width : plan.derivative_width) {
      derivatives_.push_back(take(group_ * width * kPanel));
    }
    std::int64_t widest = 0;
    for (const std::int64_t width : plan.delta_width) {
      deltas_.push_back(take(block_ * width * kPanel));
      bias_sums_.push_back(take(width * kernels<T>().lanes));
      widest = std::max(widest, width);
    }
    const std::int64_t lanes = kernels<T>().lanes;
    scratch_ = take((widest + lanes - 1) / lanes * lanes * block_ * kPanel);
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
const T* forward_group(const Plan& plan, const T* theta, const T* packed, const T* input,
                       std::int64_t at, std::int64_t panels, bool derivatives,
                       Workspace<T>& space) {
  const T* current = input;
  for (const Stage& stage : plan.stages) {
    const std::int64_t width = stage.layer.out_size * kPanel;
    T* out = space.value(stage.out_value) + at * width;
    if (stage.layer.op == Op::kDense) {
      dense_forward(stage, theta, packed, current, panels, out);
    } else {
      T* derivative = derivatives && stage.derivative >= 0
                          ? space.derivative(stage.derivative) + space.derivative_place(at) * width
                          : nullptr;
      activation_forward(stage, current, panels * width, out, derivative);
    }
    current = out;
  }
  return current;
}

template <class T>
T* output_delta(const Plan& plan, std::int64_t at, Workspace<T>& space) {
  const int last = static_cast<int>(plan.delta_width.size()) - 1;
  return space.delta(last) + at * plan.delta_width.back() * kPanel;
}

template <class T>
void backward_group(const Plan& plan, const T* packed, std::int64_t at, std::int64_t panels,
                    bool biases, Workspace<T>& space) {
  const auto derivative = [&](int d, std::int64_t size) {
    return space.derivative(d) + space.derivative_place(at) * size * kPanel;
  };
  T* delta = output_delta(plan, at, space);
  for (std::size_t s = plan.stages.size(); s-- > 0;) {
    const Stage& stage = plan.stages[s];
    if (stage.layer.op != Op::kDense) {
      if (stage.derivative >= 0 && !stage.applied_above) {
        activation_backward(derivative(stage.derivative, stage.layer.out_size),
                            panels * stage.layer.out_size * kPanel, delta);
      }
      continue;
    }
    if (biases && stage.layer.bias_offset >= 0) {
      kernels<T>().bias_accumulate(delta, panels, stage.layer.out_size,
                                   space.bias_sums(stage.delta));
    }
    if (!stage.needs_input_delta) return;
    T* below = space.delta(stage.delta - 1) + at * stage.layer.in_size * kPanel;
    const T* scale =
        stage.scale_below >= 0 ? derivative(stage.scale_below, stage.layer.in_size) : nullptr;
    dense_backward(stage, packed, delta, scale, panels, below);
    delta = below;
  }
}

template <class T>
void block_gradient(const Plan& plan, const T* input, std::int64_t panels, Workspace<T>& space,
                    T* grad) {
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op != Op::kDense) continue;
    const T* x = stage.in_value == 0 ? input : space.value(stage.in_value);
    dense_gradient(stage, x, space.delta(stage.delta), panels, 0, stage.layer.in_size,
                   space.scratch(), grad);
  }
}

template <class T>
void layer_gradient(const Stage& stage, const T* input, std::int64_t panels, int member,
                    int members, Workspace<T>& space, T* scratch, T* grad) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t ins = stage.layer.in_size, outs = stage.layer.out_size;
  const std::int64_t i0 = ins * member / members, i1 = ins * (member + 1) / members;
  const T* delta = space.delta(stage.delta);
  T* weights = grad + stage.layer.weight_offset;
  std::fill(weights + i0 * outs, weights + i1 * outs, T(0));
  dense_gradient(stage, stage.in_value == 0 ? input : space.value(stage.in_value), delta, panels,
                 i0, i1, scratch, grad);
  if (stage.layer.bias_offset < 0) return;
  const std::int64_t o0 = outs * member / members, o1 = outs * (member + 1) / members;
  T* sums = space.bias_sums(stage.delta) + o0 * k.lanes;
  T* bias = grad + stage.layer.bias_offset;
  std::fill(sums, sums + (o1 - o0) * k.lanes, T(0));
  std::fill(bias + o0, bias + o1, T(0));
  for (std::int64_t p = 0; p < panels; ++p) {
    k.bias_accumulate(delta + (p * outs + o0) * kPanel, 1, o1 - o0, sums);
  }
  k.bias_reduce(sums, o1 - o0, bias + o0);
}

template <class T>
void clear_bias_sums(const Plan& plan, Workspace<T>& space) {
  for (std::size_t d = 0; d < plan.delta_width.size(); ++d) {
    std::fill_n(space.bias_sums(static_cast<int>(d)), plan.delta_width[d] * kernels<T>().lanes,
                T(0));
  }
}

template <class T>
void add_bias_sums(const Plan& plan, Workspace<T>& space, T* grad) {
  for (const Stage& stage : plan.stages) {
    if (stage.layer.op == Op::kDense && stage.layer.bias_offset >= 0) {
      kernels<T>().bias_reduce(space.bias_sums(stage.delta), stage.layer.out_size,
                               grad + stage.layer.bias_offset);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template class Workspace<T>;                                                                    \
  template void pack_weights(const Plan&, const T*, bool, int, int, T*);                          \
  template const T* forward_group(const Plan&, const T*, const T*, const T*, std::int64_t,        \
                                  std::int64_t, bool, Workspace<T>&);                             \
  template T* output_delta(const Plan&, std::int64_t, Workspace<T>&);                             \
  template void backward_group(const Plan&, const T*, std::int64_t, std::int64_t, bool,           \
                               Workspace<T>&);                                                    \
  template void block_gradient(const Plan&, const T*, std::int64_t, Workspace<T>&, T*);           \
  template void layer_gradient(const Stage&, const T*, std::int64_t, int, int, Workspace<T>&, T*, \
                               T*);                                                               \
  template void clear_bias_sums(const Plan&, Workspace<T>&);                                      \
  template void add_bias_sums(const Plan&, Workspace<T>&, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
