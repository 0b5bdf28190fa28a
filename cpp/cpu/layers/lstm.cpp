// LSTM. What the inputs add to the gates is one matrix product over all moments; the state adds
// its part moment by moment.

#include <algorithm>

#include "cpu/layers/layers.h"

namespace ribbit::cpu {
namespace {

// Of all moments: gates (4 units), cells (units), states (units).
template <class T>
struct Moments {
  T *gates, *cells, *states;
  Moments(const Window& w, T* state)
      : gates(state),
        cells(gates + 4 * w.width * w.out_channels * kPanel),
        states(cells + w.width * w.out_channels * kPanel) {}
};

}  // namespace

template <class T>
void lstm_pack(const GraphNode& node, const T* theta, bool backward, const Part& part, T* packed) {
  const Layer& layer = node.layer();
  const std::int64_t channels = layer.window.channels, units = layer.window.out_channels;
  const auto pack = [&](std::int64_t offset, std::int64_t ins, bool transposed, std::int64_t at) {
    pack_matrix(theta, offset, ins, 4 * units, transposed, part, packed + at);
  };
  pack(layer.weight_offset, channels, false, node.stage.packed);
  pack(layer.third_offset, units, false, node.packed_third);
  if (!backward) return;
  pack(layer.third_offset, units, true, node.packed_third_back);
  if (node.stage.packed_back >= 0) {
    pack(layer.weight_offset, channels, true, node.stage.packed_back);
  }
}

template <class T>
void lstm_forward(const GraphNode& node, const T* theta, const T* packed, const T* x, T* y,
                  T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const Window& w = layer.window;
  const std::int64_t units = w.out_channels, width = units * kPanel;
  const Moments<T> m(w, state);
  k.multiply(packed + node.stage.packed, theta + layer.bias_offset, x, m.gates, nullptr,
             kFinishPlain, w.channels, 4 * units, w.width);
  for (std::int64_t t = 0; t < w.width; ++t) {
    T* gates = m.gates + 4 * t * width;
    if (t > 0) {
      k.multiply(packed + node.packed_third, nullptr, m.states + (t - 1) * width, gates, nullptr,
                 kFinishAdd, units, 4 * units, 1);
    }
    k.lstm_step(units, t > 0 ? m.cells + (t - 1) * width : nullptr, gates, m.cells + t * width,
                m.states + t * width);
  }
  const T* wanted = layer.argument != 0 ? m.states : m.states + (w.width - 1) * width;
  std::copy_n(wanted, layer.out_size * kPanel, y);
}

template <class T>
void lstm_layer_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const Window& w = layer.window;
  const std::int64_t units = w.out_channels, width = units * kPanel;
  const Moments<T> m(w, args.state);
  T *dstate = args.scratch, *dcell = dstate + width, *scratch = dcell + width;
  std::fill_n(dstate, 2 * width, T(0));
  for (std::int64_t t = w.width; t-- > 0;) {
    T* gates = m.gates + 4 * t * width;
    const bool given = layer.argument != 0 || t + 1 == w.width;
    if (given) {
      k.accumulate(args.delta + (layer.argument != 0 ? t * width : 0), width, dstate);
    }
    k.lstm_backward(units, t > 0 ? m.cells + (t - 1) * width : nullptr, m.cells + t * width, dstate,
                    gates, dcell);
    if (t == 0) break;
    k.multiply(args.packed + node.packed_third_back, nullptr, gates, dstate, nullptr, kFinishPlain,
               4 * units, units, 1);
  }
  k.weight_gradient(args.in, m.gates, w.width * kPanel, w.channels, 4 * units, 0, w.channels,
                    scratch, args.grad + layer.weight_offset, args.grad + layer.bias_offset);
  if (w.width > 1) {
    k.weight_gradient(m.states, m.gates + 4 * width, (w.width - 1) * kPanel, units, 4 * units, 0,
                      units, scratch, args.grad + layer.third_offset, nullptr);
  }
  if (args.delta_in == nullptr) return;
  k.multiply(args.packed + node.stage.packed_back, nullptr, m.gates, args.delta_in, nullptr,
             node.in_adds ? kFinishAdd : kFinishPlain, 4 * units, w.channels, w.width);
}

#define RIBBIT_INSTANTIATE(T)                                                         \
  template void lstm_pack(const GraphNode&, const T*, bool, const Part&, T*);         \
  template void lstm_forward(const GraphNode&, const T*, const T*, const T*, T*, T*); \
  template void lstm_layer_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
