#pragma once
// Chains whose work is cut into slices, one after the other. Threads fetch whole chains: where
// there are more chains than threads, the last one keeps the others waiting, the longer the less
// equal cores are. Of slices, which are fetched in turns over all chains, nobody waits for more
// than one.

#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "cpu/system/threads.h"

namespace ribbit::cpu {

struct Slice {
  std::int64_t chain, index, count;
  // The part of `steps` that is the slice's: [begin(steps), end(steps)).
  std::int64_t begin(std::int64_t steps) const { return steps * index / count; }
  std::int64_t end(std::int64_t steps) const { return steps * (index + 1) / count; }
};

class Slices {
 public:
  // At most `most` slices of each chain; as many in all as leave no thread of a crew without one,
  // so that none is shared by a team.
  Slices(std::int64_t chains, std::int64_t most, int threads)
      : chains_(chains), count_(useful(chains, most, threads)) {
    if (count_ > 1)
      done_ = std::vector<std::atomic<std::int64_t>>(static_cast<std::size_t>(chains));
  }
  std::int64_t size() const { return chains_ * count_; }
  Slice at(std::int64_t place) const { return {place % chains_, place / chains_, count_}; }
  // Waits for the slices of its chain that come before, which threads at work have fetched before
  // it, whoever is late to begin. False when cancelled.
  bool begin(const Slice& slice, Cancel& cancel) const {
    if (slice.index == 0) return true;
    const auto& done = done_[static_cast<std::size_t>(slice.chain)];
    for (int spins = 0; done.load(std::memory_order_acquire) < slice.index; ++spins) {
      if (cancel.check()) return false;
      if (spins >= 64) std::this_thread::yield();
    }
    return true;
  }
  void end(const Slice& slice) {
    if (count_ == 1) return;
    done_[static_cast<std::size_t>(slice.chain)].store(slice.index + 1, std::memory_order_release);
  }

 private:
  static std::int64_t useful(std::int64_t chains, std::int64_t most, int threads) {
    if (threads < 2 || chains <= threads) return 1;
    const std::int64_t round = threads / std::gcd(chains, static_cast<std::int64_t>(threads));
    return most < round ? 1 : most / round * round;
  }

  std::int64_t chains_, count_;
  std::vector<std::atomic<std::int64_t>> done_;  // slices, of each chain
};

}  // namespace ribbit::cpu
