"""Predictions of new y from 1,000 draws of a 20-32-1 network, on one thread, compared with SciPy.

``extra_info`` has nanoseconds per row and draw, and the bar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads

BARS = {"mean": None, "interval": 60, "quantile": 40, "cdf": 20, "crps": 300}  # ns
LIKELIHOODS = {
    "gaussian": rb.Gaussian(0.3),
    "heteroscedastic": rb.HeteroscedasticGaussian(),
    "student": rb.StudentTNoise(4.0),
    "poisson": rb.Poisson(),
}
DRAWS = 1000
# Counts have no score.
CASES = [(n, v) for n in BARS for v in LIKELIHOODS if (n, v) != ("crps", "poisson")]


@functools.cache
def data(likelihood: str) -> tuple[Any, Any, Any]:
    """Draws, inputs (10,000, 20) and targets (10,000, 1)."""
    x = np.random.default_rng(0).standard_normal((10_000, 20)).astype(np.float32)
    y = np.floor(3 * np.abs(x[:, :1])) if likelihood == "poisson" else x[:, :1]
    model = rb.mlp(20, (32,), 2 if likelihood == "heteroscedastic" else 1)
    target = rb.Posterior(
        model,
        x[:500],
        y[:500],
        prior=rb.Normal(1.0),
        likelihood=LIKELIHOODS[likelihood],
        marginalize=None,
    )
    hmc = rb.HMC(target, step_size=1e-3, num_leapfrog_steps=5)
    return hmc.sample(DRAWS // 4, warmup=50, chains=4, seed=0, progress=False), x, y


def timed(benchmark: Any, call: Callable[[], Any], rows: int, rounds: int) -> None:
    """Time a call, once if benchmarks are disabled."""
    benchmark.pedantic(call, rounds=1 if benchmark.disabled else rounds)
    if not benchmark.disabled:
        seconds = benchmark.stats.stats.min
        benchmark.extra_info["ns_per_row_and_draw"] = 1e9 * seconds / (rows * DRAWS)


@pytest.mark.parametrize(("name", "likelihood"), CASES)
def test_ours(name: str, likelihood: str, benchmark: Any) -> None:
    """The network's forward passes are in the time."""
    draws, x, y = data(likelihood)
    arguments = {"interval": (0.9,), "quantile": (0.3,), "cdf": (y,), "crps": (y,)}
    rows = 200 if benchmark.disabled else len(x)
    arguments = {
        key: tuple(v if np.isscalar(v) else v[:rows] for v in value)
        for key, value in arguments.items()
    }

    def call() -> Any:
        found = getattr(draws.predict(x[:rows]), name)
        return found(*arguments[name]) if name in arguments else found

    before = num_threads()
    rb.set_num_threads(1)
    try:
        benchmark.extra_info.update(entry="ribbit", bar_ns=BARS[name])
        timed(benchmark, call, rows, 3)
    finally:
        rb.set_num_threads(before)


@pytest.mark.parametrize("name", ["quantile", "cdf", "crps"])
def test_scipy(name: str, benchmark: Any) -> None:
    """The Gaussian mixture at 10 rows, without the network; our answer is the same."""
    optimize, special = pytest.importorskip("scipy.optimize"), pytest.importorskip("scipy.special")
    draws, x, y = data("gaussian")
    rows, sd = 10, 0.3
    p = draws.predict(x[:rows], keep=True)
    means, at = np.asarray(p.samples, np.float64).reshape(DRAWS, rows), y[:rows, 0]

    def crps(mean: Any, value: Any) -> float:
        def distance(m: Any, s: float) -> Any:
            z = m / s
            return m * special.erf(z / 2**0.5) + s * (2 / np.pi) ** 0.5 * np.exp(-z * z / 2)

        pairs = distance(mean[:, None] - mean, sd * 2**0.5).mean()
        return float(distance(value - mean, sd).mean() - 0.5 * pairs)

    def quantile(mean: Any) -> float:
        def excess(t: float) -> float:
            return float(special.ndtr((t - mean) / sd).mean() - 0.3)

        return float(optimize.brentq(excess, mean.min() - 9, mean.max() + 9, xtol=1e-12))

    calls: dict[str, Callable[[], Any]] = {
        "quantile": lambda: [quantile(m) for m in means.T],
        "cdf": lambda: special.ndtr((at - means) / sd).mean(axis=0),
        "crps": lambda: np.mean([crps(m, v) for m, v in zip(means.T, at, strict=True)]),
    }
    ours = p.quantile(0.3) if name == "quantile" else getattr(p, name)(y[:rows])
    np.testing.assert_allclose(np.ravel(ours), np.ravel(calls[name]()), rtol=1e-9, atol=1e-9)
    benchmark.extra_info.update(entry="scipy")
    timed(benchmark, calls[name], rows, 5)
