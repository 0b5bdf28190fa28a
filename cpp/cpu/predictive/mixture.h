#pragma once
// The law of y at each row: the equally weighted mixture over draws of their means with noise.

#include <cstdint>

#include "cpu/system/threads.h"

namespace ribbit::cpu {

enum class Noise { kNormal, kStudent, kPoisson };

// An array (S, N, K) of float or double, anywhere in memory: its steps are numbers of elements.
struct MixtureArray {
  const void* data = nullptr;
  bool single = false;
  std::int64_t steps[3] = {};
};

// Values of draws, and sds or scales of their noise, which counts do not have.
struct MixtureDraws {
  MixtureArray values, widths;
  std::int64_t draws = 0, rows = 0, outputs = 0;
};

// Every function goes over all rows and outputs, (N, K) of `out`, and returns false when the poll
// asks to stop. NaN, or an infinite mean, of a draw makes NaN of a quantile and of a score.

// out (levels, N, K): the y with P(Y <= y) = level, in (0, 1), to 1e-10 of the smaller tail.
// Counts: the smallest count that reaches the level.
bool mixture_quantiles(Noise noise, double df, const MixtureDraws& draws, const double* levels,
                       std::int64_t count, double* out, Poll* poll);

// P(Y <= y) to 1e-13.
bool mixture_cdf(Noise noise, double df, const MixtureDraws& draws, const double* y, double* out,
                 Poll* poll);

// E|Y - y| - E|Y - Y'| / 2, to 1e-10 of the mixture's sd (of Student's t: of the root mean square
// of scales and distances between means): the closed form of normal noise where it is cheaper than
// the integral. df > 1.
bool mixture_crps(Noise noise, double df, const MixtureDraws& draws, const double* y, double* out,
                  Poll* poll);

}  // namespace ribbit::cpu
