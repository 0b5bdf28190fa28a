#include "cpu/layers/rows.h"

#include <algorithm>
#include <vector>

#include "cpu/system/dispatch.h"

namespace ribbit::cpu {

template <class T>
void Rows<T>::pack(std::int64_t features, const std::int64_t* numbers, std::int64_t first, int n,
                   T* panel) const {
  if (bytes == nullptr) {
    kernels<T>().pack_panel(values, features, numbers, first, n, panel);
    return;
  }
  // A run of features of all rows becomes numbers, then a part of the panel.
  constexpr std::int64_t kRun = 64;
  T scaled[kPanel * kRun];
  for (std::int64_t f = 0; f < features; f += kRun) {
    const std::int64_t some = std::min(kRun, features - f);
    for (int r = 0; r < n; ++r) {
      const std::int64_t row = numbers != nullptr ? numbers[first + r] : first + r;
      const std::uint8_t* from = bytes + row * features + f;
      for (std::int64_t i = 0; i < some; ++i) {
        scaled[r * some + i] = static_cast<T>(from[i]) / static_cast<T>(255);
      }
    }
    kernels<T>().pack_panel(scaled, some, nullptr, 0, n, panel + f * kPanel);
  }
}

template struct Rows<float>;
template struct Rows<double>;

}  // namespace ribbit::cpu
