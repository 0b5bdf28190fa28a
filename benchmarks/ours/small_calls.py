"""Public calls with default settings on a small network, where Python takes most of the time.

`tools.walk` counts the Python functions that each of them enters, and `benchmarks.interleaved`
times them. Nothing but the sizes is set, and each call makes the same work every time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ribbit as rb

Run = Callable[[], Any]

X = np.linspace(-1.0, 1.0, 40)[:, None]


def target() -> rb.Posterior:
    """40 rows and 25 parameters."""
    model = rb.mlp(1, (8,), 1)
    return rb.Posterior(
        model, X, np.sin(3.0 * X), prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )


def _hmc() -> Run:
    return partial(rb.HMC(target()).sample, 100, warmup=100, seed=0, progress=False)


def _nuts() -> Run:
    return partial(rb.NUTS(target()).sample, 100, seed=0, progress=False)


def _mclmc() -> Run:
    return partial(rb.MCLMC(target()).sample, 100, seed=0, progress=False)


def _sgld() -> Run:
    return partial(rb.SGLD(target()).sample, 1000, seed=0, progress=False)


def _bbb() -> Run:
    return partial(rb.BBB(target()).fit, 10, seed=0, progress=False)


def _posterior() -> Run:
    return target


def _mean() -> Run:
    draws = _hmc()()
    return lambda: draws.predict(X).mean


def _interval() -> Run:
    draws = _hmc()()
    return lambda: draws.predict(X).interval()


# By the line that is measured; each function prepares what is not measured.
CALLS: dict[str, Callable[[], Run]] = {
    "HMC.sample(100, warmup=100)": _hmc,
    "NUTS.sample(100)": _nuts,
    "MCLMC.sample(100)": _mclmc,
    "SGLD.sample(1000)": _sgld,
    "BBB.fit(10)": _bbb,
    "Posterior(...)": _posterior,
    "draws.predict(x).mean": _mean,
    "draws.predict(x).interval()": _interval,
}
