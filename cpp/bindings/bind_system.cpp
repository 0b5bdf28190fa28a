// Threads, instruction sets, interruption and facts about the build.

#include <pthread.h>
#include <pybind11/stl.h>

#include "bindings/array.h"
#include "bindings/scalar.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/memory.h"
#include "cpu/system/peak.h"
#include "cpu/system/subnormals.h"
#include "cpu/system/threads.h"

namespace ribbit::bindings {

Steps::Steps(const py::object& object, std::int64_t chains)
    : array(checked<std::int64_t>(object, "num_steps", {chains})),
      values(data<std::int64_t>(array)) {
  for (std::int64_t c = 0; c < chains; ++c) {
    if (values[c] < 1) {
      throw py::value_error("[_core] expected num_steps >= 1, got " + std::to_string(values[c]));
    }
  }
}

namespace {

// Python's main thread, where signals arrive. Asked for once: a call of Python code may give the
// GIL away, and on a daemon thread never return.
std::atomic<unsigned long> main_thread{0};

void find_main_thread() {
  const py::object thread = py::module_::import("threading").attr("main_thread")();
  main_thread.store(thread.attr("ident").cast<unsigned long>());
  // Whoever forks is the main thread of the child.
  pthread_atfork(nullptr, nullptr, [] { main_thread.store(PyThread_get_thread_ident()); });
}

}  // namespace

PythonPoll::PythonPoll(const InterruptFlag* flag)
    : flag_(flag), main_thread_(PyThread_get_thread_ident() == main_thread.load()) {}

bool PythonPoll::stop() {
  if (main_thread_) {
    const py::gil_scoped_acquire gil;
    const cpu::Subnormals kept(cpu::Subnormals::kKept);  // handlers are Python code
    if (PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0) return true;
  }
  return flag_ != nullptr && (flag_->set.load() || flag_->asked.load());
}

void PythonPoll::rethrow() const {
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  throw Interrupted();
}

namespace {

py::typing::Dict<py::str, py::object> build_info() {
  py::typing::Dict<py::str, py::object> info;
  info["version"] = RIBBIT_VERSION;
#ifdef __clang__
  info["compiler"] = __VERSION__;  // "Clang 19.1.0 ..."
#else
  info["compiler"] = "GCC " __VERSION__;
#endif
  info["panel_rows"] = cpu::kPanel;
  return info;
}

// draws (chains, draws, dim)[:, index] = position (chains, dim), by several threads where that
// pays.
void put_draw(const py::object& draws, std::int64_t index, const py::object& position) {
  for_scalar(draws, "draws", [&](auto zero) {
    using T = decltype(zero);
    py::array array = checked<T>(draws, "draws", {kAny, kAny, kAny}, true);
    const std::int64_t chains = array.shape(0), count = array.shape(1), dim = array.shape(2);
    const py::array source = checked<T>(position, "position", {chains, dim});
    if (index < 0 || index >= count) {
      throw py::index_error("[_core] expected a draw in 0.." + std::to_string(count - 1) +
                            ", got " + std::to_string(index));
    }
    const T* from = data<T>(source);
    T* to = mutable_data<T>(array) + index * dim;
    const WithoutGil release;
    for (std::int64_t c = 0; c < chains; ++c) {
      cpu::copy_array(from + c * dim, dim, to + c * count * dim);
    }
  });
}

}  // namespace

void bind_system(py::module_& module) {
  find_main_thread();
  py::class_<InterruptFlag>(module, "InterruptFlag",
                            "Ends native calls that were given this flag, within 20 ms.")
      .def(py::init<>())
      .def("set", [](InterruptFlag& flag) { flag.set.store(true); })
      .def("clear",
           [](InterruptFlag& flag) {
             flag.set.store(false);
             flag.asked.store(false);
           })
      .def("ask", [](InterruptFlag& flag) { flag.asked.store(true); })
      .def("is_asked", [](const InterruptFlag& flag) { return flag.asked.load(); })
      .def("is_set", [](const InterruptFlag& flag) { return flag.set.load(); });
  py::register_exception<Interrupted>(module, "Interrupted", PyExc_Exception);

  module.def("set_num_threads", &cpu::set_num_threads, py::arg("n"));
  module.def("num_threads", &cpu::num_threads);
  module.def("halve_teams", &cpu::halve_teams, py::arg("barriers"),
             "Teams of threads halve after every so many barriers; 0: where threads come late.");
  module.def("isa", [] { return cpu::instruction_set().name; });
  module.def("available_isas", &cpu::available_instruction_sets);
  module.def("build_info", &build_info);
  module.def("require_memory", &cpu::require_memory, py::arg("bytes"), py::arg("what"));
  module.def("put_draw", &put_draw, py::arg("draws"), py::arg("index"), py::arg("position"));
  module.def("drop_blocks", &cpu::drop_blocks,
             "Hands large blocks of memory that are kept to the system; bytes.");
  module.def("fma_peak_gflops", &cpu::fma_peak_gflops, py::arg("seconds"), py::arg("bits"),
             py::call_guard<WithoutGil>());
  module.def("handover_ns", &cpu::handover_ns, py::call_guard<WithoutGil>());
}

}  // namespace ribbit::bindings
