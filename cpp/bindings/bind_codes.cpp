// The numbers that cross between Python and the native code, by name: nobody types one twice.

#include <pybind11/stl.h>

#include <map>

#include "bindings/array.h"
#include "core/activation_hd.h"
#include "core/isokinetic_hd.h"
#include "core/likelihood_hd.h"
#include "core/network.h"
#include "core/philox_hd.h"
#include "core/prior_hd.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/network/mlp_row_noise.h"

namespace ribbit::bindings {
namespace {

using Numbers = std::map<std::string, int>;

// Of an array of names; numbers without a name are left out.
template <std::size_t N>
Numbers numbered(const char* const (&names)[N]) {
  Numbers numbers;
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] != nullptr) numbers[names[i]] = static_cast<int>(i);
  }
  return numbers;
}

// Of a table whose rows have names.
template <class Row, std::size_t N>
Numbers numbered(const Row (&rows)[N]) {
  Numbers numbers;
  for (std::size_t i = 0; i < N; ++i) numbers[rows[i].name] = static_cast<int>(i);
  return numbers;
}

// Of a list of functors.
template <class... Functors>
Numbers numbered(Kinds<Functors...>) {
  return {{Functors::kName, static_cast<int>(Functors::kKind)}...};
}

std::map<std::string, Numbers> codes() {
  return {{"OPS", numbered(kOps)},
          {"COLUMNS", numbered(kColumnNames)},
          {"ACTIVATIONS", numbered(kActivationNames)},
          {"PRIORS", numbered(Priors{})},
          {"LIKELIHOODS", numbered(Likelihoods{})},
          {"PURPOSES", numbered(kPurposeNames)},
          {"RULES", numbered(cpu::kRules)},
          {"ESTIMATORS", numbered(cpu::kEstimatorNames)},
          {"INTEGRATORS", numbered(kIntegratorNames)}};
}

Numbers rule_moments() {
  Numbers moments;
  for (const cpu::RuleRow& rule : cpu::kRules) moments[rule.name] = rule.moments;
  return moments;
}

}  // namespace

void bind_codes(py::module_& module) {
  module.def("codes", &codes, "Tables of numbers by name, by the name of the table.");
  module.def("rule_moments", &rule_moments,
             "Arrays of moments that each rule of stochastic gradients needs, by its name.");
}

}  // namespace ribbit::bindings
