#include "cpu/network/graph_row_noise.h"

#include <algorithm>

namespace ribbit::cpu {
namespace {

// y = x W + b of a dense layer or a convolution; bias: (dim,) or null.
template <class T>
void through(const Stage& stage, const T* bias, const T* packed, const T* x, T* y) {
  Stage one = stage;
  if (bias == nullptr) one.layer.bias_offset = -1;
  if (stage.layer.op == Op::kDense) {
    dense_forward(one, bias, packed, x, 1, y);
  } else {
    conv_forward(one, bias, packed, x, y);
  }
}

template <class T>
void down(const Stage& stage, const T* packed, const T* delta, bool add, T* below) {
  if (stage.layer.op == Op::kDense) {
    dense_backward(stage, packed, delta, static_cast<const T*>(nullptr),
                   add ? kFinishAdd : kFinishPlain, 1, below);
  } else {
    conv_input_delta(stage, packed, delta, add, 0, stage.layer.window.out_height, below);
  }
}

template <class T>
void gradient(const Stage& stage, const T* x, const T* delta, bool bias, T* scratch, T* grad) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = stage.layer;
  T* bias_grad = bias && layer.bias_offset >= 0 ? grad + layer.bias_offset : nullptr;
  if (layer.op == Op::kDense) {
    k.weight_gradient(x, delta, kPanel, layer.in_size, layer.out_size, 0, layer.in_size, scratch,
                      grad + layer.weight_offset, bias_grad);
  } else {
    conv_weight_gradient(layer, x, delta, scratch, grad + layer.weight_offset, bias_grad);
  }
}

// Channels of a layer's input and output: what a weight belongs to.
std::int64_t channels_in(const Layer& layer) {
  return layer.op == Op::kConv ? layer.window.channels : layer.in_size;
}
std::int64_t channels_out(const Layer& layer) {
  return layer.op == Op::kConv ? layer.window.out_channels : layer.out_size;
}

// out = a b, b (run,) repeated over a (n,)
template <class T>
void product_of_runs(const T* a, const T* b, std::int64_t n, std::int64_t run, T* out) {
  for (std::int64_t at = 0; at < n; at += run) kernels<T>().product(a + at, b, run, out + at);
}

// y += factor a b, a (run,) repeated over b and y (n,)
template <class T>
void add_product_of_runs(T factor, const T* a, std::int64_t run, const T* b, std::int64_t n, T* y) {
  for (std::int64_t at = 0; at < n; at += run) {
    kernels<T>().add_product(factor, a, b + at, nullptr, run, y + at);
  }
}

// The widest input and output of layers with two paths, scalars per row.
struct Widest {
  std::int64_t in = 0, out = 0;
  explicit Widest(const Walk& walk) {
    for (const Step& step : walk.steps) {
      if (!is_paired(step.layer())) continue;
      in = std::max(in, step.layer().in_size);
      out = std::max(out, step.layer().out_size);
    }
  }
};

}  // namespace

bool is_paired(const Layer& layer) {
  return layer.op == Op::kDense || layer.op == Op::kConv;
}

template <class T>
PairedWalkSpace<T>::PairedWalkSpace(const Walk& walk) : first(walk, true) {
  std::int64_t size = 0;
  for (const Step& step : walk.steps) {
    factors_.push_back(size);
    if (is_paired(step.layer())) size += step.layer().out_size * kPanel;
  }
  const Widest widest(walk);
  input_ = size;
  signs_ = input_ + widest.in * kPanel;
  output_ = signs_ + widest.in * kPanel;
  slab_.resize(output_ + widest.out * kPanel);
}

template <class T>
std::int64_t PairedWalkSpace<T>::bytes(const Walk& walk) {
  const Widest widest(walk);
  std::int64_t size = 2 * widest.in + widest.out;
  for (const Step& step : walk.steps) {
    if (is_paired(step.layer())) size += step.layer().out_size;
  }
  return walk.template workspace_bytes<T>(true) +
         size * kPanel * static_cast<std::int64_t>(sizeof(T));
}

template <class T>
void pack_paired_walk(const Walk& walk, const T* mean, const T* second, const T* drawn, int member,
                      int members, T* packed_first, T* packed_second) {
  for (const Step& step : walk.steps) {
    if (step.layer().op == Op::kDense) {
      dense_pack(step.stage, mean, true, member, members, packed_first);
      dense_pack(step.stage, second, true, member, members, packed_second);
    } else if (step.layer().op == Op::kConv) {
      conv_pack(step.stage, mean, true, member, members, packed_first);
      conv_pack(step.stage, second, true, member, members, packed_second);
    } else if (step.layer().op == Op::kLstm) {
      lstm_pack(step, drawn, true, member, members, packed_first);
    }
  }
}

template <class T>
const T* paired_walk_forward(const Walk& walk, const PairedWeights<T>& weights, const T* drawn,
                             const T* input, const std::int64_t* rows, std::int64_t first_row,
                             std::int64_t count, PairedWalkSpace<T>& space) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  const int n = static_cast<int>(std::min<std::int64_t>(kPanel, count));
  const auto value = [&](int v) -> const T* {
    return v == 0 ? input : v < 0 ? nullptr : space.first.value(v);
  };
  for (std::size_t s = 0; s < walk.steps.size(); ++s) {
    const Step& step = walk.steps[s];
    const Layer& layer = step.layer();
    const T* x = value(step.in);
    if (!is_paired(layer)) {
      step_forward(walk, s, drawn, weights.packed_first, x, value(step.second), space.first,
                   nullptr, 0, 0);
      continue;
    }
    T *y = space.first.value(step.out), *factor = space.factor(s), *x2 = space.input();
    through(step.stage, weights.first, weights.packed_first, x, y);
    const std::int64_t ins = layer.in_size * kPanel, outs = layer.out_size * kPanel;
    if (local) {
      k.product(x, x, ins, x2);
      through(step.stage, weights.second, weights.packed_second, static_cast<const T*>(x2), factor);
      k.local_noise(weights.stream(layer, 0), rows, first_row, n, layer.out_size, y, factor);
    } else {
      const std::int64_t from = channels_in(layer), to = channels_out(layer);
      k.sign_panel(weights.stream(layer, 0), rows, first_row, n, from, space.signs());
      k.sign_panel(weights.stream(layer, 1), rows, first_row, n, to, factor);
      product_of_runs<T>(x, space.signs(), ins, from * kPanel, x2);
      through(step.stage, static_cast<const T*>(nullptr), weights.packed_second,
              static_cast<const T*>(x2), space.output());
      add_product_of_runs<T>(T(1), factor, to * kPanel, space.output(), outs, y);
    }
  }
  return space.first.value(walk.output);
}

template <class T>
void paired_walk_backward(const Walk& walk, const PairedWeights<T>& weights, const T* drawn,
                          const T* input, const std::int64_t* rows, std::int64_t first_row,
                          std::int64_t count, PairedWalkSpace<T>& space, T* first, T* second) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  const int n = static_cast<int>(std::min<std::int64_t>(kPanel, count));
  for (std::size_t s = walk.steps.size(); s-- > 0;) {
    const Step& step = walk.steps[s];
    const Layer& layer = step.layer();
    const WayBack<T> way =
        way_back(walk, s, drawn, weights.packed_first, input, space.first, first);
    if (way.delta == nullptr) continue;
    if (!is_paired(layer)) {
      step_backward(step, way);
      continue;
    }
    const std::int64_t ins = layer.in_size * kPanel, outs = layer.out_size * kPanel;
    const T* delta = way.delta;
    T *x2 = space.input(), *along = space.output();
    // What the input of the second path is multiplied by: itself, or signs over and over.
    const T* other = way.in;
    std::int64_t run = ins, factors = outs;
    if (!local) {
      run = channels_in(layer) * kPanel;
      factors = channels_out(layer) * kPanel;
      k.sign_panel(weights.stream(layer, 0), rows, first_row, n, run / kPanel, space.signs());
      other = space.signs();
    }
    product_of_runs<T>(way.in, other, ins, run, x2);
    product_of_runs<T>(delta, space.factor(s), outs, factors, along);
    gradient(step.stage, way.in, delta, true, way.scratch, first);
    // Flipout's biases have no second path: their noise is the same for all rows.
    gradient(step.stage, static_cast<const T*>(x2), static_cast<const T*>(along), local,
             way.scratch, second);
    if (way.delta_in == nullptr) continue;
    down(step.stage, weights.packed_first, delta, step.in_adds, way.delta_in);
    down(step.stage, weights.packed_second, static_cast<const T*>(along), false, x2);
    // d(x^2) / dx = 2 x, d(x s) / dx = s
    add_product_of_runs<T>(local ? T(2) : T(1), other, run, x2, ins, way.delta_in);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template class PairedWalkSpace<T>;                                                              \
  template void pack_paired_walk(const Walk&, const T*, const T*, const T*, int, int, T*, T*);    \
  template const T* paired_walk_forward(const Walk&, const PairedWeights<T>&, const T*, const T*, \
                                        const std::int64_t*, std::int64_t, std::int64_t,          \
                                        PairedWalkSpace<T>&);                                     \
  template void paired_walk_backward(const Walk&, const PairedWeights<T>&, const T*, const T*,    \
                                     const std::int64_t*, std::int64_t, std::int64_t,             \
                                     PairedWalkSpace<T>&, T*, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
