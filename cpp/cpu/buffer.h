#pragma once
// A 64-byte aligned array without value initialisation.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace ribbit::cpu {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) { resize(size); }

  // Keeps nothing. Only ever grows, so that a reused workspace does not allocate.
  void resize(std::int64_t size) {
    if (size <= size_) return;
    const std::size_t bytes = (static_cast<std::size_t>(size) * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
    size_ = size;
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace ribbit::cpu
