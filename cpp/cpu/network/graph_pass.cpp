#include "cpu/network/graph_pass.h"

#include <algorithm>

namespace ribbit::cpu {
namespace {

bool has_parameters(const Layer& layer) {
  return layer.parameters_end() > 0;
}

std::int64_t state_size(const Step& step) {
  const Layer& layer = step.layer();
  switch (layer.op) {
    case Op::kDropout:
      return layer.argument == 1 ? layer.window.channels : layer.out_size;
    case Op::kFilterResponseNorm:  // r, gamma r, shrink, and three sums
      return 6 * layer.window.channels;
    case Op::kLstm:  // gates, cells and states of all moments
      return 6 * layer.window.width * layer.window.out_channels;
    case Op::kDense:
    case Op::kActivation:
    case Op::kConv:
    case Op::kMaxPool:
    case Op::kAveragePool:
    case Op::kLayerNorm:
    case Op::kAdd:
    case Op::kEmbedding:
    case Op::kCount:
      return 0;
  }
  unreachable();
}

template <class T>
std::int64_t scratch_size(const Step& step) {
  const Layer& layer = step.layer();
  const std::int64_t lanes = kernels<T>().lanes;
  const auto padded = [lanes](std::int64_t n) { return (n + lanes - 1) / lanes * lanes; };
  const Window& w = layer.window;
  switch (layer.op) {
    case Op::kDense:
      return padded(layer.out_size) * kPanel;
    case Op::kConv:  // or what the norm below needs
      return std::max(kernels<T>().convolution_scratch(w), 3 * w.channels * kPanel);
    case Op::kFilterResponseNorm:  // a place with its value and slope
      return 3 * w.channels * kPanel;
    case Op::kLayerNorm:
      return 2 * w.channels * kPanel;
    case Op::kEmbedding:
      return w.channels * kPanel;
    case Op::kLstm:  // transposed deltas, and deltas of state and cell
      return (padded(4 * w.out_channels) * w.width + 2 * w.out_channels) * kPanel;
    case Op::kActivation:
    case Op::kDropout:
    case Op::kMaxPool:
    case Op::kAveragePool:
    case Op::kAdd:
    case Op::kCount:
      return kSlopeScratch;
  }
  unreachable();
}

}  // namespace

Walk::Walk(const Network& network, bool masks, bool linked) {
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
  for (std::size_t r = 0; r < count; ++r) {
    const Layer& layer = layers[r];
    const int in = stands[static_cast<std::size_t>(layer.input)];
    if (layer.op == Op::kDropout && (!masks || layer.rate == 0.0)) {
      stands[r + 1] = in;
      continue;
    }
    // A norm that a sum alone reads goes with the sum: nothing of its own is stored.
    if (layer.op == Op::kFilterResponseNorm && readers[r + 1] == 1 && summand[r + 1]) continue;
    Step step;
    step.stage.layer = layer;
    step.in = in;
    if (layer.op == Op::kAdd) {
      step.second = stands[static_cast<std::size_t>(layer.second)];
      const Layer* source =
          layer.input > 0 ? &layers[static_cast<std::size_t>(layer.input - 1)] : nullptr;
      if (source != nullptr && source->op == Op::kFilterResponseNorm &&
          readers[static_cast<std::size_t>(layer.input)] == 1) {
        step.stage.layer = *source;
        step.in = stands[static_cast<std::size_t>(source->input)];
      }
    }
    if (layer.op == Op::kActivation) step.activation = layer.activation;
    // An activation right above a norm or a sum goes with it.
    const bool takes = layer.op == Op::kFilterResponseNorm || layer.op == Op::kAdd;
    const bool fused = takes && r + 1 < count && layers[r + 1].op == Op::kActivation &&
                       layers[r + 1].input == static_cast<std::int64_t>(r + 1) &&
                       readers[r + 1] == 1;
    if (fused) step.activation = layers[r + 1].activation;
    const auto is_below = [&](int v) { return below[static_cast<std::size_t>(v)]; };
    step.in_delta = is_below(step.in);
    step.second_delta = step.second >= 0 && is_below(step.second);
    step.stage.needs_input_delta = step.in_delta;
    const auto pack = [&](std::int64_t size) {
      const std::int64_t offset = packed_size;
      packed_size += size;
      return offset;
    };
    if (layer.op == Op::kDense || layer.op == Op::kConv || layer.op == Op::kLstm) {
      const std::vector<Layer::Array> arrays = layer.arrays();  // the first are the weights
      step.stage.packed = pack(arrays.front().size);
      if (step.in_delta) step.stage.packed_back = pack(arrays.front().size);
      if (layer.op == Op::kLstm) {
        step.packed_third = pack(arrays.back().size);
        step.packed_third_back = pack(arrays.back().size);
      }
    }
    step.state = state_size(step);
    value_size.push_back(layer.out_size);
    below.push_back(step.in_delta || step.second_delta || has_parameters(step.layer()));
    step.out = static_cast<int>(value_size.size()) - 1;
    steps.push_back(step);
    stands[r + 1] = step.out;
    if (fused) {
      stands[r + 2] = step.out;
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
  for (std::size_t s = steps.size(); s-- > 0;) {
    Step& step = steps[s];
    // A norm reaches the value it adds first, a sum its first summand; they may be one value.
    const bool norm = step.layer().op == Op::kFilterResponseNorm;
    if (norm && step.second_delta) step.second_adds = reach(step.second);
    if (step.in_delta) step.in_adds = reach(step.in);
    if (!norm && step.second_delta) step.second_adds = reach(step.second);
  }
  if (linked) link();
  forward = layout(false);
  training = layout(true);
  prefix = before_masks();
}

template <class T>
std::int64_t Walk::scratch() const {
  std::int64_t most = 0;
  for (const Step& step : steps) most = std::max(most, scratch_size<T>(step));
  return most;
}

template <class T>
std::int64_t Walk::workspace_bytes(bool backward) const {
  const std::int64_t panels = (backward ? training : forward).size + value_size.front();
  return (panels * kPanel + scratch<T>()) * static_cast<std::int64_t>(sizeof(T));
}

template <class T>
WalkSpace<T>::WalkSpace(const Walk& walk, bool backward)
    : layout_(backward ? &walk.training : &walk.forward),
      slab_(layout_->size * kPanel),
      scratch_(walk.template scratch<T>()),
      input_(walk.value_size.front() * kPanel) {}

template <class T>
void pack_walk(const Walk& walk, const T* theta, bool backward, int member, int members,
               T* packed) {
  for (const Step& step : walk.steps) {
    if (step.layer().op == Op::kDense) {
      dense_pack(step.stage, theta, backward, member, members, packed);
    } else if (step.layer().op == Op::kConv) {
      conv_pack(step.stage, theta, backward, member, members, packed);
    } else if (step.layer().op == Op::kLstm) {
      lstm_pack(step, theta, backward, member, members, packed);
    }
  }
}

template <class T>
void step_forward(const Walk& walk, std::size_t s, const T* theta, const T* packed, const T* x,
                  const T* second, WalkSpace<T>& space, const Masks* masks, std::int64_t first,
                  std::int64_t rows) {
  const Step& step = walk.steps[s];
  T* y = space.value(step.out);
  switch (step.layer().op) {
    case Op::kDense:
      return dense_forward(step.stage, theta, packed, x, 1, y);
    case Op::kActivation:
    case Op::kAdd:
      return elementwise_forward(step, x, second, y);
    case Op::kDropout:
      return dropout_forward(step, *masks, first, rows, x, y, space.state(s));
    case Op::kConv:
      return conv_forward(
          step.stage, theta, packed, x, y,
          step.norm_above >= 0 ? space.state(static_cast<std::size_t>(step.norm_above)) : nullptr);
    case Op::kMaxPool:
    case Op::kAveragePool:
      return pool_forward(step, x, y);
    case Op::kFilterResponseNorm:
    case Op::kLayerNorm:
      return norm_forward(step, theta, x, second, y, space.state(s));
    case Op::kEmbedding:
      return embedding_forward(step, theta, x, y);
    case Op::kLstm:
      return lstm_forward(step, theta, packed, x, y, space.state(s));
    case Op::kCount:
      break;
  }
  unreachable();
}

template <class T>
const T* walk_forward(const Walk& walk, const T* theta, const T* packed, const T* input,
                      WalkSpace<T>& space, const Masks* masks, std::int64_t first,
                      std::int64_t rows, Stretch stretch) {
  const std::size_t last = std::min(stretch.last, walk.steps.size());
  // The value that enters: the network's input, or the only one that crosses.
  const int entering = stretch.first == 0 ? 0 : walk.prefix.value;
  const auto value = [&](int v) -> const T* {
    return v == entering ? input : v < 0 ? nullptr : space.value(v);
  };
  const T* current = input;
  for (std::size_t s = stretch.first; s < last; ++s) {
    const Step& step = walk.steps[s];
    step_forward(walk, s, theta, packed, value(step.in), value(step.second), space, masks, first,
                 rows);
    current = space.value(step.out);
  }
  return current;
}

template <class T>
WayBack<T> way_back(const Walk& walk, std::size_t s, const T* theta, const T* packed,
                    const T* input, WalkSpace<T>& space, T* grad) {
  const auto value = [&](int v) -> const T* {
    return v == 0 ? input : v < 0 ? nullptr : space.value(v);
  };
  const Step& step = walk.steps[s];
  return {theta,
          packed,
          value(step.in),
          value(step.second),
          space.value(step.out),
          space.state(s),
          space.delta(step.out),
          step.in_delta ? space.delta(step.in) : nullptr,
          step.second_delta ? space.delta(step.second) : nullptr,
          space.scratch(),
          grad,
          step.norm_above >= 0 ? space.state(static_cast<std::size_t>(step.norm_above)) : nullptr};
}

template <class T>
void step_backward(const Step& step, const WayBack<T>& way) {
  switch (step.layer().op) {
    case Op::kDense:
      dense_gradient(step.stage, way.in, way.delta, kPanel, 0, step.layer().in_size, way.scratch,
                     way.grad);
      if (way.delta_in == nullptr) return;
      return dense_backward(step.stage, way.packed, static_cast<const T*>(way.delta),
                            static_cast<const T*>(nullptr),
                            step.in_adds ? kFinishAdd : kFinishPlain, 1, way.delta_in);
    case Op::kActivation:
    case Op::kAdd:
      return elementwise_backward(step, way);
    case Op::kDropout:
      return dropout_backward(step, way);
    case Op::kConv:
      return conv_backward(step, way);
    case Op::kMaxPool:
    case Op::kAveragePool:
      return pool_backward(step, way);
    case Op::kFilterResponseNorm:
    case Op::kLayerNorm:
      return norm_backward(step, way);
    case Op::kEmbedding:
      return embedding_backward(step, way);
    case Op::kLstm:
      return lstm_layer_backward(step, way);
    case Op::kCount:
      break;
  }
  unreachable();
}

template <class T>
void walk_backward(const Walk& walk, const T* theta, const T* packed, const T* input,
                   WalkSpace<T>& space, T* grad) {
  for (std::size_t s = walk.steps.size(); s-- > 0;) {
    WayBack<T> way = way_back(walk, s, theta, packed, input, space, grad);
    if (way.delta == nullptr) continue;  // no parameters at or below
    const int below = walk.steps[s].norm_below;
    if (below < 0) {
      step_backward(walk.steps[s], way);
      continue;
    }
    const auto number = static_cast<std::size_t>(below);
    const WayBack<T> norm = way_back(walk, number, theta, packed, input, space, grad);
    way.norm = &walk.steps[number];
    way.below = &norm;
    step_backward(walk.steps[s], way);
  }
}

#define RIBBIT_INSTANTIATE(T)                                                                  \
  template std::int64_t Walk::scratch<T>() const;                                              \
  template std::int64_t Walk::workspace_bytes<T>(bool) const;                                  \
  template class WalkSpace<T>;                                                                 \
  template void pack_walk(const Walk&, const T*, bool, int, int, T*);                          \
  template const T* walk_forward(const Walk&, const T*, const T*, const T*, WalkSpace<T>&,     \
                                 const Masks*, std::int64_t, std::int64_t, Stretch);           \
  template void step_forward(const Walk&, std::size_t, const T*, const T*, const T*, const T*, \
                             WalkSpace<T>&, const Masks*, std::int64_t, std::int64_t);         \
  template WayBack<T> way_back(const Walk&, std::size_t, const T*, const T*, const T*,         \
                               WalkSpace<T>&, T*);                                             \
  template void step_backward(const Step&, const WayBack<T>&);                                 \
  template void walk_backward(const Walk&, const T*, const T*, const T*, WalkSpace<T>&, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
