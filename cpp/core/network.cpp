#include "core/network.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/activation_hd.h"

namespace ribbit {
namespace {

// Arrays of parameters of a layer: offsets and sizes, 0 where there is none.
struct Arrays {
  std::int64_t weight = 0, bias = 0, third = 0;
};

Arrays arrays_of(const Layer& layer) {
  const Window& w = layer.window;
  const auto if_there = [](std::int64_t offset, std::int64_t size) {
    return offset < 0 ? 0 : size;
  };
  switch (layer.op) {
    case Op::kDense:
      return {layer.in_size * layer.out_size, if_there(layer.bias_offset, layer.out_size), 0};
    case Op::kConv:
      return {w.kernel_height * w.kernel_width * w.channels * w.out_channels,
              if_there(layer.bias_offset, w.out_channels), 0};
    case Op::kFilterResponseNorm:
      return {w.channels, w.channels, if_there(layer.third_offset, w.channels)};
    case Op::kLayerNorm:
      return {w.channels, w.channels, 0};
    case Op::kEmbedding:
      return {layer.argument * w.channels, 0, 0};
    case Op::kLstm:
      return {w.channels * 4 * w.out_channels, 4 * w.out_channels,
              4 * w.out_channels * w.out_channels};
    case Op::kActivation:
    case Op::kDropout:
    case Op::kMaxPool:
    case Op::kAveragePool:
    case Op::kAdd:
    case Op::kCount:
      return {};
  }
  unreachable();
}

// Whether the window stays on the image that the sizes state.
bool fits(const Layer& layer) {
  const Window& w = layer.window;
  for (const std::int64_t size :
       {w.height, w.width, w.channels, w.kernel_height, w.kernel_width, w.stride_height,
        w.stride_width, w.out_height, w.out_width, w.out_channels}) {
    if (size < 1) return false;
  }
  // Every window covers at least one cell.
  const auto covers = [](std::int64_t size, std::int64_t kernel, std::int64_t stride,
                         std::int64_t pad, std::int64_t sites) {
    return pad >= 0 && pad < kernel && (sites - 1) * stride - pad < size;
  };
  return layer.in_size == w.height * w.width * w.channels &&
         layer.out_size == w.sites() * w.out_channels &&
         covers(w.height, w.kernel_height, w.stride_height, w.pad_top, w.out_height) &&
         covers(w.width, w.kernel_width, w.stride_width, w.pad_left, w.out_width);
}

// What is wrong with a layer by itself; empty: nothing.
std::string fault(const Layer& layer) {
  const Window& w = layer.window;
  if (layer.in_size < 1 || layer.out_size < 1) return "positive sizes";
  switch (layer.op) {
    case Op::kDense:
      break;
    case Op::kActivation:
      if (layer.activation < 0 || layer.activation >= kActivationCount) {
        return "an activation code in 0.." + std::to_string(kActivationCount - 1);
      }
      [[fallthrough]];
    case Op::kAdd:
      if (layer.in_size != layer.out_size) return "equal sizes of an elementwise layer";
      break;
    case Op::kDropout:
      if (layer.argument == 1 && (w.channels < 1 || layer.in_size % w.channels != 0)) {
        return "whole channels";
      }
      if (layer.in_size != layer.out_size) return "equal sizes of an elementwise layer";
      break;
    case Op::kConv:
      if (!fits(layer)) return "a window that fits its image";
      break;
    case Op::kMaxPool:
    case Op::kAveragePool:
      if (!fits(layer) || w.channels != w.out_channels) return "a window that fits its image";
      break;
    case Op::kFilterResponseNorm:
    case Op::kLayerNorm:
      if (w.channels < 1 || layer.in_size % w.channels != 0 || layer.in_size != layer.out_size) {
        return "whole channels";
      }
      if (layer.bias_offset < 0) return "offsets inside theta";
      break;
    case Op::kEmbedding:
      if (layer.argument < 1 || w.channels < 1 || layer.out_size != layer.in_size * w.channels) {
        return "a vector for each token";
      }
      break;
    case Op::kLstm:
      if (w.channels < 1 || w.out_channels < 1 || w.width < 1 ||
          layer.in_size != w.width * w.channels ||
          layer.out_size != w.out_channels * (layer.argument != 0 ? w.width : 1)) {
        return "sizes of a sequence";
      }
      if (layer.bias_offset < 0 || layer.third_offset < 0) return "offsets inside theta";
      break;
    case Op::kCount:
      return "an op";
  }
  if (arrays_of(layer).weight > 0 && layer.weight_offset < 0) return "offsets inside theta";
  if (layer.bias_offset < -1 || layer.third_offset < -1) return "offsets inside theta";
  return {};
}

}  // namespace

std::vector<Layer::Array> Layer::arrays() const {
  const Arrays sizes = arrays_of(*this);
  std::vector<Array> found;
  for (const Array& array : {Array{weight_offset, sizes.weight}, Array{bias_offset, sizes.bias},
                             Array{third_offset, sizes.third}}) {
    if (array.size > 0) found.push_back(array);
  }
  return found;
}

std::int64_t Layer::parameters_end() const {
  std::int64_t end = 0;
  for (const Array& array : arrays()) end = std::max(end, array.offset + array.size);
  return end;
}

std::int64_t Layer::multiplications() const {
  const Arrays sizes = arrays_of(*this);
  switch (op) {
    case Op::kDense:
      return sizes.weight;
    case Op::kConv:
      return sizes.weight * window.sites();
    case Op::kLstm:
      return (sizes.weight + sizes.third) * window.width;
    case Op::kActivation:
    case Op::kDropout:
    case Op::kMaxPool:
    case Op::kAveragePool:
    case Op::kFilterResponseNorm:
    case Op::kLayerNorm:
    case Op::kAdd:
    case Op::kEmbedding:
    case Op::kCount:
      return out_size;
  }
  unreachable();
}

Network Network::from_table(const std::int64_t* table, const double* rates, std::int64_t rows) {
  Network network;
  if (rows < 1) throw std::invalid_argument("[Network] expected at least 1 layer, got 0");
  std::vector<std::int64_t> sizes;  // of the values
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t* row = table + r * static_cast<std::int64_t>(Column::kCount);
    const auto at = [row](Column c) { return row[static_cast<std::int64_t>(c)]; };
    const auto fail = [r](const std::string& what) {
      throw std::invalid_argument("[Network] expected " + what + " in table row " +
                                  std::to_string(r));
    };
    constexpr auto kOps = static_cast<std::int64_t>(Op::kCount);
    if (at(Column::kOp) < 0 || at(Column::kOp) >= kOps) {
      fail("an op in 0.." + std::to_string(kOps - 1));
    }
    const Layer layer{
        static_cast<Op>(at(Column::kOp)),
        at(Column::kInSize),
        at(Column::kOutSize),
        at(Column::kWeightOffset),
        at(Column::kBiasOffset),
        at(Column::kThirdOffset),
        static_cast<int>(at(Column::kArgument)),
        at(Column::kIndex),
        rates[r],
        at(Column::kInput),
        at(Column::kSecond),
        at(Column::kArgument),
        {at(Column::kHeight), at(Column::kWidth), at(Column::kChannels), at(Column::kKernelHeight),
         at(Column::kKernelWidth), at(Column::kStrideHeight), at(Column::kStrideWidth),
         at(Column::kPadTop), at(Column::kPadLeft), at(Column::kOutHeight), at(Column::kOutWidth),
         at(Column::kOutChannels)}};
    const std::string wrong = fault(layer);
    if (!wrong.empty()) fail(wrong);
    if (r == 0) sizes.push_back(layer.in_size);
    const auto is_value = [&](std::int64_t value) {
      return value >= 0 && value <= r && sizes[static_cast<std::size_t>(value)] == layer.in_size;
    };
    if (!is_value(layer.input)) fail("an input of that size from a row before");
    if (layer.op == Op::kAdd && (!is_value(layer.second) || layer.second == layer.input)) {
      fail("a second input of that size from a row before");
    }
    if (layer.op == Op::kEmbedding && layer.input != 0) fail("the network's input of an embedding");
    const bool simple = layer.op == Op::kDense || layer.op == Op::kActivation ||
                        (layer.op == Op::kDropout && layer.argument == 0);
    network.plain_ = network.plain_ && simple && layer.input == r;
    network.dim_ = std::max(network.dim_, layer.parameters_end());
    network.multiplications_ += layer.multiplications();
    sizes.push_back(layer.out_size);
    network.layers_.push_back(layer);
  }
  if (network.dim_ == 0) {
    throw std::invalid_argument("[Network] expected a layer with parameters, got none");
  }
  network.input_size_ = network.layers_.front().in_size;
  network.output_size_ = network.layers_.back().out_size;
  return network;
}

}  // namespace ribbit
