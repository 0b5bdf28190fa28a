#pragma once
// The layer table: what a model compiles to. Every interpreter of a network reads these rows.

#include <cstdint>
#include <iterator>
#include <vector>

#include "core/op_table.h"

namespace ribbit {

// Columns of the table that crosses from Python, in this order.
enum class Column : std::int64_t {
  kOp,
  kInSize,
  kOutSize,
  kWeightOffset,
  kBiasOffset,
  kArgument,
  kIndex,
  kInput,
  kSecond,
  kThirdOffset,
  kHeight,
  kWidth,
  kChannels,
  kKernelHeight,
  kKernelWidth,
  kStrideHeight,
  kStrideWidth,
  kPadTop,
  kPadLeft,
  kOutHeight,
  kOutWidth,
  kOutChannels,
  kNumber,  // the bits of a double
  kDilationHeight,
  kDilationWidth,
  kCount
};
inline constexpr const char* kColumnNames[] = {"op",
                                               "in_size",
                                               "out_size",
                                               "weight",
                                               "bias",
                                               "argument",
                                               "index",
                                               "input",
                                               "second",
                                               "third",
                                               "height",
                                               "width",
                                               "channels",
                                               "kernel_height",
                                               "kernel_width",
                                               "stride_height",
                                               "stride_width",
                                               "pad_top",
                                               "pad_left",
                                               "out_height",
                                               "out_width",
                                               "out_channels",
                                               "number",
                                               "dilation_height",
                                               "dilation_width"};
static_assert(std::size(kColumnNames) == static_cast<std::size_t>(Column::kCount));

inline constexpr std::int64_t kMostScalars = std::int64_t{1} << 34;  // of a row, of the parameters

class Network {
 public:
  // table: (rows, Column::kCount), rates: (rows,). Throws std::invalid_argument on a table that
  // does not chain.
  static Network from_table(const std::int64_t* table, const double* rates, std::int64_t rows);

  const std::vector<Layer>& layers() const { return layers_; }
  std::int64_t input_size() const { return input_size_; }
  std::int64_t output_size() const { return output_size_; }
  std::int64_t dim() const { return dim_; }  // number of parameters the layers use
  // Multiplications and additions of one row forward; a gradient makes three times as many.
  std::int64_t multiplications() const { return multiplications_; }
  // Nothing but dense layers, activations and dropout, one after the other.
  bool plain() const { return plain_; }

 private:
  std::vector<Layer> layers_;
  std::int64_t input_size_ = 0;
  std::int64_t output_size_ = 0;
  std::int64_t dim_ = 0;
  std::int64_t multiplications_ = 0;
  bool plain_ = true;
};

}  // namespace ribbit
