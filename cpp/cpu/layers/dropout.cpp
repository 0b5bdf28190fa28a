// Dropout of units or of whole channels; its state holds the factors.

#include <algorithm>
#include <cmath>

#include "cpu/layers/layers.h"
#include "cpu/system/faults.h"

namespace ribbit::cpu {

MaskStream Masks::stream(const Layer& layer) const {
  const auto index = static_cast<Word>(layer.index);
  return {seed,
          counter_step(step),
          sample,
          counter_purpose(purpose, index, step),
          static_cast<std::uint32_t>(std::min(std::llround(layer.rate * 0x1p32), 0xffffffffll)),
          planted(Fault::kDropoutScale) ? 1.0 - layer.rate : 1.0 / (1.0 - layer.rate),
          shared};
}

template <class T>
void dropout_forward(const GraphNode& node, const Masks& masks, std::int64_t first,
                     std::int64_t rows, const T* x, T* y, T* state) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  const bool channels = layer.argument == 1;
  const std::int64_t units = channels ? layer.window.channels : layer.out_size;
  k.mask_panel(masks.stream(layer), masks.rows != nullptr ? masks.rows + first : nullptr,
               masks.samples != nullptr ? masks.samples + first : nullptr, masks.first + first,
               static_cast<int>(std::min<std::int64_t>(kPanel, rows)), units, x, y, state, true);
  for (std::int64_t p = 1; channels && p < node.sites(); ++p) {
    const std::int64_t at = p * units * kPanel;
    k.product(x + at, state, units * kPanel, y + at);
  }
}

template <class T>
void dropout_backward(const GraphNode& node, const BackwardArgs<T>& args) {
  const KernelTable<T>& k = kernels<T>();
  const Layer& layer = node.layer();
  if (args.delta_in == nullptr) return;
  const bool channels = layer.argument == 1;
  const std::int64_t n = (channels ? layer.window.channels : layer.out_size) * kPanel;
  for (std::int64_t at = 0; at < layer.out_size * kPanel; at += n) {
    k.multiply_in_place(args.delta + at, args.state, n);
  }
  hand_down(args.delta, layer.out_size * kPanel, node.in_adds, args.delta_in);
}

#define RIBBIT_INSTANTIATE(T)                                                               \
  template void dropout_forward(const GraphNode&, const Masks&, std::int64_t, std::int64_t, \
                                const T*, T*, T*);                                          \
  template void dropout_backward(const GraphNode&, const BackwardArgs<T>&);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
