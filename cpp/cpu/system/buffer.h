#pragma once
// A 64-byte aligned array without value initialisation.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "cpu/system/large_blocks.h"

namespace ribbit::cpu {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) { resize(size); }

  // Keeps nothing. Only ever grows, so that a reused workspace does not allocate.
  void resize(std::int64_t size) {
    if (size <= size_) return;
    const std::size_t wanted = static_cast<std::size_t>(size) * sizeof(T);
    const bool large = wanted >= kLargeBlock;
    const std::size_t unit = large ? kHugePage : 64;
    const std::size_t bytes = (wanted + unit - 1) / unit * unit;
    data_.reset();  // before the next one is taken
    size_ = 0;
    void* data = large ? take_block(bytes) : std::aligned_alloc(unit, bytes);
    if (data == nullptr) throw std::bad_alloc();
    data_ = std::unique_ptr<T[], Free>(static_cast<T*>(data), Free{large ? bytes : 0});
    size_ = size;
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }

 private:
  struct Free {
    std::size_t block = 0;  // bytes of a large block
    void operator()(T* p) const {
      if (block > 0) {
        give_block(p, block);
      } else {
        std::free(p);
      }
    }
  };
  std::unique_ptr<T[], Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace ribbit::cpu
