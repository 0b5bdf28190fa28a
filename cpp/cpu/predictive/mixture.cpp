#include "cpu/predictive/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/system/buffer.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {
namespace {

constexpr std::int64_t kBlock = 16;  // draws in a block of MixtureRow, and rows fetched at once
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr std::int64_t kMostScratch = 64 << 20;  // bytes, of all threads but the first
constexpr double kThinnest = 1e-150;             // widths that can be divided by

// norm is 1 / (2 R(0)) and P(Z < -|z|) = norm (1 + z^2 / df)^(-df / 2) R(w), where R(w) is the
// integral of (cosh t + w sinh t)^-df over t > 0.
double student_integral(double df, double w) {
  constexpr double kStep = 1.0 / 32.0;
  const double scale = 1.0 / (df * w + std::sqrt(df));
  double sum = 0.0;
  for (int i = -144; i <= 144; ++i) {  // t = scale exp(pi / 2 sinh(u)), the trapezoidal rule in u
    const double u = i * kStep, t = std::min(scale * std::exp(M_PI_2 * std::sinh(u)), 1e300);
    const double half = std::sinh(0.5 * std::min(t, 300.0));
    const double logarithm = t < 300.0 ? std::log1p(2.0 * half * half + w * std::sinh(t))
                                       : t - std::log(2.0) + std::log1p(w);
    sum += std::exp(-df * logarithm) * t * M_PI_2 * std::cosh(u);
  }
  return sum * kStep;
}

NoiseLaw law_of(Noise noise, double df) {
  NoiseLaw law;
  law.df = kInfinity;
  if (noise != Noise::kStudent) return law;
  constexpr int n = NoiseLaw::kTerms;
  law.student = true;
  law.df = std::min(df, 1e30);
  if (law.df <= 16.0 && law.df == std::floor(law.df)) law.whole_df = static_cast<int>(law.df);
  law.inverse_root = 1.0 / std::sqrt(law.df);
  law.knee = 4.0 * law.inverse_root;
  law.norm = 0.5 / student_integral(law.df, 0.0);
  // Interpolation at Chebyshev's nodes, then powers: T_k = 2 v T_(k-1) - T_(k-2).
  double values[n], chebyshev[n], last[n] = {}, current[n] = {1.0};
  for (int i = 0; i < n; ++i) {
    const double s = 0.5 - 0.5 * std::cos(M_PI * (i + 0.5) / n);
    values[i] = law.norm * student_integral(law.df, s * law.knee / (1.0 + law.knee - s));
  }
  for (int k = 0; k < n; ++k) {
    chebyshev[k] = 0.0;
    for (int i = 0; i < n; ++i) chebyshev[k] += values[i] * std::cos(M_PI * k * (i + 0.5) / n);
    chebyshev[k] *= (k == 0 ? 1.0 : 2.0) / n;
  }
  for (int k = 0; k < n; ++k) {
    for (int i = 0; i <= k; ++i) law.ratio[i] += chebyshev[k] * current[i];
    for (int i = n - 1; i >= 0; --i) {
      const double next = (k == 0 ? 1.0 : 2.0) * (i > 0 ? current[i - 1] : 0.0) - last[i];
      last[i] = current[i];
      current[i] = next;
    }
  }
  return law;
}

// A row's draws and their extremes.
struct Row : MixtureRow {
  std::int64_t draws;
  MixtureExtent extent;
  double unit = 1.0;  // of means and sds; keeps squares from overflow and underflow
  double size() const { return static_cast<double>(draws); }
  double centre() const { return mean[0] + extent.offset / size(); }
  double variance() const {  // of the means
    const double off = extent.offset / size();
    return std::max(0.0, extent.squares / size() - off * off);
  }
  double spread() const { return std::sqrt(variance() + extent.variances / size()); }
  bool finite() const { return std::isfinite(extent.squares + extent.variances); }
};

double tail_at(const NoiseLaw& law, const Row& row, double x, double sign) {
  double sum;
  instruction_set().mixture_sums(law, row, x, sign, false, &sum);
  return sum / row.size();
}

// ---- quantiles ----------------------------------------------------------------------------------

// Returns z with P(Z < z) = p at location 0 and scale 1, p <= 1/2; -infinity on overflow.
double standard_quantile(const NoiseLaw& law, double p) {
  alignas(64) double mean[kBlock] = {}, sd[kBlock], inverse[kBlock] = {1.0}, weight[kBlock] = {1.0};
  std::fill_n(sd, kBlock, 1.0);
  const Row one{{mean, sd, inverse, weight, kBlock}, 1, {}, 1.0};
  double low = 0.0, high = 38.0;  // z = -sinh(s) sqrt(df), or -s
  if (law.student) {
    // P(s) < norm 2^df exp(-df s) / df, which holds to rounding from s = 20 on
    high = std::max(1.0, std::log(2.0) + std::log(law.norm / (law.df * p)) / law.df);
    if (high > 20.0) low = high;
  }
  const auto at = [&](double s) { return law.student ? -std::sinh(s) / law.inverse_root : -s; };
  for (int i = 0; i < 60 && low < high; ++i) {
    const double middle = 0.5 * (low + high);
    (tail_at(law, one, at(middle), 1.0) > p ? low : high) = middle;
  }
  return high < 690.0 ? at(0.5 * (low + high)) : -kInfinity;
}

// A level as the one of the lower tail of sign Y, with what the law itself has there.
struct Level {
  double p, sign, standard;
  Level(const NoiseLaw& law, double q)
      : p(q <= 0.5 ? q : 1.0 - q),
        sign(q <= 0.5 ? 1.0 : -1.0),
        standard(standard_quantile(law, p)) {}
};

// Halley's method on log P(sign Y < x) inside a bracket that shrinks, halved where that leaves it.
double solve(const NoiseLaw& law, const Row& row, const Level& level) {
  if (!row.finite()) return kNan;
  if (std::isinf(level.standard)) return level.sign * level.standard;
  const MixtureExtent& e = row.extent;
  const double least = level.sign > 0.0 ? e.low : -e.high,
               most = level.sign > 0.0 ? e.high : -e.low;
  double low = least + level.standard * e.wide, high = most + level.standard * e.thin;
  const double slack = 1e-9 * e.thin + 1e-15 * (std::abs(low) + std::abs(high));
  low -= slack;
  high += slack;
  double x = level.sign * row.centre() + level.standard * row.spread();
  if (!(x > low && x < high)) x = 0.5 * (low + high);
  double moved = high - low;
  for (int i = 0; i < 300; ++i) {
    double sums[3];
    instruction_set().mixture_sums(law, row, x, level.sign, true, sums);
    const double f = sums[0] / row.size(), slope = sums[1] / sums[0];
    (f < level.p ? low : high) = x;
    const double excess = std::log1p((f - level.p) / level.p), newton = excess / slope;
    // The second derivative of log F over the first.
    const double bend = 1.0 - 0.5 * newton * (sums[2] / sums[1] - slope);
    const double next = x - newton / std::clamp(bend, 0.5, 2.0), step = std::abs(next - x);
    const bool inside = next >= low && next <= high;
    const bool settled = std::abs(excess) <= 2e-15 || high - low <= 4e-16 * std::abs(x);
    if (inside && (settled || step <= 3e-5 * e.thin)) return level.sign * next;
    if (settled) break;
    const double before = x;
    x = inside && step <= 0.5 * moved ? next : 0.5 * (low + high);
    moved = std::abs(x - before);
  }
  return level.sign * x;
}

// ---- counts -------------------------------------------------------------------------------------

// Returns the normal quantile to 5e-4 (Abramowitz and Stegun 26.2.23), a guess.
double rough_normal_quantile(double p) {
  const double t = std::sqrt(-2.0 * std::log(std::clamp(std::min(p, 1.0 - p), 1e-300, 0.5)));
  const double z = t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                           (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  return p < 0.5 ? -z : z;
}

// The least count with P(Y <= count) >= q, by regula falsi in normal quantiles inside a bracket.
double least_count(const Row& row, double q) {
  if (std::isnan(row.extent.squares)) return kNan;
  const double top = row.extent.high, level = rough_normal_quantile(q);
  const double scale = std::sqrt(row.centre() + row.variance());
  double low = -1.0, high = std::min(std::ceil(top + 12.0 * std::sqrt(top) + 60.0), kLargest);
  double guess = row.centre() + scale * level - 0.5;
  for (int i = 0;; ++i) {
    double middle = std::floor(low + 0.5 * (high - low));
    if (high > 2e15 && high > 4.0 * (low + 1.0)) {
      middle = std::floor(std::sqrt(low + 1.0) * std::sqrt(high));
    }
    if (!(middle > low && middle < high)) break;
    if (i < 12 && std::isfinite(guess)) {
      const double near = std::clamp(std::floor(guess), low + 1.0, high - 1.0);
      if (near > low && near < high) middle = near;
    }
    const double f = instruction_set().poisson_sum(row, middle) / row.size();
    (f >= q ? high : low) = middle;
    guess = middle + 0.5 + scale * (level - rough_normal_quantile(f));
  }
  return high >= kLargest ? kInfinity : high;
}

// ---- scores -------------------------------------------------------------------------------------

// Gauss and Legendre's rule on [0, 1].
constexpr int kNodes = 12;
struct Gauss {
  double at[kNodes], weight[kNodes];
  Gauss() {
    for (int i = 0; i < kNodes; ++i) {
      double x = std::cos(M_PI * (i + 0.75) / (kNodes + 0.5)), slope = 1.0;
      for (int step = 0; step < 6; ++step) {
        double last = 1.0, p = x;
        for (int k = 2; k <= kNodes; ++k) {
          const double next = ((2 * k - 1) * x * p - (k - 1) * last) / k;
          last = p;
          p = next;
        }
        slope = kNodes * (x * p - last) / (x * x - 1.0);
        x -= p / slope;
      }
      at[i] = 0.5 + 0.5 * x;
      weight[i] = 1.0 / ((1.0 - x * x) * slope * slope);
    }
  }
};

// Returns the integral of P(sign Y < x)^2 up to x = from, in panels as long as 1.5 times the
// distance to the nearest singularity. Singularities lie sqrt(df) scales off a mean (near normal
// noise: 2 scales). Beyond the means the square falls as x^(-2 df). Errors are below 1e-10 of the
// spread. Returns NaN if it needs more than `left` evaluations.
double squared_tail(const NoiseLaw& law, const Row& row, double from, double sign, double& left) {
  static const Gauss rule;
  constexpr double kLength = 1.5;
  const double factor = std::min(law.df, 4.0);
  const double size = row.extent.wide + (row.extent.high - row.extent.low), spread = row.spread();
  const double centre = sign * row.centre(), least = sign > 0.0 ? row.extent.low : -row.extent.high;
  const auto reach = [&](double low, double high) {
    return kLength * std::sqrt(instruction_set().mixture_reach(row, sign > 0.0 ? low : -high,
                                                               sign > 0.0 ? high : -low, factor));
  };
  double sum = 0.0;
  for (;;) {
    if (from < least) {
      const double f = tail_at(law, row, from, sign), off = std::max(1.0, (centre - from) / size);
      if (f * f * size <= 1e-12 * spread * off) {
        return sum + f * f * (centre - from) / (2.0 * law.df - 1.0);
      }
    }
    const double safe = reach(from, from) / (1.0 + kLength);
    double length = (1.0 + kLength) * safe;
    for (double most = reach(from - length, from); most < length && length > safe;
         most = reach(from - length, from)) {
      length = std::max(safe, std::max(most, 0.6 * length));
    }
    for (int i = 0; i < kNodes; ++i) {
      const double f = tail_at(law, row, from - length * rule.at[i], sign);
      sum += length * rule.weight[i] * f * f;
    }
    left -= kNodes;
    if (!(from - length < from) || left < 0.0) return kNan;
    from -= length;
  }
}

// Returns the score of y = 0. Far from all draws the spread is lost in the distance. Otherwise
// E|Y - Y'| / 2 is the integral of F (1 - F). For normal noise the trapezoidal rule at spacings of
// 0.64 of the smallest sd has an error of 4e-11. Student's t uses panels. Normal noise uses the
// cheapest of the rule, panels and the sum over pairs.
double score(const NoiseLaw& law, const Row& row) {
  constexpr double kSpacing = 0.64, kEnd = 6.4, kFew = 128.0;
  if (!row.finite()) return kNan;
  const MixtureExtent& e = row.extent;
  const bool far = std::max(e.low, -e.high) > 1e15 * (e.wide + (e.high - e.low));
  const auto distance = [&] {
    return instruction_set().mixture_distance(law, row, 0.0) / row.size();
  };
  if (far) return distance();
  const double low = e.low - kEnd * e.wide, high = e.high + kEnd * e.wide;
  const double spacing = kSpacing * e.thin, nodes = std::ceil((high - low) / spacing);
  const double pairs = 0.5 * row.size(), most = law.student ? kInfinity : std::min(nodes, pairs);
  if (law.student || most > kFew) {
    double left = most;
    const double lower = squared_tail(law, row, 0.0, 1.0, left);
    const double both = lower + squared_tail(law, row, 0.0, -1.0, left);
    if (law.student || !std::isnan(both)) return both;
  }
  if (pairs <= nodes) {
    return distance() -
           0.5 * instruction_set().normal_pairs(row, row.draws) / (row.size() * row.size());
  }
  double sum = 0.0;
  for (double i = 0.0; i <= nodes; i += 1.0) {
    const double f = tail_at(law, row, low + i * spacing, 1.0);
    sum += f * (1.0 - f);
  }
  return distance() - spacing * sum;
}

// ---- rows ---------------------------------------------------------------------------------------

// The draws of some rows side by side.
struct Scratch {
  Buffer<double> means, sds, inverses, floored;
};

// sds of at least `least`, in units, and their inverses, of a row's draws and what fills its last
// block.
void floor_widths(const double* sds, std::int64_t draws, std::int64_t padded, double least,
                  double unit, double* floored, double* inverses) {
  for (std::int64_t i = 0; i < padded; ++i) {
    floored[i] = (sds[i] < least ? least : sds[i]) / unit;
    inverses[i] = 1.0 / floored[i];
  }
  std::fill(inverses + draws, inverses + padded, 0.0);
}

// Draws of some cells to rows of out, which are `stride` apart; the first draw fills the last
// block.
template <class T>
void gather_cells(const MixtureDraws& d, const MixtureArray& from, std::int64_t padded,
                  std::int64_t stride, std::int64_t first, std::int64_t count, double* out) {
  std::int64_t offsets[kBlock];
  for (std::int64_t c = 0; c < count; ++c) {
    offsets[c] = (first + c) / d.outputs * from.steps[1] + (first + c) % d.outputs * from.steps[2];
  }
  for (std::int64_t i = 0; i < padded; ++i) {
    const T* draw = static_cast<const T*>(from.data) + (i < d.draws ? i * from.steps[0] : 0);
    for (std::int64_t c = 0; c < count; ++c) {
      out[c * stride + i] = static_cast<double>(draw[offsets[c]]);
    }
  }
}

// Calls body(cell, row), in parallel. floor: the least sd, in units of the largest mean. origins:
// (cells,) to subtract from the means, or null.
template <class Body>
bool for_each_row(const MixtureDraws& d, double evaluations, double floor, const double* origins,
                  Poll* poll, const Body& body) {
  const std::int64_t cells = d.rows * d.outputs;
  const std::int64_t padded = (d.draws + kBlock - 1) / kBlock * kBlock;
  // A power of two between rows would put all of them into the same few lines of the cache.
  const std::int64_t stride = padded + (padded % 256 == 0 ? kBlock : 0);
  const std::int64_t some = std::clamp<std::int64_t>((1 << 16) / padded, 1, kBlock);
  const std::int64_t pieces = (cells + some - 1) / some;
  const bool counts = d.widths.data == nullptr;
  const bool alike = counts || (d.widths.steps[1] == 0 && d.widths.steps[2] == 0);  // at all rows
  Cancel cancel(poll);
  const int useful = threads_for(50.0 * evaluations * static_cast<double>(d.draws * cells));
  const std::int64_t affordable = kMostScratch / (8 * (3 * some * stride + 2 * padded));
  Crew crew(static_cast<int>(std::min<std::int64_t>({useful, pieces, affordable + 1})));
  Buffer<double> weights(padded);
  for (std::int64_t i = 0; i < padded; ++i) weights.data()[i] = i < d.draws ? 1.0 : 0.0;
  std::vector<Scratch> scratch(static_cast<std::size_t>(crew.size()));
  for (Scratch& s : scratch) {
    for (Buffer<double>* buffer : {&s.means, &s.sds, &s.inverses}) buffer->resize(some * stride);
    s.floored.resize(2 * padded);
  }
  const auto gather = [&](const MixtureArray& from, std::int64_t first, std::int64_t count,
                          double* out) {
    from.single ? gather_cells<float>(d, from, padded, stride, first, count, out)
                : gather_cells<double>(d, from, padded, stride, first, count, out);
  };
  std::atomic<std::int64_t> next{0};
  crew.run(
      [&](int thread) {
        Scratch& s = scratch[static_cast<std::size_t>(thread)];
        double *means = s.means.data(), *sds = s.sds.data(), *inverses = s.inverses.data();
        const auto take_widths = [&](std::int64_t first, std::int64_t count) {
          gather(d.widths, first, count, sds);
          for (std::int64_t c = 0; c < count; ++c) {
            double* own = sds + c * stride;
            floor_widths(own, d.draws, padded, kThinnest, 1.0, own, inverses + c * stride);
          }
        };
        if (counts) {
          std::fill_n(sds, padded, 0.0);
        } else if (alike) {
          take_widths(0, 1);
        }
        for (;;) {
          const std::int64_t first = next.fetch_add(1, std::memory_order_relaxed) * some;
          if (first >= cells) return;
          const std::int64_t count = std::min(some, cells - first);
          gather(d.values, first, count, means);
          if (!alike) take_widths(first, count);
          for (std::int64_t c = 0; c < count; ++c) {
            if (cancel.check()) return;
            double* mean = means + c * stride;
            for (std::int64_t i = 0; counts && i < padded; ++i) {  // rates; NaN passes
              mean[i] = mean[i] < 0.0 ? 0.0 : mean[i] > kLargest ? kLargest : mean[i];
            }
            for (std::int64_t i = 0; origins != nullptr && i < padded; ++i) {
              mean[i] -= origins[first + c];
            }
            const std::int64_t place = alike ? 0 : c * stride;
            Row row{
                {mean, sds + place, inverses + place, weights.data(), padded}, d.draws, {}, 1.0};
            instruction_set().mixture_extent(row, row.extent);
            const MixtureExtent& e = row.extent;
            const double largest = std::max({-e.low, e.high, e.wide});
            if (!counts && std::isfinite(largest) && !(largest > 1e-70 && largest < 1e70)) {
              row.unit = std::exp2(std::ilogb(largest));
              for (std::int64_t i = 0; i < padded; ++i) mean[i] /= row.unit;
            }
            // A draw without spread is a step.
            const double least = floor * std::max(-e.low, e.high);
            if (e.thin < least || row.unit != 1.0) {
              row.sd = s.floored.data();
              row.inverse = row.sd + padded;
              floor_widths(sds + place, d.draws, padded, least, row.unit, s.floored.data(),
                           s.floored.data() + padded);
              instruction_set().mixture_extent(row, row.extent);
            }
            body(first + c, row);
          }
        }
      },
      true, &cancel);
  return !cancel.cancelled();
}

}  // namespace

bool mixture_quantiles(Noise noise, double df, const MixtureDraws& draws, const double* levels,
                       std::int64_t count, double* out, Poll* poll) {
  const std::int64_t cells = draws.rows * draws.outputs;
  const auto at = [&](std::int64_t cell, std::int64_t q) -> double& {
    return out[q * cells + cell];
  };
  const double evaluations = 5.0 * static_cast<double>(count);
  if (noise == Noise::kPoisson) {
    return for_each_row(draws, evaluations, 0.0, nullptr, poll,
                        [&](std::int64_t cell, const Row& row) {
                          for (std::int64_t q = 0; q < count; ++q)
                            at(cell, q) = least_count(row, levels[q]);
                        });
  }
  const NoiseLaw law = law_of(noise, df);
  std::vector<Level> solved;
  for (std::int64_t q = 0; q < count; ++q) solved.emplace_back(law, levels[q]);
  return for_each_row(
      draws, evaluations, 0x1p-50, nullptr, poll, [&](std::int64_t cell, const Row& row) {
        for (std::int64_t q = 0; q < count; ++q) {
          at(cell, q) = row.unit * solve(law, row, solved[static_cast<std::size_t>(q)]);
        }
      });
}

bool mixture_cdf(Noise noise, double df, const MixtureDraws& draws, const double* y, double* out,
                 Poll* poll) {
  const NoiseLaw law = law_of(noise, df);
  return for_each_row(draws, 1.0, 0.0, nullptr, poll, [&](std::int64_t cell, const Row& row) {
    out[cell] =
        noise == Noise::kPoisson
            ? std::min(instruction_set().poisson_sum(row, std::floor(y[cell])) / row.size(), 1.0)
            : tail_at(law, row, y[cell] / row.unit, 1.0);
  });
}

bool mixture_crps(Noise noise, double df, const MixtureDraws& draws, const double* y, double* out,
                  Poll* poll) {
  const NoiseLaw law = law_of(noise, df);
  const double floor = law.student ? 0x1p-50 : 0.0;  // panels cannot get from step to step
  return for_each_row(draws, 50.0, floor, y, poll, [&](std::int64_t cell, const Row& row) {
    out[cell] = row.unit * score(law, row);
  });
}

}  // namespace ribbit::cpu
