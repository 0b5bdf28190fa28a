#pragma once
// Checked views of NumPy arrays. The Python layer converts; the binding only refuses.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/without_gil.h"
#include "core/network.h"
#include "cpu/layers/rows.h"
#include "cpu/system/buffer.h"
#include "cpu/system/memory.h"
#include "cpu/system/threads.h"

namespace ribbit::bindings {

namespace py = pybind11;

// An array of float32 or float64, as what a function was given.
class FloatArray : public py::array {
 public:
  template <class T>
  FloatArray(py::array_t<T> array) : py::array(std::move(array)) {}
};

// Tuples of arrays, named by what they hold so that the stubs say it.
template <class... T>
using Arrays = py::typing::Tuple<
    std::conditional_t<std::is_same_v<T, FloatArray>, FloatArray, py::array_t<T>>...>;

inline constexpr std::int64_t kAny = -1;
inline constexpr int kAligned = py::detail::npy_api::NPY_ARRAY_ALIGNED_;

template <class T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, std::int64_t>) return "int64";
  if constexpr (std::is_same_v<T, std::uint32_t>) return "uint32";
  if constexpr (std::is_same_v<T, std::uint8_t>) return "uint8";
  if constexpr (std::is_same_v<T, bool>) return "bool";
}

// Throws TypeError unless `object` is an array.
inline py::array array_of(const py::handle& object, const char* name) {
  if (py::isinstance<py::array>(object)) return py::reinterpret_borrow<py::array>(object);
  throw py::type_error(std::string("[_core] expected ") + name + " as a numpy array, got " +
                       std::string(py::str(py::type::of(object))));
}

template <class T>
bool holds(const py::array& array) {
  return array.dtype().is(py::dtype::of<T>()) || array.dtype().equal(py::dtype::of<T>());
}

// For messages.
inline std::string described(const py::array& array) {
  return std::string(py::str(array.dtype())) + " of shape " +
         std::string(py::str(array.attr("shape")));
}

// Throws TypeError or ValueError unless `object` is an aligned C-contiguous array of T with the
// given shape (kAny matches any length).
template <class T>
py::array checked(const py::handle& object, const char* name,
                  std::initializer_list<std::int64_t> shape, bool writable = false) {
  py::array array = array_of(object, name);
  if (!holds<T>(array)) {
    throw py::type_error(std::string("[_core] expected ") + name + " of dtype " + dtype_name<T>() +
                         ", got " + described(array));
  }
  bool same = array.ndim() == static_cast<py::ssize_t>(shape.size());
  py::ssize_t axis = 0;
  for (const std::int64_t length : shape) {
    same = same && (length == kAny || array.shape(axis) == length);
    ++axis;
  }
  constexpr int kNeeded = py::array::c_style | kAligned;
  if (!same || (array.flags() & kNeeded) != kNeeded || (writable && !array.writeable())) {
    std::string wanted;
    for (const std::int64_t length : shape) {
      wanted += (wanted.empty() ? "" : ", ") + (length == kAny ? "any" : std::to_string(length));
    }
    throw py::value_error(std::string("[_core] expected ") + name + " as a C-contiguous " +
                          (writable ? "writable " : "") + "array of shape (" + wanted + "), got " +
                          described(array));
  }
  return array;
}

// Throws ValueError unless a number is in least..most.
inline void check_range(const char* name, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value >= least && value <= most) return;
  throw py::value_error("[_core] expected " + std::string(name) + " in " + std::to_string(least) +
                        ".." + std::to_string(most) + ", got " + std::to_string(value));
}

// Throws ValueError unless steps first .. first + count - 1 exist: an address has 40 bits of them.
inline void check_steps(const char* name, std::uint64_t first, std::int64_t count) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  check_range("the number of steps", count, 1, kMost);
  if (first > static_cast<std::uint64_t>(kMost - count)) {
    throw py::value_error("[_core] expected " + std::string(name) + " that ends below 2^40, got " +
                          std::to_string(first) + " and " + std::to_string(count) + " steps");
  }
}

// A whole number of a table of doubles, in least..most.
inline std::int64_t whole(const char* name, double value, std::int64_t least,
                          std::int64_t most = kMostScalars) {
  if (!(std::abs(value) <= static_cast<double>(kMostScalars)) || value != std::floor(value)) {
    throw py::value_error("[_core] expected whole numbers in " + std::string(name) + ", got " +
                          std::to_string(value));
  }
  check_range(name, static_cast<std::int64_t>(value), least, most);
  return static_cast<std::int64_t>(value);
}

template <class T>
const T* data(const py::array& array) {
  return static_cast<const T*>(array.data());
}
template <class T>
T* mutable_data(py::array& array) {
  return static_cast<T*>(array.mutable_data());
}

// Large ones lie in blocks that later arrays take over (cpu/system/large_blocks.h).
template <class T>
py::array_t<T> empty(std::initializer_list<std::int64_t> shape) {
  const std::vector<py::ssize_t> lengths(shape.begin(), shape.end());
  double real = 1.0;
  std::int64_t size = 1;
  for (const std::int64_t length : shape) {
    if (length < 0) throw py::value_error("[_core] expected counts >= 0");
    real *= static_cast<double>(length);
    if (real > 1e18 / sizeof(T)) throw std::bad_alloc();
    size *= length;
  }
  const auto bytes = size * static_cast<std::int64_t>(sizeof(T));
  if (static_cast<std::size_t>(bytes) < cpu::kLargeBlock) return py::array_t<T>(lengths);
  constexpr std::int64_t kWorthAsking = std::int64_t{1} << 28;  // the system reads files for it
  if (bytes >= kWorthAsking) cpu::require_memory(bytes, "the result of a call");
  auto buffer = std::make_unique<cpu::Buffer<T>>(size);
  T* values = buffer->data();
  const py::capsule owner(buffer.get(),
                          [](void* held) { delete static_cast<cpu::Buffer<T>*>(held); });
  buffer.release();
  return py::array_t<T>(lengths, values, owner);
}

// num_steps (chains,), each at least 1.
struct Steps {
  py::array array;
  const std::int64_t* values;
  Steps(const py::object& object, std::int64_t chains);
};

// An inverse mass matrix, or other scales: none, (dim,) for all chains or (chains, dim).
template <class T>
struct Mass {
  py::array array;
  const T* values = nullptr;
  std::int64_t stride = 0;
  Mass(const py::object& object, std::int64_t chains, std::int64_t dim,
       const char* name = "inverse_mass") {
    if (object.is_none()) return;
    const bool shared = array_of(object, name).ndim() == 1;
    array = shared ? checked<T>(object, name, {dim}) : checked<T>(object, name, {chains, dim});
    values = data<T>(array);
    stride = shared ? 0 : dim;
  }
};

// Where positions go that are kept on the way: after the steps `keep` (K,), 0-based and ascending,
// to kept (chains, K, dim); None: nowhere.
template <class T>
struct KeptPositions {
  py::array steps, array;
  const std::int64_t* after = nullptr;
  std::int64_t count = 0;
  T* to = nullptr;
  KeptPositions(const py::object& keep, const py::object& kept, std::int64_t chains,
                std::int64_t made, std::int64_t dim) {
    if (keep.is_none()) return;
    steps = checked<std::int64_t>(keep, "keep", {kAny});
    count = steps.shape(0);
    after = data<std::int64_t>(steps);
    for (std::int64_t i = 0; i < count; ++i) {
      if (after[i] < (i == 0 ? 0 : after[i - 1] + 1) || after[i] >= made) {
        throw py::value_error("[_core] expected keep as ascending steps of the call");
      }
    }
    array = checked<T>(kept, "kept", {chains, count, dim}, true);
    to = mutable_data<T>(array);
  }
};

// A copy of object (chains, dim) that the native code may change.
template <class T>
py::array_t<T> copied(const py::object& object, const char* name, std::int64_t chains,
                      std::int64_t dim) {
  const py::array source = checked<T>(object, name, {chains, dim});
  py::array_t<T> result = empty<T>({chains, dim});
  cpu::copy_array(data<T>(source), chains * dim, result.mutable_data());
  return result;
}

// A flag that a Python signal handler or another thread sets to end a running call. asked: it is to
// end where all ranks of a group agree, which then sets the flag of each.
struct InterruptFlag {
  mutable std::atomic<bool> set{false};
  std::atomic<bool> asked{false};
};

// Thrown when a flag ended a call.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "[_core] interrupted"; }
};

// Polls Python's signals (on the main thread only) and a flag, from code without the GIL.
class PythonPoll : public cpu::Poll {
 public:
  explicit PythonPoll(const InterruptFlag* flag);
  bool stop() override;
  // Call with the GIL held after a cancelled call: throws what ended it.
  [[noreturn]] void rethrow() const;

 private:
  const InterruptFlag* flag_;
  bool main_thread_;
};

void bind_chains(py::module_& module);
void bind_fields(py::module_& module);
void bind_codes(py::module_& module);
void bind_density(py::module_& module);
void bind_forward(py::module_& module);
void bind_mixture(py::module_& module);
void bind_options(py::module_& module);
void bind_pointer(py::module_& module);
void bind_random(py::module_& module);
void bind_system(py::module_& module);
void bind_tuner(py::module_& module);

// Data rows (N >= 1, features): numbers, or bytes of images.
template <class T>
cpu::Rows<T> rows_of(const py::object& x, std::int64_t features, py::array& keep) {
  const bool bytes = py::isinstance<py::array_t<std::uint8_t>>(x);
  keep = bytes ? checked<std::uint8_t>(x, "x", {kAny, features})
               : checked<T>(x, "x", {kAny, features});
  if (bytes) return cpu::Rows<T>(data<std::uint8_t>(keep));
  return cpu::Rows<T>(data<T>(keep));
}

}  // namespace ribbit::bindings

template <>
struct pybind11::detail::handle_type_name<ribbit::bindings::FloatArray> {
  static constexpr auto name = const_name("numpy.typing.NDArray[numpy.float32 | numpy.float64]");
};
