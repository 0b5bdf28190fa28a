#pragma once
// Options of the kernels by name: their checks, defaults, and values that depend on the target.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chains/kernel.h"

namespace ribbit {

// A row of options.def.
struct OptionInfo {
  const char *kernel, *name, *type, *fallback, *must_be, *doc;
};
const std::vector<OptionInfo>& option_table();
// Returns the values that a row accepts, for messages. dim: the length P of a mass.
std::string must_be(const OptionInfo& row, std::int64_t dim);

// A value from the caller: text, one number, or an array of numbers.
struct OptionValue {
  std::string text;
  std::vector<double> numbers;
  bool array = false;
  std::string shown{};  // for messages; empty: made from text or numbers
};
using Options = std::vector<std::pair<std::string, OptionValue>>;

// The facts about a target that defaults depend on.
struct TargetFacts {
  std::int64_t dim = 0;
  double temperature = 1.0;
  double shared_prior_sd = 0.0;  // 0: the parameters do not share one
  std::vector<double> prior_sd;  // (dim,); empty: unknown
};

// Returns the kernel with every value filled in. Throws std::invalid_argument with a message such
// as "step_size must be positive and finite, or 'auto', got -0.1".
Kernel resolve(std::string_view kernel, const Options& given, const TargetFacts& target);

// True if the caller sets no step size, length or mass. The kernel may then choose which parameters
// move, so that a last layer can be integrated out.
bool leaves_motion(std::string_view kernel, const Options& given);

}  // namespace ribbit
