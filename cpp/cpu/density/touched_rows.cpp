#include "cpu/density/touched_rows.h"

#include <algorithm>
#include <bit>

#include "cpu/network/network_pass.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {
namespace {

// A bit for each shard that touched a row.
using Shards = std::uint32_t;
static_assert(kMostShards < 32);

// Elements that are added up at once, in the first-level cache: a multiple of the lanes, so that
// the same elements are in vectors, and the same behind the last one, as in a dense sum.
constexpr std::int64_t kSpan = 128;

// Neighbours that the same shards touched, from the end of the piece before to `end`.
struct Piece {
  std::int64_t end;
  Shards touched;
};

// What the shards touched, read along theta.
class MarkReader {
 public:
  MarkReader(const std::vector<TouchedTable>& tables, const std::uint8_t* marks,
             std::int64_t stride, std::int64_t shards, std::int64_t begin)
      : table_(tables.data()),
        last_(tables.data() + tables.size()),
        marks_(marks),
        stride_(stride),
        shards_(shards) {
    while (table_ != last_ && end_of(*table_) <= begin) ++table_;
    if (table_ != last_ && table_->offset < begin) row_ = (begin - table_->offset) / table_->units;
  }

  // The piece from `at` on, where the one before ended, but not past `most`.
  Piece next(std::int64_t at, std::int64_t most) {
    if (table_ == last_ || most <= table_->offset) return {most, everyone()};
    if (at < table_->offset) return {table_->offset, everyone()};
    const Shards touched = of_row();
    const std::int64_t end = table_->offset + (row_ + 1) * table_->units;
    if (end > most) return {most, touched};
    if (++row_ == table_->rows) {
      ++table_;
      row_ = 0;
    }
    return {end, touched};
  }
  Shards everyone() const { return (Shards{1} << static_cast<unsigned>(shards_)) - 1; }

 private:
  static std::int64_t end_of(const TouchedTable& table) {
    return table.offset + table.rows * table.units;
  }
  Shards of_row() const {
    const std::uint8_t* mark = marks_ + table_->marks + row_;
    Shards found = 0;
    for (std::int64_t k = 0; k < shards_; ++k) {
      found |= static_cast<Shards>(mark[k * stride_]) << static_cast<unsigned>(k);
    }
    return found;
  }

  const TouchedTable *table_, *last_;  // the first that does not end before
  const std::uint8_t* marks_;
  const std::int64_t stride_, shards_;
  std::int64_t row_ = 0;  // of table_
};

// Elements [begin, end) of one partial gradient, with zeros where it has nothing.
template <class T>
void take(const T* grad, const Piece* pieces, int count, Shards shard, std::int64_t begin, T* out) {
  std::int64_t at = begin;
  for (int i = 0; i < count; ++i) {
    const std::int64_t end = pieces[i].end;
    if ((pieces[i].touched & shard) != 0) {
      std::copy(grad + at, grad + end, out + (at - begin));
    } else {
      std::fill(out + (at - begin), out + (end - begin), T(0));
    }
    at = end;
  }
}

// Asks for the rows in [begin, end) that some shards touched but not all, wherever they are: shards
// ago, and in no order that the processor could foresee.
template <class T>
void fetch(MarkReader reader, const T* shard_grads, std::int64_t dim, std::int64_t begin,
           std::int64_t end) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t at = begin; at < end;) {
    const Piece piece = reader.next(at, end);
    Shards left = piece.touched == reader.everyone() ? 0 : piece.touched;
    for (; left != 0; left &= left - 1) {
      const T* grad = shard_grads + std::countr_zero(left) * dim;
      for (std::int64_t i = at; i < piece.end; i += kLine) __builtin_prefetch(grad + i);
    }
    at = piece.end;
  }
}

}  // namespace

TouchedRows::TouchedRows(std::vector<TouchedTable> tables) : tables_(std::move(tables)) {
  std::sort(tables_.begin(), tables_.end(),
            [](const TouchedTable& a, const TouchedTable& b) { return a.offset < b.offset; });
  for (const TouchedTable& table : tables_) marks_ += table.rows;
}

template <class T>
void TouchedRows::clear(std::int64_t dim, T* grad, std::uint8_t* marks) const {
  std::fill_n(marks, marks_, std::uint8_t{0});
  std::int64_t at = 0;
  for (const TouchedTable& table : tables_) {
    std::fill(grad + at, grad + table.offset, T(0));
    at = table.offset + table.rows * table.units;
  }
  std::fill(grad + at, grad + dim, T(0));
}

template <class T>
void TouchedRows::sum(const T* shard_grads, std::int64_t dim, std::int64_t shards,
                      const std::uint8_t* marks, std::int64_t begin, std::int64_t end,
                      T* out) const {
  const auto tree_sum = kernels<T>().tree_sum;
  MarkReader reader(tables_, marks, marks_, shards, begin);
  const Shards everyone = reader.everyone();
  fetch(reader, shard_grads, dim, begin, end);
  Piece pieces[kSpan];
  T some[kMostShards * kSpan];
  for (std::int64_t first = begin; first < end; first += kSpan) {
    const std::int64_t last = std::min(end, first + kSpan);
    Shards any = 0, all = everyone;
    int count = 0;
    for (std::int64_t at = first; at < last; at = pieces[count++].end) {
      pieces[count] = reader.next(at, last);
      any |= pieces[count].touched;
      all &= pieces[count].touched;
    }
    if (all == everyone) {
      tree_sum(shard_grads + first, dim, shards, last - first, out + first);
    } else if (any == 0) {
      std::fill(out + first, out + last, T(0));
    } else if (std::has_single_bit(any)) {
      take(shard_grads + std::countr_zero(any) * dim, pieces, count, any, first, out + first);
    } else {
      for (std::int64_t k = 0; k < shards; ++k) {
        take(shard_grads + k * dim, pieces, count, Shards{1} << static_cast<unsigned>(k), first,
             some + k * kSpan);
      }
      tree_sum(some, kSpan, shards, last - first, out + first);
    }
  }
}

#define RIBBIT_INSTANTIATE(T)                                                               \
  template void TouchedRows::clear(std::int64_t, T*, std::uint8_t*) const;                  \
  template void TouchedRows::sum(const T*, std::int64_t, std::int64_t, const std::uint8_t*, \
                                 std::int64_t, std::int64_t, T*) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
