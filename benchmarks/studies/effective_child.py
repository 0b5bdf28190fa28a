"""One run of `benchmarks.effective` in a process of its own.

``python -m benchmarks.studies.effective_child ENTRY PROBLEM SEED GRADIENTS SECONDS OUT`` confines
itself to the protocol's threads, holds the entry's density to the problem's, runs block after block
until its limits hold or a budget is spent, and keeps what it has found in OUT (JSON) after every
block: what is killed later has a line up to there.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.workloads.effective_entries import ENTRIES
from benchmarks.workloads.effective_outcome import grid, holds, judge
from benchmarks.workloads.effective_problems import PROBLEMS, Problem
from benchmarks.workloads.effective_run import Run, processor_time

THREADS = 2  # of every entry
MOST = 4000  # draws per chain that are judged: of more, every 2nd, 4th, ... since the first


@dataclass
class Clock:
    """Seconds and CPU seconds of what is judged; compilation apart."""

    run: Run
    seconds: float = 0.0
    processor: float = 0.0

    def measure(self, work: Any, *arguments: Any) -> Any:
        """Do some work of the run."""
        begun = time.perf_counter() - self.run.compile - self.run.ahead
        cpu = processor_time() - self.run.compile_cpu
        found = work(*arguments)
        self.seconds += time.perf_counter() - self.run.compile - self.run.ahead - begun
        self.processor += processor_time() - self.run.compile_cpu - cpu
        return found


@dataclass
class Found:
    """Quantities and test rows of the draws so far, and what was judged of them."""

    problem: Problem
    quantities: list[Any] = field(default_factory=list)
    test: Any = None  # log of the sum over draws of the likelihood, by test row
    read: int = 0  # draws per chain that are in `test`
    draws: int = 0
    stride: int = 1
    curve: list[list[float | None]] = field(default_factory=list)

    def add(self, positions: Any) -> None:
        """Read off more draws (C, D, P): every `stride`-th."""
        kept = positions[:, -self.draws % self.stride :: self.stride]
        self.draws += positions.shape[1]
        if not kept.shape[1]:
            return
        quantities, test = self.problem.read(kept)
        self.quantities.append(quantities)
        self.test = test if self.test is None else np.logaddexp(self.test, test)
        self.read += kept.shape[1]
        if sum(q.shape[1] for q in self.quantities) > MOST:
            self.quantities = [self.all[:, ::2]]
            self.stride *= 2

    @property
    def all(self) -> Any:
        """(C, D, Q)."""
        return np.concatenate(self.quantities, axis=1)

    def judge(self, clock: Clock) -> bool:
        """Append a point to the curve: draws, gradients, seconds, E, R-hat, NLL per test row."""
        values = self.all
        # R-hat and ESS split chains: under eight draws they say nothing.
        ess, rhat = judge(values) if values.shape[1] >= 8 else (0.0, math.inf)
        nll = -float(np.mean(self.test - math.log(len(values) * self.read)))
        point = [self.draws, clock.run.gradients, clock.seconds, ess, rhat, nll]
        self.curve.append([_plain(value) for value in point])
        return holds(ess, rhat)


def _plain(value: float) -> float | None:
    """Five digits; JSON has neither infinity nor NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def facts(found: Found, clock: Clock) -> dict[str, Any]:
    """Collect what a line has from its process."""
    run = clock.run
    result: dict[str, Any] = {
        "chains": found.problem.chains,
        "compile": _plain(run.compile),
        "cpu_seconds": _plain(clock.processor),
        "form": run.form,
        "versions": run.versions,
        "curve": found.curve,
    }
    if found.quantities:
        values = found.all.reshape(-1, found.all.shape[2])
        with np.errstate(all="ignore"):
            result["means"] = [_plain(v) for v in values.mean(axis=0)]
            result["sds"] = [_plain(v) for v in values.std(axis=0)]
    return result


def main(arguments: list[str]) -> None:
    """Run and write."""
    entry, name, seed, gradients, seconds, out = arguments
    problem = PROBLEMS[name]
    _ = problem.data  # before any clock
    cores = machine.cores()
    machine.pin(machine.pick(cores, min(THREADS, len(cores))))

    def write(**more: Any) -> None:
        path = Path(out)
        path.with_suffix(".new").write_text(json.dumps(kept | more))
        path.with_suffix(".new").rename(path)

    kept: dict[str, Any] = {"ended": "killed"}
    run = ENTRIES[entry].make(problem, int(seed), min(THREADS, len(cores)))
    problem = run.problem
    kept["density_error"] = _plain(problem.check(run.density))
    clock, found = Clock(run), Found(problem)
    write(compile=_plain(run.compile), form=run.form, versions=run.versions, curve=[])
    clock.measure(run.start)
    at, ended = 0, ""
    for point in grid(problem.block, run.most):
        while at < point:
            step = min(point - at, _fitting(problem, clock, at, point - at, float(seconds)))
            found.add(clock.measure(run.draw, step))
            at += step
            if run.most < Run.most:
                continue
            if run.gradients > float(gradients) or clock.seconds > float(seconds):
                ended = "gradients" if run.gradients > float(gradients) else "seconds"
                break
        if found.judge(clock) and problem.mixes:
            ended = "converged"
        write(**facts(found, clock))
        if ended:
            break
    write(**facts(found, clock), ended=ended or "draws")


def _fitting(problem: Problem, clock: Clock, at: int, wanted: int, seconds: float) -> int:
    """Draws, a multiple of the block, that fit into what is left of the seconds."""
    if at == 0:
        return problem.block
    each = clock.seconds / at  # an upper bound: warmup is in it
    fit = int((seconds - clock.seconds) / each) // problem.block * problem.block
    return max(problem.block, min(wanted, fit))


if __name__ == "__main__":
    main(sys.argv[1:])
