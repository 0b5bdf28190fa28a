"""Quantiles against NumPy, laws against SciPy, mixtures against bisection, the sketch's bound."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from ribbit.results import quantiles
from ribbit.results.counts import count_quantile, poisson_cdf
from ribbit.results.mixtures import Normal, StudentT, mixture_quantile
from ribbit.results.quantiles import QuantileSketch, sorted_quantile

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


def streams(size, rng):
    """(size, 5, 1): sorted, reversed, random, a random walk, many ties."""
    walk = rng.normal(size=size).cumsum()
    columns = [np.arange(size), -np.arange(size), rng.normal(size=size), walk, walk.round(-1)]
    return np.stack(columns, axis=1)[:, :, None].astype(float)


@pytest.mark.parametrize("budget", [48, 256])
@pytest.mark.parametrize("size", [257, 1000, 5000, 20_011])
def test_sketch_keeps_its_bound(size, budget, rng):
    data = streams(size, rng)
    sketch = QuantileSketch(np, (5, 1), np.float64, size=size, budget=budget)
    for row in data:
        sketch.add(row)
    found = sketch.quantile(LEVELS)
    error = rank_error(data, found)
    assert 0 < error <= sketch.rank_error
    # The bound says something: under a tenth of the stream, at 80 times the budget too.
    assert budget == 48 or sketch.rank_error < 0.1 * size
    held = sum(b.shape[-1] for b in sketch._buffers.values()) + sketch._filling.shape[-1]
    assert held <= budget


def rank_error(data, found):
    """Largest distance from the rank asked for to the ranks that a value takes."""
    size, worst = len(data), 0.0
    for q, values in zip(LEVELS, found, strict=True):
        want = q * (size - 1) + 1
        first, last = (data < values).sum(axis=0) + 1, (data <= values).sum(axis=0)
        worst = max(worst, (first - want).max(), (want - last).max())
    return worst


def test_control_a_sketch_that_drops_buffers_breaks_the_bound(rng, monkeypatch):
    monkeypatch.setattr(QuantileSketch, "_merge", lambda self, buffers, weights, first: buffers[0])
    data = streams(5000, rng)
    sketch = QuantileSketch(np, (5, 1), np.float64, size=5000, budget=256)
    for row in data:
        sketch.add(row)
    assert rank_error(data, sketch.quantile(LEVELS)) > sketch.rank_error


@pytest.mark.parametrize("size", [1, 2, 5, 255, 256])
def test_sketch_is_exact_within_its_budget(size, rng):
    data = streams(size, rng)
    sketch = QuantileSketch(np, (5, 1), np.float64, size=size, budget=256)
    for row in data:
        sketch.add(row)
    assert sketch.rank_error == 0
    expected = np.quantile(data, LEVELS, axis=0)
    np.testing.assert_allclose(sketch.quantile(LEVELS), expected, rtol=1e-12, atol=1e-12)


def test_sketch_of_a_stream_longer_than_planned(rng):
    data = streams(5000, rng)
    sketch = QuantileSketch(np, (5, 1), np.float64, size=10, budget=256)
    for row in data:
        sketch.add(row)
    assert 0 < rank_error(data, sketch.quantile(LEVELS)) <= sketch.rank_error


def test_a_sketch_that_is_stopped_goes_on_where_it_was(rng, monkeypatch):
    """Ctrl-C between two parts of a merge; the rest is made for who asks next."""
    monkeypatch.setattr("ribbit.results.quantiles._PART", 40)
    stream = rng.standard_normal((300, 7, 3))
    sketches = [QuantileSketch(np, (7, 3), np.float64, size=300, budget=24) for _ in range(3)]
    asked = []

    def stop():
        asked.append(1)
        return True

    for values in stream:
        sketches[0].add(values)
        sketches[1].add(values, stop)
        sketches[2].add(values, lambda: False)
    assert len(asked) > 30
    found = [sketch.quantile([0.0, 0.1, 0.5, 1.0]) for sketch in sketches]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_array_equal(sketches[1].pack()[1]["0"], sketches[0].pack()[1]["0"])


def test_no_part_of_a_merge_is_long(rng):
    """Nothing interrupts a sort: 2^18 values are some 20 ms."""
    sizes = []

    class Library:
        def __getattr__(self, name):
            made = getattr(np, name)
            if name not in ("sort", "argsort"):
                return made

            def sort(values, **options):
                sizes.append(values.size)
                return made(values, **options)

            return sort

    sketch = QuantileSketch(Library(), (3000, 2), np.float64, size=4000)
    for _ in range(1100):
        sketch.add(rng.standard_normal((3000, 2)))
    assert not sketch._plan.exact
    assert max(sizes) <= 2**18


def test_plan_is_quick_for_a_long_stream():
    buffers, length = quantiles._best_plan(10**9, 1024)
    assert (buffers + 1) * length <= 1024


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
