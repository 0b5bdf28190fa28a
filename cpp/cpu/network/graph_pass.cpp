#include "cpu/network/graph_pass.h"

#include <algorithm>
#include <utility>

namespace ribbit::cpu {
namespace {

// Whether it pays to mark the rows of an embedding that a shard touches: where clearing and reading
// the whole table goes past a core's own caches (2^18 scalars are 1 MiB in float32), and a row is
// at least a cache line, which costs more than its mark.
bool is_large_table(const Layer& layer) {
  constexpr std::int64_t kLargeTable = std::int64_t{1} << 18, kLine = 16;
  return layer.stem() == Stem::kEmbedding && layer.window.channels >= kLine &&
         layer.argument * layer.window.channels >= kLargeTable;
}

bool has_parameters(const Layer& layer) {
  return layer.parameters_end() > 0;
}

std::int64_t state_size(const GraphNode& node) {
  const Layer& layer = node.layer();
  switch (layer.stem()) {
    case Stem::kDropout:
      return layer.argument == 1 ? layer.window.channels : layer.out_size;
    case Stem::kNorm:
      return norm_state(layer);
    case Stem::kLstm:  // gates, cells and states of all moments
      return 6 * layer.window.width * layer.window.out_channels;
    case Stem::kDense:
    case Stem::kElementwise:
    case Stem::kConv:
    case Stem::kEmbedding:
    case Stem::kCount:
      return 0;
    case Stem::kPool:  // the largest of each window, which its activation is of
      return node.activation >= 0 ? layer.out_size : 0;
  }
  unreachable();
}

// f(max z) = max f(z), so that one f in a window is enough.
bool is_monotone(int activation) {
  switch (static_cast<ActivationCode>(activation)) {
    case kIdentity:
    case kRelu:
    case kTanh:
    case kSigmoid:
    case kSoftplus:
    case kLeakyRelu:
    case kElu:
      return true;
    case kSilu:
    case kGelu:
    case kActivationCount:
      break;
  }
  return false;
}

template <class T>
std::int64_t scratch_size(const GraphNode& node) {
  const Layer& layer = node.layer();
  const std::int64_t lanes = kernels<T>().lanes;
  const auto padded = [lanes](std::int64_t n) { return (n + lanes - 1) / lanes * lanes; };
  const Window& w = layer.window;
  switch (layer.stem()) {
    case Stem::kDense:
      return padded(layer.out_size) * kPanel;
    case Stem::kConv:  // or what the norm below needs
      return std::max(kernels<T>().convolution_scratch(w), 3 * w.channels * kPanel);
    case Stem::kNorm:
      return norm_scratch(layer);
    case Stem::kEmbedding:
      return w.channels * kPanel;
    case Stem::kLstm:  // transposed deltas, and deltas of state and cell
      return (padded(4 * w.out_channels) * w.width + 2 * w.out_channels) * kPanel;
    case Stem::kElementwise:
    case Stem::kDropout:
    case Stem::kPool:
    case Stem::kCount:
      return kSlopeScratch;
  }
  unreachable();
}

}  // namespace

GraphPlan::GraphPlan(const Network& network, bool masks, bool linked) {
  const std::vector<Layer>& layers = network.layers();
  const std::size_t count = layers.size();
  // How often each value is read, by which sum as its first summand, and which value stands for it.
  std::vector<int> readers(count + 1, 0), stands(count + 1, 0);
  std::vector<bool> summand(count + 1, false);
  for (const Layer& layer : layers) {
    ++readers[static_cast<std::size_t>(layer.input)];
    if (layer.second >= 0) ++readers[static_cast<std::size_t>(layer.second)];
    if (layer.op == Op::kAdd) summand[static_cast<std::size_t>(layer.input)] = true;
  }
  value_size.push_back(network.input_size());
  std::vector<bool> below{false};  // of each value: parameters at or below it
  int pooled = -1;                 // activation of the pool that comes next
  for (std::size_t r = 0; r < count; ++r) {
    const Layer& layer = layers[r];
    const int in = stands[static_cast<std::size_t>(layer.input)];
    if (layer.op == Op::kDropout && (!masks || layer.rate == 0.0)) {
      stands[r + 1] = in;
      continue;
    }
    // A monotone activation that a max pool alone reads goes with the pool.
    if (layer.op == Op::kActivation && is_monotone(layer.activation) && readers[r + 1] == 1 &&
        r + 1 < count && layers[r + 1].op == Op::kMaxPool &&
        layers[r + 1].input == static_cast<std::int64_t>(r + 1)) {
      stands[r + 1] = in;
      pooled = layer.activation;
      continue;
    }
    // A norm that a sum alone reads goes with the sum: nothing of its own is stored.
    if (layer.op == Op::kFilterResponseNorm && readers[r + 1] == 1 && summand[r + 1]) continue;
    GraphNode node;
    node.stage.layer = layer;
    node.in = in;
    if (layer.op == Op::kAdd) {
      node.second = stands[static_cast<std::size_t>(layer.second)];
      const Layer* source =
          layer.input > 0 ? &layers[static_cast<std::size_t>(layer.input - 1)] : nullptr;
      if (source != nullptr && source->op == Op::kFilterResponseNorm &&
          readers[static_cast<std::size_t>(layer.input)] == 1) {
        node.stage.layer = *source;
        node.in = stands[static_cast<std::size_t>(source->input)];
      }
    }
    if (layer.op == Op::kActivation) node.activation = layer.activation;
    if (layer.op == Op::kMaxPool) node.activation = std::exchange(pooled, -1);
    // An activation right above a norm or a sum goes with it.
    const bool takes = layer.op == Op::kFilterResponseNorm || layer.op == Op::kAdd;
    const bool fused = takes && r + 1 < count && layers[r + 1].op == Op::kActivation &&
                       layers[r + 1].input == static_cast<std::int64_t>(r + 1) &&
                       readers[r + 1] == 1;
    if (fused) node.activation = layers[r + 1].activation;
    const auto is_below = [&](int v) { return below[static_cast<std::size_t>(v)]; };
    node.in_delta = is_below(node.in);
    node.second_delta = node.second >= 0 && is_below(node.second);
    node.stage.needs_input_delta = node.in_delta;
    const auto pack = [&](std::int64_t size) {
      const std::int64_t offset = packed_size;
      packed_size += size;
      return offset;
    };
    if (layer.op == Op::kDense || layer.op == Op::kConv || layer.op == Op::kLstm) {
      const std::vector<Layer::Array> arrays = layer.arrays();  // the first are the weights
      node.stage.packed = pack(arrays.front().size);
      if (node.in_delta) node.stage.packed_back = pack(arrays.front().size);
      if (layer.op == Op::kLstm) {
        node.packed_third = pack(arrays.back().size);
        node.packed_third_back = pack(arrays.back().size);
      }
    }
    if (is_large_table(layer)) {
      node.marks = tables.empty() ? 0 : tables.back().marks + tables.back().rows;
      tables.push_back({layer.weight_offset, layer.argument, layer.window.channels, node.marks});
    }
    node.state = state_size(node);
    value_size.push_back(layer.out_size);
    below.push_back(node.in_delta || node.second_delta || has_parameters(node.layer()));
    node.out = static_cast<int>(value_size.size()) - 1;
    nodes.push_back(node);
    stands[r + 1] = node.out;
    if (fused) {
      stands[r + 2] = node.out;
      ++r;
    }
  }
  output = stands[count];
  // On the way back the first layer to reach a value assigns its delta, the others add.
  std::vector<bool> reached(value_size.size(), false);
  const auto reach = [&](int v) {
    const bool before = reached[static_cast<std::size_t>(v)];
    reached[static_cast<std::size_t>(v)] = true;
    return before;
  };
  for (std::size_t s = nodes.size(); s-- > 0;) {
    GraphNode& node = nodes[s];
    // A norm reaches the value it adds first, a sum its first summand; they may be one value.
    const bool norm = node.layer().op == Op::kFilterResponseNorm;
    if (norm && node.second_delta) node.second_adds = reach(node.second);
    if (node.in_delta) node.in_adds = reach(node.in);
    if (!norm && node.second_delta) node.second_adds = reach(node.second);
  }
  if (linked) link();
  forward = layout(false);
  training = layout(true);
  prefix = before_masks();
}

template <class T>
std::int64_t GraphPlan::scratch() const {
  std::int64_t most = 0;
  for (const GraphNode& node : nodes) most = std::max(most, scratch_size<T>(node));
  return most;
}

template <class T>
std::int64_t GraphPlan::workspace_bytes(bool backward) const {
  const std::int64_t panels = (backward ? training : forward).size + value_size.front();
  return (panels * kPanel + scratch<T>()) * static_cast<std::int64_t>(sizeof(T));
}

template <class T>
GraphSpace<T>::GraphSpace(const GraphPlan& plan, bool backward)
    : layout_(backward ? &plan.training : &plan.forward),
      slab_(layout_->size * kPanel),
      scratch_(plan.template scratch<T>()),
      input_(plan.value_size.front() * kPanel) {}

template <class T>
void pack_graph(const GraphPlan& plan, const T* theta, bool backward, const Part& part, T* packed) {
  for (const GraphNode& node : plan.nodes) {
    if (node.layer().op == Op::kDense) {
      dense_pack(node.stage, theta, backward, part, packed);
    } else if (node.layer().op == Op::kConv) {
      conv_pack(node.stage, theta, backward, part, packed);
    } else if (node.layer().op == Op::kLstm) {
      lstm_pack(node, theta, backward, part, packed);
    }
  }
}

template <class T>
void node_forward(const GraphPlan& plan, std::size_t s, const T* theta, const T* packed, const T* x,
                  const T* second, GraphSpace<T>& space, const Masks* masks, std::int64_t first,
                  std::int64_t rows) {
  const GraphNode& node = plan.nodes[s];
  T* y = space.value(node.out);
  switch (node.layer().stem()) {
    case Stem::kDense:
      return dense_forward(node.stage, theta, packed, x, 1, y);
    case Stem::kElementwise:
      return elementwise_forward(node, x, second, y);
    case Stem::kDropout:
      return dropout_forward(node, *masks, first, rows, x, y, space.state(s));
    case Stem::kConv:
      return conv_forward(
          node.stage, theta, packed, x, y,
          node.norm_above >= 0 ? space.state(static_cast<std::size_t>(node.norm_above)) : nullptr);
    case Stem::kPool:
      return pool_forward(node, x, y, space.state(s));
    case Stem::kNorm:
      return norm_forward(node, theta, x, second, y, space.state(s));
    case Stem::kEmbedding:
      return embedding_forward(node, theta, x, y);
    case Stem::kLstm:
      return lstm_forward(node, theta, packed, x, y, space.state(s));
    case Stem::kCount:
      break;
  }
  unreachable();
}

template <class T>
const T* graph_forward(const GraphPlan& plan, const T* theta, const T* packed, const T* input,
                       GraphSpace<T>& space, const Masks* masks, std::int64_t first,
                       std::int64_t rows, StageRange range, Cancel* cancel) {
  const std::size_t last = std::min(range.last, plan.nodes.size());
  // The value that enters: the network's input, or the only one that crosses.
  const int entering = range.first == 0 ? 0 : plan.prefix.value;
  const auto value = [&](int v) -> const T* {
    return v == entering ? input : v < 0 ? nullptr : space.value(v);
  };
  const T* current = input;
  for (std::size_t s = range.first; s < last; ++s) {
    const GraphNode& node = plan.nodes[s];
    node_forward(plan, s, theta, packed, value(node.in), value(node.second), space, masks, first,
                 rows);
    current = space.value(node.out);
    if (stops(cancel)) return nullptr;
  }
  return current;
}

template <class T>
BackwardArgs<T> backward_args(const GraphPlan& plan, std::size_t s, const T* theta, const T* packed,
                              const T* input, GraphSpace<T>& space, T* grad) {
  const auto value = [&](int v) -> const T* {
    return v == 0 ? input : v < 0 ? nullptr : space.value(v);
  };
  const GraphNode& node = plan.nodes[s];
  return {theta,
          packed,
          value(node.in),
          value(node.second),
          space.value(node.out),
          space.state(s),
          space.delta(node.out),
          node.in_delta ? space.delta(node.in) : nullptr,
          node.second_delta ? space.delta(node.second) : nullptr,
          space.scratch(),
          grad,
          node.norm_above >= 0 ? space.state(static_cast<std::size_t>(node.norm_above)) : nullptr};
}

template <class T>
void node_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  switch (node.layer().stem()) {
    case Stem::kDense:
      dense_gradient(node.stage, args.in, args.delta, kPanel, 0, node.layer().in_size, args.scratch,
                     args.grad);
      if (args.delta_in == nullptr) return;
      return dense_backward(node.stage, args.packed, static_cast<const T*>(args.delta),
                            static_cast<const T*>(nullptr),
                            node.in_adds ? kFinishAdd : kFinishPlain, 1, args.delta_in);
    case Stem::kElementwise:
      return elementwise_backward(node, args);
    case Stem::kDropout:
      return dropout_backward(node, args);
    case Stem::kConv:
      return conv_backward(node, args);
    case Stem::kPool:
      return pool_backward(node, args);
    case Stem::kNorm:
      return norm_backward(node, args);
    case Stem::kEmbedding:
      return embedding_backward(node, args);
    case Stem::kLstm:
      return lstm_layer_backward(node, args);
    case Stem::kCount:
      break;
  }
  unreachable();
}

template <class T>
void graph_backward(const GraphPlan& plan, const T* theta, const T* packed, const T* input,
                    GraphSpace<T>& space, T* grad, Cancel* cancel, std::uint8_t* marks) {
  for (std::size_t s = plan.nodes.size(); s-- > 0 && !stops(cancel);) {
    BackwardArgs<T> args = backward_args(plan, s, theta, packed, input, space, grad);
    args.marks = marks;
    if (args.delta == nullptr) continue;  // no parameters at or below
    const int below = plan.nodes[s].norm_below;
    if (below < 0) {
      node_backward(plan.nodes[s], args);
      continue;
    }
    const auto number = static_cast<std::size_t>(below);
    const BackwardArgs<T> norm = backward_args(plan, number, theta, packed, input, space, grad);
    args.norm = &plan.nodes[number];
    args.below = &norm;
    node_backward(plan.nodes[s], args);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                      \
  template std::int64_t GraphPlan::scratch<T>() const;                                             \
  template std::int64_t GraphPlan::workspace_bytes<T>(bool) const;                                 \
  template class GraphSpace<T>;                                                                    \
  template void pack_graph(const GraphPlan&, const T*, bool, const Part&, T*);                     \
  template const T* graph_forward(const GraphPlan&, const T*, const T*, const T*, GraphSpace<T>&,  \
                                  const Masks*, std::int64_t, std::int64_t, StageRange, Cancel*);  \
  template void node_forward(const GraphPlan&, std::size_t, const T*, const T*, const T*,          \
                             const T*, GraphSpace<T>&, const Masks*, std::int64_t, std::int64_t);  \
  template BackwardArgs<T> backward_args(const GraphPlan&, std::size_t, const T*, const T*,        \
                                         const T*, GraphSpace<T>&, T*);                            \
  template void node_backward(const GraphNode&, const BackwardArgs<T>&);                           \
  template void graph_backward(const GraphPlan&, const T*, const T*, const T*, GraphSpace<T>&, T*, \
                               Cancel*, std::uint8_t*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
