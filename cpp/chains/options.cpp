#include "chains/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace ribbit {
namespace {

// The limit of L if step size and length are both automatic equals the deepest default tree of
// NUTS. Longer trajectories gain nothing: on a 6-50-1 network with 277 rows, trajectories of one
// prior sd (3,900 leapfrogs) give as many effective draws per gradient.
constexpr std::int64_t kMeanByDefault = 1024;
constexpr std::int64_t kMostByDefault = 100'000;

std::string shown(double number) {
  std::ostringstream out;
  out.precision(15);
  out << number;
  return out.str();
}
std::string shown(const OptionValue& value) {
  if (!value.shown.empty()) return value.shown;
  if (!value.array && value.numbers.empty()) return "'" + value.text + "'";
  if (value.array) return std::to_string(value.numbers.size()) + " numbers";
  return shown(value.numbers.front());
}

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument(text);
}

bool positive(double value) {
  return value > 0.0 && std::isfinite(value);
}

// The options of one kernel that the caller gives.
class Given {
 public:
  Given(std::string_view kernel, const Options& given, std::int64_t dim)
      : kernel_(kernel), given_(given), dim_(dim) {
    for (const auto& [name, value] : given) {
      if (info(name) == nullptr) refuse(std::string(kernel) + " has no option '" + name + "'");
    }
  }

  // Null if the option has its default.
  const OptionValue* find(const char* name) const {
    const auto found = std::find_if(given_.begin(), given_.end(),
                                    [name](const auto& one) { return one.first == name; });
    return found == given_.end() || found->second.text == "None" ? nullptr : &found->second;
  }
  bool has(const char* name) const { return find(name) != nullptr; }

  // Returns one number and refuses it unless good(number) holds.
  template <class Good>
  double real(const char* name, double fallback, const Good& good) const {
    const OptionValue* value = find(name);
    if (value == nullptr) return fallback;
    const bool one = value->text.empty() && !value->array && value->numbers.size() == 1;
    if (!one || !good(value->numbers.front())) fail(name, *value);
    return value->numbers.front();
  }
  std::int64_t whole(const char* name, std::int64_t fallback, std::int64_t most) const {
    const double value = real(name, static_cast<double>(fallback), [most](double v) {
      return v == std::floor(v) && v >= 1.0 && v <= static_cast<double>(most);
    });
    return static_cast<std::int64_t>(value);
  }
  // The numbers of an array, positive and finite.
  const std::vector<double>& positives(const char* name, const OptionValue& value) const {
    const auto bad = std::find_if_not(value.numbers.begin(), value.numbers.end(), positive);
    if (value.array && bad != value.numbers.end()) {
      fail(name, shown(*bad) + " at index " + std::to_string(bad - value.numbers.begin()));
    }
    if (value.numbers.empty() || bad != value.numbers.end()) fail(name, value);
    return value.numbers;
  }
  bool flag(const char* name, bool fallback) const {
    return real(name, fallback ? 1.0 : 0.0, [](double v) { return v == 0.0 || v == 1.0; }) != 0.0;
  }
  [[noreturn]] void fail(const char* name, const OptionValue& value) const {
    fail(name, shown(value));
  }

 private:
  [[noreturn]] void fail(const char* name, const std::string& got) const {
    refuse(std::string(name) + " must be " + must_be(*info(name), dim_) + ", got " + got);
  }
  const OptionInfo* info(std::string_view name) const {
    for (const OptionInfo& one : option_table()) {
      if (one.kernel == kernel_ && one.name == name) return &one;
    }
    return nullptr;
  }
  const std::string_view kernel_;
  const Options& given_;
  const std::int64_t dim_;
};

bool all_positive(const std::vector<double>& values) {
  return !values.empty() && std::all_of(values.begin(), values.end(), positive);
}

// Reads the options that HMC and NUTS share.
void read_shared(const Given& given, HamiltonianOptions& to) {
  if (const OptionValue* value = given.find("step_size"); value != nullptr) {
    if (value->text != "auto") to.step_size = given.positives("step_size", *value);
  }
  to.target_accept =
      given.real("target_accept", to.target_accept, [](double v) { return v > 0.0 && v < 1.0; });
  to.divergence_threshold = given.real("divergence_threshold", to.divergence_threshold, positive);
}

// The prior's variances times temperature.
std::vector<double> prior_variances(const TargetFacts& target) {
  std::vector<double> variances = target.prior_sd;
  for (double& v : variances) v = v * v * target.temperature;
  return variances;
}

// Sets the mass as the caller or `fallback` says. Returns true if lengths are in units of whitened
// positions.
bool read_mass(const Given& given, const char* fallback, const TargetFacts& target,
               HamiltonianOptions& to) {
  constexpr const char* kName = "inverse_mass_matrix";
  const OptionValue* value = given.find(kName);
  const std::string rule = value != nullptr ? value->text : fallback;
  if (value != nullptr && rule.empty()) {
    if (static_cast<std::int64_t>(value->numbers.size()) != target.dim) given.fail(kName, *value);
    to.inverse_mass = given.positives(kName, *value);
  } else if (rule == "prior") {
    if (target.prior_sd.empty()) {
      refuse("inverse_mass_matrix='prior' needs a target with prior_sd");
    }
    to.inverse_mass = prior_variances(target);
    if (!all_positive(to.inverse_mass)) {
      refuse("inverse_mass_matrix='prior' needs a prior with finite standard deviations");
    }
  } else if (rule == "adapt") {
    to.mass = MassRule::kAdapt;
    to.needs_windows = true;
  } else if (rule != "None" && value != nullptr) {
    given.fail(kName, *value);
  }
  return rule != "None";
}

Kernel resolve_hmc(const Options& options, const TargetFacts& target) {
  const Given given("hmc", options, target.dim);
  Hmc to;
  read_shared(given, to);
  const bool length = given.has("trajectory_length"), steps = given.has("num_leapfrog_steps");
  if (length && steps) {
    refuse("trajectory_length and num_leapfrog_steps exclude each other, got both");
  }
  // In units of this mass one length fits all parameters.
  const char* mass = "None";
  if (!length && !steps && !positive(target.shared_prior_sd)) {
    mass = all_positive(target.prior_sd) ? "prior" : "adapt";
  }
  const bool whitened = read_mass(given, mass, target, to);
  const bool nothing = to.step_size.empty() && !length && !steps;
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  to.max_num_leapfrog_steps =
      given.whole("max_num_leapfrog_steps", nothing ? 2 * kMeanByDefault : kMostByDefault, kMost);
  to.max_mean_leapfrog_steps =
      nothing && !given.has("max_num_leapfrog_steps") ? kMeanByDefault : to.max_num_leapfrog_steps;
  const double wanted = given.real("num_leapfrog_steps", 1.0,
                                   [](double v) { return v == std::floor(v) && v >= 1.0; });
  if (wanted > static_cast<double>(to.max_num_leapfrog_steps)) {
    refuse("num_leapfrog_steps must be at most max_num_leapfrog_steps (" +
           std::to_string(to.max_num_leapfrog_steps) + "), got " +
           shown(*given.find("num_leapfrog_steps")));
  }
  to.num_leapfrog_steps = static_cast<std::int64_t>(wanted);
  const double one = whitened ? 1.0 : target.shared_prior_sd * std::sqrt(target.temperature);
  to.trajectory_length = given.real("trajectory_length", steps ? 0.0 : one, positive);
  to.randomize_length = given.flag("randomize_length", to.randomize_length);
  to.step_size_jitter =
      given.real("step_size_jitter", 0.0, [](double v) { return v >= 0.0 && v < 1.0; });
  return to;
}

Kernel resolve_nuts(const Options& options, const TargetFacts& target) {
  const Given given("nuts", options, target.dim);
  Nuts to;
  to.target_accept = 0.8;
  read_shared(given, to);
  const auto found = std::find_if(options.begin(), options.end(), [](const auto& one) {
    return one.first == "inverse_mass_matrix";
  });
  if (found == options.end() || found->second.text == "auto") {
    to.mass = MassRule::kAdapt;
    if (all_positive(target.prior_sd)) to.inverse_mass = prior_variances(target);
  } else {
    read_mass(given, "None", target, to);
  }
  constexpr std::int64_t kDeepest = 20;  // a million leapfrogs
  to.max_tree_depth = given.whole("max_tree_depth", to.max_tree_depth, kDeepest);
  return to;
}

}  // namespace

const std::vector<OptionInfo>& option_table() {
  static const std::vector<OptionInfo> table{
#define RIBBIT_OPTION(kernel, name, type, fallback, must_be, doc) \
  {#kernel, #name, #type, fallback, must_be, doc},
#include "chains/options.def"
#undef RIBBIT_OPTION
  };
  return table;
}

std::string must_be(const OptionInfo& row, std::int64_t dim) {
  std::string text = row.must_be;
  if (const std::size_t at = text.find("(P,)"); at != text.npos) {
    text.replace(at, 4, "(" + std::to_string(dim) + ",)");
  }
  return text;
}

Kernel resolve(std::string_view kernel, const Options& given, const TargetFacts& target) {
  if (kernel == "hmc") return resolve_hmc(given, target);
  if (kernel == "nuts") return resolve_nuts(given, target);
  refuse("kernel must be 'hmc' or 'nuts', got '" + std::string(kernel) + "'");
}

bool leaves_motion(std::string_view kernel, const Options& given) {
  return std::all_of(given.begin(), given.end(), [kernel](const auto& option) {
    const auto& [name, value] = option;
    const bool automatic = value.text == "auto", none = value.text == "None";
    if (name == "step_size") return automatic || none;
    if (name == "inverse_mass_matrix") return kernel == "nuts" ? automatic : none;
    return (name != "trajectory_length" && name != "num_leapfrog_steps") || none;
  });
}

}  // namespace ribbit
