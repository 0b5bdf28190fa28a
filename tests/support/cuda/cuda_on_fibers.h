// CUDA on the CPU, one fiber per thread: kernels are compiled as nvcc sees them, and each thread
// runs alone from barrier to barrier, in an order that changes at every barrier. Unlike
// cuda_on_cpu.h this sees what lies outside phases as every thread runs it, and phases that no
// barrier ends. The threads of a warp meet for a product of fragments, the blocks of a cluster take
// turns from one of its barriers to the next. For tests; g++ alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#define __CUDACC__ 1
#define RIBBIT_WARPS_OF_FIBERS 1
#define __device__
#define __host__
#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct Place {
  unsigned x, y, z;
};
Place threadIdx, blockIdx, gridDim;

namespace fibers {

constexpr std::size_t kStack = 1 << 15;

struct Fiber {
  void* top = nullptr;  // of the stack, where it was left
  std::vector<char> stack = std::vector<char>(kStack);
  bool done = false;
  bool parked = false;  // waits for its cluster
  bool meets = false;   // waits for its warp, to multiply these
  float* c = nullptr;
  const float *a = nullptr, *b = nullptr;
};
constexpr int kMostBlocks = 16;  // of a cluster
constexpr std::size_t kMemory = 1 << 18;
alignas(16) unsigned char memories[kMostBlocks][kMemory];
std::vector<Fiber> blocks[kMostBlocks];
int current = 0;       // block of the cluster
Fiber* all = nullptr;  // threads of that block
void* home = nullptr;  // top of the stack that runs the block
Fiber* running = nullptr;
void (*body)(const void*) = nullptr;
const void* kernel = nullptr;

// Leaves one stack for another. The registers that a call keeps lie on them; swapcontext would ask
// the operating system for the signal mask each time, which takes longer than most kernels.
extern "C" __attribute__((visibility("hidden"))) void ribbit_go(void** from, void* to);
asm(R"(
  .text
  .type ribbit_go, @function
ribbit_go:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size ribbit_go, . - ribbit_go
)");

void enter() {
  body(kernel);
  running->done = true;
  ribbit_go(&running->top, home);
}

int rank() {
  return current;
}
unsigned char* memory() {
  return memories[current];
}
template <class S>
S* of_rank(S* own, int rank) {
  return reinterpret_cast<S*>(memories[rank] + (reinterpret_cast<unsigned char*>(own) - memory()));
}
void meet_cluster() {
  running->parked = true;
  ribbit_go(&running->top, home);
}

void prepare(Fiber& fiber) {
  fiber.done = fiber.meets = fiber.parked = false;
  const auto end = reinterpret_cast<std::uintptr_t>(fiber.stack.data() + kStack) & ~15ull;
  void** top = reinterpret_cast<void**>(end) - 8;  // six registers, and what a call would leave
  std::memset(top, 0, 8 * sizeof(void*));
  top[6] = reinterpret_cast<void*>(enter);
  fiber.top = top;
}

constexpr int kLanes = 32;
void multiply(const Fiber* warp);  // what the lanes of a warp have met for

void resume(int t, int& done) {
  threadIdx.x = static_cast<unsigned>(t);
  running = &all[t];
  ribbit_go(&home, running->top);
  done += running->done ? 1 : 0;
}

// Multiplies for the warps whose lanes all wait for that and lets them go on to a barrier; throws
// where some do not come.
void meet(int threads, int first, int stride, int& done) {
  for (int warp = 0; warp < threads; warp += kLanes) {
    for (;;) {
      int waiting = 0;
      for (int lane = 0; lane < kLanes; ++lane) waiting += all[warp + lane].meets ? 1 : 0;
      if (waiting == 0) break;
      if (waiting != kLanes) throw std::runtime_error("a product that some lanes never reach");
      multiply(&all[warp]);
      for (int lane = 0; lane < kLanes; ++lane) all[warp + lane].meets = false;
      for (int i = 0; i < kLanes; ++i) resume(warp + ((first + i * stride) & (kLanes - 1)), done);
    }
  }
}

// Runs the threads of one block until they are done or wait for the cluster; throws where some
// leave, or wait for the cluster, while others wait at a barrier. Whether they are done.
bool run_block(int threads, unsigned long long& state) {
  for (int done = 0;;) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const int first = static_cast<int>(state >> 40 & 0xffff);
    const int stride = static_cast<int>(state >> 24 & 0xffff) | 1;  // visits each thread once
    for (int i = 0; i < threads; ++i) resume((first + i * stride) & (threads - 1), done);
    if (threads % kLanes == 0) meet(threads, first, stride, done);
    int parked = 0;
    for (int t = 0; t < threads; ++t) parked += all[t].parked ? 1 : 0;
    if (done != 0 && done != threads) throw std::runtime_error("a barrier that some never reach");
    if (parked != 0 && parked != threads)
      throw std::runtime_error("a meeting that some never reach");
    if (done == threads || parked == threads) return done == threads;
  }
}

// Runs the blocks of a cluster, each from meeting to meeting; throws where some leave before
// others.
void run_cluster(int count, int threads, Place first, unsigned long long seed) {
  for (int rank = 0; rank < count; ++rank) {
    if (static_cast<int>(blocks[rank].size()) < threads) blocks[rank].resize(threads);
    for (int t = 0; t < threads; ++t) prepare(blocks[rank][t]);
  }
  unsigned long long state = seed;
  for (int done = 0; done < count;) {
    const int from = static_cast<int>(state >> 33) & (count - 1);
    for (int i = 0; i < count; ++i) {
      current = (from + i) & (count - 1);
      all = blocks[current].data();
      blockIdx = {first.x + static_cast<unsigned>(current), first.y, first.z};
      for (int t = 0; t < threads; ++t) all[t].parked = false;
      done += run_block(threads, state) ? 1 : 0;
    }
    if (done != 0 && done != count) throw std::runtime_error("a meeting that some never reach");
  }
}

}  // namespace fibers

void __syncthreads() {
  fibers::ribbit_go(&fibers::running->top, fibers::home);
}

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Most of what tests of tensor cores compute, and two functions alone: optimised, unlike the
// kernels.
__attribute__((optimize("O3"))) inline float truncated(double sum);
__attribute__((optimize("O3"))) inline void multiply_fragments_of_warp(float* const (&c)[32],
                                                                       const float* const (&a)[32],
                                                                       const float* const (&b)[32]);

}  // namespace ribbit::cuda

#include "cuda/kernels/tensor_core.h"

void fibers::multiply(const Fiber* warp) {
  float* c[kLanes];
  const float *a[kLanes], *b[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    c[lane] = warp[lane].c, a[lane] = warp[lane].a, b[lane] = warp[lane].b;
  }
  ribbit::cuda::multiply_fragments_of_warp(c, a, b);
}

namespace ribbit::cuda {

void multiply_fragments(float* c, const float* a, const float* b) {
  fibers::Fiber& own = *fibers::running;
  own.c = c, own.a = a, own.b = b;
  own.meets = true;
  fibers::ribbit_go(&own.top, fibers::home);
}

struct Grid {
  Index x = 1, y = 1, z = 1;
};

template <class Kernel>
constexpr auto cluster_of(int) -> decltype(Kernel::kCluster) {
  return Kernel::kCluster;
}
template <class Kernel>
constexpr auto cluster_of(int) -> decltype(Kernel::kTogether) {
  return Kernel::kTogether;
}
template <class Kernel>
constexpr bool is_cluster(...) {
  return false;
}
template <class Kernel>
constexpr auto is_cluster(int) -> decltype(Kernel::kCluster > 1) {
  return true;
}
template <class Kernel>
constexpr int cluster_of(...) {
  return 1;
}

template <class Kernel>
void run_on_cpu(const Kernel& kernel, const Grid& grid, Word64 seed) {
  constexpr int kCluster = cluster_of<Kernel>(0);
  static_assert(sizeof(typename Kernel::Shared) <= fibers::kMemory);
  static_assert((kCluster & (kCluster - 1)) == 0 && kCluster <= fibers::kMostBlocks);
  fibers::kernel = &kernel;
  fibers::body = [](const void* k) {
    if constexpr (is_cluster<Kernel>(0)) {
      run_clusters<Kernel>(*static_cast<const Kernel*>(k));
    } else {
      run<Kernel>(*static_cast<const Kernel*>(k));
    }
  };
  gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
             static_cast<unsigned>(grid.z)};
  const Index clusters = grid.x * grid.y * grid.z / kCluster;
  misplaced = false;
  for (Index i = 0; i < clusters; ++i) {
    const Index j = (i + static_cast<Index>(seed % 1000003)) % clusters * kCluster;
    const Place first = {static_cast<unsigned>(j % grid.x),
                         static_cast<unsigned>(j / grid.x % grid.y),
                         static_cast<unsigned>(j / (grid.x * grid.y))};
    for (int rank = 0; rank < kCluster; ++rank) {
      std::memset(fibers::memories[rank], 0xff, sizeof(typename Kernel::Shared));  // NaN
    }
    fibers::run_cluster(kCluster, Kernel::kBlock, first, seed * 2862933555777941757ull + Word64(i));
    if (misplaced) throw std::runtime_error("16 bytes that begin at no multiple of 16");
  }
}

}  // namespace ribbit::cuda
