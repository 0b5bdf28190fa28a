#pragma once
// The step sizes that warmup begins with, by the arithmetic of Python's.

#include <vector>

#include "capi/target.h"

namespace ribbit::capi {

// Where one leapfrog step is accepted about half the time (algorithm 4), from `start` on: (chains,)
// to step_size. position, grad (chains, dim), terms (chains, 2). False when cancelled.
template <class T>
bool reasonable_step_size(const Target<T>& target, std::int64_t chains, const T* position,
                          const T* grad, const double* terms, const T* mass, double start,
                          std::uint64_t seed, std::uint64_t step, const std::uint32_t* chain_ids,
                          cpu::Poll* poll, std::vector<double>& step_size);

}  // namespace ribbit::capi
