// Max and average pools.

#include <algorithm>

#include "cpu/layers/layers.h"

namespace ribbit::cpu {

template <class T>
void pool_forward(const GraphNode& node, const T* x, T* y) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = node.layer().window;
  if (node.layer().op == Op::kMaxPool) {
    k.max_pool(x, w, y);
  } else {
    k.average_pool(x, w, y);
  }
}

template <class T>
void pool_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  if (args.delta_in == nullptr) return;
  // Windows may overlap and may leave cells out.
  if (!node.in_adds) std::fill_n(args.delta_in, layer.in_size * kPanel, T(0));
  if (layer.op == Op::kMaxPool) {
    k.max_pool_backward(args.in, args.out, args.delta, layer.window, args.delta_in);
  } else {
    k.average_pool_backward(args.delta, layer.window, args.delta_in);
  }
}

#define RIBBIT_INSTANTIATE(T)                                 \
  template void pool_forward(const GraphNode&, const T*, T*); \
  template void pool_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
