#pragma once
// Monte Carlo forward: many weight vectors times one batch.

#include "core/network.h"
#include "cpu/parallel.h"

namespace ribbit::cpu {

// theta: (samples, theta_stride) with theta_stride >= network.dim(), x: (rows, features),
// out: (samples, rows, outputs). Dropout layers are inactive. False when cancelled.
template <class T>
bool forward(const Network& network, const T* theta, std::int64_t theta_stride,
             std::int64_t samples, const T* x, std::int64_t rows, T* out, Poll* poll);

}  // namespace ribbit::cpu
