#pragma once
// The layer table: what a model compiles to. Every interpreter of a network reads these rows.

#include <cstdint>
#include <iterator>
#include <vector>

#include "core/window_hd.h"

namespace ribbit {

enum class Op : std::int64_t {
  kDense = 0,
  kActivation = 1,
  kDropout = 2,
  kConv = 3,
  kMaxPool = 4,
  kAveragePool = 5,
  kFilterResponseNorm = 6,
  kLayerNorm = 7,
  kAdd = 8,
  kEmbedding = 9,
  kLstm = 10,
  kCount
};
inline constexpr const char* kOpNames[] = {
    "dense",        "activation",           "dropout",    "conv", "max_pool",
    "average_pool", "filter_response_norm", "layer_norm", "add",  "embedding",
    "lstm"};
static_assert(std::size(kOpNames) == static_cast<std::size_t>(Op::kCount));

struct Layer {
  Op op;
  std::int64_t in_size;
  std::int64_t out_size;
  // Into theta, -1: none. dense: weight (in, out); convolution: (kernel height, kernel width,
  // channels, out channels); norms: gamma, beta, and as third array tau, (channels,) each;
  // embedding: (tokens, channels); LSTM: (channels, 4 units), bias (4 units,), third (units, 4
  // units), gates in the order input, forget, cell, output.
  std::int64_t weight_offset;
  std::int64_t bias_offset;
  std::int64_t third_offset;
  int activation;      // code of core/activation_hd.h
  std::int64_t index;  // number of the layer, for messages and addresses
  double rate;         // dropout rate
  // Values: 0 is the input of the network, r + 1 what row r gives.
  std::int64_t input;
  std::int64_t second;    // of a sum, else -1
  std::int64_t argument;  // dropout: 1 drops channels; embedding: tokens; LSTM: 1 gives all states
  Window window;

  struct Array {
    std::int64_t offset, size;
  };
  std::vector<Array> arrays() const;     // of parameters, in the order above
  std::int64_t parameters_end() const;   // behind the last parameter, 0: none
  std::int64_t multiplications() const;  // and additions, of one row forward
};

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
  kCount
};
inline constexpr const char* kColumnNames[] = {
    "op",       "in_size",       "out_size",     "weight",        "bias",         "argument",
    "index",    "input",         "second",       "third",         "height",       "width",
    "channels", "kernel_height", "kernel_width", "stride_height", "stride_width", "pad_top",
    "pad_left", "out_height",    "out_width",    "out_channels"};
static_assert(std::size(kColumnNames) == static_cast<std::size_t>(Column::kCount));

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
