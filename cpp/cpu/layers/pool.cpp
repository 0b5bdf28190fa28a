// Max and average pools, and the activation below a max pool: f(max z) for max f(z).

#include "cpu/layers/layers.h"

namespace ribbit::cpu {

template <class T>
void pool_forward(const GraphNode& node, const T* x, T* y, T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = node.layer().window;
  if (node.layer().op == Op::kMaxPool) {
    const bool activates = node.activation >= 0;
    k.max_pool(x, w, activates ? state : y);
    if (activates) k.activation_forward(node.activation, state, node.layer().out_size * kPanel, y);
  } else {
    k.average_pool(x, w, y);
  }
}

template <class T>
void pool_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  if (args.delta_in == nullptr) return;
  if (layer.op == Op::kAveragePool) {
    k.average_pool_backward(args.delta, layer.window, node.in_adds, args.delta_in);
    return;
  }
  const T* most = args.out;
  if (node.activation >= 0) {
    most = args.state;
    times_slope(node.activation, most, layer.out_size * kPanel, args.delta, args.scratch);
  }
  k.max_pool_backward(args.in, most, args.delta, layer.window, node.in_adds, args.delta_in);
}

#define RIBBIT_INSTANTIATE(T)                                     \
  template void pool_forward(const GraphNode&, const T*, T*, T*); \
  template void pool_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
