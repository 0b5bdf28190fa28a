// CUDA on the CPU, one fiber per thread: kernels are compiled as nvcc sees them, and each thread
// runs alone from barrier to barrier, in an order that changes at every barrier. Unlike
// cuda_on_cpu.h this sees what lies outside phases as every thread runs it, and phases that no
// barrier ends. The threads of a warp meet for a product of fragments. For tests; g++ alone.
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
  bool meets = false;  // waits for its warp, to multiply these
  float* c = nullptr;
  const float *a = nullptr, *b = nullptr;
};
std::vector<Fiber> all;
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

void prepare(Fiber& fiber) {
  fiber.done = fiber.meets = false;
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

// Runs the threads of one block; throws where some leave while others wait at a barrier.
void run_block(int threads, unsigned long long state) {
  if (static_cast<int>(all.size()) < threads) all.resize(threads);
  for (int t = 0; t < threads; ++t) prepare(all[t]);
  for (int done = 0; done < threads;) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const int first = static_cast<int>(state >> 40 & 0xffff);
    const int stride = static_cast<int>(state >> 24 & 0xffff) | 1;  // visits each thread once
    for (int i = 0; i < threads; ++i) resume((first + i * stride) & (threads - 1), done);
    if (threads % kLanes == 0) meet(threads, first, stride, done);
    if (done != 0 && done != threads) throw std::runtime_error("a barrier that some never reach");
  }
}

}  // namespace fibers

void __syncthreads() {
  fibers::ribbit_go(&fibers::running->top, fibers::home);
}

namespace ribbit::cuda {
alignas(16) unsigned char dynamic_bytes[1 << 18];  // what launches ask for
}

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
    misplaced = false;
    fibers::run_block(Kernel::kBlock, seed * 2862933555777941757ull + Word64(i));
    if (misplaced) throw std::runtime_error("16 bytes that begin at no multiple of 16");
  }
}

}  // namespace ribbit::cuda
