"""The law of y by the native core against SciPy on the same mixture."""

import math
import zlib

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import mixtures
from ribbit._arrays.threads import num_threads
from ribbit.protocols import PredictiveTerms
from ribbit.results import observations

stats = pytest.importorskip("scipy.stats")
special = pytest.importorskip("scipy.special")

LEVELS = [1e-6, 0.05, 0.5, 0.9, 1 - 1e-6]
NORMAL = math.inf


def terms_of(mean, width, df=NORMAL):
    """Terms of (S, n) means and (S, n) or (S, 1) widths."""
    if df == NORMAL:
        return PredictiveTerms(mean=mean[:, :, None], noise_sd=width[:, :, None])
    scale = width[:, :, None]
    return PredictiveTerms(
        mean=mean[:, :, None], noise_sd=0.0 * scale, noise_df=df, noise_scale=scale
    )


def rng_of(*name):
    return np.random.default_rng(zlib.crc32(repr(name).encode()))


def draws(rng, number, sizes, *, alike):
    """Means and widths (S,): one draw, equal draws, draws near and far, widths of 16 decades."""
    size = int(rng.choice(sizes))
    mean = rng.normal() * 10 ** rng.uniform(-2, 2)
    mean = mean + rng.normal(size=size) * 10 ** rng.uniform(-2, 2) * (number % 4 > 0)
    wide = 10 ** rng.uniform(-8, 8) if number % 3 == 0 else 10 ** rng.uniform(-2, 1)
    if alike:
        return mean, np.full(size, wide)
    if number % 5 == 0:
        return mean, 10 ** rng.uniform(-8, 8, size=size)
    return mean, wide * np.exp(0.3 * rng.normal(size=size))


def law_of(df):
    return stats.norm if df == NORMAL else stats.t(df)


def spread_of(mean, width):
    """Sd of the mixture (of Student's t, with scales)."""
    return math.sqrt(mean.var() + (width**2).mean())


LAWS = [
    pytest.param(NORMAL, True, id="normal"),
    pytest.param(NORMAL, False, id="heteroscedastic"),
    pytest.param(1.5, False, id="t1.5"),
    pytest.param(4.0, True, id="t4"),
    pytest.param(50.0, False, id="t50"),
]


def wrong_levels(found, df, mean, width):
    """Return levels whose quantile is more than 1e-9 sd from SciPy's.

    Its distribution function, summed in float64, is known to 1e-13 of a level.
    """
    law, wrong = law_of(df), []
    away = 1e-9 * spread_of(mean, width) + 4e-16 * (np.abs(mean).max() + np.abs(found).max())
    for q, x in zip(LEVELS, found, strict=True):
        sign, p = (1.0, q) if q <= 0.5 else (-1.0, 1.0 - q)
        z = (sign * x + np.array([[-away], [away]]) - sign * mean) / width
        below, above = law.cdf(z).mean(axis=1)
        if not (below <= p * (1 + 1e-13) and above >= p * (1 - 1e-13)):
            wrong.append(q)
    return wrong


@pytest.mark.parametrize(("df", "alike"), LAWS)
def test_quantiles_and_cdf_are_scipys(df, alike):
    """200 mixtures. Control: quantiles that are 1e-7 sd away."""
    rng, caught = rng_of("quantiles", df, alike), 0
    for number in range(200):
        mean, width = draws(rng, number, [1, 2, 3, 17, 60], alike=alike)
        terms = terms_of(mean[:, None], width[:, None], df)
        found = mixtures.quantiles("regression", terms, LEVELS)[:, 0, 0]
        assert wrong_levels(found, df, mean, width) == [], number
        moved = found + 1e-7 * spread_of(mean, width)
        caught += bool(wrong_levels(moved, df, mean, width))
        y = rng.choice(mean) + rng.choice(width) * rng.normal()
        cdf = mixtures.cdf("regression", terms, np.array([[y]]))[0, 0]
        assert cdf == pytest.approx(law_of(df).cdf((y - mean) / width).mean(), abs=1e-13)
    assert caught > 150


def normal_distance(mean, sd):
    """E|Y| of normals."""
    z = mean / sd
    return mean * (2 * special.ndtr(z) - 1) + 2 * sd * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("sizes", [[1, 2, 3, 30], [120, 400]], ids=["pairs", "integral"])
@pytest.mark.parametrize("alike", [True, False])
def test_crps_of_normals_is_the_closed_form(sizes, alike):
    """Grimit et al. (2006), equation 5."""
    rng = rng_of("crps", sizes, alike)
    for number in range(200 if max(sizes) < 100 else 50):
        mean, sd = draws(rng, number, sizes, alike=alike)
        y = rng.choice(mean) + rng.choice(sd) * rng.normal()
        pairs = normal_distance(mean[:, None] - mean, np.hypot(sd[:, None], sd)).mean()
        expected = normal_distance(y - mean, sd).mean() - 0.5 * pairs
        found = mixtures.crps(terms_of(mean[:, None], sd[:, None]), np.array([[y]]))[0, 0]
        slack = 1e-9 * spread_of(mean, sd) + 1e-14 * np.abs(mean).max()
        assert abs(found - expected) <= slack, number


def test_crps_of_sharp_normals_is_the_closed_form():
    """Means of draws spread over 1e3 to 1e5 sds."""
    rng = rng_of("sharp")
    for sd in (1e-3, 1e-5):
        mean = rng.normal(size=(300, 1))
        pairs = normal_distance(mean - mean[:, 0], sd * math.sqrt(2)).mean()
        expected = normal_distance(0.4 - mean, sd).mean() - 0.5 * pairs
        found = mixtures.crps(terms_of(mean, np.full((1, 1), sd)), np.array([[0.4]]))
        assert found[0, 0] == pytest.approx(expected, abs=1e-12)


def student_crps(df, mean, scale, y):
    """The integral of (F - 1{y <= x})^2: Gauss and Legendre's rule in panels around every mean."""
    mean = mean - y
    law, size = stats.t(df), scale.max() + np.ptp(mean) + np.abs(mean).max()
    ends = [np.zeros(1)]
    for m, s in zip(mean, scale, strict=True):
        steps = s * 0.4 * 1.5 ** np.arange(110)
        steps = steps[steps < 1e5 * size]
        ends += [m + steps, m - steps, np.array([m])]
    ends = np.unique(np.concatenate(ends))
    at, weight = np.polynomial.legendre.leggauss(16)
    half = 0.5 * np.diff(ends)
    x = (ends[:-1] + half)[:, None] + half[:, None] * at
    side = np.where(x < 0.0, 1.0, -1.0)[..., None]
    tail = law.cdf(side * (x[..., None] - mean) / scale).mean(axis=-1)
    total = (tail**2 @ weight) @ half
    for end, sign in ((ends[0], 1.0), (ends[-1], -1.0)):
        beyond = law.cdf(sign * (end - mean) / scale).mean()
        total += beyond**2 * sign * (mean.mean() - end) / (2 * df - 1)
    return total


@pytest.mark.parametrize("df", [1.2, 4.0, 50.0])
def test_crps_of_student_mixtures_is_the_integral(df):
    """70 mixtures for each of three laws."""
    rng = rng_of("student", df)
    for number in range(70):
        mean, scale = draws(rng, number, [1, 2, 6], alike=number % 2 == 0)
        y = rng.choice(mean) + rng.choice(scale) * rng.normal()
        found = mixtures.crps(terms_of(mean[:, None], scale[:, None], df), np.array([[y]]))[0, 0]
        slack = 1e-9 * spread_of(mean, scale) + 1e-14 * np.abs(mean).max()
        assert abs(found - student_crps(df, mean, scale, y)) <= slack, number


def test_crps_of_one_student_is_the_closed_form():
    """Jordan, Krueger and Lerch (2019), with what its terms lose where they cancel."""
    rng = rng_of("one student")
    for df in (1.05, 2.0, 7.0, 300.0):
        z = 3.0 * rng.normal(size=(1, 50))
        law, beta = stats.t(df), special.betaln
        ratio = math.exp(beta(0.5, df - 0.5) - 2 * beta(0.5, 0.5 * df))
        expected = z * (2 * law.cdf(z) - 1) + 2 * law.pdf(z) * (df + z * z) / (df - 1)
        expected = expected - 2 * math.sqrt(df) / (df - 1) * ratio
        found = mixtures.crps(terms_of(0.0 * z, np.ones((1, 1)), df), z.reshape(50, 1))
        np.testing.assert_allclose(found[:, 0], expected[0], atol=1e-9)


def poisson_tail(count, rate, sign):
    """P(sign Y <= sign count) by summing probabilities from the count on."""
    steps = np.arange(0, 40 + int(14 * math.sqrt(rate)))
    k = count - sign * steps
    k = k[k >= 0]
    return np.exp(special.xlogy(k, rate) - rate - special.gammaln(k + 1)).sum()


def poisson_cdf(count, rates):
    """P(Y <= count) and what is left to one, the smaller to 1e-11 of it."""
    if count < 0:
        return 0.0, 1.0
    sides = [
        (p, 1 - p) if count < rate else (1 - q, q)
        for rate in rates
        for p, q in [(poisson_tail(count, rate, 1), poisson_tail(count + 1, rate, -1))]
    ]
    return tuple(np.mean(sides, axis=0))


def test_counts_are_those_of_summed_probabilities():
    """200 mixtures, rates of 1e-4 to 1e4, but for rounding. Control: the next count."""
    rng, caught = rng_of("poisson"), 0

    def reaches(count, q, rates, slack):
        lower, upper = poisson_cdf(count, rates)
        return lower >= q * (1 - slack) if q <= 0.5 else upper <= (1 - q) * (1 + slack)

    for number in range(200):
        size = int(rng.choice([1, 2, 3, 12]))
        rates = 10 ** rng.uniform(-4, 4) * np.exp(rng.normal(size=size) * (0, 0.1, 1)[number % 3])
        terms = PredictiveTerms(mean=rates[:, None, None], noise_sd=rates[:, None, None] ** 0.5)
        found = mixtures.quantiles("count", terms, LEVELS)[:, 0, 0]
        for q, count in zip(LEVELS, found, strict=True):
            assert reaches(count, q, rates, 1e-10)
            assert not reaches(count - 1, q, rates, -1e-10)
            caught += reaches(count, q, rates, -1e-10)
        count = np.floor(rng.choice(rates) + 2 * rng.normal() * math.sqrt(rates.mean()))
        cdf = mixtures.cdf("count", terms, np.array([[count + 0.5]]))[0, 0]
        assert cdf == pytest.approx(poisson_cdf(count, rates)[0], abs=1e-11)
    assert caught > 990


@pytest.mark.parametrize("kind", ["normal", "common noise", "student", "count"])
def test_bits_depend_on_the_row_alone(kind):
    """Threads, cuts of the rows, order in memory. Control: another number of draws."""
    rng = rng_of("bits")
    mean, df = np.exp(rng.normal(size=(203, 90))), 4.0 if kind == "student" else NORMAL
    width = np.exp(rng.normal(size=(203, 1 if kind == "common noise" else 90)))
    y = np.floor(mean[0, :, None])

    def results(mean, width, y):
        terms = terms_of(mean, width, df)
        if kind == "count":
            parts = [mixtures.quantiles("count", terms, LEVELS), mixtures.cdf("count", terms, y)]
        else:
            parts = [mixtures.quantiles("regression", terms, LEVELS)]
            parts += [mixtures.cdf("regression", terms, y), mixtures.crps(terms, y)]
        return np.concatenate([part.reshape(-1, mean.shape[1]) for part in parts])

    before = num_threads()
    try:
        rb.set_num_threads(1)
        expected = results(mean, width, y)
        for threads in (2, 3):
            rb.set_num_threads(threads)
            assert np.array_equal(results(mean, width, y), expected)
    finally:
        rb.set_num_threads(before)
    fortran = np.asfortranarray(mean)
    assert np.array_equal(results(fortran, width, y), expected)
    for cut in (slice(0, 7), slice(33, 90)):
        own = width if width.shape[1] == 1 else width[:, cut]
        assert np.array_equal(results(mean[:, cut], own, y[cut]), expected[:, cut])
    single = mean.astype(np.float32)
    assert np.array_equal(results(single, width, y), results(single.astype(np.float64), width, y))
    assert not np.array_equal(results(mean[1:], width[1:], y), expected)


def test_what_is_no_number_stays_in_its_row():
    rng = rng_of("nan")
    mean, y = rng.normal(size=(20, 3)), np.zeros((3, 1))
    for df in (NORMAL, 4.0):
        for bad in (np.nan, np.inf, -np.inf):
            spoilt = mean.copy()
            spoilt[4, 1] = bad
            for width in (np.ones((20, 1)), np.ones((20, 3))):
                good, terms = terms_of(mean, width, df), terms_of(spoilt, width, df)
                for call in (
                    lambda t: mixtures.quantiles("regression", t, LEVELS)[:, :, 0],
                    lambda t: mixtures.cdf("regression", t, y).T,
                    lambda t: mixtures.crps(t, y).T,
                ):
                    found, expected = call(terms), call(good)
                    assert np.array_equal(found[:, [0, 2]], expected[:, [0, 2]])
                    if np.isnan(bad):
                        assert np.isnan(found[:, 1]).all()
    cdf = mixtures.cdf("regression", terms_of(spoilt, np.ones((20, 1))), y)[1, 0]
    assert 0.0 < cdf < 1.0
    rates = np.exp(mean)[:, :, None]
    rates[4, 1] = np.nan
    terms = PredictiveTerms(mean=rates, noise_sd=rates)
    for found in (
        mixtures.quantiles("count", terms, LEVELS),
        mixtures.cdf("count", terms, y)[None],
    ):
        assert np.isnan(found[:, 1]).all()
        assert np.isfinite(found[:, [0, 2]]).all()


def test_draws_without_spread_are_steps():
    mean = np.arange(5.0)[:, None]
    terms = terms_of(mean, np.zeros((1, 1)))
    found = mixtures.quantiles("regression", terms, [0.1, 0.3, 0.5, 0.9])[:, 0, 0]
    np.testing.assert_allclose(found, [0.0, 1.0, 2.0, 4.0], atol=1e-12)
    at = [mixtures.cdf("regression", terms, np.array([[y]]))[0, 0] for y in (0.5, 3.5)]
    np.testing.assert_allclose(at, [0.2, 0.8], rtol=1e-15)
    crps = mixtures.crps(terms, np.array([[2.0]]))[0, 0]
    assert crps == pytest.approx(1.2 - 0.5 * 1.6, abs=1e-12)


@pytest.mark.parametrize("kind", ["normal", "student", "count"])
def test_other_libraries_have_the_same_law(kind):
    """The form in the array API, which is for arrays on GPUs, to the errors that it states."""
    strict = pytest.importorskip("array_api_strict")
    rng = rng_of("array api", kind)
    mean = np.exp(rng.normal(size=(40, 6, 1)))
    width = np.exp(0.3 * rng.normal(size=(40, 1, 1)))
    y = np.floor(1.0 + mean[0]) if kind == "count" else mean[0] + 0.3
    arrays = {"mean": mean, "noise_sd": width}
    other = {name: strict.asarray(array) for name, array in arrays.items()}
    if kind == "student":
        arrays |= {"noise_df": 4.0, "noise_scale": width}
        other |= {"noise_df": 4.0, "noise_scale": other["noise_sd"]}
    ours, theirs = PredictiveTerms(**arrays), PredictiveTerms(**other)
    name = "count" if kind == "count" else "regression"
    pairs = [
        (
            observations.quantiles(xp, name, terms, [0.03, 0.5, 0.9]),
            observations.cdf(xp, name, terms, at),
        )
        for xp, terms, at in ((np, ours, y), (strict, theirs, strict.asarray(y)))
    ]
    for found, expected in zip(*pairs, strict=True):
        np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-10, atol=1e-12)
    if kind != "count":
        found = observations.crps(np, ours, y)
        expected = np.asarray(observations.crps(strict, theirs, strict.asarray(y)))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert not np.allclose(observations.crps(np, ours, y + 0.1), expected, rtol=1e-5)


@pytest.mark.parametrize("df", [NORMAL, 4.0])
@pytest.mark.parametrize("unit", [2.0**530, 2.0**-400])
def test_units_are_free(df, unit):
    """Squares overflow or underflow."""
    rng, y = rng_of("units"), np.full((3, 1), 0.2)
    for size in (5, 300):
        mean, width = rng.normal(size=(size, 3)), np.ones((size, 1))
        plain, scaled = terms_of(mean, width, df), terms_of(mean * unit, width * unit, df)
        for call, power in (
            (lambda t, u: mixtures.quantiles("regression", t, LEVELS), 1.0),
            (lambda t, u: mixtures.cdf("regression", t, y * u), 0.0),
            (lambda t, u: mixtures.crps(t, y * u), 1.0),
        ):
            found = call(scaled, unit) / unit**power
            np.testing.assert_allclose(found, call(plain, 1.0), rtol=1e-12)
