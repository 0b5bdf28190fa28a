// Sums over the draws of one row, the components of an equally weighted mixture. Draw s is in
// partial sum s % 16, so that a sum depends on its row alone.
#pragma once

#include "core/erf_hd.h"
#include "cpu/isa/elementwise-inl.h"
#include "cpu/isa/kernel_table-inl.h"
#include "cpu/isa/transpose-inl.h"

namespace ribbit::cpu {
namespace {

// Returns P(Z < -a), the density at z and its derivative, at location 0 and scale 1, a = |z|.
RIBBIT_INLINE void normal_law(VecF64 a, VecF64& tail, VecF64& density, VecF64& slope) {
  a = min(broadcast(37.0), a);
  normal_tail<VecF64>(a, density, tail);
  density = density * 0.3989422804014327;
  slope = a * density;  // of -a
}
// See NoiseLaw. Few whole degrees of freedom need no exponential.
template <bool whole>
RIBBIT_INLINE void student_law(const NoiseLaw& law, VecF64 a, VecF64& tail, VecF64& density,
                               VecF64& slope) {
  using O = Ops<VecF64>;
  const VecF64 one = broadcast(1.0), r = min(broadcast(1e150), a * law.inverse_root);
  const VecF64 square = r * r, inverse = O::reciprocal(one + square), root = sqrt(inverse);
  VecF64 power = one;
  if constexpr (whole) {
    VecF64 factor = root;
    for (int n = law.whole_df; n > 0; n >>= 1) {
      if ((n & 1) != 0) power = power * factor;
      factor = factor * factor;
    }
  } else {
    power = exp<VecF64>(log1p<VecF64>(square) * (-0.5 * law.df));
  }
  const VecF64 w = r * root, knee = broadcast(law.knee);
  const VecF64 v = O::mul_add(w * (-2.0 - 2.0 * law.knee), O::reciprocal(knee + w), one);
  VecF64 ratio = broadcast(law.ratio[NoiseLaw::kTerms - 1]);
  for (int i = NoiseLaw::kTerms - 2; i >= 0; --i) {
    ratio = O::mul_add(ratio, v, broadcast(law.ratio[i]));
  }
  tail = power * ratio;
  density = power * root * (law.norm * law.inverse_root);
  slope = density * r * inverse * ((law.df + 1.0) * law.inverse_root);
}

enum LawCode { kNormalLaw, kStudentLaw, kWholeStudentLaw };
template <LawCode code>
RIBBIT_INLINE void law_of(const NoiseLaw& law, VecF64 a, VecF64& tail, VecF64& density,
                          VecF64& slope) {
  if constexpr (code == kNormalLaw)
    normal_law(a, tail, density, slope);
  else
    student_law<code == kWholeStudentLaw>(law, a, tail, density, slope);
}

// E|Z - z|, at a = |z|: a (1 - 2 tail) + 2 density, for Student's t times (df + a^2) / (df - 1).
template <LawCode code>
RIBBIT_INLINE VecF64 law_distance(const NoiseLaw& law, VecF64 a) {
  VecF64 tail, density, slope;
  law_of<code>(law, a, tail, density, slope);
  VecF64 near = density + density;
  if constexpr (code != kNormalLaw) {
    // Beyond 1e150 the density, 0 there at the latest, times the square is negligible next to a.
    const VecF64 r = min(broadcast(1e150), a * law.inverse_root);
    near = near * mul_add(r, r, broadcast(1.0)) * (law.df / (law.df - 1.0));
  }
  return mul_sub(a + a, tail, a + near);
}

// Calls body<code>(..) for the code of a law.
template <class Body>
RIBBIT_INLINE auto for_law(const NoiseLaw& law, const Body& body) {
  if (!law.student) return body.template operator()<kNormalLaw>();
  return law.whole_df > 0 ? body.template operator()<kWholeStudentLaw>()
                          : body.template operator()<kStudentLaw>();
}

// Calls body(i, vector number, weight) for the vectors of all draws.
template <class Body>
RIBBIT_INLINE void for_each_draw(const MixtureRow& row, const Body& body) {
  for (std::int64_t i = 0; i < row.padded; i += kPartials) {
    RIBBIT_UNROLL for (int j = 0; j < kPartialVecs; ++j) {
      const std::int64_t at = i + j * kLanes<double>;
      body(at, j, load(row.weight + at));
    }
  }
}

template <LawCode code, bool derivatives>
static void sum_tails(const NoiseLaw& law, const MixtureRow& row, double x, double sign,
                      double* sums) {
  Partials tails, densities, slopes;
  tails.clear();
  densities.clear();
  slopes.clear();
  for_each_draw(row, [&](std::int64_t at, int j, VecF64 weight) __attribute__((always_inline)) {
    const VecF64 scale = load(row.inverse + at);
    const VecF64 z = (x - sign * load(row.mean + at)) * scale;
    VecF64 tail, density, slope;
    law_of<code>(law, abs(z), tail, density, slope);
    const VecF64 lower = z < 0.0 ? tail : 1.0 - tail;
    tails.sum[j] = mul_add(weight, lower, tails.sum[j]);
    if constexpr (derivatives) {
      densities.sum[j] = mul_add(density, scale, densities.sum[j]);
      slopes.sum[j] = mul_add(z < 0.0 ? slope : -slope, scale * scale, slopes.sum[j]);
    }
  });
  sums[0] = tails.total();
  if constexpr (derivatives) {
    sums[1] = densities.total();
    sums[2] = slopes.total();
  }
}

// See the table.
static void mixture_sums(const NoiseLaw& law, const MixtureRow& row, double x, double sign,
                         bool derivatives, double* sums) {
  for_law(law, [&]<LawCode code>() {
    derivatives ? sum_tails<code, true>(law, row, x, sign, sums)
                : sum_tails<code, false>(law, row, x, sign, sums);
  });
}

template <LawCode code>
static double sum_distances(const NoiseLaw& law, const MixtureRow& row, double y) {
  Partials sums;
  sums.clear();
  for_each_draw(row, [&](std::int64_t at, int j, VecF64 weight) __attribute__((always_inline)) {
    const VecF64 a = abs(y - load(row.mean + at)) * load(row.inverse + at);
    sums.sum[j] = mul_add(weight * load(row.sd + at), law_distance<code>(law, a), sums.sum[j]);
  });
  return sums.total();
}
static double mixture_distance(const NoiseLaw& law, const MixtureRow& row, double y) {
  return for_law(law, [&]<LawCode code>() { return sum_distances<code>(law, row, y); });
}

// The sum over all pairs of E|Y_s - Y_t| of normal laws: blocks behind a draw's own count twice.
static double normal_pairs(const MixtureRow& row, std::int64_t draws) {
  double total = 0.0;
  for (std::int64_t s = 0; s < draws; ++s) {
    const VecF64 mean = broadcast(row.mean[s]), variance = broadcast(row.sd[s] * row.sd[s]);
    const std::int64_t own = s / kPartials * kPartials;
    Partials sums;
    sums.clear();
    for (std::int64_t i = own; i < row.padded; i += kPartials) {
      const double times = i == own ? 1.0 : 2.0;
      RIBBIT_UNROLL for (int j = 0; j < kPartialVecs; ++j) {
        const std::int64_t at = i + j * kLanes<double>;
        const VecF64 sd = load(row.sd + at), root = sqrt(mul_add(sd, sd, variance));
        const VecF64 a = abs(mean - load(row.mean + at)) * Ops<VecF64>::reciprocal(root);
        sums.sum[j] = mul_add(load(row.weight + at) * times * root,
                              law_distance<kNormalLaw>(NoiseLaw{}, a), sums.sum[j]);
      }
    }
    total += sums.total();
  }
  return total;
}

static double least_lane(VecF64 v) {
  double least = v[0];
  for (int l = 1; l < kLanes<double>; ++l) least = v[l] < least ? v[l] : least;
  return least;
}

// See the table. NaN is in the sums.
static void mixture_extent(const MixtureRow& row, MixtureExtent& out) {
  Partials means, squares, variances;
  means.clear();
  squares.clear();
  variances.clear();
  const VecF64 first = broadcast(row.mean[0]);
  VecF64 low = first, high = first, thin = broadcast(row.sd[0]), wide = thin;
  for_each_draw(row, [&](std::int64_t at, int j, VecF64 weight) __attribute__((always_inline)) {
    const VecF64 mean = load(row.mean + at), sd = load(row.sd + at), off = mean - first;
    low = min(mean, low);
    high = max(mean, high);
    thin = min(sd, thin);
    wide = max(sd, wide);
    means.sum[j] += off;
    squares.sum[j] = mul_add(off, off, squares.sum[j]);
    variances.sum[j] = mul_add(weight * sd, sd, variances.sum[j]);
  });
  out.offset = means.total();
  out.squares = squares.total();
  out.variances = variances.total();
  out.low = least_lane(low);
  out.high = -least_lane(-high);
  out.thin = least_lane(thin);
  out.wide = -least_lane(-wide);
}

// The least over draws of distance^2 + factor sd^2, from the mean to [low, high].
static double mixture_reach(const MixtureRow& row, double low, double high, double factor) {
  VecF64 least = broadcast(__builtin_inf());
  for_each_draw(row, [&](std::int64_t at, int, VecF64) __attribute__((always_inline)) {
    const VecF64 mean = load(row.mean + at), sd = load(row.sd + at);
    const VecF64 apart = max(max(mean - high, low - mean), VecF64{});
    least = min(mul_add(apart, apart, factor * sd * sd), least);
  });
  return least_lane(least);
}

// ---- counts -------------------------------------------------------------------------------------
constexpr int kSummedCounts = 128;  // below, probabilities are summed

struct Reciprocals {
  double of[kSummedCounts];
  constexpr Reciprocals() : of{} {
    for (int j = 1; j < kSummedCounts; ++j) of[j] = 1.0 / j;
  }
};
constexpr Reciprocals kReciprocals;

// The sum over draws of P(Y <= count), of counts below kSummedCounts.
static double sum_few_counts(const MixtureRow& row, int count) {
  Partials sums;
  sums.clear();
  for (std::int64_t i = 0; i < row.padded; i += kPartials) {
    VecF64 rate[kPartialVecs], value[kPartialVecs];
    RIBBIT_UNROLL for (int j = 0; j < kPartialVecs; ++j) {
      rate[j] = min(broadcast(700.0), load(row.mean + i + j * kLanes<double>));
      value[j] = broadcast(1.0);
    }
    for (int k = count; k > 0; --k) {
      const double inverse = kReciprocals.of[k];
      RIBBIT_UNROLL for (int j = 0; j < kPartialVecs; ++j) {
        value[j] = mul_add(value[j], rate[j] * inverse, broadcast(1.0));
      }
    }
    RIBBIT_UNROLL for (int j = 0; j < kPartialVecs; ++j) {
      const VecF64 weight = load(row.weight + i + j * kLanes<double>);
      sums.sum[j] = mul_add(weight * exp<VecF64>(-rate[j]), value[j], sums.sum[j]);
    }
  }
  return sums.total();
}

// The same from there on: Temme's uniform expansion (DLMF 8.12.4) of Q(a, rate), a = count + 1,
// whose error is below 1.1e-13 for a > 128. eta^2 / 2 = m - log(1 + m), m = rate / a - 1, by
// Taylor's series in r = m / (2 + m). If r is clipped, the tail is below 1e-17.
static double sum_many_counts(const MixtureRow& row, double count) {
  using V = VecF64;
  using O = Ops<V>;
  const double a = count + 1.0, inverse = 1.0 / a;
  const double root = __builtin_sqrt(a), factor = 0.3989422804014327 / root;
  Partials sums;
  sums.clear();
  for_each_draw(row, [&](std::int64_t at, int j, VecF64 weight) __attribute__((always_inline)) {
    const V m = min(broadcast(4.0), (load(row.mean + at) - a) * inverse);
    const V r = clamp<V>(m * O::reciprocal(m + 2.0), -0.42, 0.42);
    const V series =
        horner<V>(r * r, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17,
                  1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25, 1.0 / 27, 1.0 / 29, 1.0 / 31, 1.0 / 33);
    const V half = O::mul_sub(r, series, O::reciprocal(1.0 - r));  // (eta / 2r)^2
    const V eta = (r + r) * sqrt(half);
    V density, tail;
    normal_tail<V>(abs(eta) * root, density, tail);
    const V c0 = horner<V>(eta, -0.3333333333333333, 0.08333333333333333, -0.014814814814814815,
                           0.0011574074074074073, 0.0003527336860670194, -0.0001787551440329218,
                           3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06,
                           8.296711340953087e-07);
    const V c1 = horner<V>(eta, -0.001851851851851852, -0.003472222222222222, 0.0026455026455026454,
                           -0.0009902263374485596, 0.00020576131687242798, -4.018775720164609e-07,
                           -1.8098550334489977e-05, 7.64916091608111e-06);
    const V c2 = horner<V>(eta, 0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049,
                           2.0093878600823047e-06, -0.0001073665322636516, 5.2923448829120125e-05);
    const V c3 = horner<V>(eta, 0.0006494341563786008, 0.00022947209362139917,
                           -0.0004691894943952557, 0.00026772062206283885);
    const V by = broadcast(inverse);
    const V c = O::mul_add(O::mul_add(O::mul_add(c3, by, c2), by, c1), by, c0);
    const V value = O::mul_add(density * factor, c, eta < 0.0 ? 1.0 - tail : tail);
    sums.sum[j] = mul_add(weight, value, sums.sum[j]);
  });
  return sums.total();
}

// See the table.
static double poisson_sum(const MixtureRow& row, double count) {
  if (count < 0.0) return 0.0;
  return count < kSummedCounts ? sum_few_counts(row, static_cast<int>(count))
                               : sum_many_counts(row, count);
}

}  // namespace
}  // namespace ribbit::cpu
