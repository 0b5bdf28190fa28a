#pragma once

namespace ribbit::cpu {

// The fused multiply-adds one core does, in GFLOP/s: the best of repeats within `seconds`.
// bits: 32 or 64.
double fma_peak_gflops(double seconds, int bits);

// Nanoseconds until one thread sees what another has written, the best of some batches: what a
// barrier costs at least, and what tells whether the two cores share a cache. 0: the threads never
// ran at once.
double handover_ns();

}  // namespace ribbit::cpu
