#pragma once
// Checked views of device arrays, by the CUDA array interface (version 3). Nothing is copied and
// nothing waits: arrays are used on the stream that the caller names.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "cuda/host/device.h"

namespace ribbit::bindings {

namespace py = pybind11;

inline constexpr std::int64_t kAnyLength = -1;

template <class T>
constexpr const char* typestr() {
  if constexpr (std::is_same_v<T, float>) return "<f4";
  if constexpr (std::is_same_v<T, double>) return "<f8";
  if constexpr (std::is_same_v<T, std::uint32_t>) return "<u4";
  if constexpr (std::is_same_v<T, std::int64_t>) return "<i8";
  if constexpr (std::is_same_v<T, bool>) return "|b1";
}

// One array: its address and up to two lengths.
template <class T>
struct DeviceArray {
  T* data = nullptr;
  std::int64_t lengths[2] = {1, 1};
};

inline py::dict interface_of(const py::handle& object, const char* name) {
  if (!py::hasattr(object, "__cuda_array_interface__")) {
    throw py::type_error(std::string("[_cuda] expected ") + name + " as a device array, got " +
                         std::string(py::str(py::type::of(object))));
  }
  return object.attr("__cuda_array_interface__").cast<py::dict>();
}

// Whether an array has the scalar type T.
template <class T>
bool holds(const py::handle& object, const char* name) {
  return interface_of(object, name)["typestr"].cast<std::string>() == typestr<T>();
}

// Throws TypeError or ValueError unless `object` is a C-contiguous array of T on the current device
// with the given shape.
template <class T>
DeviceArray<T> device_array(const py::handle& object, const char* name,
                            std::initializer_list<std::int64_t> shape) {
  using Scalar = std::remove_const_t<T>;
  const py::dict interface = interface_of(object, name);
  const auto type = interface["typestr"].cast<std::string>();
  const auto lengths = interface["shape"].cast<py::tuple>();
  const auto fail = [&](const std::string& expected) {
    return std::string("[_cuda] expected ") + name + " as " + expected + ", got " + type +
           " of shape " + std::string(py::str(lengths));
  };
  if (type != typestr<Scalar>()) {
    throw py::type_error(fail(std::string("an array of type ") + typestr<Scalar>()));
  }
  DeviceArray<T> array;
  bool same = lengths.size() == shape.size();
  std::string wanted;
  std::size_t axis = 0;
  for (const std::int64_t length : shape) {
    wanted += (wanted.empty() ? "" : ", ") +
              (length == kAnyLength ? std::string("any") : std::to_string(length));
    if (axis < lengths.size()) {
      array.lengths[axis] = lengths[axis].cast<std::int64_t>();
      same = same && (length == kAnyLength || array.lengths[axis] == length);
    }
    ++axis;
  }
  if (!same) throw py::value_error(fail("an array of shape (" + wanted + ")"));
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    const auto strides = interface["strides"].cast<py::tuple>();
    auto expected = static_cast<std::int64_t>(sizeof(Scalar));
    for (std::size_t i = lengths.size(); i-- > 0;) {
      const auto length = lengths[i].cast<std::int64_t>();
      if (length > 1 && strides[i].cast<std::int64_t>() != expected) {
        throw py::value_error(fail("a C-contiguous array"));
      }
      expected *= length;
    }
  }
  const auto data = interface["data"].cast<py::tuple>();
  if (!std::is_const_v<T> && data[1].cast<bool>()) {
    throw py::value_error(fail("an array that may be written"));
  }
  array.data = reinterpret_cast<T*>(data[0].cast<std::uintptr_t>());
  if (array.lengths[0] > 0 && array.lengths[1] > 0) cuda::check_pointer(array.data, name);
  return array;
}

}  // namespace ribbit::bindings
