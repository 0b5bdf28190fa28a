#pragma once
// The layer table: what a model compiles to. Every interpreter of a network reads these rows.

#include <cstdint>
#include <vector>

namespace ribbit {

enum class Op : std::int64_t { kDense = 0, kActivation = 1, kDropout = 2 };

struct Layer {
  Op op;
  std::int64_t in_size;
  std::int64_t out_size;
  std::int64_t weight_offset;  // into theta; dense: (in, out) in C order
  std::int64_t bias_offset;    // into theta; -1: no bias
  int activation;              // code of core/activation_hd.h
  std::int64_t index;          // position among the model's layers, for messages
  double rate;                 // dropout rate
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
  kReserved,
  kCount
};

class Network {
 public:
  // table: (rows, 8), rates: (rows,). Throws std::invalid_argument on a table that does not chain.
  static Network from_table(const std::int64_t* table, const double* rates, std::int64_t rows);

  const std::vector<Layer>& layers() const { return layers_; }
  std::int64_t input_size() const { return input_size_; }
  std::int64_t output_size() const { return output_size_; }
  std::int64_t dim() const { return dim_; }  // number of parameters the layers use

 private:
  std::vector<Layer> layers_;
  std::int64_t input_size_ = 0;
  std::int64_t output_size_ = 0;
  std::int64_t dim_ = 0;
};

}  // namespace ribbit
