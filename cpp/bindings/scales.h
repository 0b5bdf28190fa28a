#pragma once
// Learned scales as Python states them.

#include <vector>

#include "bindings/array.h"
#include "cpu/network/scales.h"

namespace ribbit::bindings {

// None, or rows offset, size, first, block, count, global, slab, factor of cpu::ScaleSegment.
inline std::vector<cpu::ScaleSegment> scales_of(const py::object& scales) {
  std::vector<cpu::ScaleSegment> segments;
  if (scales.is_none()) return segments;
  const py::array table = checked<double>(scales, "scales", {kAny, 8});
  for (py::ssize_t i = 0; i < table.shape(0); ++i) {
    const double* row = data<double>(table) + 8 * i;
    const auto number = [row](int k) { return whole("scales", row[k], -1); };
    segments.push_back(
        {number(0), number(1), number(2), number(3), number(4), number(5), number(6), row[7]});
  }
  return segments;
}

}  // namespace ribbit::bindings
