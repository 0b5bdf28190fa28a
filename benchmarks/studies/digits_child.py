"""One entry of `benchmarks.effective` in a process of its own.

``python -m benchmarks.studies.effective_child MODULE PROBLEM OUT [QUICK]`` confines itself to the
problem's threads before the framework is imported, runs, and writes what was found to OUT (npz).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.workloads.effective_problems import PROBLEMS, Digits, Posterior


def shortened(problem: Posterior | Digits) -> Posterior | Digits:
    """Take a fifth of the draws, one seed: to see that it runs."""
    if isinstance(problem, Digits):
        return dataclasses.replace(problem, seeds=problem.seeds[:1])
    nuts, hmc = (tuple(max(40, n // 5) for n in pair) for pair in (problem.nuts, problem.hmc))
    return dataclasses.replace(problem, nuts=nuts, hmc=hmc)


def main(module: str, name: str, out: Path, quick: bool) -> None:
    """Run and write."""
    problem = shortened(PROBLEMS[name]) if quick else PROBLEMS[name]
    threads = min(problem.threads, len(machine.cores()))
    problem = dataclasses.replace(problem, threads=threads)
    machine.pin(machine.pick(machine.cores(), threads))
    _ = problem.data  # before any clock
    entry = importlib.import_module(module)
    if isinstance(problem, Posterior):
        found: dict[str, Any] = entry.sample(problem)
        np.savez(out, positions=found.pop("positions"), facts=json.dumps(found))
        return
    runs = [entry.learn(problem, seed) for seed in problem.seeds]
    np.savez(out, facts=json.dumps(runs))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:] == ["quick"])
