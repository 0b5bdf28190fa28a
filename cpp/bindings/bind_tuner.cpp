// The tuner of HMC and NUTS for chains that move in Python. Python calls it for all chains at once.

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/kernel_options.h"
#include "chains/fields.h"
#include "chains/tuner_hmc.h"

namespace ribbit::bindings {
namespace {

template <class T>
std::vector<T> vector_of(const py::array& array) {
  return {data<T>(array), data<T>(array) + array.size()};
}

// Writes fields as arrays (chains, 1), as in the bytes of chains. An empty vector has no field.
struct ToDict {
  template <class V, class... Rows>
  void operator()(const char* name, const std::vector<V>& values, Rows...) {
    if (values.empty()) return;
    py::array_t<V> array({static_cast<py::ssize_t>(values.size()), py::ssize_t{1}});
    std::copy(values.begin(), values.end(), array.mutable_data());
    fields[name] = array;
  }
  py::dict fields;
};

// Reads the fields that ToDict writes.
struct FromDict {
  template <class V, class... Rows>
  void operator()(const char* name, std::vector<V>& values, Rows...) const {
    values.clear();
    if (fields.contains(name)) values = vector_of<V>(checked<V>(fields[name], name, {kAny, 1}));
  }
  const py::dict& fields;
};

class Tuner {
 public:
  Tuner(const std::string& kernel, const py::dict& options, const py::dict& facts,
        std::uint64_t seed, const py::object& chain_ids, std::uint64_t warmup)
      : native_(std::visit(
            [&](const auto& resolved) {
              const py::array ids = checked<std::uint32_t>(chain_ids, "chains", {kAny});
              return HamiltonianTuner(resolved, seed, vector_of<std::uint32_t>(ids), warmup);
            },
            kernel_of(kernel, options, facts))) {}

  const HamiltonianTuner& native() const { return native_; }
  void begin(const py::object& step_size, bool renewed) {
    native_.begin(vector_of<double>(checked<double>(step_size, "step_size", {chains()})), renewed);
  }
  py::tuple plan(std::uint64_t step) const {
    require_step_sizes();
    py::array_t<double> step_size(chains());
    py::array_t<std::int64_t> steps(chains());
    py::array_t<bool> capped(chains());
    for (py::ssize_t c = 0; c < chains(); ++c) {
      const auto plan = native_.plan(static_cast<std::size_t>(c), step);
      step_size.mutable_at(c) = plan.step_size;
      steps.mutable_at(c) = plan.steps;
      capped.mutable_at(c) = plan.capped;
    }
    return py::make_tuple(step_size, steps, capped);
  }
  void observe(std::uint64_t step, const py::object& acceptance) {
    require_step_sizes();
    const py::array rates = checked<double>(acceptance, "acceptance", {chains()});
    for (py::ssize_t c = 0; c < chains(); ++c) {
      native_.observe(static_cast<std::size_t>(c), step, data<double>(rates)[c]);
    }
  }
  void end_warmup() { native_.end_warmup(); }
  py::dict fields() {
    ToDict to;
    native_.fields(to);
    return to.fields;
  }
  // inverse_mass: (P,), (C, P), or None for ones.
  void load(const py::dict& fields, std::uint64_t step, const py::object& inverse_mass) {
    HamiltonianTuner loaded = native_;
    FromDict from{fields};
    loaded.fields(from);
    loaded.check_fields();
    std::vector<double> mass;
    bool own = false;
    if (!inverse_mass.is_none()) {
      const auto array =
          py::array_t<double, py::array::c_style | py::array::forcecast>::ensure(inverse_mass);
      if (!array) throw py::error_already_set();
      mass.assign(array.data(), array.data() + array.size());
      own = array.ndim() == 2;
    }
    loaded.adopt(step, mass, own);
    native_ = std::move(loaded);
  }

 private:
  py::ssize_t chains() const { return static_cast<py::ssize_t>(native_.chains()); }
  void require_step_sizes() const {
    if (native_.step_size.empty()) throw py::value_error("[_core] begin or load the tuner first");
  }
  HamiltonianTuner native_;
};

}  // namespace

void bind_tuner(py::module_& module) {
  py::class_<Tuner>(module, "Tuner",
                    "Step sizes, lengths and windows of HMC and NUTS, for chains in Python.")
      .def(py::init<const std::string&, const py::dict&, const py::dict&, std::uint64_t,
                    const py::object&, std::uint64_t>(),
           py::arg("kernel"), py::arg("options"), py::arg("facts"), py::arg("seed"),
           py::arg("chains"), py::arg("warmup"))
      .def_property_readonly("finds_step", [](const Tuner& t) { return t.native().finds_step(); })
      .def_property_readonly("adapts_mass", [](const Tuner& t) { return t.native().adapts_mass(); })
      .def_property_readonly("first_try", [](const Tuner& t) { return t.native().first_try(); })
      .def_property_readonly("brief_until", [](const Tuner& t) { return t.native().brief_until(); })
      .def_property_readonly(
          "divergence_threshold",
          [](const Tuner& t) { return t.native().options().divergence_threshold; })
      .def_property_readonly("inverse_mass",
                             [](const Tuner& t) -> py::object {
                               const auto& mass = t.native().options().inverse_mass;
                               if (mass.empty()) return py::none();
                               return py::array_t<double>(static_cast<py::ssize_t>(mass.size()),
                                                          mass.data());
                             })
      .def_property_readonly("num_steps",
                             [](const Tuner& t) {
                               const auto& steps = t.native().num_steps;
                               return py::array_t<std::int64_t>(
                                   static_cast<py::ssize_t>(steps.size()), steps.data());
                             })
      .def("check_warmup", [](const Tuner& t) { t.native().check_warmup(); })
      .def("begin", &Tuner::begin, py::arg("step_size"), py::arg("renewed") = false)
      .def("plan", &Tuner::plan, py::arg("step"))
      .def("observe", &Tuner::observe, py::arg("step"), py::arg("acceptance"))
      .def(
          "collects",
          [](const Tuner& t, std::uint64_t done) {
            return t.native().adapts_mass() && t.native().windows().collects(done);
          },
          py::arg("done"))
      .def(
          "closes",
          [](const Tuner& t, std::uint64_t done) {
            return t.native().adapts_mass() && t.native().windows().closes(done);
          },
          py::arg("done"))
      .def("end_warmup", &Tuner::end_warmup)
      .def("fields", &Tuner::fields)
      .def("load", &Tuner::load, py::arg("fields"), py::arg("step"), py::arg("inverse_mass"));
}

}  // namespace ribbit::bindings
