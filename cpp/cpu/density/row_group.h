#pragma once
// Rows over processes ("ranks"). Every rank runs the same program on the same numbers and has the
// rows of whole shards; only the sums over shards are exchanged, in the shape of the tree that adds
// the shards of one process (kernel tree_sum), so that the bits are those of any number of ranks.
//
// A gradient of P numbers, cut into R slices: a rank adds up the largest subtrees whose shards are
// all its own, sends each rank that rank's slice of them, finishes the tree on its own slice and
// hands it to all. With n subtrees and slice s of its own a rank sends
//   n (P - s) + (R - 1) s
// numbers: 2 P (R - 1) / R where the ranks' shards are subtrees (n = 1) and R divides P.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu/layers/row_blocks.h"
#include "cpu/system/buffer.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

// What the ranks of a group do together, in the same order on every rank, by the thread that called
// into the core alone. Sizes are bytes per rank; no buffers overlap. False: the call ends, on every
// rank; the implementation knows why.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // wish: this rank wants to stop, and then all do. place: what is worked on, by `place_of`, which
  // must be the same on every rank.
  virtual bool meet(bool wish, std::uint32_t place) = 0;
  // send: what rank 0, 1, .. gets, one behind another; receive: what it has for this one.
  virtual bool swap(const std::byte* send, const std::vector<std::int64_t>& send_sizes,
                    std::byte* receive, const std::vector<std::int64_t>& receive_sizes) = 0;
  // receive: what rank 0, 1, .. sends to all, one behind another.
  virtual bool gather(const std::byte* send, std::byte* receive,
                      const std::vector<std::int64_t>& sizes) = 0;
};

// A digest of an array, of no more than some thousand of its elements (FNV-1a).
template <class T>
std::uint32_t place_of(const T* values, std::int64_t count) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t step = std::max<std::int64_t>(1, count / kMost);
  std::uint32_t hash = 2166136261U ^ static_cast<std::uint32_t>(count);
  for (std::int64_t i = 0; i < count; i += step) {
    std::uint32_t words[sizeof(T) / 4];
    std::memcpy(words, values + i, sizeof(T));
    for (const std::uint32_t word : words) hash = (hash ^ word) * 16777619U;
  }
  return hash;
}

// A part of the tree over shards: all that lie below place `index` of `level`, where level 0 is the
// shards and a place of the next one adds two neighbours.
struct ShardNode {
  int level;
  std::int64_t index;
  std::int64_t first() const { return index << level; }
};

// Who has which of a target's shards, panels and slices of a gradient.
struct RowGroup {
  int rank = 0, ranks = 1;
  std::int64_t shards = 1;  // of all rows, at least one for each rank
  std::int64_t panels = 0;  // of all rows
  Exchange* exchange = nullptr;

  std::int64_t first_shard(int of) const { return shards * of / ranks; }
  std::int64_t own_first() const { return first_shard(rank); }
  std::int64_t own_shards() const { return first_shard(rank + 1) - own_first(); }
  // Among the rank's own panels.
  std::int64_t first_panel(std::int64_t shard) const {
    return panels * shard / shards - panels * own_first() / shards;
  }
  // Of `total` rows: where those of a rank begin.
  std::int64_t first_row(int of, std::int64_t total) const {
    return std::min(total, panels * first_shard(of) / shards * kPanel);
  }
  std::int64_t slice(std::int64_t dim, int of) const { return dim * of / ranks; }
  // The largest subtrees whose shards are all of one rank, in order.
  std::vector<ShardNode> nodes(int of) const;
};

// Notes the wish to stop, which only all ranks together may follow.
class WishPoll final : public Poll {
 public:
  explicit WishPoll(Poll* poll) : poll_(poll) {}
  bool stop() override {
    wished_ = wished_ || (poll_ != nullptr && poll_->stop());
    return false;
  }
  bool wished() const { return wished_; }

 private:
  Poll* poll_;
  bool wished_ = false;
};

// The plan of a gradient's exchange, and what it is made in. A chain's team shares one.
template <class T>
class GradientExchange {
 public:
  GradientExchange(const RowGroup& group, std::int64_t dim);

  // Elements [first, last) of the sums that the ranks need, from the rank's shards (own shards,
  // dim). Every element once, by any thread. values: log likelihoods travel with them.
  void pack(const T* shard_grads, std::int64_t first, std::int64_t last, bool values);
  // By one thread: the packed sums change hands, and with `values` the log likelihoods (shards,),
  // of which the rank has its own. False: the call ends.
  bool swap(bool values, double* shard_ll);
  // Elements [first, last) of the rank's slice, added up. Every element once, by any thread.
  void add(std::int64_t first, std::int64_t last, bool values);
  // By one thread: the slices of all ranks into grad (dim,). False: the call ends.
  bool gather(bool values, T* grad);
  std::int64_t slice_size() const { return size_of(group_.rank); }

 private:
  // Sums that the tree still adds: slot `to` takes slot `from`.
  struct Addition {
    std::size_t to, from;
  };
  std::int64_t size_of(int rank) const {
    return group_.slice(dim_, rank + 1) - group_.slice(dim_, rank);
  }
  // Bytes that go from one rank to another.
  std::int64_t message(int from, int to, bool values) const;
  T* slot(std::size_t number, bool values);

  const RowGroup group_;
  const std::int64_t dim_;
  std::vector<std::vector<ShardNode>> nodes_;       // of each rank
  std::vector<std::pair<int, std::size_t>> slots_;  // rank and number of its node
  std::vector<Addition> additions_;                 // in order; slot 0 ends as the sum
  std::vector<std::int64_t> slice_bytes_;           // of each rank
  Buffer<std::byte> out_, in_;
};

}  // namespace ribbit::cpu
