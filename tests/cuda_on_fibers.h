// CUDA on the CPU, one fiber per thread: kernels are compiled as nvcc sees them, and each thread
// runs alone from barrier to barrier, in an order that changes at every barrier. Unlike
// cuda/on_cpu.h this sees what lies outside phases as every thread runs it, and phases that no
// barrier ends. For tests; g++ alone.
#pragma once

#include <ucontext.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#define __CUDACC__ 1
#define __device__
#define __host__
#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads)

struct Place {
  unsigned x, y, z;
};
Place threadIdx, blockIdx, gridDim;

namespace fibers {

constexpr std::size_t kStack = 1 << 15;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  bool done = false;
};
std::vector<Fiber> all;
ucontext_t home;
Fiber* running = nullptr;
void (*body)(const void*) = nullptr;
const void* kernel = nullptr;

void enter() {
  body(kernel);
  running->done = true;
}

__attribute__((noinline)) void prepare(Fiber& fiber) {
  fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &home;
  makecontext(&fiber.context, enter, 0);
}

// Runs the threads of one block; throws where some leave while others wait at a barrier.
void run_block(int threads, unsigned long long state) {
  if (static_cast<int>(all.size()) < threads) all.resize(threads);
  for (int t = 0; t < threads; ++t) prepare(all[t]);
  for (int done = 0; done < threads;) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const int first = static_cast<int>(state >> 40 & 0xffff);
    const int stride = static_cast<int>(state >> 24 & 0xffff) | 1;  // visits each thread once
    for (int i = 0; i < threads; ++i) {
      const int t = (first + i * stride) & (threads - 1);
      threadIdx.x = static_cast<unsigned>(t);
      running = &all[t];
      swapcontext(&home, &running->context);
      done += running->done ? 1 : 0;
    }
    if (done != 0 && done != threads) throw std::runtime_error("a barrier that some never reach");
  }
}

}  // namespace fibers

void __syncthreads() {
  swapcontext(&fibers::running->context, &fibers::home);
}

namespace ribbit::cuda {
alignas(16) unsigned char dynamic_bytes[1 << 18];  // what launches ask for
}

#include "cuda/block.h"

namespace ribbit::cuda {

struct Grid {
  Index x = 1, y = 1, z = 1;
};

template <class Kernel>
void run_on_cpu(const Kernel& kernel, const Grid& grid, Word64 seed) {
  fibers::kernel = &kernel;
  fibers::body = [](const void* k) { run<Kernel>(*static_cast<const Kernel*>(k)); };
  gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
             static_cast<unsigned>(grid.z)};
  const Index blocks = grid.x * grid.y * grid.z;
  for (Index i = 0; i < blocks; ++i) {
    const Index j = (i + static_cast<Index>(seed % 1000003)) % blocks;
    blockIdx = {static_cast<unsigned>(j % grid.x), static_cast<unsigned>(j / grid.x % grid.y),
                static_cast<unsigned>(j / (grid.x * grid.y))};
    auto& shared = Block().template shared<typename Kernel::Shared>();
    std::memset(static_cast<void*>(&shared), 0xff, sizeof shared);  // NaN
    fibers::run_block(Kernel::kBlock, seed * 2862933555777941757ull + Word64(i));
  }
}

}  // namespace ribbit::cuda
