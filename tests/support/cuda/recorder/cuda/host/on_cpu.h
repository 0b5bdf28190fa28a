// In the place of the package's header of this name: launches are told, and no kernel runs.
#pragma once

#include <string>

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

struct Grid {
  Index x = 1, y = 1, z = 1;
};

using Told = void (*)(const char* name, Index x, Index y, Index z, const void* kernel,
                      unsigned long long size);
inline Told told = nullptr;

template <class Kernel>
std::string name_of() {
  const std::string text = __PRETTY_FUNCTION__, mark = "Kernel = ";
  const std::size_t begin = text.find(mark) + mark.size();
  std::size_t end = begin, depth = 0;
  for (; end < text.size(); ++end) {
    if (text[end] == '<') ++depth;
    if (text[end] == '>') --depth;
    if (depth == 0 && (text[end] == ';' || text[end] == ']')) break;
  }
  return text.substr(begin, end - begin);
}

template <class Kernel>
void run_on_cpu(const Kernel& kernel, const Grid& grid, Word64) {
  told(name_of<Kernel>().c_str(), grid.x, grid.y, grid.z, &kernel, sizeof kernel);
}

}  // namespace ribbit::cuda

extern "C" inline __attribute__((visibility("default"), used)) void ribbit_tell(
    ribbit::cuda::Told to) {
  ribbit::cuda::told = to;
}
