#pragma once
// Which rows of its large tables a shard's partial gradient has touched: rows that it did not touch
// are neither cleared nor read. A sum over shards then has the bits of one over dense gradients. A
// partial gradient begins at +0 and is added to, and no sum is -0 but that of -0 and -0, so it has
// no -0 anywhere, whatever is added to it. What a shard did not touch would be +0, and x + 0 is x,
// to the bit, for every x but -0 (also for a NaN, which an addition has made quiet before): so a
// row that one shard touched is copied, and one that none touched is +0. Where several did but not
// all, zeros stand for the others, and the additions are those of the dense sum, in the same
// vectors: of two NaNs an addition keeps one, and which one differs between vectors and single
// numbers.

#include <cstdint>
#include <vector>

#include "cpu/layers/layer_pass.h"

namespace ribbit::cpu {

class TouchedRows {
 public:
  TouchedRows() = default;  // of no table
  explicit TouchedRows(std::vector<TouchedTable> tables);

  bool empty() const { return tables_.empty(); }
  std::int64_t marks() const { return marks_; }  // of a shard

  // Before a shard adds to grad (dim,): zeros outside the tables, and no row is marked (marks(),).
  template <class T>
  void clear(std::int64_t dim, T* grad, std::uint8_t* marks) const;

  // Elements [begin, end) of the sum of shard_grads (shards, dim), whose rows are marked in marks
  // (shards, marks()), to out + begin: in the order of kernel tree_sum.
  template <class T>
  void sum(const T* shard_grads, std::int64_t dim, std::int64_t shards, const std::uint8_t* marks,
           std::int64_t begin, std::int64_t end, T* out) const;

 private:
  std::vector<TouchedTable> tables_;  // in the order of theta
  std::int64_t marks_ = 0;
};

}  // namespace ribbit::cpu
