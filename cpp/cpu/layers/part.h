#pragma once
// Which rows of every matrix a thread of a team packs, and gathers the gradient of.

#include <algorithm>
#include <cstdint>

namespace ribbit::cpu {

struct Range {
  std::int64_t first, last;
};

// Rows are taken where the thread updates them, for a matrix that another thread packs or
// differentiates travels between their caches twice: 0.63 ms of an SGLD step of 269,000 weights,
// 1.58 ms long, between cores that share no cache. Where ranges of theta would be too unequal,
// each matrix is cut by itself.
struct Part {
  int member = 0, members = 1;
  // Elements of theta that the member updates, those of all members side by side; empty: not used.
  std::int64_t begin = 0, end = 0;

  std::int64_t share(std::int64_t count) const { return count * member / members; }
  std::int64_t share_end(std::int64_t count) const { return count * (member + 1) / members; }
  // Of `count` rows of so many elements from theta + offset on.
  Range rows(std::int64_t offset, std::int64_t count, std::int64_t elements) const {
    if (begin >= end) return {share(count), share_end(count)};
    const auto row = [&](std::int64_t at) {
      return std::clamp((at - offset + elements - 1) / elements, std::int64_t{0}, count);
    };
    return {row(std::max(begin, offset)), row(std::max(end, offset))};
  }
};

}  // namespace ribbit::cpu
