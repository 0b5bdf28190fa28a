"""Timing of the first-draw workload: a fresh process from its start to its exit.

The clock is outside; `benchmarks.harness.first_draw_child` is what runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.framework import Framework

# What an entry is given of the posterior: its network, prior, likelihood, and how it is sampled.
OF = ("sizes", "activation", "likelihood", "prior_scale", "noise_scale", "step_size", "dim", "seed")


def write_spec(workload: Any, path: Path) -> None:
    """Save what a child needs as an npz file."""
    import numpy as np

    x, y = workload.of.data
    settings = {
        "num_steps": workload.num_steps,
        "draws": workload.draws,
        "of": {key: getattr(workload.of, key) for key in OF},
    }
    np.savez(path, x=x, y=y, start=workload.of.start[0][0], settings=json.dumps(settings))


def time_process(framework: Framework, spec: Path, threads: int) -> tuple[float, dict[str, float]]:
    """Wall seconds of one fresh process from start to exit, and its answer.

    Every entry finds the bytecode of an earlier process beside `spec`, as a user of installed
    packages does: whether a checkout or an environment lets Python write it changes nothing.
    """
    environment = os.environ | machine.thread_environment(threads) | framework.env
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(spec.parent / "bytecode")
    child = "benchmarks.harness.first_draw_child"
    command = [sys.executable, "-m", child, framework.fresh, str(spec)]
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=machine.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        last = (done.stderr.strip() or "nothing said").splitlines()[-1]
        raise RuntimeError(f"[first_draw] {framework.name} exited with {done.returncode}: {last}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds, answer
