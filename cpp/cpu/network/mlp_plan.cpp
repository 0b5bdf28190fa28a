#include "cpu/network/mlp_plan.h"

#include <algorithm>

#include "cpu/isa/kernel_table-inl.h"

namespace ribbit::cpu {

MlpPlan::MlpPlan(const Network& network, bool masks, bool concrete) {
  value_width.push_back(network.input_size());
  if (!network.plain()) return;  // a GraphPlan's
  int current = 0;
  bool parameters_below = false;
  int open_derivative = -1;  // of an activation right below, not yet taken by a dense layer above
  for (const Layer& layer : network.layers()) {
    if (layer.op == Op::kDropout && (!masks || (!concrete && layer.rate == 0.0))) continue;
    Stage stage;
    stage.layer = layer;
    stage.in_value = current;
    multiplications += layer.multiplications();
    if (layer.op == Op::kDense) {
      stage.needs_input_delta = parameters_below;
      // A rate's gradient needs the delta before any derivative.
      stage.scale_below = concrete ? -1 : open_derivative;
      // The stage that owns the derivative; dropout merged into it comes after.
      for (std::size_t s = stages.size(); stage.scale_below >= 0 && s-- > 0;) {
        if (stages[s].derivative != open_derivative) break;
        stages[s].applied_above = true;
      }
      stage.packed = packed_size;
      packed_size += layer.in_size * layer.out_size;
      if (parameters_below) {
        stage.packed_back = packed_size;
        packed_size += layer.in_size * layer.out_size;
      }
      // One output: its weight gradient is a pass over values that are in cache on the way back.
      constexpr std::int64_t kMostNarrow = 256;
      if (layer.out_size == 1 && layer.in_size <= kMostNarrow) {
        stage.narrow = narrow_size;
        narrow_size += layer.in_size + 1;
      }
      stage.delta = static_cast<int>(delta_width.size());
      delta_width.push_back(layer.out_size);
      parameters_below = true;
      open_derivative = -1;
    }
    if (layer.op == Op::kDropout && concrete) {
      stage.rate = rates++;
      stage.ratio = static_cast<int>(derivative_width.size());
      derivative_width.push_back(layer.out_size);
      if (!parameters_below) delta_width.push_back(layer.out_size);  // of the input
      parameters_below = true;
    }
    if (layer.op == Op::kDense) {
      // done above
    } else if (layer.op == Op::kDropout && open_derivative >= 0) {
      stage.derivative = open_derivative;
      stage.merged = true;
    } else if (parameters_below) {
      stage.derivative = static_cast<int>(derivative_width.size());
      derivative_width.push_back(layer.out_size);
      // Of two activations in a row only the upper one's derivative is applied by a dense layer.
      open_derivative = stage.derivative;
    }
    if (layer.op == Op::kDense || current == 0) {
      value_width.push_back(layer.out_size);
      current = static_cast<int>(value_width.size()) - 1;
    }
    stage.out_value = current;
    stages.push_back(stage);
  }
  output_value = current;
  // A ReLU between dense layers needs no derivative of its own: it is where its value is positive.
  for (std::size_t s = 1; s + 1 < stages.size(); ++s) {
    Stage &relu = stages[s], &above = stages[s + 1];
    if (!relu.is_relu() || stages[s - 1].layer.op != Op::kDense || above.scale_below < 0 ||
        above.scale_below != relu.derivative || above.layer.op != Op::kDense) {
      continue;
    }
    relu.derivative = above.scale_below = -1;
    above.step_below = true;
  }
}

std::int64_t MlpPlan::block_panels(std::int64_t scalar_bytes) const {
  constexpr std::int64_t kCacheBytes = 400 << 10;
  constexpr std::int64_t kFewest = 4, kMost = 32;
  std::int64_t per_row = 0;
  for (std::size_t v = 1; v < value_width.size(); ++v) per_row += value_width[v];
  for (const std::int64_t width : delta_width) per_row += width;
  const std::int64_t per_panel = per_row * kPanel * scalar_bytes;
  return per_panel == 0 ? kFewest : std::clamp(kCacheBytes / per_panel, kFewest, kMost);
}

std::int64_t MlpPlan::kept_bytes(std::int64_t panels, std::int64_t scalar_bytes) const {
  std::int64_t per_row = 0;
  for (std::size_t v = 1; v < value_width.size(); ++v) per_row += value_width[v];
  for (const std::int64_t width : derivative_width) per_row += width;
  for (const std::int64_t width : delta_width) per_row += width;
  return per_row * panels * kPanel * scalar_bytes;
}

bool MlpPlan::packs_small(std::int64_t scalar_bytes) const {
  constexpr std::int64_t kCacheBytes = 64 << 10;
  return packed_size * scalar_bytes <= kCacheBytes;
}

}  // namespace ribbit::cpu
