#include "core/network.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

namespace ribbit {
namespace {

const OpRow& row_of(const Layer& layer) {
  return kOps[static_cast<std::size_t>(layer.op)];
}

// What is wrong with a layer by itself; empty: nothing.
std::string fault(const Layer& layer) {
  if (layer.in_size < 1 || layer.out_size < 1) return "positive sizes";
  const OpRow& row = row_of(layer);
  const std::string own = row.fault(layer);
  if (!own.empty()) return own;
  if (row.arrays(layer).weight > 0 && layer.weight_offset < 0) return "offsets inside theta";
  if (layer.bias_offset < -1 || layer.third_offset < -1) return "offsets inside theta";
  return {};
}

// What is wrong with the numbers of a row and its rate; empty: nothing. Sizes whose products
// overflow are kept away from all other checks.
std::string range_fault(const std::int64_t* row, double rate) {
  const auto at = [row](Column c) { return row[static_cast<std::int64_t>(c)]; };
  using C = Column;
  for (const C size : {C::kInSize, C::kOutSize, C::kArgument, C::kHeight, C::kWidth, C::kChannels,
                       C::kKernelHeight, C::kKernelWidth, C::kStrideHeight, C::kStrideWidth,
                       C::kPadTop, C::kPadLeft, C::kOutHeight, C::kOutWidth, C::kOutChannels,
                       C::kDilationHeight, C::kDilationWidth}) {
    if (at(size) < 0 || at(size) > kMostScalars) return "sizes of a layer in 0..2^34";
  }
  for (const C place : {C::kWeightOffset, C::kBiasOffset, C::kThirdOffset}) {
    if (at(place) < -1 || at(place) > kMostScalars) return "places in 0..2^34, or -1,";
  }
  const double most = static_cast<double>(std::numeric_limits<std::int64_t>::max()) / 4096;
  const auto fits = [&](std::initializer_list<C> sizes) {
    double product = 1;
    for (const C size : sizes) product *= static_cast<double>(std::max<std::int64_t>(at(size), 1));
    return product < most;
  };
  if (!fits({C::kInSize, C::kOutSize}) ||
      !fits({C::kKernelHeight, C::kKernelWidth, C::kChannels, C::kOutChannels, C::kOutHeight,
             C::kOutWidth}) ||
      !fits({C::kHeight, C::kWidth, C::kChannels}) || !fits({C::kArgument, C::kChannels}) ||
      !fits({C::kOutChannels, C::kOutChannels, C::kWidth}) ||
      !fits({C::kOutHeight, C::kStrideHeight}) || !fits({C::kOutWidth, C::kStrideWidth}) ||
      !fits({C::kKernelHeight, C::kDilationHeight}) ||
      !fits({C::kKernelWidth, C::kDilationWidth})) {
    return "fewer than 2^51 multiplications per row of data";
  }
  return rate >= 0.0 && rate < 1.0 ? "" : "a rate in [0, 1)";
}

}  // namespace

std::vector<Layer::Array> Layer::arrays() const {
  const ArraySizes sizes = row_of(*this).arrays(*this);
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
  const ArraySizes sizes = row_of(*this).arrays(*this);
  switch (stem()) {
    case Stem::kDense:
      return sizes.weight;
    case Stem::kConv:
      return sizes.weight * window.sites();
    case Stem::kLstm:
      return (sizes.weight + sizes.third) * window.width;
    case Stem::kElementwise:
    case Stem::kDropout:
    case Stem::kPool:
    case Stem::kNorm:
    case Stem::kEmbedding:
    case Stem::kCount:
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
    const std::string outside = range_fault(row, rates[r]);
    if (!outside.empty()) fail(outside);
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
        std::bit_cast<double>(at(Column::kNumber)),
        {at(Column::kHeight), at(Column::kWidth), at(Column::kChannels), at(Column::kKernelHeight),
         at(Column::kKernelWidth), at(Column::kStrideHeight), at(Column::kStrideWidth),
         at(Column::kPadTop), at(Column::kPadLeft), at(Column::kOutHeight), at(Column::kOutWidth),
         at(Column::kOutChannels), at(Column::kDilationHeight), at(Column::kDilationWidth),
         static_cast<Op>(at(Column::kOp)) == Op::kConv ? at(Column::kArgument) : 1}};
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
  if (network.dim_ > kMostScalars) {
    throw std::invalid_argument("[Network] expected at most 2^34 parameters");
  }
  if (network.dim_ == 0) {
    throw std::invalid_argument("[Network] expected a layer with parameters, got none");
  }
  network.input_size_ = network.layers_.front().in_size;
  network.output_size_ = network.layers_.back().out_size;
  return network;
}

}  // namespace ribbit
