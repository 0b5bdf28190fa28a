#include "core/network.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ribbit {

Network Network::from_table(const std::int64_t* table, const double* rates, std::int64_t rows) {
  Network network;
  if (rows < 1) throw std::invalid_argument("[Network] expected at least 1 layer, got 0");
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t* row = table + r * static_cast<std::int64_t>(Column::kCount);
    auto at = [row](Column c) { return row[static_cast<std::int64_t>(c)]; };
    const auto fail = [r](const std::string& what) {
      throw std::invalid_argument("[Network] expected " + what + " in table row " +
                                  std::to_string(r));
    };
    if (at(Column::kOp) < 0 || at(Column::kOp) > 2) fail("an op in 0..2");
    Layer layer{static_cast<Op>(at(Column::kOp)),
                at(Column::kInSize),
                at(Column::kOutSize),
                at(Column::kWeightOffset),
                at(Column::kBiasOffset),
                static_cast<int>(at(Column::kArgument)),
                at(Column::kIndex),
                rates[r]};
    if (layer.in_size < 1 || layer.out_size < 1) fail("positive sizes");
    if (r > 0 && layer.in_size != network.output_size_) fail("the previous output size");
    if (layer.op == Op::kDense) {
      if (layer.weight_offset < 0 || layer.bias_offset < -1) fail("offsets inside theta");
      const std::int64_t weight_end = layer.weight_offset + layer.in_size * layer.out_size;
      const std::int64_t bias_end = layer.bias_offset < 0 ? 0 : layer.bias_offset + layer.out_size;
      network.dim_ = std::max({network.dim_, weight_end, bias_end});
    } else if (layer.in_size != layer.out_size) {
      fail("equal sizes of an elementwise layer");
    }
    if (layer.op == Op::kActivation && (layer.activation < 0 || layer.activation > 6)) {
      fail("an activation code in 0..6");
    }
    network.output_size_ = layer.out_size;
    network.layers_.push_back(layer);
  }
  if (network.dim_ == 0) {
    throw std::invalid_argument("[Network] expected a layer with parameters, got none");
  }
  network.input_size_ = network.layers_.front().in_size;
  return network;
}

}  // namespace ribbit
