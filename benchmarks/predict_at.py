"""Cost of ``predict_at=`` with one row per draw: ``python -m benchmarks.predict_at``.

The cost is the time of a run with ``predict_at=``, less the time of the run without it and of the
forward passes. Processor times are medians over some rounds, in which all runs take turns.
With ``--instructions`` callgrind counts instructions, which other programs do not disturb. The
clock of Python stands still then, so that the same calls are made each time.
A draw is one of all four chains. The exit status is 1 if it costs more than 5 us.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.harness import machine
from tools.instructions import ISA, total
from tools.walk import stopped_clock

CHAINS = 4
LIMIT = 5.0  # us
FEW, MANY = 1000, 3000  # draws between two marks of callgrind

Run = Callable[[int], object]  # does so many draws


class Enough(Exception):
    """Ends a run after its draws: checks of convergence would take longer than predictions."""


def stop(note: dict[str, Any]) -> None:
    """Be a progress callable that lets a run make its draws and no more."""
    if note["done"] >= note["total"]:
        raise Enough


def runs() -> dict[str, Run]:
    """Return what is measured, on 40 rows and 25 weights."""
    x = np.linspace(-1.0, 1.0, 40)[:, None]
    prior, likelihood = rb.Normal(1.0), rb.Gaussian(0.3)
    model = rb.mlp(1, (8,), 1)
    target = rb.Posterior(model, x, np.sin(3.0 * x), prior=prior, likelihood=likelihood)
    hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=1)
    new = np.array([[0.5]])
    theta = target.init(seed=1, chains=CHAINS * MANY)

    def sample(draws: int, **more: Any) -> None:
        with contextlib.suppress(Enough):
            hmc.sample(draws, warmup=0, chains=CHAINS, progress=stop, **more)

    return {
        "forward passes": lambda draws: target.predictive(theta[: CHAINS * draws], new),
        "run": sample,
        "run with predict_at": lambda draws: sample(draws, predict_at=new),
        "run without draws": lambda draws: sample(draws, save_draws=False),
        "run without draws, with predict_at": lambda draws: sample(
            draws, save_draws=False, predict_at=new
        ),
    }


def processor_times(draws: int, rounds: int) -> dict[str, float]:
    """Return microseconds per draw."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, run in runs().items():
            run(10)
            begin = time.process_time()
            run(draws)
            found.setdefault(name, []).append(1e6 * (time.process_time() - begin) / draws)
    return {name: statistics.median(values) for name, values in found.items()}


def instructions() -> dict[str, float]:
    """Return instructions per draw."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        options = ["--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        command = ["valgrind", *options, sys.executable, "-m", "benchmarks.predict_at", "--marks"]
        environment = os.environ | machine.thread_environment(1)
        environment |= {"RIBBIT_ISA": ISA, "PYTHONHASHSEED": "0"}
        subprocess.run(command, cwd=machine.ROOT, env=environment, capture_output=True, check=True)
        found = {}
        for i, name in enumerate(runs()):
            few, many = (total(Path(f"{out}.{3 * i + k}")) for k in (2, 3))
            found[name] = (many - few) / (MANY - FEW)
        return found


def marks() -> None:
    """Run everything between calls of getppid, at which callgrind writes its counts."""
    with stopped_clock():
        for run in runs().values():
            run(FEW)  # buffers, imports and pages of the first call
            for draws in (FEW, MANY):
                os.getppid()
                run(draws)
            os.getppid()


def main(given: list[str] | None = None) -> int:
    """Print a line for each run, and one for the cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict_at", description=__doc__)
    parser.add_argument("--draws", type=int, default=MANY, help=f"at most {MANY}")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--instructions", action="store_true", help="count by callgrind")
    parser.add_argument("--marks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    warnings.simplefilter("ignore")  # the chains have not converged
    rb.set_num_threads(1)
    if options.marks:
        marks()
        return 0
    unit = "instructions" if options.instructions else "us"
    if options.instructions:
        found = instructions()
    else:
        found = processor_times(options.draws, options.rounds)
    forward, alone, both, small, small_both = found.values()
    found["cost of predict_at"] = both - alone - forward
    found["cost of predict_at without draws"] = small_both - small - forward
    for name, value in found.items():
        print(f"{name:<36}{value:>12,.2f} {unit} per draw", flush=True)
    costs = [value for name, value in found.items() if name.startswith("cost")]
    return int(not options.instructions and max(costs) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
