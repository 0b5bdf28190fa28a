#pragma once
// A network from the table of its layers.

#include "bindings/array.h"
#include "core/network.h"

namespace ribbit::bindings {

// table: (rows, Column::kCount), rates: (rows,).
inline Network network_of(const py::object& table, const py::object& rates) {
  constexpr auto kColumns = static_cast<std::int64_t>(Column::kCount);
  const py::array t = checked<std::int64_t>(table, "table", {kAny, kColumns});
  const py::array r = checked<double>(rates, "rates", {t.shape(0)});
  return Network::from_table(data<std::int64_t>(t), data<double>(r), t.shape(0));
}

}  // namespace ribbit::bindings
