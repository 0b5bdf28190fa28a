#pragma once
// Pieces of one job among the members of a team. Each takes its own in order; who has none left
// takes the last ones of the member with the most, so that a thread that lost its core for a while,
// or has a slower one, keeps nobody waiting for more than a piece. What a piece gives goes to a
// place of its own: nothing depends on who did it.

#include <atomic>
#include <cstdint>
#include <memory>

namespace ribbit::cpu {

class Pieces {
 public:
  // Before any of that many members works: none has any pieces.
  void clear(int members) {
    if (members > members_) {
      left_ = std::make_unique<Left[]>(static_cast<std::size_t>(members));
      members_ = members;
    }
    for (int m = 0; m < members_; ++m) own(m, 0, 0);
  }
  // By the member itself: pieces [first, last) are its own. Between the end of a job and this the
  // others may look for pieces of the next one already, and find none: so a job ends when all of
  // its pieces were taken.
  void own(int member, std::int64_t first, std::int64_t last) {
    at(member).store(packed(first, last), std::memory_order_relaxed);
  }
  // A piece for a member of a team of that size, -1: none is left.
  std::int64_t take(int member, int members) {
    std::uint64_t seen = at(member).load(std::memory_order_relaxed);
    while (count(seen) > 0) {
      const std::int64_t first = static_cast<std::int64_t>(seen >> 32);
      if (at(member).compare_exchange_weak(seen, seen + kOne, std::memory_order_relaxed)) {
        return first;
      }
    }
    return take_from_others(member, members);
  }

 private:
  struct alignas(64) Left {
    std::atomic<std::uint64_t> range{0};  // the first piece, and behind the last, of 32 bits each
  };
  static constexpr std::uint64_t kOne = std::uint64_t{1} << 32;
  static std::uint64_t packed(std::int64_t first, std::int64_t last) {
    return static_cast<std::uint64_t>(first) << 32 | static_cast<std::uint64_t>(last);
  }
  static std::int64_t count(std::uint64_t range) {
    return static_cast<std::int64_t>(range & (kOne - 1)) - static_cast<std::int64_t>(range >> 32);
  }
  std::atomic<std::uint64_t>& at(int member) {
    return left_[static_cast<std::size_t>(member)].range;
  }
  std::int64_t take_from_others(int member, int members) {
    for (;;) {
      int most = member;
      std::uint64_t range = 0;
      for (int other = 0; other < members; ++other) {
        const std::uint64_t seen = at(other).load(std::memory_order_relaxed);
        if (other == member || count(seen) <= count(range)) continue;
        most = other;
        range = seen;
      }
      if (most == member) return -1;
      if (at(most).compare_exchange_strong(range, range - 1, std::memory_order_relaxed)) {
        return static_cast<std::int64_t>(range & (kOne - 1)) - 1;
      }
    }
  }

  std::unique_ptr<Left[]> left_;
  int members_ = 0;
};

}  // namespace ribbit::cpu
