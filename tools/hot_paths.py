"""The paths on which Ribbit spends its time, small enough to run under valgrind.

``python -m tools.hot_paths count NAME ...`` runs each of them a few times, then many times,
and calls getppid(2) before, between and after: the marks at which `tools.instructions` has the
counts written. What a call does once, in Python or not, drops out of the difference.
``python -m tools.hot_paths time NAME ...`` prints, as JSON, for how many operations of the FMA
loop there is time in one unit. Both on one thread.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import ribbit as rb
from ribbit import _core

Run = Callable[[int], Any]  # does so many units in one native call


@dataclass(frozen=True)
class HotPath:
    """What is counted: `few` units, then `many`; `what` says what one unit is."""

    what: str
    unit: str
    few: int
    many: int
    prepare: Callable[[], Run]


def _leapfrog(model: Any, rows: int, classes: int = 0) -> Run:
    """Leapfrog steps of one chain from a draw of the initialiser; standard normal inputs."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, *model.input_shape)).astype(np.float32)
    if classes:
        y, likelihood = rng.integers(classes, size=rows), rb.Categorical()
    else:
        y, likelihood = rng.standard_normal((rows, 1)).astype(np.float32), rb.Gaussian(0.1)
    target = rb.Posterior(model, x, y, prior=rb.Normal(0.5), likelihood=likelihood)
    start = np.asarray(target.init(seed=1), np.float32).reshape(1, -1)
    momentum = rng.standard_normal(start.shape).astype(np.float32)
    return lambda steps: target.leapfrog(start, momentum, None, 1e-6, steps)


def leapfrog(rows: int = 320) -> Run:
    """HMC on a small network: all of a step, activations and updates included."""
    return _leapfrog(rb.mlp(8, (50,), 1, activation="silu"), rows)


def dense() -> Run:
    """HMC on wide layers: matrix products."""
    return _leapfrog(rb.mlp(256, (256, 256), 10, activation="silu"), 64, classes=10)


def convolution() -> Run:
    """HMC on a residual block with filter response normalisation."""
    silu = rb.Activation("silu")

    def unit() -> tuple[rb.Conv2D, rb.FilterResponseNorm]:
        return rb.Conv2D(16, 3, padding="same"), rb.FilterResponseNorm()

    layers = (*unit(), silu, rb.Residual((*unit(), silu, *unit()), ()), silu)
    layers += (rb.GlobalAvgPool2D(), rb.Dense(10))
    return _leapfrog(rb.Model(layers, input_shape=(8, 8, 3)), 4, classes=10)


def variational() -> Run:
    """Bayes by Backprop on four rows: normals, softplus, the KL term and Adam, next to no data."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 784)).astype(np.float32)
    y = rng.integers(10, size=4)
    target = rb.Posterior(
        rb.mlp(784, (50,), 10), x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )
    return lambda steps: rb.BBB(target).fit(steps, seed=1, progress=False)


def weight_draws() -> Run:
    """Predictive moments of a mean-field Gaussian: weights drawn while they are used."""
    model = rb.mlp(1, (20, 20, 20, 20), 1)
    x = np.linspace(-2.0, 2.0, 1000, dtype=np.float32)[:, None]
    target = rb.Posterior(
        model, x, np.zeros_like(x), prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    mean = np.random.default_rng(3).standard_normal(model.dim).astype(np.float32) / 4
    fit = rb.MeanField(mean, np.full_like(mean, 0.1), predictive=target)
    return lambda draws: fit.predict(x, draws, seed=1).mean


def mask_draws() -> Run:
    """Predictive moments of MC dropout, a mask per row and unit; the first layer is done once."""
    relu, drop = rb.Activation("relu"), rb.Dropout(0.5)
    layers = (rb.Dense(200), relu, drop, rb.Dense(200), relu, drop, rb.Dense(10))
    x = np.random.default_rng(4).standard_normal((32, 100)).astype(np.float32)
    target = rb.Posterior(
        rb.Model(layers, input_shape=(100,)),
        x[:1],
        np.zeros(1, np.int64),
        prior=rb.Normal(1.0),
        likelihood=rb.Categorical(),
    )
    fit = rb.MCDropout(target, batch_size=None).fit(1, progress=False)
    return lambda masks: fit.draws(masks, seed=1, masks="row").predict(x).probs


PATHS = {
    "leapfrog": HotPath("MLP 8-50-1, SiLU, N=320", "leapfrog", 5, 20, leapfrog),
    "dense": HotPath("MLP 256-256-256-10, SiLU, N=64", "leapfrog", 1, 2, dense),
    "convolution": HotPath("residual block, 8x8x16, N=4", "leapfrog", 1, 2, convolution),
    "variational": HotPath("Bayes by Backprop, P=39,760, N=4", "step", 1, 4, variational),
    "weight-draws": HotPath("1-20-20-20-20-1, 1,000 rows", "draw", 5, 20, weight_draws),
    "mask-draws": HotPath("MC dropout 100-200-200-10, 32 rows", "mask", 4, 16, mask_draws),
}

# What must be found too slow when it stands in the place of the leapfrog.
CONTROLS = {
    "a tenth more": replace(PATHS["leapfrog"], prepare=partial(leapfrog, 352)),
    "twice as much": replace(PATHS["leapfrog"], prepare=partial(leapfrog, 640)),
}


def count(names: list[str]) -> None:
    """Run the paths between marks: three per path."""
    for name in names:
        path = (PATHS | CONTROLS)[name]
        run = path.prepare()
        run(path.few)  # buffers, imports and pages of the first call
        os.getppid()
        run(path.few)
        os.getppid()
        run(path.many)
        os.getppid()


def operations(path: HotPath, seconds: float = 0.02, rounds: int = 15) -> float:
    """Multiplies and adds that the FMA loop does in the time of one unit.

    The loop and the path take turns; the median over the rounds of the ratio within a round, in
    which the path has the processor time of this thread and the loop its best millisecond.
    """
    run, units = path.prepare(), path.many
    run(units)
    while (spent := _thread_seconds(run, units)) < 0.5 * seconds:
        units = 2 * units if spent < 0.1 * seconds else round(units * seconds / spent)
    found = []
    for _ in range(rounds):
        peak = _core.fma_peak_gflops(0.005, 32) * 1e9
        found.append(_thread_seconds(run, units) / units * peak)
    return statistics.median(found)


def _thread_seconds(run: Run, units: int) -> float:
    started = time.thread_time()
    run(units)
    return time.thread_time() - started


def main(do: str, names: list[str]) -> None:
    """Count or time."""
    rb.set_num_threads(1)
    if do == "count":
        count(names)
    else:
        print(json.dumps({name: operations((PATHS | CONTROLS)[name]) for name in names}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
