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
  explicit Widest(const GraphPlan& plan) {
    for (const GraphNode& node : plan.nodes) {
      if (!has_row_noise(node.layer())) continue;
      in = std::max(in, node.layer().in_size);
      out = std::max(out, node.layer().out_size);
    }
  }
};

}  // namespace

template <class T>
GraphRowNoiseSpace<T>::GraphRowNoiseSpace(const GraphPlan& plan) : first(plan, true) {
  std::int64_t size = 0;
  for (const GraphNode& node : plan.nodes) {
    factors_.push_back(size);
    if (has_row_noise(node.layer())) size += node.layer().out_size * kPanel;
  }
  const Widest widest(plan);
  input_ = size;
  signs_ = input_ + widest.in * kPanel;
  output_ = signs_ + widest.in * kPanel;
  slab_.resize(output_ + widest.out * kPanel);
}

template <class T>
std::int64_t GraphRowNoiseSpace<T>::bytes(const GraphPlan& plan) {
  const Widest widest(plan);
  std::int64_t size = 2 * widest.in + widest.out;
  for (const GraphNode& node : plan.nodes) {
    if (has_row_noise(node.layer())) size += node.layer().out_size;
  }
  return plan.template workspace_bytes<T>(true) +
         size * kPanel * static_cast<std::int64_t>(sizeof(T));
}

template <class T>
void pack_graph_row_noise(const GraphPlan& plan, const T* mean, const T* second, const T* drawn,
                          const Part& part, T* packed_first, T* packed_second) {
  for (const GraphNode& node : plan.nodes) {
    if (node.layer().op == Op::kDense) {
      dense_pack(node.stage, mean, true, part, packed_first);
      dense_pack(node.stage, second, true, part, packed_second);
    } else if (node.layer().op == Op::kConv) {
      conv_pack(node.stage, mean, true, part, packed_first);
      conv_pack(node.stage, second, true, part, packed_second);
    } else if (node.layer().op == Op::kLstm) {
      lstm_pack(node, drawn, true, part, packed_first);
    }
  }
}

template <class T>
const T* graph_row_noise_forward(const GraphPlan& plan, const RowNoiseWeights<T>& weights,
                                 const T* drawn, const T* input, const std::int64_t* rows,
                                 std::int64_t first_row, std::int64_t count,
                                 GraphRowNoiseSpace<T>& space, Cancel* cancel) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  const int n = static_cast<int>(std::min<std::int64_t>(kPanel, count));
  const auto value = [&](int v) -> const T* {
    return v == 0 ? input : v < 0 ? nullptr : space.first.value(v);
  };
  for (std::size_t s = 0; s < plan.nodes.size(); ++s) {
    if (stops(cancel)) return nullptr;
    const GraphNode& node = plan.nodes[s];
    const Layer& layer = node.layer();
    const T* x = value(node.in);
    if (!has_row_noise(layer)) {
      node_forward(plan, s, drawn, weights.packed_first, x, value(node.second), space.first,
                   nullptr, 0, 0);
      continue;
    }
    T *y = space.first.value(node.out), *factor = space.factor(s), *x2 = space.input();
    through(node.stage, weights.first, weights.packed_first, x, y);
    const std::int64_t ins = layer.in_size * kPanel, outs = layer.out_size * kPanel;
    if (local) {
      k.product(x, x, ins, x2);
      through(node.stage, weights.second, weights.packed_second, static_cast<const T*>(x2), factor);
      k.local_noise(weights.stream(layer, 0), rows, first_row, n, layer.out_size, y, factor);
    } else {
      const std::int64_t from = channels_in(layer), to = channels_out(layer);
      k.sign_panel(weights.stream(layer, 0), rows, first_row, n, from, space.signs());
      k.sign_panel(weights.stream(layer, 1), rows, first_row, n, to, factor);
      product_of_runs<T>(x, space.signs(), ins, from * kPanel, x2);
      through(node.stage, static_cast<const T*>(nullptr), weights.packed_second,
              static_cast<const T*>(x2), space.output());
      add_product_of_runs<T>(T(1), factor, to * kPanel, space.output(), outs, y);
    }
  }
  return space.first.value(plan.output);
}

template <class T>
void graph_row_noise_backward(const GraphPlan& plan, const RowNoiseWeights<T>& weights,
                              const T* drawn, const T* input, const std::int64_t* rows,
                              std::int64_t first_row, std::int64_t count,
                              GraphRowNoiseSpace<T>& space, T* first, T* second, Cancel* cancel) {
  const KernelTable<T>& k = kernels<T>();
  const bool local = weights.estimator == Estimator::kLocal;
  const int n = static_cast<int>(std::min<std::int64_t>(kPanel, count));
  for (std::size_t s = plan.nodes.size(); s-- > 0 && !stops(cancel);) {
    const GraphNode& node = plan.nodes[s];
    const Layer& layer = node.layer();
    const BackwardArgs<T> args =
        backward_args(plan, s, drawn, weights.packed_first, input, space.first, first);
    if (args.delta == nullptr) continue;
    if (!has_row_noise(layer)) {
      node_backward(node, args);
      continue;
    }
    const std::int64_t ins = layer.in_size * kPanel, outs = layer.out_size * kPanel;
    const T* delta = args.delta;
    T *x2 = space.input(), *along = space.output();
    // What the input of the second path is multiplied by: itself, or signs over and over.
    const T* other = args.in;
    std::int64_t run = ins, factors = outs;
    if (!local) {
      run = channels_in(layer) * kPanel;
      factors = channels_out(layer) * kPanel;
      k.sign_panel(weights.stream(layer, 0), rows, first_row, n, run / kPanel, space.signs());
      other = space.signs();
    }
    product_of_runs<T>(args.in, other, ins, run, x2);
    product_of_runs<T>(delta, space.factor(s), outs, factors, along);
    gradient(node.stage, args.in, delta, true, args.scratch, first);
    // Flipout's biases have no second path: their noise is the same for all rows.
    gradient(node.stage, static_cast<const T*>(x2), static_cast<const T*>(along), local,
             args.scratch, second);
    if (args.delta_in == nullptr) continue;
    down(node.stage, weights.packed_first, delta, node.in_adds, args.delta_in);
    down(node.stage, weights.packed_second, static_cast<const T*>(along), false, x2);
    // d(x^2) / dx = 2 x, d(x s) / dx = s
    add_product_of_runs<T>(local ? T(2) : T(1), other, run, x2, ins, args.delta_in);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                      \
  template class GraphRowNoiseSpace<T>;                                                            \
  template void pack_graph_row_noise(const GraphPlan&, const T*, const T*, const T*, const Part&,  \
                                     T*, T*);                                                      \
  template const T* graph_row_noise_forward(const GraphPlan&, const RowNoiseWeights<T>&, const T*, \
                                            const T*, const std::int64_t*, std::int64_t,           \
                                            std::int64_t, GraphRowNoiseSpace<T>&, Cancel*);        \
  template void graph_row_noise_backward(const GraphPlan&, const RowNoiseWeights<T>&, const T*,    \
                                         const T*, const std::int64_t*, std::int64_t,              \
                                         std::int64_t, GraphRowNoiseSpace<T>&, T*, T*, Cancel*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
