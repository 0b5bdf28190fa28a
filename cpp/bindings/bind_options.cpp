// Options of kernels: one table gives checks, defaults and documentation.

#include <algorithm>
#include <cctype>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "bindings/kernel_options.h"
#include "chains/hmc.h"
#include "chains/nuts.h"

namespace ribbit::bindings {
namespace {

// The public class of a kernel: HMC of "hmc".
std::string prefix_of(const std::string& kernel) {
  std::string name = kernel;
  for (char& letter : name) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return "[" + name + "] ";
}

const OptionInfo* row_of(const std::string& kernel, const std::string& name) {
  for (const OptionInfo& row : option_table()) {
    if (kernel == row.kernel && name == row.name) return &row;
  }
  return nullptr;
}

// True for real numbers of Python and NumPy, except bools. kind: a class of the module numbers.
bool is_number(const py::handle& value, const char* kind) {
  if (PyBool_Check(value.ptr())) return false;
  return py::isinstance(value, py::module_::import("numbers").attr(kind));
}
bool is_flag(const py::handle& value) {
  return PyBool_Check(value.ptr()) ||
         py::isinstance(value, py::module_::import("numpy").attr("bool_"));
}
bool is_array(const py::handle& value) {
  return py::isinstance<py::array>(value) || py::isinstance<py::list>(value) ||
         py::isinstance<py::tuple>(value);
}

// Short text for messages.
std::string shown(const py::handle& value) {
  if (py::isinstance<py::array>(value)) {
    return "an array, " + described(py::reinterpret_borrow<py::array>(value));
  }
  const bool text = py::isinstance<py::str>(value);
  if (text || value.is_none() || is_flag(value) || is_number(value, "Real")) {
    constexpr std::size_t kMost = 60;
    const std::string all = text ? py::repr(value) : py::str(value);
    return all.size() <= kMost ? all : all.substr(0, kMost) + "...";
  }
  return "an object of type " + std::string(py::str(py::type::of(value).attr("__name__")));
}

// Names the type and the range of a row. got: a value of another type or shape.
std::string message_of(const OptionInfo& row, const std::string& got, std::int64_t dim) {
  const std::string_view type = row.type;
  const char* kind = type == "real"    ? "a number, "
                     : type == "reals" ? "a number or one for each chain, "
                                       : "";  // the other texts name the type themselves
  return prefix_of(row.kernel) + row.name + " must be " + kind + must_be(row, dim) + ", got " + got;
}

double number_of(const py::handle& value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  return std::numeric_limits<double>::infinity();  // a whole number beyond the range of float64
}

// Real numbers with one axis, or with none. A mass has length dim.
OptionValue array_value(const OptionInfo& row, const py::handle& value, std::int64_t dim) {
  const py::array array = py::array::ensure(value);
  if (!array) {
    PyErr_Clear();
    throw py::type_error(message_of(row, shown(value), dim));
  }
  const char kind = array.dtype().kind();
  const bool real = kind == 'f' || kind == 'i' || kind == 'u';
  const bool shaped = std::string_view(row.type) == "mass"
                          ? array.ndim() == 1 && array.shape(0) == dim
                          : array.ndim() <= 1 && array.size() > 0;
  if (!real) throw py::type_error(message_of(row, shown(array), dim));
  if (!shaped) throw py::value_error(message_of(row, shown(array), dim));
  constexpr int kFlags = py::array::c_style | py::array::forcecast;
  const auto numbers = py::array_t<double, kFlags>::ensure(array);
  if (!numbers) throw py::error_already_set();
  OptionValue out;
  out.numbers.assign(numbers.data(), numbers.data() + numbers.size());
  out.array = array.ndim() == 1;
  if (out.array) out.shown = shown(array);
  return out;
}

// The value of an option, whose type must be the type in the table.
OptionValue value_of(const OptionInfo& row, const py::handle& value, std::int64_t dim) {
  const std::string_view type = row.type;
  const bool reals = type == "reals", mass = type == "mass";
  OptionValue out;
  out.shown = shown(value);
  const auto refuse = [&] { throw py::type_error(message_of(row, out.shown, dim)); };
  if (value.is_none()) {
    if (!mass && std::string_view(row.fallback) != "None") refuse();
    out.text = "None";
  } else if (py::isinstance<py::str>(value)) {
    if (!mass && !reals) refuse();
    out.text = value.cast<std::string>();
    // The table takes this text for the object None.
    if (out.text.empty() || out.text == "None") refuse();
  } else if (is_flag(value)) {
    if (type != "flag") refuse();
    out.numbers = {PyObject_IsTrue(value.ptr()) == 1 ? 1.0 : 0.0};
  } else if ((mass || reals) && is_array(value)) {
    return array_value(row, value, dim);
  } else {
    const bool number = type == "whole" ? is_number(value, "Integral") : is_number(value, "Real");
    if (!number || mass || type == "flag") refuse();
    out.numbers = {number_of(value)};
  }
  return out;
}

TargetFacts facts_of(const py::dict& given) {
  TargetFacts facts;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name == "dim") {
      facts.dim = value.cast<std::int64_t>();
    } else if (name == "temperature") {
      facts.temperature = value.cast<double>();
    } else if (name == "shared_prior_sd") {
      facts.shared_prior_sd = value.is_none() ? 0.0 : value.cast<double>();
    } else if (name == "prior_sd") {
      if (value.is_none()) continue;
      const py::array sd = checked<double>(value, "prior_sd", {kAny});
      facts.prior_sd.assign(data<double>(sd), data<double>(sd) + sd.size());
    } else {
      throw py::value_error("[_core] a target has no fact " + name);
    }
  }
  const auto size = static_cast<std::int64_t>(facts.prior_sd.size());
  if (facts.dim < 1 || (size > 0 && size != facts.dim)) {
    throw py::value_error("[_core] facts must hold dim >= 1 and prior_sd (dim,) or None");
  }
  if (!(facts.temperature > 0.0) || !std::isfinite(facts.temperature)) {
    throw py::value_error("[_core] temperature must be positive, got " +
                          std::to_string(facts.temperature));
  }
  return facts;
}

// None for no numbers.
py::object array_or_none(const std::vector<double>& values) {
  if (values.empty()) return py::none();
  return py::array_t<double>(static_cast<py::ssize_t>(values.size()), values.data());
}

void put_values(const Hmc& hmc, py::dict& out) {
  out["trajectory_length"] = hmc.trajectory_length;
  out["num_leapfrog_steps"] = hmc.num_leapfrog_steps;
  out["randomize_length"] = hmc.randomize_length;
  out["step_size_jitter"] = hmc.step_size_jitter;
  out["max_num_leapfrog_steps"] = hmc.max_num_leapfrog_steps;
  out["max_mean_leapfrog_steps"] = hmc.max_mean_leapfrog_steps;
}
void put_values(const Nuts& nuts, py::dict& out) {
  out["max_tree_depth"] = nuts.max_tree_depth;
}

Options options_of(const std::string& kernel, const py::dict& options, std::int64_t dim) {
  Options given;
  for (const auto& [key, value] : options) {
    const auto option = key.cast<std::string>();
    const OptionInfo* row = row_of(kernel, option);  // null: resolve() refuses the name
    given.emplace_back(option, row == nullptr ? OptionValue{} : value_of(*row, value, dim));
  }
  return given;
}

py::dict resolve_options(const std::string& kernel, const py::dict& options,
                         const py::dict& facts) {
  py::dict out;
  out["leaves_motion"] = leaves_motion(kernel, options_of(kernel, options, facts_of(facts).dim));
  std::visit(
      [&](const auto& resolved) {
        out["step_size"] = array_or_none(resolved.step_size);
        out["inverse_mass"] = array_or_none(resolved.inverse_mass);
        out["adapt_mass"] = resolved.mass == MassRule::kAdapt;
        out["needs_windows"] = resolved.needs_windows;
        out["target_accept"] = resolved.target_accept;
        out["divergence_threshold"] = resolved.divergence_threshold;
        put_values(resolved, out);
      },
      kernel_of(kernel, options, facts));
  return out;
}

py::list kernel_options() {
  const py::object literal = py::module_::import("ast").attr("literal_eval");
  py::list out;
  for (const OptionInfo& row : option_table()) {
    py::dict entry;
    entry["kernel"] = row.kernel;
    entry["name"] = row.name;
    entry["type"] = row.type;
    entry["default"] = literal(row.fallback);
    entry["must_be"] = row.must_be;
    entry["documentation"] = row.doc;
    out.append(entry);
  }
  return out;
}

// Counts step sizes whose trajectories the limits of HMC shorten.
std::int64_t num_shortened(const py::dict& options, const py::dict& facts,
                           const py::object& step_size) {
  const py::array sizes = checked<double>(step_size, "step_size", {kAny});
  const auto hmc = std::get<Hmc>(kernel_of("hmc", options, facts));
  return std::count_if(data<double>(sizes), data<double>(sizes) + sizes.size(),
                       [&hmc](double size) { return is_shortened(hmc, size); });
}

// The names of the statistics of a kernel with the names of their dtypes.
py::dict kernel_statistics(const std::string& kernel, bool counts) {
  py::dict out;
  for (const Statistic& one : kernel == "nuts" ? nuts_columns(counts) : hmc_columns(counts)) {
    out[one.name] = one.dtype == '?' ? "bool" : one.dtype == 'q' ? "int64" : "float64";
  }
  return out;
}

}  // namespace

Kernel kernel_of(const std::string& name, const py::dict& options, const py::dict& facts) {
  const TargetFacts target = facts_of(facts);
  const Options given = options_of(name, options, target.dim);
  try {
    return resolve(name, given, target);
  } catch (const std::invalid_argument& error) {
    throw py::value_error(prefix_of(name) + error.what());
  }
}

void bind_options(py::module_& module) {
  module.def(
      "kernel_options", &kernel_options,
      "Return the options of all kernels: dicts with kernel, name, type, default, must_be and "
      "documentation.");
  module.def("resolve_options", &resolve_options, py::arg("kernel"), py::arg("options"),
             py::arg("facts"),
             "Return the values of all options of a kernel on a target with these facts.");
  module.def("num_shortened", &num_shortened, py::arg("options"), py::arg("facts"),
             py::arg("step_size"),
             "Return how many of these step sizes (n,) have trajectories that a limit of HMC "
             "shortens.");
  module.def("kernel_statistics", &kernel_statistics, py::arg("kernel"), py::arg("counts"),
             "Return the dtypes of a kernel's statistics by name. counts: the run is thinned.");
}

}  // namespace ribbit::bindings
