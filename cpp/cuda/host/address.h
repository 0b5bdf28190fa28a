#pragma once
// The address of the random numbers of a call.

#include <cstdint>

namespace ribbit::cuda {

struct StreamAddress {
  std::uint64_t seed;
  std::uint64_t step;  // below 2^40
  int purpose, layer;
  const std::uint32_t* chains;  // (C,) ids on the device
};

}  // namespace ribbit::cuda
