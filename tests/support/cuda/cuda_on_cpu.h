// Runs a kernel on the CPU: blocks one after the other in a shuffled order, shared memory filled
// with rubbish before each; blocks of a cluster in threads of their own, which meet at a barrier,
// and so are blocks of a cooperative launch that belong together, which meet by atomics. Compiled
// by g++ alone; for tests.
#pragma once

#include <pthread.h>

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Most of what tests of tensor cores compute, and two functions alone: optimised, unlike the
// kernels.
__attribute__((optimize("O3"))) inline float truncated(double sum);
__attribute__((optimize("O3"))) inline void multiply_fragments_of_warp(float* const (&c)[32],
                                                                       const float* const (&a)[32],
                                                                       const float* const (&b)[32]);

struct Grid {
  Index x = 1, y = 1, z = 1;
  Index blocks() const { return x * y * z; }
};

// A kernel's kCluster or kTogether, 1 without.
template <class Kernel>
constexpr auto cluster_of(int) -> decltype(Kernel::kCluster) {
  return Kernel::kCluster;
}
template <class Kernel>
constexpr auto cluster_of(int) -> decltype(Kernel::kTogether) {
  return Kernel::kTogether;
}
template <class Kernel>
constexpr int cluster_of(...) {
  return 1;
}

// Shared memory of the blocks of a cluster. Neither this nor `run_blocks` knows the kernel: a
// library of many kernels compiles them once.
class Threads : public Cluster {
 public:
  Threads(int blocks, std::size_t bytes) : bytes_(bytes) {
    pthread_barrier_init(&all_, nullptr, static_cast<unsigned>(blocks));
    // On the heap, each block by itself: AddressSanitizer sees what lies beside it.
    for (int rank = 0; rank < blocks; ++rank) {
      shared_.emplace_back(static_cast<unsigned char*>(::operator new(bytes, kAlign)));
    }
  }
  ~Threads() override { pthread_barrier_destroy(&all_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  void meet() override { pthread_barrier_wait(&all_); }
  void rest() override { std::this_thread::yield(); }
  unsigned char* memory(int rank) override { return shared_[static_cast<std::size_t>(rank)].get(); }
  void fill() {
    for (const auto& one : shared_) std::memset(one.get(), 0xff, bytes_);  // NaN
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(unsigned char* p) const { ::operator delete(p, kAlign); }
  };
  std::size_t bytes_;
  pthread_barrier_t all_;
  std::vector<std::unique_ptr<unsigned char, Delete>> shared_;
};

struct Launch {
  void (*run)(const void* kernel, Block& block);
  const void* kernel;
  std::size_t shared;  // bytes
  int threads, cluster;
};

// seed decides the order of blocks and threads; results must not depend on it. Throws after a
// fault.
inline void run_blocks(const Launch& launch, const Grid& grid, Word64 seed) {
  const Index blocks = grid.blocks() / launch.cluster;
  Word64 state = seed * 2862933555777941757ull + 3037000493ull;
  const Index first = blocks > 0 ? static_cast<Index>((state >> 20) % Word64(blocks)) : 0;
  const bool backwards = (state >> 19 & 1) != 0;
  misplaced = false;
  for (Index i = 0; i < blocks; ++i) {
    const Index j = (first + (backwards ? blocks - i : i)) % blocks * launch.cluster;
    Threads cluster(launch.cluster, launch.shared);
    cluster.fill();
    const auto run = [&](int rank) {
      const Index at = j + rank;
      const Index place[3] = {at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)};
      Block block(place, grid.x, launch.threads, cluster.memory(rank), state + Word64(at), &cluster,
                  rank);
      launch.run(launch.kernel, block);
    };
    if (launch.cluster == 1) {
      run(0);
    } else {
      std::vector<std::thread> threads;
      for (int rank = 0; rank < launch.cluster; ++rank) threads.emplace_back(run, rank);
      for (std::thread& thread : threads) thread.join();
    }
    if (misplaced) throw std::runtime_error("16 bytes that begin at no multiple of 16");
  }
}

template <class Kernel>
void run_on_cpu(const Kernel& kernel, const Grid& grid, Word64 seed) {
  static_assert((Kernel::kBlock & (Kernel::kBlock - 1)) == 0, "threads: a power of two");
  const auto run = [](const void* one, Block& block) { (*static_cast<const Kernel*>(one))(block); };
  run_blocks({run, &kernel, sizeof(typename Kernel::Shared), Kernel::kBlock, cluster_of<Kernel>(0)},
             grid, seed);
}

}  // namespace ribbit::cuda
