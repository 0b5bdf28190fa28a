#pragma once
// A network from the table of its layers, and what its outputs mean.

#include <pybind11/stl.h>

#include "bindings/array.h"
#include "core/likelihood_hd.h"
#include "core/network.h"

namespace ribbit::bindings {

// table: (rows, Column::kCount), rates: (rows,).
inline Network network_of(const py::object& table, const py::object& rates) {
  constexpr auto kColumns = static_cast<std::int64_t>(Column::kCount);
  const py::array t = checked<std::int64_t>(table, "table", {kAny, kColumns});
  const py::array r = checked<double>(rates, "rates", {t.shape(0)});
  return Network::from_table(data<std::int64_t>(t), data<double>(r), t.shape(0));
}

inline LikelihoodKind likelihood_kind(int kind) {
  if (kind < 0 || kind >= Likelihoods::kCount) {
    throw py::value_error("[_core] expected a likelihood kind in 0.." +
                          std::to_string(Likelihoods::kCount - 1) + ", got " +
                          std::to_string(kind));
  }
  return static_cast<LikelihoodKind>(kind);
}

// scales: known scales of the noise, or as many numbers as are learned; they must outlive what is
// returned. One scale is of all outputs.
inline LikelihoodParameters parameters_of(const std::vector<double>& scales, double shape) {
  if (scales.empty()) throw py::value_error("[_core] expected scales of the noise, got none");
  return {scales[0], shape, static_cast<int>(scales.size()), scales.data()};
}

}  // namespace ribbit::bindings
