#include "cpu/system/large_blocks.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <mutex>
#include <new>

#include "cpu/system/threads.h"

namespace ribbit::cpu {
namespace {

struct Block {
  void* data;
  std::size_t bytes;
};

// The last blocks that were given back, the oldest first.
class Kept {
 public:
  void* find(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                    [bytes](const Block& b) { return b.bytes == bytes; });
    if (found == blocks_.rend()) return nullptr;
    void* data = found->data;
    total_ -= bytes;
    blocks_.erase(std::next(found).base());
    return data;
  }
  void keep(void* data, std::size_t bytes) noexcept {
    if (bytes > kMost) return std::free(data);
    const std::scoped_lock lock(mutex_);
    try {
      blocks_.push_back({data, bytes});
    } catch (const std::bad_alloc&) {
      return std::free(data);
    }
    total_ += bytes;
    while (total_ > kMost) drop_oldest();
  }
  std::int64_t drop() {
    const std::scoped_lock lock(mutex_);
    const auto dropped = static_cast<std::int64_t>(total_);
    while (!blocks_.empty()) drop_oldest();
    return dropped;
  }

 private:
  void drop_oldest() noexcept {
    total_ -= blocks_.front().bytes;
    std::free(blocks_.front().data);
    blocks_.pop_front();
  }

  static constexpr std::size_t kMost = std::size_t{256} << 20;
  std::mutex mutex_;
  std::deque<Block> blocks_;
  std::size_t total_ = 0;
};

// Never destroyed: arrays may outlive everything else of the process.
std::atomic<Kept*> kept_pointer{nullptr};

// After a fork the child keeps none at first and leaks the old ones: a thread that does not exist
// there may have held the lock.
void forget_kept() {
  kept_pointer.store(new Kept, std::memory_order_release);
}

Kept& kept() {
  static std::once_flag once;
  std::call_once(once, [] {
    forget_kept();
    pthread_atfork(nullptr, nullptr, forget_kept);
  });
  return *kept_pointer.load(std::memory_order_acquire);
}

}  // namespace

void* take_block(std::size_t bytes) {
  if (void* block = kept().find(bytes)) return block;
  void* block = std::aligned_alloc(kHugePage, bytes);
  if (block == nullptr && drop_blocks() > 0) block = std::aligned_alloc(kHugePage, bytes);
  if (block == nullptr) throw std::bad_alloc();
  // They are streamed through: pages of 2 MiB, where the system has them, spare most of the misses
  // of the translation cache.
#if defined(MADV_HUGEPAGE)
  madvise(block, bytes, MADV_HUGEPAGE);
#endif
  return block;
}

void give_block(void* block, std::size_t bytes) noexcept {
  kept().keep(block, bytes);
}

std::int64_t drop_blocks() {
  return kept().drop();
}

template <class T>
void copy_array(const T* from, std::int64_t n, T* to) {
  constexpr std::int64_t kPiece = (1 << 20) / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t pieces = (n + kPiece - 1) / kPiece;
  if (pieces < 4) {
    std::copy_n(from, n, to);
    return;
  }
  for_each_piece(pieces, n, [&](std::int64_t i) {
    const std::int64_t first = i * kPiece;
    std::copy_n(from + first, std::min(kPiece, n - first), to + first);
  });
}

template void copy_array(const float*, std::int64_t, float*);
template void copy_array(const double*, std::int64_t, double*);

}  // namespace ribbit::cpu
