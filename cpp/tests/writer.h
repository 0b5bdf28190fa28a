#pragma once
// Layer tables of test networks.

#include <bit>
#include <cstdint>
#include <map>
#include <vector>

#include "core/network.h"

namespace ribbit {

// A layer table while it is being written; columns by name, value numbers as in the table.
class Writer {
 public:
  using Columns = std::map<Column, std::int64_t>;

  std::int64_t row(Op op, std::int64_t in, std::int64_t out, Columns columns, double rate = 0) {
    const auto number = static_cast<std::int64_t>(rates_.size());
    columns[Column::kOp] = static_cast<std::int64_t>(op);
    columns[Column::kInSize] = in;
    columns[Column::kOutSize] = out;
    columns[Column::kIndex] = number;
    for (const Column c :
         {Column::kWeightOffset, Column::kBiasOffset, Column::kThirdOffset, Column::kSecond}) {
      columns.try_emplace(c, -1);
    }
    columns.try_emplace(Column::kInput, number);
    for (std::int64_t c = 0; c < static_cast<std::int64_t>(Column::kCount); ++c) {
      table_.push_back(columns[static_cast<Column>(c)]);
    }
    rates_.push_back(rate);
    return number + 1;
  }
  std::int64_t take(std::int64_t size) {
    dim += size;
    return dim - size;
  }
  // A window with the columns of its row.
  Columns window(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t kernel,
                 std::int64_t stride, std::int64_t pad, std::int64_t oh, std::int64_t ow,
                 std::int64_t oc) {
    return {{Column::kHeight, h},           {Column::kWidth, w},
            {Column::kChannels, c},         {Column::kKernelHeight, h == 1 ? 1 : kernel},
            {Column::kKernelWidth, kernel}, {Column::kStrideHeight, h == 1 ? 1 : stride},
            {Column::kStrideWidth, stride}, {Column::kPadTop, h == 1 ? 0 : pad},
            {Column::kPadLeft, pad},        {Column::kOutHeight, oh},
            {Column::kOutWidth, ow},        {Column::kOutChannels, oc},
            {Column::kDilationHeight, 1},   {Column::kDilationWidth, 1}};
  }
  void conv(std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t kernel,
            std::int64_t stride, std::int64_t pad, std::int64_t oh, std::int64_t ow,
            std::int64_t oc) {
    Columns columns = window(h, w, c, kernel, stride, pad, oh, ow, oc);
    columns[Column::kWeightOffset] = take((h == 1 ? 1 : kernel) * kernel * c * oc);
    columns[Column::kBiasOffset] = take(oc);
    columns[Column::kArgument] = 1;
    row(Op::kConv, h * w * c, oh * ow * oc, columns);
  }
  void norm(Op op, std::int64_t sites, std::int64_t c) {
    Columns columns{{Column::kChannels, c}, {Column::kNumber, std::bit_cast<std::int64_t>(1e-5)}};
    columns[Column::kWeightOffset] = take(c);
    columns[Column::kBiasOffset] = take(c);
    if (op == Op::kFilterResponseNorm) columns[Column::kThirdOffset] = take(c);
    row(op, sites * c, sites * c, columns);
  }
  void activation(std::int64_t size, std::int64_t code) {
    row(Op::kActivation, size, size, {{Column::kArgument, code}});
  }
  void dense(std::int64_t in, std::int64_t out) {
    const std::int64_t weight = take(in * out);
    row(Op::kDense, in, out, {{Column::kWeightOffset, weight}, {Column::kBiasOffset, take(out)}});
  }
  Network network() const {
    return Network::from_table(table_.data(), rates_.data(),
                               static_cast<std::int64_t>(rates_.size()));
  }
  std::int64_t rows() const { return static_cast<std::int64_t>(rates_.size()); }

  std::int64_t dim = 0;

 private:
  std::vector<std::int64_t> table_;
  std::vector<double> rates_;
};

}  // namespace ribbit
