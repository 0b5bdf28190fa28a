#pragma once
// A 64-byte aligned array without value initialisation.

#include <sys/mman.h>

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
    // Large buffers are streamed through: pages of 2 MiB, where the system has them, spare most of
    // the misses of the translation cache.
    const std::size_t wanted = static_cast<std::size_t>(size) * sizeof(T);
    const std::size_t alignment = wanted >= kLarge ? kHugePage : 64;
    const std::size_t bytes = (wanted + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<T*>(std::aligned_alloc(alignment, bytes)));
    if (!data_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (alignment == kHugePage) madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
    size_ = size;
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20, kLarge = 4 * kHugePage;
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace ribbit::cpu
