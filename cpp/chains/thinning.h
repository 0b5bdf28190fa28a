#pragma once
// The thinning schedule: it says which steps give draws.

#include <cstdint>

namespace ribbit {

// The last `many` steps of every `period` give draws, `gap` steps apart. Steps are counted from 1
// after warmup. many * gap <= period.
struct Thinning {
  std::int64_t period = 1, many = 1, gap = 1;

  // The number of draws that steps 1, .., step give.
  std::int64_t count(std::int64_t step) const {
    const std::int64_t full = step / period, rest = step % period;
    return full * many + (rest < first() ? 0 : 1 + (rest - first()) / gap);
  }
  // The step of draw `number`, counted from 1.
  std::int64_t step(std::int64_t number) const {
    const std::int64_t full = (number - 1) / many, index = (number - 1) % many;
    return full * period + first() + index * gap;
  }

 private:
  std::int64_t first() const { return period - (many - 1) * gap; }
};

}  // namespace ribbit
