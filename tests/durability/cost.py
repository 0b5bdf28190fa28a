"""Cost of writing, and memory of a long run: ``python -m tests.durability --cost --long``.

Costs are processor seconds, because on a busy machine the clock says less. The cost in all threads
is the load on the machine. The cost in the sampling thread is the slowdown of the run, if the
writing thread has a core of its own.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ribbit as rb

ROUNDS = 5
_FIXED = {"step_size": 1e-4, "num_leapfrog_steps": 20}
_OPTIONS: dict[str, Any] = {"warmup": 0, "seed": 1, "progress": False}


class Standing(rb.HMC):
    """Does not move: what is left is the loop over draws, whose cost is known to a microsecond."""

    def _advance(self, state: Any, num_steps: int, guard: Any) -> tuple[Any, Any]:
        chains = state.position.shape[0]
        if getattr(self, "_info", None) is None:
            self._info = {k: np.zeros(chains, v) for k, v in self._statistics.items()}
        return dataclasses.replace(state, step=state.step + 1), self._info


class Cost(NamedTuple):
    """Processor microseconds of a draw of all chains, medians of rounds.

    `without` a folder, of all threads; what a folder `added` to that, with the least and the most;
    what it added to the thread that samples, `own`; `wall`: microseconds without, by the clock.
    """

    what: str
    without: float
    added: float
    least: float
    most: float
    own: float
    wall: float

    def __str__(self) -> str:
        added = f"{self.added:.1f} ({self.least:.1f} to {self.most:.1f}) us in all threads"
        own = f"{self.own:.1f} us in the sampling thread"
        return f"{added}, {own}; run without a folder: {self.without:.1f} us"

    @property
    def holds(self) -> bool:
        """At most 5 % in all threads if a draw takes more than 1 ms, else 2 us in the sampler."""
        return self.added <= 0.05 * self.without if self.without > 1000.0 else self.own <= 2.0


def network(width: int, rows: int, inputs: int = 1, outputs: int = 1) -> rb.Posterior:
    """A target of inputs - width - outputs."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(rows, inputs)), rng.normal(size=(rows, outputs))
    likelihood = rb.Gaussian(0.3)
    return rb.Posterior(
        rb.mlp(inputs, (width,), outputs), x, y, prior=rb.Normal(1.0), likelihood=likelihood
    )


def _hmc(target: rb.Posterior) -> rb.HMC:
    return rb.HMC(target, **_FIXED)


def _standing(target: rb.Posterior) -> Standing:
    return Standing(target, **_FIXED)


CASES: dict[str, tuple[Callable[[], Any], int, int]] = {  # sampler, draws, chains
    "20 parameters, draws that cost nothing": (
        lambda: Standing(network(6, 24), **_FIXED),
        60_000,
        4,
    ),
    "500 parameters, draws that cost nothing": (
        lambda: Standing(network(166, 24), **_FIXED),
        20_000,
        4,
    ),
    "101,000 parameters, draws that cost nothing": (
        lambda: Standing(network(1000, 24, 90, 10), **_FIXED),
        200,
        2,
    ),
    "19 parameters, HMC of 20 leapfrogs": (lambda: _hmc(network(6, 24)), 40_000, 4),
    "500 parameters, HMC of 20 leapfrogs, 500 rows": (lambda: _hmc(network(166, 500)), 1_600, 4),
    "101,000 parameters, HMC of 20 leapfrogs, 100 rows": (
        lambda: _hmc(network(1000, 100, 90, 10)),
        200,
        2,
    ),
}


def measure(name: str, rounds: int = ROUNDS) -> Cost:
    """Run with a folder and without by turns."""
    make, draws, chains = CASES[name]
    sampler = make()
    few = max(1, draws // 20)
    short = np.array([_pair(sampler, few, chains) for _ in range(rounds)])  # (rounds, 2, 3)
    long = np.array([_pair(sampler, draws, chains) for _ in range(rounds)])
    fixed = np.median(short[:, 0] - short[:, 1], axis=0)  # what a folder costs a run
    added = (long[:, 0] - long[:, 1] - fixed) / (draws - few) * 1e6
    without = np.median(long[:, 1], axis=0) / draws * 1e6
    whole, own = np.median(added[:, :2], axis=0)
    least, most = added[:, 0].min(), added[:, 0].max()
    return Cost(name, *(float(v) for v in (without[0], whole, least, most, own, without[2])))


def _pair(sampler: Any, draws: int, chains: int) -> list[list[float]]:
    """Seconds with a folder and without: of all threads, of this one, and of the clock."""
    with tempfile.TemporaryDirectory() as folder:
        with_ = _seconds(sampler, draws, chains, Path(folder) / "run")
    return [with_, _seconds(sampler, draws, chains, None)]


def _seconds(sampler: Any, draws: int, chains: int, store: Path | None) -> list[float]:
    clocks = (time.process_time, time.thread_time, time.perf_counter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = [clock() for clock in clocks]
        sampler.sample(draws, chains=chains, store=store, **_OPTIONS)
        return [clock() - then for clock, then in zip(clocks, begin, strict=True)]


class Memory(NamedTuple):
    """Memory of a long run, in MB: of the process before it, at most, and its growth."""

    what: str
    draws: int
    written: float  # GB
    seconds: float
    before: float
    peak: float
    slope: float  # per 100,000 draws, of the second half

    def __str__(self) -> str:
        text = f"{self.draws:,} draws, {self.written:.1f} GB in {self.seconds:.0f} s; peak "
        text += f"{self.peak - self.before:.0f} MB above the posterior's {self.before:.0f} MB"
        few = self.draws < 100_000  # its chunks come and go
        return text if few else text + f", {self.slope:+.2f} MB per 100,000 draws"

    @property
    def holds(self) -> bool:
        """Peak below 300 MB above the posterior's own; slope if there are enough draws."""
        return self.peak - self.before < 300.0 and (self.slope < 1.0 or self.draws < 100_000)


LONG: dict[str, tuple[Callable[[], Any], int, str | None]] = {  # sampler, draws, stored as
    "500 parameters, SGLD": (
        lambda: rb.SGLD(network(166, 24), step_size=1e-6, batch_size=8),
        1_000_000,
        None,
    ),
    "2.7 million parameters, SGLD, stored as float16": (
        lambda: rb.SGLD(network(3400, 64, 784, 10), step_size=1e-9, batch_size=16),
        2_000,
        "float16",  # 11 GB
    ),
}


def long_run(name: str, folder: Path, max_seconds: float = 540.0) -> Memory:
    """Sample into a folder, which is removed, with an eye on the resident memory."""
    import zarr  # noqa: F401  (it is no part of the run's memory)

    make, draws, dtype = LONG[name]
    sampler, store = make(), rb.Store(folder, dtype=dtype)
    options = {**_OPTIONS, "chains": 1, "thin": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler.sample(2, **options)  # the posterior's own
        before, begin = _resident(), time.perf_counter()
        run = sampler.sample(
            draws,
            store=store,
            max_seconds=max_seconds,
            **{**options, "progress": None},
            blocking=False,
        )
        seen: list[tuple[int, float]] = []
        ended = threading.Event()
        while run.running:
            seen.append((run.progress["draws"], _resident()))
            ended.wait(0.1)
        found = run.wait()
    seconds = time.perf_counter() - begin
    written = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e9
    count = len(found)
    shutil.rmtree(folder)
    half = np.array([(n, m) for n, m in seen if n >= count / 2] or seen)
    slope = 0.0 if len(half) < 3 else float(np.polyfit(half[:, 0] / 1e5, half[:, 1], 1)[0])
    peak = max(m for _, m in seen)
    return Memory(name, count, written, seconds, before, peak, slope)


def _resident() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
