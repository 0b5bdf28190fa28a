#include "cpu/layers/layers.h"

#include <algorithm>

namespace ribbit::cpu {

std::int64_t dense_tiles(std::int64_t outs, int tile_outputs) {
  return (outs + tile_outputs - 1) / tile_outputs;
}

namespace {

constexpr std::int64_t kFew = 64;  // weights that are turned one by one

// As kernel pack_tiles of one tile, which is the last member's: the weights as they lie, or turned.
template <class T>
void pack_one_tile(const T* weight, std::int64_t ins, std::int64_t outs, bool transposed,
                   int member, int members, T* packed) {
  if (member != members - 1) return;
  if (!transposed) {
    std::copy_n(weight, ins * outs, packed);
    return;
  }
  for (std::int64_t k = 0; k < ins; ++k) {
    for (std::int64_t o = 0; o < outs; ++o) packed[k * outs + o] = weight[o * ins + k];
  }
}

}  // namespace

template <class T>
void dense_pack(const Stage& stage, const T* theta, bool backward, int member, int members,
                T* packed) {
  const KernelTable<T>& k = kernels<T>();
  const T* weight = theta + stage.layer.weight_offset;
  const auto pack = [&](std::int64_t ins, std::int64_t outs, bool transposed, T* out) {
    if (outs <= k.tile_outputs && (!transposed || ins * outs <= kFew)) {
      pack_one_tile(weight, ins, outs, transposed, member, members, out);
      return;
    }
    const std::int64_t tiles = dense_tiles(outs, k.tile_outputs);
    k.pack_tiles(weight, ins, outs, transposed, tiles * member / members,
                 tiles * (member + 1) / members, ins, 0, out);
  };
  pack(stage.layer.in_size, stage.layer.out_size, false, packed + stage.packed);
  if (backward && stage.packed_back >= 0) {
    pack(stage.layer.out_size, stage.layer.in_size, true, packed + stage.packed_back);
  }
}

template <class T>
std::int64_t dense_tile(const Layer& layer) {
  return std::max(layer.in_size, layer.out_size) * kernels<T>().tile_outputs;
}

template <class T>
void dense_forward(const Stage& stage, const T* theta, const T* packed, const T* x,
                   std::int64_t panels, T* y, Finish finish, T* tile) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = stage.layer;
  const T* bias = layer.bias_offset >= 0 ? theta + layer.bias_offset : nullptr;
  const std::int64_t ins = layer.in_size, outs = layer.out_size;
  if (packed != nullptr) {
    k.multiply(packed + stage.packed, bias, x, y, nullptr, finish, ins, outs, panels);
  } else {
    k.multiply_unpacked(theta + layer.weight_offset, false, bias, x, y, nullptr, finish, ins, outs,
                        panels, tile);
  }
}

template <class T>
void dense_backward(const Stage& stage, const T* packed, const T* delta, const T* scale,
                    Finish finish, std::int64_t panels, T* delta_below, const T* theta, T* tile) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t ins = stage.layer.out_size, outs = stage.layer.in_size;
  if (packed != nullptr) {
    k.multiply(packed + stage.packed_back, nullptr, delta, delta_below, scale, finish, ins, outs,
               panels);
  } else {
    k.multiply_unpacked(theta + stage.layer.weight_offset, true, nullptr, delta, delta_below, scale,
                        finish, ins, outs, panels, tile);
  }
}

template <class T>
void dense_gradient(const Stage& stage, const T* x, const T* delta, std::int64_t rows,
                    std::int64_t first, std::int64_t last, T* scratch, T* grad) {
  const Layer& layer = stage.layer;
  kernels<T>().weight_gradient(x, delta, rows, layer.in_size, layer.out_size, first, last, scratch,
                               grad + layer.weight_offset,
                               layer.bias_offset >= 0 ? grad + layer.bias_offset : nullptr);
}

#define RIBBIT_INSTANTIATE(T)                                                                    \
  template void dense_pack(const Stage&, const T*, bool, int, int, T*);                          \
  template void dense_forward(const Stage&, const T*, const T*, const T*, std::int64_t, T*,      \
                              Finish, T*);                                                       \
  template std::int64_t dense_tile<T>(const Layer&);                                             \
  template void dense_backward(const Stage&, const T*, const T*, const T*, Finish, std::int64_t, \
                               T*, const T*, T*);                                                \
  template void dense_gradient(const Stage&, const T*, const T*, std::int64_t, std::int64_t,     \
                               std::int64_t, T*, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
