#pragma once
// The result of one call of Chains::advance(). The next call overwrites its memory.

#include <cstdint>
#include <vector>

#include "cpu/system/buffer.h"

namespace ribbit {

// A statistic of a draw: its name and NumPy's code of its dtype, 'd', 'q' or '?'.
struct Statistic {
  const char* name;
  char dtype;
};

// Draws (chains, capacity, dim) and statistics (chains, capacity). The first `count` rows of each
// chain are filled. positions: false for steps of warmup whose positions the run does not keep.
template <class T>
class Block {
 public:
  Block(const std::vector<Statistic>& columns, std::int64_t chains, std::int64_t capacity,
        std::int64_t dim)
      : capacity(capacity), columns(columns), positions_(chains * capacity * dim) {
    for (const Statistic& column : columns) {
      const std::int64_t width = column.dtype == '?' ? 1 : 8;
      values_.emplace_back((chains * capacity * width + 7) / 8);
    }
  }
  T* position() { return positions_.data(); }
  // The values of column i, by its dtype.
  double* real(std::size_t i) { return values_[i].data(); }
  std::int64_t* whole(std::size_t i) { return reinterpret_cast<std::int64_t*>(values_[i].data()); }
  bool* flag(std::size_t i) { return reinterpret_cast<bool*>(values_[i].data()); }
  void* values(std::size_t i) { return values_[i].data(); }

  const std::int64_t capacity;
  const std::vector<Statistic> columns;
  std::int64_t count = 0;
  bool positions = false;

 private:
  cpu::Buffer<T> positions_;
  std::vector<cpu::Buffer<double>> values_;
};

}  // namespace ribbit
