#pragma once
// The rows of a minibatch step, gathered and packed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/permutation_hd.h"
#include "cpu/density/evaluator.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {

// Which rows a step of a chain takes.
class EpochRows {
 public:
  EpochRows(std::uint64_t seed, std::uint32_t chain, std::int64_t size, std::int64_t batch,
            bool and_back = false)
      : seed_(seed), chain_(chain), size_(size), batch_(batch), and_back_(and_back) {}

  // Places of the step's batch in its epoch, whose order rows() and row() then give.
  BatchPlaces take(std::uint64_t step) {
    const auto batches = static_cast<std::uint64_t>((size_ + batch_ - 1) / batch_);
    const BatchTurn turn = batch_turn(step, batches, and_back_);
    if (!known_ || turn.epoch != epoch_) {
      epoch_ = turn.epoch;
      order_ = make_permutation(static_cast<Word64>(size_), seed_, chain_, epoch_);
      known_ = true;
    }
    return batch_places(static_cast<Word64>(size_), batches, turn.number);
  }
  // Of places begin, begin + 1, ...: (count,).
  void rows(std::int64_t begin, std::int64_t count, std::int64_t* out) const {
    instruction_set().permute_rows(order_, static_cast<Word64>(begin), count, out);
  }
  std::int64_t row(std::int64_t place) const {
    return static_cast<std::int64_t>(permute(order_, static_cast<Word64>(place)));
  }

 private:
  std::uint64_t seed_;
  std::uint32_t chain_;
  std::int64_t size_, batch_;
  bool and_back_;
  bool known_ = false;
  std::uint64_t epoch_ = 0;
  Permutation order_{};
};

// The largest finite |g|, infinity when there is none.
template <class T>
double largest_size(const T* g, std::int64_t n) {
  double largest = -1;
  for (std::int64_t e = 0; e < n; ++e) {
    const double size = std::abs(static_cast<double>(g[e]));
    if (std::isfinite(size)) largest = std::max(largest, size);
  }
  return largest < 0 ? std::numeric_limits<double>::infinity() : largest;
}

// How minibatches of one size are worked on, decided by shapes alone. Several shards are as many
// pieces, as they are of HMC: a team that waits longer than it works gets smaller by itself.
struct Pass {
  std::int64_t rows, shards, pieces;
  bool all;         // the batch is all of the data
  int threads = 1;  // worth having

  template <class T>
  Pass(const Evaluator<T>& evaluator, std::int64_t batch_rows, std::int64_t gradients,
       std::int64_t chains)
      : rows(batch_rows),
        shards(evaluator.shard_count(batch_rows)),
        pieces(evaluator.pieces(batch_rows, shards)),
        all(batch_rows == evaluator.rows()) {
    const double each = evaluator.gradient_flops(rows);
    const double flops = each * static_cast<double>(gradients * chains);
    threads = crew_size(flops, chains, pieces);
  }
};

// The rows `numbers` (count,) from the ranks that have them. By one thread of each rank; false when
// the ranks agree to end, which one does by its wish.
template <class T>
bool fetch_rows(const Evaluator<T>& evaluator, const std::int64_t* numbers, std::int64_t count,
                bool wish, FetchedRows<T>& fetched);

// The member's panels of a step's batch, gathered and packed; member 0 notes its size. scaled:
// the likelihood counts N / n times. A barrier must follow. The ranks of a group tell each other
// the rows that they have, and each then works on the whole batch: its rows are fewer numbers than
// a gradient. False when they agree to end.
template <class T>
bool take_batch(const Evaluator<T>& evaluator, const Member<T>& m, EpochRows& epoch,
                std::uint64_t step, bool scaled);

// Buffers of a team for batches of up to batch_rows rows.
template <class T>
void prepare_batch(const Evaluator<T>& evaluator, TeamSpace<T>& space, std::int64_t batch_rows);

}  // namespace ribbit::cpu
