// Max and average pools.

#include <algorithm>

#include "cpu/network/graph_pass.h"

namespace ribbit::cpu {

template <class T>
void pool_forward(const Step& step, const T* x, T* y) {
  const KernelTable<T>& k = kernels<T>();
  const Window& w = step.layer().window;
  if (step.layer().op == Op::kMaxPool) {
    k.max_pool(x, w, y);
  } else {
    k.average_pool(x, w, y);
  }
}

template <class T>
void pool_backward(const Step& step, const WayBack<T>& way) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = step.layer();
  if (way.delta_in == nullptr) return;
  // Windows may overlap and may leave cells out.
  if (!step.in_adds) std::fill_n(way.delta_in, layer.in_size * kPanel, T(0));
  if (layer.op == Op::kMaxPool) {
    k.max_pool_backward(way.in, way.out, way.delta, layer.window, way.delta_in);
  } else {
    k.average_pool_backward(way.delta, layer.window, way.delta_in);
  }
}

#define RIBBIT_INSTANTIATE(T)                            \
  template void pool_forward(const Step&, const T*, T*); \
  template void pool_backward(const Step&, const WayBack<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
