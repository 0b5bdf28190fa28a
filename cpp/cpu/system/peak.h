#pragma once

namespace ribbit::cpu {

// The fused multiply-adds one core does, in GFLOP/s: the best of repeats within `seconds`.
// bits: 32 or 64.
double fma_peak_gflops(double seconds, int bits);

}  // namespace ribbit::cpu
