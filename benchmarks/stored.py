"""Compares runs with and without a folder: ``python -m benchmarks.stored``.

A is a run in memory, B the same run with ``store=`` in a new folder. The two take turns for 31
pairs, and the order within a pair alternates. The ratio B/A is the median over the pairs, with a
bootstrap 90 % interval. The exit status is 1 if the whole interval of a run lies above 1.02.
The wall time has the last checkpoint, which waits for the disk. ``--processor`` compares the
processor time of all threads, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.interleaved import PAIRS, Compared, compare, row

Run = Callable[..., rb.Draws]


def small(draws: int = 5000, warmup: int = 500, **options: Any) -> Run:
    """HMC with default settings on 200 rows, 25 weights: half a millisecond per draw."""
    x = np.linspace(-1.0, 1.0, 200)[:, None]
    prior, likelihood = rb.Normal(1.0), rb.Gaussian(0.3)
    target = rb.Posterior(
        rb.mlp(1, (8,), 1), x, np.sin(3.0 * x), prior=prior, likelihood=likelihood
    )
    return _run(rb.HMC(target, **options), draws, warmup)


def short() -> Run:
    """HMC on the same network with short trajectories: 0.05 ms per draw, 13 MB per second."""
    return small(60_000, 0, step_size=0.02, num_leapfrog_steps=10)


def large() -> Run:
    """HMC on 500 rows, 23,065 weights: 60 draws of 4 chains, 22 MB."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 784)).astype(np.float32)
    prior, likelihood = rb.Normal(0.1), rb.Categorical()
    target = rb.Posterior(
        rb.mlp(784, (29,), 10), x, rng.integers(10, size=500), prior=prior, likelihood=likelihood
    )
    return _run(rb.HMC(target, step_size=1e-3, num_leapfrog_steps=20), 60, 0)


RUNS: dict[str, Callable[[], Run]] = {
    "25 weights": small,
    "23,065 weights": large,
    "25 weights, short draws": short,
}
DEFAULT = ["25 weights", "23,065 weights"]


def _run(sampler: Any, draws: int, warmup: int) -> Run:
    return partial(sampler.sample, draws, warmup=warmup, chains=4, progress=False)


def measure(run: Run, pairs: int, parent: str | None, *, processor: bool = False) -> Compared:
    """Time a run in memory and in new folders, by turns; the bits must be the same."""
    clock = time.process_time if processor else time.perf_counter
    wanted, found = np.asarray(run().positions), []
    for number in range(pairs):
        seconds = [0.0, 0.0]
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                more = {"store": Path(folder, "run")} if which else {}
                begin = clock()
                draws = run(**more)
                seconds[which] = clock() - begin
                if not np.array_equal(draws.positions, wanted):
                    raise RuntimeError("[stored] the draws of two equal runs differ")
                del draws
        found.append((seconds[0], seconds[1]))
    return compare(found)


def main(given: list[str] | None = None) -> int:
    """Print a line for every run, as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored", description=__doc__)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=DEFAULT)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of times per run")
    parser.add_argument(
        "--folder", help="where the folders are made (default: for temporary files)"
    )
    parser.add_argument("--processor", action="store_true", help="processor time, not wall time")
    options = parser.parse_args(given)
    warnings.simplefilter("ignore")  # the chains have not converged
    rb.set_num_threads(1)
    print(f"{'run':<30}{'A (ms)':>10}{'B (ms)':>10}{'B/A':>8}  90 % interval   result")
    slower = False
    for name in options.runs:
        found = measure(RUNS[name](), options.pairs, options.folder, processor=options.processor)
        print(row(name, found), flush=True)
        slower = slower or found.slower
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
