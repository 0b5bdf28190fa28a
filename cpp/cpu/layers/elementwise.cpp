// Activations, and sums of two values with the activation above them.

#include <algorithm>

#include "cpu/layers/layers.h"

namespace ribbit::cpu {

template <class T>
void times_slope(int activation, const T* z, std::int64_t n, T* delta, T* scratch) {
  const KernelTable<T>& k = kernels<T>();
  T *value = scratch, *slope = scratch + kSlopeRun;
  for (std::int64_t at = 0; at < n; at += kSlopeRun) {
    const std::int64_t some = std::min(kSlopeRun, n - at);
    k.activation_forward_derivative(activation, z + at, some, value, slope);
    k.multiply_in_place(delta + at, slope, some);
  }
}

template <class T>
void elementwise_forward(const GraphNode& node, const T* x, const T* second, T* y) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t n = node.layer().out_size * kPanel;
  if (second == nullptr) return k.activation_forward(node.activation, x, n, y);
  for (std::int64_t at = 0; at < n; at += kSlopeRun) {
    const std::int64_t some = std::min(kSlopeRun, n - at);
    k.add(x + at, second + at, some, y + at);
    if (node.activation >= 0) k.activation_forward(node.activation, y + at, some, y + at);
  }
}

template <class T>
void hand_down(const T* delta, std::int64_t n, bool add, T* below) {
  if (add) {
    kernels<T>().accumulate(delta, n, below);
  } else if (delta != below) {
    std::copy_n(delta, n, below);
  }
}

template <class T>
void elementwise_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t n = node.layer().out_size * kPanel;
  T* sum = args.scratch + 2 * kSlopeRun;
  for (std::int64_t at = 0; at < n; at += kSlopeRun) {
    const std::int64_t some = std::min(kSlopeRun, n - at);
    const T* z = args.in + at;
    if (node.activation >= 0) {
      if (args.second != nullptr) {
        k.add(z, args.second + at, some, sum);
        z = sum;
      }
      times_slope(node.activation, z, some, args.delta + at, args.scratch);
    }
    if (args.delta_in != nullptr) {
      hand_down(args.delta + at, some, node.in_adds, args.delta_in + at);
    }
    if (args.delta_second != nullptr) {
      hand_down(args.delta + at, some, node.second_adds, args.delta_second + at);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                  \
  template void elementwise_forward(const GraphNode&, const T*, const T*, T*); \
  template void hand_down(const T*, std::int64_t, bool, T*);                   \
  template void times_slope(int, const T*, std::int64_t, T*, T*);              \
  template void elementwise_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
