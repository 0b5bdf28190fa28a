#include "cpu/layers/layers.h"

namespace ribbit::cpu {

template <class T>
void activation_forward(const Stage& stage, const T* z, std::int64_t n, T* value, T* derivative) {
  const KernelTable<T>& k = kernels<T>();
  if (derivative != nullptr) {
    k.activation_forward_derivative(stage.layer.activation, z, n, value, derivative);
  } else {
    k.activation_forward(stage.layer.activation, z, n, value);
  }
}

template <class T>
void activation_backward(const T* derivative, std::int64_t n, T* delta) {
  kernels<T>().multiply_in_place(delta, derivative, n);
}

#define RIBBIT_INSTANTIATE(T)                                                     \
  template void activation_forward(const Stage&, const T*, std::int64_t, T*, T*); \
  template void activation_backward(const T*, std::int64_t, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
