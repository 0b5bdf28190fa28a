#pragma once
// What every interpreter of a network knows of an op: a row for each, in the order of their codes.

#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "core/activation_hd.h"
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
  kGroupNorm = 11,
  kCount
};

// Which file of each folder of layers computes an op.
enum class Stem { kDense, kElementwise, kDropout, kConv, kPool, kNorm, kEmbedding, kLstm, kCount };

struct Layer {
  Op op;
  std::int64_t in_size;
  std::int64_t out_size;
  // Into theta, -1: none. dense: weight (in, out); convolution: (groups, kernel height, kernel
  // width, channels of a group, out channels of a group); norms: gamma, beta, and as third array
  // tau, (channels,) each; embedding: (tokens, channels); LSTM: (channels, 4 units), bias (4
  // units,), third (units, 4 units), gates in the order input, forget, cell, output.
  std::int64_t weight_offset;
  std::int64_t bias_offset;
  std::int64_t third_offset;
  int activation;      // code of core/activation_hd.h
  std::int64_t index;  // number of the layer, for messages and addresses
  double rate;         // dropout rate
  // Values: 0 is the input of the network, r + 1 what row r gives.
  std::int64_t input;
  std::int64_t second;    // of a sum, else -1
  std::int64_t argument;  // dropout: 1 drops channels; embedding: tokens; LSTM: 1 gives all states;
                          // group norm, convolution: groups
  double number;          // norms: what is added to the variance or mean square, else 0
  Window window;

  struct Array {
    std::int64_t offset, size;
  };
  Stem stem() const;
  std::vector<Array> arrays() const;     // of parameters, in the order above
  std::int64_t parameters_end() const;   // behind the last parameter, 0: none
  std::int64_t multiplications() const;  // and additions, of one row forward
};

// Sizes of the arrays of parameters of a layer, 0 where there is none.
struct ArraySizes {
  std::int64_t weight = 0, bias = 0, third = 0;
};

struct OpRow {
  const char* name;
  Stem stem;
  ArraySizes (*arrays)(const Layer&);
  std::string (*fault)(const Layer&);  // what is wrong with a layer by itself; empty: nothing
};

namespace op_table {

inline std::int64_t if_there(std::int64_t offset, std::int64_t size) {
  return offset < 0 ? 0 : size;
}

inline ArraySizes no_arrays(const Layer&) {
  return {};
}

inline ArraySizes dense_arrays(const Layer& layer) {
  return {layer.in_size * layer.out_size, if_there(layer.bias_offset, layer.out_size), 0};
}

inline ArraySizes conv_arrays(const Layer& layer) {
  const Window& w = layer.window;
  return {w.groups * w.weights(), if_there(layer.bias_offset, w.out_channels), 0};
}

inline ArraySizes response_norm_arrays(const Layer& layer) {
  const std::int64_t channels = layer.window.channels;
  return {channels, channels, if_there(layer.third_offset, channels)};
}

inline ArraySizes moment_norm_arrays(const Layer& layer) {
  return {layer.window.channels, layer.window.channels, 0};
}

inline ArraySizes embedding_arrays(const Layer& layer) {
  return {layer.argument * layer.window.channels, 0, 0};
}

inline ArraySizes lstm_arrays(const Layer& layer) {
  const Window& w = layer.window;
  return {w.channels * 4 * w.out_channels, 4 * w.out_channels, 4 * w.out_channels * w.out_channels};
}

inline std::string no_fault(const Layer&) {
  return {};
}

inline std::string elementwise_fault(const Layer& layer) {
  return layer.in_size != layer.out_size ? "equal sizes of an elementwise layer" : "";
}

inline std::string activation_fault(const Layer& layer) {
  if (layer.activation < 0 || layer.activation >= kActivationCount) {
    return "an activation code in 0.." + std::to_string(kActivationCount - 1);
  }
  return elementwise_fault(layer);
}

inline std::string dropout_fault(const Layer& layer) {
  const std::int64_t channels = layer.window.channels;
  if (layer.argument == 1 && (channels < 1 || layer.in_size % channels != 0)) {
    return "whole channels";
  }
  return elementwise_fault(layer);
}

// The window stays on the image that the sizes state.
inline std::string window_fault(const Layer& layer) {
  const Window& w = layer.window;
  for (const std::int64_t size : {w.height, w.width, w.channels, w.kernel_height, w.kernel_width,
                                  w.stride_height, w.stride_width, w.out_height, w.out_width,
                                  w.out_channels, w.dilation_height, w.dilation_width}) {
    if (size < 1) return "a window that fits its image";
  }
  // Every window reaches over at least one cell.
  const auto covers = [](std::int64_t size, std::int64_t kernel, std::int64_t dilation,
                         std::int64_t stride, std::int64_t pad, std::int64_t sites) {
    return pad >= 0 && pad <= (kernel - 1) * dilation && (sites - 1) * stride - pad < size;
  };
  const bool fits =
      layer.in_size == w.height * w.width * w.channels &&
      layer.out_size == w.sites() * w.out_channels &&
      covers(w.height, w.kernel_height, w.dilation_height, w.stride_height, w.pad_top,
             w.out_height) &&
      covers(w.width, w.kernel_width, w.dilation_width, w.stride_width, w.pad_left, w.out_width);
  return fits ? "" : "a window that fits its image";
}

inline std::string conv_fault(const Layer& layer) {
  const Window& w = layer.window;
  if (w.groups < 1 || w.channels % w.groups != 0 || w.out_channels % w.groups != 0) {
    return "whole groups";
  }
  return window_fault(layer);
}

inline std::string pool_fault(const Layer& layer) {
  const Window& w = layer.window;
  if (w.channels != w.out_channels || w.dilation_height != 1 || w.dilation_width != 1) {
    return "a window that fits its image";
  }
  return window_fault(layer);
}

inline std::string norm_fault(const Layer& layer) {
  const std::int64_t channels = layer.window.channels;
  if (channels < 1 || layer.in_size % channels != 0 || layer.in_size != layer.out_size) {
    return "whole channels";
  }
  if (layer.bias_offset < 0) return "offsets inside theta";
  const bool positive = layer.number > 0.0 && layer.number <= std::numeric_limits<double>::max();
  return positive ? "" : "a finite epsilon > 0";
}

inline std::string group_norm_fault(const Layer& layer) {
  const std::string own = norm_fault(layer);
  if (!own.empty()) return own;
  return layer.argument < 1 || layer.window.channels % layer.argument != 0 ? "whole groups" : "";
}

inline std::string embedding_fault(const Layer& layer) {
  const std::int64_t channels = layer.window.channels;
  if (layer.argument < 1 || channels < 1 || layer.out_size != layer.in_size * channels) {
    return "a vector for each token";
  }
  return {};
}

inline std::string lstm_fault(const Layer& layer) {
  const Window& w = layer.window;
  if (w.channels < 1 || w.out_channels < 1 || w.width < 1 ||
      layer.in_size != w.width * w.channels ||
      layer.out_size != w.out_channels * (layer.argument != 0 ? w.width : 1)) {
    return "sizes of a sequence";
  }
  return layer.bias_offset < 0 || layer.third_offset < 0 ? "offsets inside theta" : "";
}

}  // namespace op_table

inline constexpr OpRow kOps[] = {
    {"dense", Stem::kDense, op_table::dense_arrays, op_table::no_fault},
    {"activation", Stem::kElementwise, op_table::no_arrays, op_table::activation_fault},
    {"dropout", Stem::kDropout, op_table::no_arrays, op_table::dropout_fault},
    {"conv", Stem::kConv, op_table::conv_arrays, op_table::conv_fault},
    {"max_pool", Stem::kPool, op_table::no_arrays, op_table::pool_fault},
    {"average_pool", Stem::kPool, op_table::no_arrays, op_table::pool_fault},
    {"filter_response_norm", Stem::kNorm, op_table::response_norm_arrays, op_table::norm_fault},
    {"layer_norm", Stem::kNorm, op_table::moment_norm_arrays, op_table::norm_fault},
    {"add", Stem::kElementwise, op_table::no_arrays, op_table::elementwise_fault},
    {"embedding", Stem::kEmbedding, op_table::embedding_arrays, op_table::embedding_fault},
    {"lstm", Stem::kLstm, op_table::lstm_arrays, op_table::lstm_fault},
    {"group_norm", Stem::kNorm, op_table::moment_norm_arrays, op_table::group_norm_fault},
};
static_assert(std::size(kOps) == static_cast<std::size_t>(Op::kCount));

inline Stem Layer::stem() const {
  return kOps[static_cast<std::size_t>(op)].stem;
}

}  // namespace ribbit
