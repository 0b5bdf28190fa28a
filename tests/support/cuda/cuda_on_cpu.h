// Runs a kernel on the CPU: blocks one after the other in a shuffled order, shared memory filled
// with rubbish before each. Compiled by g++ alone; for tests.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

struct Grid {
  Index x = 1, y = 1, z = 1;
  Index blocks() const { return x * y * z; }
};

// seed decides the order of blocks and threads; results must not depend on it.
template <class Kernel>
void run_on_cpu(const Kernel& kernel, const Grid& grid, Word64 seed) {
  static_assert((Kernel::kBlock & (Kernel::kBlock - 1)) == 0, "threads: a power of two");
  const Index blocks = grid.blocks();
  Word64 state = seed * 2862933555777941757ull + 3037000493ull;
  const Index first = blocks > 0 ? static_cast<Index>((state >> 20) % Word64(blocks)) : 0;
  const bool backwards = (state >> 19 & 1) != 0;
  for (Index i = 0; i < blocks; ++i) {
    const Index j = (first + (backwards ? blocks - i : i)) % blocks;
    const Index place[3] = {j % grid.x, j / grid.x % grid.y, j / (grid.x * grid.y)};
    // On the heap: AddressSanitizer sees what lies beside it.
    const std::unique_ptr<typename Kernel::Shared> shared(new typename Kernel::Shared);
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof *shared);  // NaN
    Block block(place, grid.x, Kernel::kBlock, shared.get(), state + Word64(i));
    misplaced = false;
    kernel(block);
    if (misplaced) throw std::runtime_error("16 bytes that begin at no multiple of 16");
  }
}

}  // namespace ribbit::cuda
