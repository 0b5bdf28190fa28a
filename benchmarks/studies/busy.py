"""Threads beside strangers on the same cores: ``python -m benchmarks.busy [--rounds n]``.

Every row is one call, of few and of many chains, on one thread and on two, with nothing, one
endless loop (kept to one core) or two (one on each) beside it. The loops belong to this command
and end with it. Counts take turns within a round; what is printed are medians of the seconds, and
of the ratio to one thread under the same load within a round, which is to be 1.3 at most.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.harness.pages import duration, print_table
from benchmarks.harness.stopping import until_stopped
from ribbit._arrays.threads import num_threads

MOST = 1.3  # times one thread under the same load
SEED = 5
Run = Callable[[], object]


@dataclass(frozen=True)
class Problem:
    """A network on rows of normal inputs, and the leapfrogs of a timed call on it."""

    sizes: tuple[int, ...]
    rows: int
    leapfrogs: int

    def posterior(self) -> rb.Posterior:
        """Regression by an MLP."""
        rng = np.random.default_rng(SEED)
        inputs, *hidden, outputs = self.sizes
        x = rng.standard_normal((self.rows, inputs), dtype=np.float32)
        y = rng.standard_normal((self.rows, outputs), dtype=np.float32)
        model = rb.mlp(inputs, hidden, outputs, activation="tanh")
        return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5))


PROBLEMS = {
    "3-5-5-1, 30 rows": Problem((3, 5, 5, 1), 30, 20_000),
    "8-50-1, 927 rows": Problem((8, 50, 1), 927, 2_000),
    "8-16-16-16-16-1, 2,000 rows": Problem((8, 16, 16, 16, 16, 1), 2_000, 1_000),
    "784-256-256-10, 1,000 rows": Problem((784, 256, 256, 10), 1_000, 4),
}


def hmc_sample(target: rb.Posterior, start: np.ndarray, leapfrogs: int) -> Run:
    """Draws of ten leapfrogs."""
    steps = min(10, leapfrogs)
    sampler = rb.HMC(target, step_size=1e-4, num_leapfrog_steps=steps)
    draws = max(1, leapfrogs // (steps * len(start)))
    return lambda: sampler.sample(draws, warmup=0, init=start, progress=False)


def hmc_step(target: rb.Posterior, start: np.ndarray, leapfrogs: int) -> Run:
    """Transitions of ten leapfrogs, one call each."""
    steps = min(10, leapfrogs)
    sampler = rb.HMC(target, step_size=1e-4, num_leapfrog_steps=steps)
    count = max(1, leapfrogs // (steps * len(start)))

    def run() -> None:
        chains = rb.Chains(sampler, start, seed=SEED, warmup=0)
        for _ in range(count):
            chains.advance(1)

    return run


def mclmc_sample(target: rb.Posterior, start: np.ndarray, leapfrogs: int) -> Run:
    """Draws of fifty steps."""
    sampler = rb.MCLMC(target, step_size=1e-3, decoherence_length=1.0)
    thin = min(50, leapfrogs)
    draws = max(1, leapfrogs // (thin * len(start)))
    return lambda: sampler.sample(draws, warmup=0, thin=thin, init=start, progress=False)


def sgld_sample(target: rb.Posterior, start: np.ndarray, leapfrogs: int) -> Run:
    """Draws of fifty steps on all rows."""
    sampler = rb.SGLD(target, step_size=1e-7, batch_size=target.num_rows)
    thin = min(50, leapfrogs)
    draws = max(1, leapfrogs // (thin * len(start)))
    return lambda: sampler.sample(draws, warmup=0, thin=thin, init=start, progress=False)


def bbb_fit(target: rb.Posterior, start: np.ndarray, leapfrogs: int) -> Run:
    """Epochs of one step on all rows, a fit for each start."""
    sampler = rb.BBB(target, learning_rate=1e-4)
    fits = [rb.MeanField(position, np.full_like(position, 0.01)) for position in start]
    epochs = max(1, leapfrogs // len(fits))

    def run() -> None:
        for fit in fits:
            sampler.fit(epochs, init=fit, progress=False)

    return run


CALLS = {
    "HMC.sample": hmc_sample,
    "HMC.step": hmc_step,
    "MCLMC.sample": mclmc_sample,
    "SGLD.sample": sgld_sample,
    "BBB.fit": bbb_fit,
}


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Endless loops, each kept to a core of its own, the last first; ended on leaving."""
    cores = machine.cores()
    loops = []
    try:
        for core in [cores[-1 - i % len(cores)] for i in range(count)]:
            code = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
            loops.append(subprocess.Popen([sys.executable, "-c", code]))
        time.sleep(0.3 if count else 0.0)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seconds(threads: int, run: Run) -> float:
    """Seconds of a call on so many threads."""
    rb.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # runs this short do not converge
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin


def measure(
    name: str, call: str, chains: int, counts: list[int], busy: int, rounds: int
) -> list[list[float]]:
    """Seconds (rounds, counts) of one row."""
    problem = PROBLEMS[name]
    target = problem.posterior()
    start = np.stack([target.init(seed=c) for c in range(chains)])
    run = CALLS[call](target, start, problem.leapfrogs)
    seconds(1, run)
    with busy_loops(busy):
        return [[seconds(threads, run) for threads in counts] for _ in range(rounds)]


def row(what: list[str], found: list[list[float]]) -> tuple[list[str], float]:
    """Cells of a row, of its seconds (rounds, counts); and its largest ratio to one thread."""
    times = [statistics.median(column) for column in zip(*found, strict=True)]
    ratios = [
        statistics.median(several / alone for alone, several in zip(base, column, strict=True))
        for base, *columns in [list(zip(*found, strict=True))]
        for column in columns
    ]
    cells = [*what, *(duration(t) for t in times), *(f"{r:.2f}" for r in ratios)]
    print(*cells, sep=", ", file=sys.stderr)
    return cells, max(ratios)


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each network, call, number of chains and load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--calls", nargs="*", choices=list(CALLS), default=list(CALLS))
    parser.add_argument("--chains", nargs="*", type=int, default=[1, 4])
    parser.add_argument("--busy", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", nargs="*", type=int, default=[2])
    options = parser.parse_args(arguments)
    before, counts = num_threads(), [1, *options.threads]
    rows, worst = [], 0.0
    with until_stopped() as stop:
        for name, call, chains, busy in itertools.product(
            options.networks, options.calls, options.chains, options.busy
        ):
            found = measure(name, call, chains, counts, busy, options.rounds)
            cells, largest = row([name, call, str(chains), str(busy)], found)
            rows.append(cells)
            worst = max(worst, largest)
    rb.set_num_threads(before)
    head = ["network", "call", "chains", "busy loops"]
    head += [f"{n} thread{'s' if n > 1 else ''}" for n in counts]
    head += [f"{n} over 1" for n in counts[1:]]
    load = f"load {os.getloadavg()[0]:.1f} at the end, {len(machine.cores())} cores"
    print_table((f"Threads beside busy loops: {load}", head, rows))
    print(f"worst ratio {worst:.2f}, to be {MOST} at most")
    return stop.status
