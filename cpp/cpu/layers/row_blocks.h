#pragma once
// Data rows as panels: (panels, features, kPanel), the last panel filled up with zero rows.

#include <type_traits>

#include "cpu/layers/rows.h"
#include "cpu/system/buffer.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {

inline std::int64_t panel_count(std::int64_t rows) {
  return (rows + kPanel - 1) / kPanel;
}

template <class T>
struct Panels {
  Buffer<T> buffer;
  std::int64_t rows = 0;
  std::int64_t features = 0;

  const T* panel(std::int64_t p) const { return buffer.data() + p * features * kPanel; }
  // The valid rows of panel p.
  int valid(std::int64_t p) const {
    const std::int64_t left = rows - p * kPanel;
    return static_cast<int>(left < kPanel ? left : kPanel);
  }
};

// x: rows of `features`. rows: (count,) row numbers, or null for 0..count-1.
template <class T>
void pack_rows(const std::type_identity_t<Rows<T>>& x, std::int64_t features,
               const std::int64_t* rows, std::int64_t count, Panels<T>& out);

}  // namespace ribbit::cpu
