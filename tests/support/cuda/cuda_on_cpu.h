// Runs a kernel on the CPU: blocks one after the other in a shuffled order, shared memory filled
// with rubbish before each; blocks of a cluster in threads of their own, which meet at a barrier.
// Compiled by g++ alone; for tests.
#pragma once

#include <pthread.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

struct Grid {
  Index x = 1, y = 1, z = 1;
  Index blocks() const { return x * y * z; }
};

// A kernel's kCluster, 1 without.
template <class Kernel>
constexpr auto cluster_of(int) -> decltype(Kernel::kCluster) {
  return Kernel::kCluster;
}
template <class Kernel>
constexpr int cluster_of(...) {
  return 1;
}

template <class Shared>
class Threads : public Cluster {
 public:
  explicit Threads(int blocks) {
    pthread_barrier_init(&all_, nullptr, static_cast<unsigned>(blocks));
    // On the heap: AddressSanitizer sees what lies beside it.
    for (int rank = 0; rank < blocks; ++rank) {
      shared_.emplace_back(new Shared);
      std::memset(memory(rank), 0xff, sizeof(Shared));  // NaN
    }
  }
  ~Threads() override { pthread_barrier_destroy(&all_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  void meet() override { pthread_barrier_wait(&all_); }
  unsigned char* memory(int rank) override {
    return reinterpret_cast<unsigned char*>(shared_[static_cast<std::size_t>(rank)].get());
  }

 private:
  pthread_barrier_t all_;
  std::vector<std::unique_ptr<Shared>> shared_;
};

// seed decides the order of blocks and threads; results must not depend on it.
template <class Kernel>
void run_on_cpu(const Kernel& kernel, const Grid& grid, Word64 seed) {
  static_assert((Kernel::kBlock & (Kernel::kBlock - 1)) == 0, "threads: a power of two");
  constexpr int kCluster = cluster_of<Kernel>(0);
  const Index blocks = grid.blocks() / kCluster;
  Word64 state = seed * 2862933555777941757ull + 3037000493ull;
  const Index first = blocks > 0 ? static_cast<Index>((state >> 20) % Word64(blocks)) : 0;
  const bool backwards = (state >> 19 & 1) != 0;
  misplaced = false;
  for (Index i = 0; i < blocks; ++i) {
    const Index j = (first + (backwards ? blocks - i : i)) % blocks * kCluster;
    Threads<typename Kernel::Shared> cluster(kCluster);
    const auto run = [&](int rank) {
      const Index at = j + rank;
      const Index place[3] = {at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)};
      Block block(place, grid.x, Kernel::kBlock, cluster.memory(rank), state + Word64(at), &cluster,
                  rank);
      kernel(block);
    };
    if constexpr (kCluster == 1) {
      run(0);
    } else {
      std::vector<std::thread> threads;
      for (int rank = 0; rank < kCluster; ++rank) threads.emplace_back(run, rank);
      for (std::thread& thread : threads) thread.join();
    }
    if (misplaced) throw std::runtime_error("16 bytes that begin at no multiple of 16");
  }
}

}  // namespace ribbit::cuda
