#include "cpu/walk.h"

#include <algorithm>

namespace ribbit::cpu {
namespace {

// An array that is needed from one moment to another, both included.
struct Need {
  std::int64_t size, from, to;
  std::int64_t* offset;
};

// First fit, in the order of their beginnings. Returns the size of the whole.
std::int64_t place(std::vector<Need> needs) {
  std::stable_sort(needs.begin(), needs.end(),
                   [](const Need& a, const Need& b) { return a.from < b.from; });
  std::int64_t size = 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    std::vector<const Need*> beside;  // of those placed before, alive at the same time
    for (std::size_t j = 0; j < i; ++j) {
      if (needs[j].to >= needs[i].from) beside.push_back(&needs[j]);
    }
    std::sort(beside.begin(), beside.end(),
              [](const Need* a, const Need* b) { return *a->offset < *b->offset; });
    std::int64_t at = 0;
    for (const Need* other : beside) {
      if (*other->offset - at >= needs[i].size) break;
      at = std::max(at, *other->offset + other->size);
    }
    *needs[i].offset = at;
    size = std::max(size, at + needs[i].size);
  }
  return size;
}

bool has_parameters(const Layer& layer) {
  return layer.parameters_end() > 0;
}

// Whether the way back looks at what the layer read.
bool reads_again(const Step& step) {
  switch (step.layer().op) {
    case Op::kDropout:
    case Op::kAveragePool:
      return false;
    case Op::kAdd:
      return step.activation >= 0;
    default:
      return true;
  }
}

// Whether the delta of what the layer read may be written over that of what it gave.
bool works_in_place(const Step& step) {
  switch (step.layer().op) {
    case Op::kActivation:
    case Op::kAdd:
    case Op::kDropout:
    case Op::kFilterResponseNorm:
      return true;
    default:
      return false;
  }
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
    default:
      return 0;
  }
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
    default:
      return kSlopeScratch;
  }
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
      const Layer* below =
          layer.input > 0 ? &layers[static_cast<std::size_t>(layer.input - 1)] : nullptr;
      if (below != nullptr && below->op == Op::kFilterResponseNorm &&
          readers[static_cast<std::size_t>(layer.input)] == 1) {
        step.stage.layer = *below;
        step.in = stands[static_cast<std::size_t>(below->input)];
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
    const Window& w = layer.window;
    if (layer.op == Op::kDense || layer.op == Op::kConv || layer.op == Op::kLstm) {
      const std::int64_t size = layer.op == Op::kDense ? layer.in_size * layer.out_size
                                : layer.op == Op::kConv
                                    ? w.kernel_height * w.kernel_width * w.channels * w.out_channels
                                    : w.channels * 4 * w.out_channels;
      step.stage.packed = pack(size);
      if (step.in_delta) step.stage.packed_back = pack(size);
    }
    if (layer.op == Op::kLstm) {
      const std::int64_t size = 4 * w.out_channels * w.out_channels;
      step.packed_third = pack(size);
      step.packed_third_back = pack(size);
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
    if (step.in_delta) step.in_adds = reach(step.in);
    if (step.second_delta) step.second_adds = reach(step.second);
  }
  if (linked) link();
  forward = layout(false);
  training = layout(true);
  prefix = before_masks();
}

void Walk::link() {
  std::vector<int> readers(value_size.size(), 0), writer(value_size.size(), -1);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    ++readers[static_cast<std::size_t>(steps[s].in)];
    if (steps[s].second >= 0) ++readers[static_cast<std::size_t>(steps[s].second)];
    writer[static_cast<std::size_t>(steps[s].out)] = static_cast<int>(s);
  }
  const auto is = [&](int s, Op op) {
    return s >= 0 && steps[static_cast<std::size_t>(s)].layer().op == op;
  };
  for (std::size_t s = 0; s < steps.size(); ++s) {
    Step& step = steps[s];
    const int below = writer[static_cast<std::size_t>(step.in)];
    if (below < 0 || readers[static_cast<std::size_t>(step.in)] != 1) continue;
    Step& source = steps[static_cast<std::size_t>(below)];
    if (step.layer().op == Op::kFilterResponseNorm && is(below, Op::kConv)) {
      step.conv_below = below;
      source.norm_above = static_cast<int>(s);
    }
    const Window& w = step.layer().window;
    if (step.layer().op == Op::kConv && is(below, Op::kFilterResponseNorm) && source.second < 0 &&
        w.stride_height == 1 && w.stride_width == 1) {
      step.norm_below = below;
      source.conv_above = static_cast<int>(s);
    }
  }
}

Layout Walk::layout(bool backward) const {
  const auto count = static_cast<std::int64_t>(steps.size());
  const auto back = [count](std::int64_t s) { return 2 * count - s; };  // moment of a way back
  Layout out;
  out.value.assign(value_size.size(), -1);
  out.delta.assign(value_size.size(), -1);
  out.state.assign(steps.size(), -1);
  struct Life {
    std::int64_t from = -1, to = -1;
  };
  std::vector<Life> values(value_size.size()), deltas(value_size.size());
  std::vector<Need> needs;
  // Which value's delta shares its memory with that of a value further up.
  std::vector<std::size_t> shares(value_size.size());
  std::vector<int> readers(value_size.size(), 0);
  for (std::size_t v = 0; v < shares.size(); ++v) shares[v] = v;
  for (const Step& step : steps) {
    ++readers[static_cast<std::size_t>(step.in)];
    if (step.second >= 0) ++readers[static_cast<std::size_t>(step.second)];
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto in = static_cast<std::size_t>(step->in);
    if (step->in_delta && works_in_place(*step) && readers[in] == 1) {
      shares[in] = shares[static_cast<std::size_t>(step->out)];
    }
  }
  for (std::int64_t s = 0; s < count; ++s) {
    const Step& step = steps[static_cast<std::size_t>(s)];
    const auto value = [&](int v) -> Life& { return values[static_cast<std::size_t>(v)]; };
    value(step.out) = {s, backward && step.layer().op == Op::kMaxPool ? back(s) : s};
    for (const int v : {step.in, step.second}) {
      if (v < 0) continue;
      value(v).to = std::max(value(v).to, backward && reads_again(step) ? back(s) : s);
    }
    if (step.state > 0) {
      const std::int64_t from = step.conv_below >= 0 ? step.conv_below : s;
      needs.push_back(
          {step.state, from, backward ? back(from) : s, &out.state[static_cast<std::size_t>(s)]});
    }
    if (backward && step.norm_above >= 0) value(step.out).to = back(s);
    if (!backward) continue;
    deltas[static_cast<std::size_t>(step.out)].to = back(s);
    for (const int v : {step.in_delta ? step.in : -1, step.second_delta ? step.second : -1}) {
      if (v > 0) deltas[static_cast<std::size_t>(v)].from = back(s);  // the last reader stays
    }
  }
  // The likelihood reads the output and writes its delta between the ways.
  Life& last = values[static_cast<std::size_t>(output)];
  last.to = std::max(last.to, count);
  deltas[static_cast<std::size_t>(output)].from = count;
  // A value further down is later on the way back.
  for (std::size_t v = 1; v < value_size.size(); ++v) {
    Life& shared = deltas[shares[v]];
    if (shares[v] != v) shared.to = std::max(shared.to, deltas[v].to);
  }
  for (std::size_t v = 1; v < value_size.size(); ++v) {
    needs.push_back({value_size[v], values[v].from, values[v].to, &out.value[v]});
    if (deltas[v].from >= 0 && shares[v] == v) {
      needs.push_back({value_size[v], deltas[v].from, deltas[v].to, &out.delta[v]});
    }
  }
  out.size = place(std::move(needs));
  for (std::size_t v = 1; v < value_size.size(); ++v) out.delta[v] = out.delta[shares[v]];
  return out;
}

Walk::Prefix Walk::before_masks() const {
  std::size_t masked = 0;
  while (masked < steps.size() && steps[masked].layer().op != Op::kDropout) ++masked;
  for (std::size_t first = masked; first > 0; --first) {
    // Values from before that are read from here on. A norm and its convolution stay together.
    std::vector<int> crossing;
    for (std::size_t s = first; s < steps.size(); ++s) {
      if (steps[s].conv_below >= 0 && steps[s].conv_below < static_cast<int>(first)) {
        crossing.assign(2, -1);
        break;
      }
      for (const int v : {steps[s].in, steps[s].second}) {
        const bool earlier = v >= 0 && (v == 0 || v <= steps[first - 1].out);
        if (earlier && std::find(crossing.begin(), crossing.end(), v) == crossing.end()) {
          crossing.push_back(v);
        }
      }
    }
    if (crossing.size() == 1) return {first, crossing.front()};
  }
  return {};
}

template <class T>
std::int64_t Walk::workspace_bytes(bool backward) const {
  std::int64_t scalars = (backward ? training : forward).size * kPanel;
  std::int64_t scratch = 0;
  for (const Step& step : steps) scratch = std::max(scratch, scratch_size<T>(step));
  scalars += scratch + value_size.front() * kPanel;
  return scalars * static_cast<std::int64_t>(sizeof(T));
}

template <class T>
WalkSpace<T>::WalkSpace(const Walk& walk, bool backward)
    : layout_(backward ? &walk.training : &walk.forward),
      slab_(layout_->size * kPanel),
      input_(walk.value_size.front() * kPanel) {
  std::int64_t scratch = 0;
  for (const Step& step : walk.steps) scratch = std::max(scratch, scratch_size<T>(step));
  scratch_.resize(scratch);
}

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
  }
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
      dense_gradient(step.stage, way.in, way.delta, 1, 0, step.layer().in_size, way.scratch,
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
  }
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
