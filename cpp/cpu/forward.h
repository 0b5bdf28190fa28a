#pragma once
// Monte Carlo forward: many weight vectors, or many masks of one, times one batch.

#include "core/network.h"
#include "cpu/parallel.h"

namespace ribbit::cpu {

// theta: (samples, theta_stride) with theta_stride >= network.dim(), x: (rows, features),
// out: (samples, rows, outputs). Dropout layers are inactive. False when cancelled.
template <class T>
bool forward(const Network& network, const T* theta, std::int64_t theta_stride,
             std::int64_t samples, const T* x, std::int64_t rows, T* out, Poll* poll);

// One theta (dim,) under the masks of samples first_sample, first_sample + 1, ... of `seed`: a mask
// per sample, row (the first has number first_row) and unit, or with `shared` one per sample and
// unit. What lies before the first dropout layer is computed once.
template <class T>
bool forward_masked(const Network& network, const T* theta, std::uint64_t seed,
                    std::uint32_t first_sample, std::int64_t samples, bool shared,
                    std::int64_t first_row, const T* x, std::int64_t rows, T* out, Poll* poll);

}  // namespace ribbit::cpu
