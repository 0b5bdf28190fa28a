#include "cpu/layers/layers.h"

#include <algorithm>

namespace ribbit::cpu {

std::int64_t dense_tiles(std::int64_t outs, int tile_outputs) {
  return (outs + tile_outputs - 1) / tile_outputs;
}

namespace {

constexpr std::int64_t kFew = 64;  // weights that are turned one by one

}  // namespace

template <class T>
void pack_matrix(const T* theta, std::int64_t offset, std::int64_t rows, std::int64_t columns,
                 bool transposed, const Part& part, T* packed) {
  const KernelTable<T>& k = kernels<T>();
  const auto [first, last] = part.rows(offset, rows, columns);
  const T* weight = theta + offset;
  if (transposed) {
    if (rows <= k.tile_outputs && rows * columns <= kFew) {  // one tile
      for (std::int64_t o = first; o < last; ++o) {
        for (std::int64_t c = 0; c < columns; ++c) packed[c * rows + o] = weight[o * columns + c];
      }
      return;
    }
    // Tiles are of rows here.
    const std::int64_t tiles = dense_tiles(rows, k.tile_outputs);
    k.pack_tiles(weight, columns, rows, true, tiles * first / rows, tiles * last / rows, columns, 0,
                 packed);
    return;
  }
  const T* own = weight + first * columns;
  if (columns <= k.tile_outputs) {  // one tile: the weights as they lie
    std::copy_n(own, (last - first) * columns, packed + first * columns);
    return;
  }
  k.pack_tiles(own, last - first, columns, false, 0, dense_tiles(columns, k.tile_outputs), rows,
               first, packed);
}

template <class T>
void dense_pack(const Stage& stage, const T* theta, bool backward, const Part& part, T* packed) {
  const Layer& layer = stage.layer;
  const auto pack = [&](bool transposed, T* out) {
    pack_matrix(theta, layer.weight_offset, layer.in_size, layer.out_size, transposed, part, out);
  };
  pack(false, packed + stage.packed);
  if (backward && stage.packed_back >= 0) pack(true, packed + stage.packed_back);
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

#define RIBBIT_INSTANTIATE(T)                                                                      \
  template void pack_matrix(const T*, std::int64_t, std::int64_t, std::int64_t, bool, const Part&, \
                            T*);                                                                   \
  template void dense_pack(const Stage&, const T*, bool, const Part&, T*);                         \
  template void dense_forward(const Stage&, const T*, const T*, const T*, std::int64_t, T*,        \
                              Finish, T*);                                                         \
  template std::int64_t dense_tile<T>(const Layer&);                                               \
  template void dense_backward(const Stage&, const T*, const T*, const T*, Finish, std::int64_t,   \
                               T*, const T*, T*);                                                  \
  template void dense_gradient(const Stage&, const T*, const T*, std::int64_t, std::int64_t,       \
                               std::int64_t, T*, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
