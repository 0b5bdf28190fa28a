"""The curves of `benchmarks.scaling`: times and memory against one size at a time.

``python -m benchmarks.studies.scaling_curves KIND DRAWS`` makes this number of draws in a fresh
process. It prints the seconds and the growth of the peak memory as JSON.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.studies.roofline_rounds import last_level_cache
from benchmarks.studies.scaling_counts import copy_bandwidths, counted_seconds
from ribbit import _core

Run = Callable[[], Any]


@dataclass
class Curve:
    """Values against a size; `begin` is the first size of the fit of an exponent.

    `counted` are the values by count (`scaling_counts`), or empty.
    """

    name: str
    sizes: list[int]
    values: list[float] = field(default_factory=list)
    begin: int = 0
    counted: list[float] = field(default_factory=list)

    @property
    def exponent(self) -> float:
        """Least-squares slope of log value on log size from `begin`."""
        return self._slope(self.values)

    @property
    def counted_exponent(self) -> float:
        """The same slope of the values by count."""
        return self._slope(self.counted)

    def _slope(self, values: list[float]) -> float:
        pairs = [p for p in zip(self.sizes, values, strict=True) if p[0] >= self.begin]
        return float(np.polyfit(*np.log(np.array(pairs)).T, 1)[0])


def second_level_cache() -> int:
    """Return bytes of the second-level cache of a core; 1 MiB if the system does not say."""
    name = "SC_LEVEL2_CACHE_SIZE"
    known = os.sysconf(name) if name in os.sysconf_names else 0
    return known if known > 0 else 1 << 20


def seconds(run: Run, least: float = 0.01) -> float:
    """Return seconds of one call: the mean over calls that take `least` seconds together."""
    calls, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < least or calls == 0:
        run()
        calls += 1
    return spent / calls


def interleaved(runs: list[Run], rounds: int) -> list[list[float]]:
    """Return the times (runs, rounds) of runs that take turns, after a first call of each."""
    for run in runs:
        run()
    found = [[seconds(run) for run in runs] for _ in range(rounds)]
    return [list(times) for times in zip(*found, strict=True)]


def posterior(model: rb.Model, rows: int, classes: int = 0) -> rb.Posterior:
    """Return a posterior on normal inputs, with uniform labels or normal targets."""
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, *model.input_shape), dtype=np.float32)
    y = rng.integers(classes, size=rows) if classes else x.reshape(rows, -1)[:, :1].copy()
    likelihood = rb.Categorical() if classes else rb.Gaussian(0.1)
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)


def gradient(target: rb.Posterior) -> Run:
    """Return a call of one value and gradient at a start."""
    theta = target.init(seed=1)
    return lambda: target.value_and_grad(theta)


def on_threads(threads: int, run: Run) -> Run:
    """Set the number of threads before each call."""

    def both() -> None:
        rb.set_num_threads(threads)
        run()

    return both


def against_rows(rounds: int) -> list[Curve]:
    """Seconds of a gradient against N, on one thread; the fit begins beyond the cache."""
    deep = [posterior(deep_mlp(), 2**k) for k in range(9, 20)]
    images = [posterior(rb.lenet5(), 2**k, classes=10) for k in range(5, 12)]
    curves = []
    for name, targets in (("MLP 8-50-50-50-1", deep), ("LeNet-5", images)):
        sizes = [target.num_rows for target in targets]
        width = 1 + math.prod(targets[0].model.input_shape)
        times = interleaved([on_threads(1, gradient(target)) for target in targets], rounds)
        begin = second_level_cache() // (4 * width)
        curves.append(Curve(name, sizes, [min(t) for t in times], begin))
    return curves


def deep_mlp() -> rb.Model:
    """Build the network of hmc-deep-4."""
    return rb.mlp(8, (50, 50, 50), 1, activation="silu")


def against_parameters(rounds: int) -> list[Curve]:
    """Seconds of a gradient against P, on one thread, N=1,024: networks get wider, or deeper.

    The fit begins if weights and their gradient leave the second-level cache.
    """
    shapes = {
        "1 hidden layer, wider": [(2**k,) for k in range(5, 17)],
        "3 hidden layers, wider": [(2**k,) * 3 for k in range(5, 12)],
        "256 wide, deeper": [(256,) * 2**k for k in range(7)],
    }
    curves, rows = [], 1024
    peak, bandwidths = _core.fma_peak_gflops(0.1, 32) * 1e9, copy_bandwidths()
    caches = (second_level_cache(), last_level_cache())
    for name, shape in shapes.items():
        models = [rb.mlp(64, hidden, 10) for hidden in shape]
        runs = [on_threads(1, gradient(posterior(m, rows, classes=10))) for m in models]
        times = interleaved(runs, rounds)
        begin = second_level_cache() // 8
        counted = [
            counted_seconds((64, *hidden, 10), rows, peak, bandwidths, caches) for hidden in shape
        ]
        dims = [m.dim for m in models]
        curves.append(Curve(name, dims, [min(t) for t in times], begin, counted))
    return curves


def leapfrogs(chains: int, steps: int = 20) -> Run:
    """Return a call of leapfrog steps on the network of hmc-small."""
    target = posterior(rb.mlp(8, (50,), 1, activation="silu"), 927)
    start = np.stack([target.init(seed=chain) for chain in range(chains)])
    momentum = np.random.default_rng(1).standard_normal(start.shape).astype(np.float32)
    return lambda: target.leapfrog(start, momentum, None, 1e-5, steps)


def against_chains(rounds: int) -> tuple[list[Curve], Curve]:
    """Return seconds of a leapfrog of all chains on one thread and on all, and their ratio."""
    sizes, threads = [2**k for k in range(7)], len(machine.cores())
    runs = {chains: leapfrogs(chains) for chains in sizes}
    all_runs = [on_threads(t, runs[chains]) for chains in sizes for t in (1, threads)]
    times = interleaved(all_runs, rounds)
    one, many = times[0::2], times[1::2]
    ratios = [
        statistics.median(a / b for a, b in zip(*pair, strict=True))
        for pair in zip(one, many, strict=True)
    ]
    curves = [
        Curve(f"{count} thread{'s' if count > 1 else ''}", sizes, [min(t) / 20 for t in found])
        for count, found in ((1, one), (threads, many))
    ]
    return curves, Curve(f"{threads} threads", sizes, ratios)


def against_threads(rounds: int) -> list[Curve]:
    """Speed-up over one thread: the median over rounds of the ratio within a round."""
    wide = rb.mlp(784, (256, 256), 10, activation="silu")
    x = np.linspace(-2.0, 2.0, 16_000, dtype=np.float32)[:, None]
    model = rb.mlp(1, (20,) * 4, 1)
    target = rb.Posterior(model, x, x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))
    fit = rb.MeanField(
        np.full(model.dim, 0.1, np.float32), np.full(model.dim, 0.1, np.float32), predictive=target
    )
    runs = {
        "8 chains, MLP 8-50-1": leapfrogs(8),
        "gradient, MLP 784-256-256-10, N=2,048": gradient(posterior(wide, 2048, classes=10)),
        "gradient, LeNet-5, N=256": gradient(posterior(rb.lenet5(), 256, classes=10)),
        "100 weight draws, 16,000 rows": lambda: fit.predict(x, 100, seed=1).mean,
    }
    sizes = list(range(1, len(machine.cores()) + 1))
    curves = []
    for name, run in runs.items():
        times = interleaved([on_threads(threads, run) for threads in sizes], rounds)
        speed = [statistics.median(a / b for a, b in zip(times[0], t, strict=True)) for t in times]
        curves.append(Curve(name, sizes, speed))
    return curves


DRAWS = [100, 300, 1_000, 3_000, 10_000, 30_000]
KINDS = {
    "kept": "HMC, draws kept",
    "streamed": "HMC, predictions only",
    "mean-field": "Bayes by Backprop, predictions only",
}


def wide_curve() -> rb.Model:
    """Build the network of the draws, P = 2,701."""
    return rb.mlp(1, (50, 50), 1, activation="tanh")


def draw(kind: str, count: int) -> Run:
    """Return a call of the mean prediction at 1,000 rows from `count` draws."""
    target = posterior(wide_curve(), 100)
    x = np.linspace(-2.0, 2.0, 1_000, dtype=np.float32)[:, None]
    if kind == "mean-field":
        scale = np.full(target.dim, 0.1, np.float32)
        fit = rb.MeanField(scale, scale, predictive=target)
        return lambda: fit.predict(x, count, seed=1).mean
    hmc = rb.HMC(target, step_size=1e-3, num_leapfrog_steps=3, randomize_length=False)
    options = {"warmup": 0, "chains": 1, "init": target.init(seed=1), "progress": False}
    if kind == "kept":
        return lambda: hmc.sample(count, **options).predict(x).mean
    options |= {"predict_at": x, "save_draws": False}
    return lambda: hmc.sample(count, **options).prediction.mean


def against_draws() -> tuple[list[Curve], list[Curve]]:
    """Return seconds, and MB of peak memory above the peak of ten draws; a process for each."""
    times, memory = [], []
    for kind, name in KINDS.items():
        found = []
        for count in DRAWS:
            command = [sys.executable, "-m", "benchmarks.studies.scaling_curves", kind, str(count)]
            done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, check=True)
            found.append(json.loads(done.stdout))
        times.append(Curve(name, DRAWS, [f["seconds"] for f in found], begin=1_000))
        memory.append(Curve(name, DRAWS, [f["megabytes"] for f in found], begin=1_000))
    return times, memory


def peak_megabytes() -> float:
    """Return the peak memory of this process.

    The operating system adds up page counts per core from time to time. So a later answer can be
    some pages below an earlier one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6  # from KiB


def main(kind: str, count: int) -> None:
    """Print seconds and memory of the draws."""
    draw(kind, 10)()
    before, run = peak_megabytes(), draw(kind, count)
    started = time.perf_counter()
    run()
    spent = time.perf_counter() - started
    more = max(0.0, peak_megabytes() - before)
    print(json.dumps({"seconds": spent, "megabytes": more}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
