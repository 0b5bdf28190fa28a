// Embeddings: tokens ride in the lanes as numbers; a vector of the table is a row of data. A row of
// the gradient of a large table is cleared where a shard first touches it.

#include <algorithm>

#include "cpu/layers/layers.h"

namespace ribbit::cpu {
namespace {

// Rows of the table that a place's tokens name. A token outside the table is taken for the nearest
// one inside: the callers refuse it before.
template <class T>
void rows_of(const T* tokens, std::int64_t vocabulary, std::int64_t* rows) {
  for (int lane = 0; lane < kPanel; ++lane) {
    const T last = static_cast<T>(vocabulary - 1), token = tokens[lane];
    rows[lane] = token > 0 ? static_cast<std::int64_t>(token < last ? token : last) : 0;
  }
}

}  // namespace

template <class T>
void embedding_forward(const GraphNode& node, const T* theta, const T* tokens, T* y) {
  const Layer& layer = node.layer();
  const std::int64_t units = layer.window.channels;
  std::int64_t rows[kPanel];
  for (std::int64_t t = 0; t < layer.in_size; ++t) {
    rows_of(tokens + t * kPanel, layer.argument, rows);
    kernels<T>().pack_panel(theta + layer.weight_offset, units, rows, 0, kPanel,
                            y + t * units * kPanel);
  }
}

template <class T>
void embedding_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const std::int64_t units = layer.window.channels;
  std::uint8_t* marks =
      args.marks != nullptr && node.marks >= 0 ? args.marks + node.marks : nullptr;
  std::int64_t rows[kPanel];
  for (std::int64_t t = 0; t < layer.in_size; ++t) {
    rows_of(args.in + t * kPanel, layer.argument, rows);
    k.unpack_panel(args.delta + t * units * kPanel, units, 0, kPanel, args.scratch);
    for (int lane = 0; lane < kPanel; ++lane) {
      T* row = args.grad + layer.weight_offset + rows[lane] * units;
      if (marks != nullptr && marks[rows[lane]] == 0) {
        marks[rows[lane]] = 1;
        std::fill_n(row, units, T(0));  // not a copy of the first gradient: 0 + -0 is +0
      }
      k.accumulate(args.scratch + lane * units, units, row);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                \
  template void embedding_forward(const GraphNode&, const T*, const T*, T*); \
  template void embedding_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
