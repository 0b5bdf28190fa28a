#pragma once
// From the address of a call to what kernels take.

#include "cuda/host/address.h"
#include "cuda/kernels/random_kernels.h"

namespace ribbit::cuda {

inline Stream stream_of(const StreamAddress& a) {
  const auto purpose = static_cast<Word64>(a.purpose), layer = static_cast<Word64>(a.layer);
  return {a.seed, a.step, purpose << 24 | layer << 8, a.chains};
}

}  // namespace ribbit::cuda
