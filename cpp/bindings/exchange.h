#pragma once
// The exchange of a group's ranks by a Python object with rank, size and shards, and
//   meet(wish, place) -> whether all stop
//   swap(send, send_sizes, receive, receive_sizes), gather(send, receive, sizes)
// on buffers of bytes; an exception of one of these ends the call with it.

#include <memory>
#include <vector>

#include "bindings/array.h"
#include "cpu/density/row_group.h"
#include "cpu/system/subnormals.h"

namespace ribbit::bindings {

class PythonExchange final : public cpu::Exchange {
 public:
  explicit PythonExchange(py::object group) : group_(std::move(group)) {}

  int rank() const { return group_.attr("rank").cast<int>(); }
  int ranks() const { return group_.attr("size").cast<int>(); }

  bool meet(bool wish, std::uint32_t place) override {
    const py::gil_scoped_acquire gil;
    // What a signal handler raised here must wait until all ranks end.
    if (PyErr_Occurred() != nullptr) {
      raised_ = std::make_unique<py::error_already_set>();
      wish = true;
    }
    return attempt([&] { return !group_.attr("meet")(wish, place).cast<bool>(); });
  }
  bool swap(const std::byte* send, const std::vector<std::int64_t>& send_sizes, std::byte* receive,
            const std::vector<std::int64_t>& receive_sizes) override {
    const py::gil_scoped_acquire gil;
    return attempt([&] {
      group_.attr("swap")(view(send, send_sizes), numbers(send_sizes), view(receive, receive_sizes),
                          numbers(receive_sizes));
      return true;
    });
  }
  bool gather(const std::byte* send, std::byte* receive,
              const std::vector<std::int64_t>& sizes) override {
    const py::gil_scoped_acquire gil;
    return attempt([&] {
      const std::int64_t own = sizes[static_cast<std::size_t>(rank())];
      group_.attr("gather")(py::memoryview::from_memory(send, own), view(receive, sizes),
                            numbers(sizes));
      return true;
    });
  }

  // After a call that ended: throws why. flag: told that all ranks stop.
  [[noreturn]] void rethrow(const InterruptFlag* flag) {
    if (raised_ != nullptr) {
      const py::error_already_set error = *raised_;
      raised_.reset();
      throw error;
    }
    if (flag != nullptr) {
      flag->set.store(true);
      throw Interrupted();
    }
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw py::error_already_set();
  }

 private:
  template <class Call>
  bool attempt(const Call& call) {
    const cpu::Subnormals kept(cpu::Subnormals::kKept);  // Python code
    try {
      return call();
    } catch (const py::error_already_set& error) {
      // The one that was raised first is the reason.
      if (raised_ == nullptr) raised_ = std::make_unique<py::error_already_set>(error);
      return false;
    }
  }
  static py::tuple numbers(const std::vector<std::int64_t>& sizes) {
    py::tuple found(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) found[i] = sizes[i];
    return found;
  }
  template <class Byte>
  static py::memoryview view(Byte* data, const std::vector<std::int64_t>& sizes) {
    std::int64_t all = 0;
    for (const std::int64_t size : sizes) all += size;
    return py::memoryview::from_memory(data, all);
  }

  py::object group_;
  std::unique_ptr<py::error_already_set> raised_;
};

}  // namespace ribbit::bindings
