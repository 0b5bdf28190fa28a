#pragma once
// Puts kernels on a stream: by nvcc, or, with RIBBIT_CUDA_ON_CPU, at once on the CPU for tests.

#include "cuda/host/device.h"
#include "cuda/kernels/block.h"

#if defined(RIBBIT_CUDA_ON_CPU)
#include "cuda/host/on_cpu.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace ribbit::cuda {

#if defined(RIBBIT_CUDA_ON_CPU)

template <class Kernel>
void launch(StreamHandle, Index x, Index y, const Kernel& kernel) {
  static Word64 launches = 0;
  run_on_cpu(kernel, Grid{x, y, 1}, ++launches);
}

#else

template <class Kernel>
void launch(StreamHandle stream, Index x, Index y, const Kernel& kernel) {
  static_assert(sizeof(Kernel) % 8 == 0);
  const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y));
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  // The call that the triple brackets stand for; clang-format does not know those.
  cudaLaunchKernel(reinterpret_cast<const void*>(&run<Kernel>), grid, dim3(Kernel::kBlock),
                   arguments, 0, static_cast<cudaStream_t>(stream));
  check_launch();
}

#endif

// Blocks of a loop over `count` elements.
inline Index blocks_of(Index count) {
  constexpr Index kMost = 4096;
  const Index blocks = (count + kThreads - 1) / kThreads;
  return blocks < 1 ? 1 : blocks > kMost ? kMost : blocks;
}

}  // namespace ribbit::cuda
