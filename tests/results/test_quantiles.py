"""Quantiles against NumPy, laws against SciPy, mixtures against bisection."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from ribbit.results.mixtures import Normal, StudentT, mixture_quantile
from ribbit.results.observations import count_quantile, poisson_cdf
from ribbit.results.prediction import _sorted_quantile as sorted_quantile

LEVELS = [0.0, 0.01, 0.05, 0.3, 0.5, 0.77, 0.95, 0.999, 1.0]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 101])
def test_sorted_quantile_is_numpys(size, rng):
    values = rng.normal(size=(4, 2, size))
    found = sorted_quantile(np, np.sort(values, axis=-1), LEVELS)
    np.testing.assert_allclose(found, np.quantile(values, LEVELS, axis=-1), rtol=1e-13, atol=1e-14)


def test_normal_cdf(rng):
    z = np.concatenate([np.linspace(-12, 12, 40_001), rng.normal(size=40_000)])
    expected = [0.5 * math.erfc(-v / math.sqrt(2)) for v in z]
    assert np.abs(Normal().cdf(np, z) - expected).max() <= 3e-16


@pytest.mark.parametrize("df", [1e-3, 0.3, 2.0, 2.4, 7.0, 150.0, 2e6, 1e40])
def test_student_law(df, rng):
    law = StudentT(df)
    z = np.concatenate([np.linspace(-12, 12, 4001), rng.standard_cauchy(size=4000), [0, 1e9, -1e9]])
    # SciPy's own lose digits where df is large
    known, bound = (stats.norm, 1e-9) if df > 1e7 else (stats.t(df), 3e-15 if df < 1e3 else 1e-12)
    assert np.abs(law.cdf(np, z) - known.cdf(z)).max() <= bound
    np.testing.assert_allclose(law.density(np, z), known.pdf(z), rtol=1e-6 if df > 1e3 else 1e-12)
    for p in (1e-9, 0.025, 0.3, 0.5, 0.9, 1 - 1e-6):
        if df > 0.1:  # else beyond float64
            assert law.quantile(p) == pytest.approx(known.ppf(p), rel=1e-8, abs=1e-12)
    cauchy = StudentT(1.0).cdf(np, z) - (0.5 + np.arctan(z) / np.pi)
    assert np.abs(cauchy).max() <= 1e-15


def bisect(mean, sd, p):
    low, high = (mean - 40 * sd).min(), (mean + 40 * sd).max()
    for _ in range(200):
        x = 0.5 * (low + high)
        cdf = math.fsum(0.5 * math.erfc(-v) for v in (x - mean) / sd / math.sqrt(2)) / mean.size
        low, high = (x, high) if cdf < p else (low, x)
    return x


def test_gaussian_mixture_quantile_is_bisection(rng):
    """Unimodal, bimodal with a gap, and very unequal components."""
    mean = np.stack(
        [rng.normal(size=60), np.where(np.arange(60) < 20, -50.0, 50.0), 1e3 * rng.normal(size=60)]
    )
    sd = np.stack([np.full(60, 0.3), np.full(60, 0.5), np.exp(3 * rng.normal(size=60))])
    levels = [1e-6, 0.025, 0.3, 0.5, 0.9, 1 - 1e-6]
    found = mixture_quantile(np, Normal(), mean, sd, levels)
    assert found.shape == (6, 3)
    for row in range(3):
        for q, p in enumerate(levels):
            x = bisect(mean[row], sd[row], p)
            density = np.mean(
                [NormalDist(m, s).pdf(x) for m, s in zip(mean[row], sd[row], strict=True)]
            )
            # as far as rounding of the distribution function lets one see
            tolerance = 1e-13 * max(1.0, abs(x)) + 1e-15 / max(density, 1e-300)
            assert abs(found[q, row] - x) <= tolerance, (row, p)


def test_gaussian_mixture_of_one():
    levels = [1e-9, 0.1, 0.5, 0.9]
    found = mixture_quantile(np, Normal(), np.array([[3.0]]), np.array([[2.0]]), levels)[:, 0]
    np.testing.assert_allclose(found, [NormalDist(3, 2).inv_cdf(p) for p in levels], rtol=1e-13)


@pytest.mark.parametrize("df", [0.4, 1.0, 4.0, 1e6])
def test_student_mixture_is_its_quantile(df, rng):
    """The distribution function of the mixture, by SciPy, at what was found; and one component."""
    mean = np.stack([rng.normal(size=60), np.where(np.arange(60) < 20, -50.0, 50.0)])
    scale = np.stack([np.full(60, 0.3), np.exp(rng.normal(size=60))])
    levels = [1e-4, 0.025, 0.3, 0.5, 0.9, 0.999]
    found = mixture_quantile(np, StudentT(df), mean, scale, levels)
    cdf = stats.t(df).cdf((found[:, :, None] - mean) / scale).mean(axis=-1)
    np.testing.assert_allclose(cdf, np.array(levels)[:, None] + [0.0, 0.0], rtol=0, atol=1e-12)
    alone = mixture_quantile(np, StudentT(df), np.array([[3.0]]), np.array([[2.0]]), levels)[:, 0]
    np.testing.assert_allclose(alone, stats.t(df, 3.0, 2.0).ppf(levels), rtol=1e-8)


def test_poisson_cdf_is_scipys():
    """Both ways of it, also far out; 40 is where the approximation takes over."""
    stats = pytest.importorskip("scipy.stats")
    rates = np.concatenate([[0.0, 1e-300], np.geomspace(1e-3, 1e7, 500)])[:, None]
    sd = np.sqrt(rates)
    counts = np.floor(rates + sd * np.linspace(-9, 9, 201))
    edges = np.tile([-1.0, 0.0, 38.0, 39.0, 40.0, 41.0], (502, 1))
    counts = np.concatenate([counts, edges], axis=1)
    found = poisson_cdf(np, np.maximum(counts, -1.0), rates)
    expected = stats.poisson.cdf(np.maximum(counts, -1.0), rates)
    assert np.abs(found - expected).max() < 1e-6
    assert np.abs(found - expected)[counts < 40].max() < 1e-14
    assert poisson_cdf(np, np.array(40.0), np.array(np.inf)) < 1e-18


def test_quantiles_of_counts_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    rates = np.geomspace(1e-2, 1e6, 300)[:, None]
    for q in (1e-9, 0.05, 0.5, 0.95, 1 - 1e-9):
        found = count_quantile(np, rates, np.full(300, q))
        np.testing.assert_allclose(found, stats.poisson.ppf(q, rates[:, 0]), atol=1.0, rtol=1e-3)
        if 0.01 < q < 0.99:  # where 8e-7 of probability is less than a count has
            assert (found != stats.poisson.ppf(q, rates[:, 0])).mean() < 0.01


@pytest.mark.parametrize("rate", [1e15, 2.4e17, 1e30, 1e200, 1e305])
def test_quantiles_of_counts_go_on_where_float64_skips_counts(rate):
    """A Poisson variable of so large a rate is normal, to 1e-7 sds."""
    q = np.array([1e-6, 0.05, 0.5, 0.95, 1 - 1e-6])
    found = count_quantile(np, np.full((5, 1), rate), q)
    expected = rate + math.sqrt(rate) * np.array([NormalDist().inv_cdf(p) for p in q])
    np.testing.assert_allclose(found, expected, rtol=4e-16, atol=1e-5 * math.sqrt(rate))
    assert poisson_cdf(np, found, np.array(rate))[2] == pytest.approx(0.5, abs=1e-6)


def test_quantiles_of_mixtures_of_small_and_huge_counts():
    rates = np.array([[2.0, 3.0, 1e300, np.inf]])
    found = [count_quantile(np, rates, np.array([q]))[0] for q in (0.1, 0.45, 0.7, 0.9)]
    assert found[0] <= found[1] < 20
    assert found[2] == pytest.approx(1e300)
    assert found[3] == np.inf
    assert poisson_cdf(np, np.array(1e300), rates[0])[:2].tolist() == [1.0, 1.0]


def test_a_students_quantile_beyond_the_numbers_is_infinite():
    law = StudentT(1e-3)
    assert law.quantile(0.9) == np.inf
    assert law.quantile(0.1) == -np.inf
    found = mixture_quantile(np, law, np.zeros((1, 3)), np.ones((1, 3)), [0.1, 0.5, 0.9])
    assert found[:, 0] == pytest.approx([-np.inf, 0.0, np.inf], abs=1e-9)
