"""Compares the speed of two installations of Ribbit: ``python -m benchmarks.interleaved A B``.

A and B are folders for PYTHONPATH, each with a built ``ribbit``. Each workload has a new process
for A and one for B. The two take turns on the same core for 31 pairs of wall times, and the order
within a pair alternates. The ratio B/A is the median over the pairs, with a bootstrap 90 % interval
that knows the pairs but not what differs between processes. B is no slower if the interval contains
1.02 or lies below it, because smaller changes cannot be seen on a shared machine. A workload that
looks slower is measured once more with new processes, and the second result counts. The exit status
is 1 if B is slower on any workload.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.harness.compare import Process
from benchmarks.harness.framework import OURS, Framework
from benchmarks.harness.workload import on_threads
from benchmarks.ours.small_calls import CALLS as SMALL
from benchmarks.workloads.calls import CALLS, SmallCall

PAIRS = 31
LIMIT = 1.02

# The small calls are mostly Python; those on the larger network are mostly native.
WORKLOADS: dict[str, Any] = {name: SmallCall(name) for name in SMALL}
WORKLOADS |= {name: on_threads(call, 1) for name, call in CALLS.items() if name.startswith("mlp ")}


@dataclass(frozen=True)
class Compared:
    """Seconds of A and B (medians), the median ratio B/A, and its 90 % interval."""

    a: float
    b: float
    ratio: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether the whole interval lies above the limit."""
        return not self.low <= LIMIT  # NaN counts as slower


def compare(pairs: Sequence[tuple[float, float]]) -> Compared:
    """Return the medians of pairs of times (A, B), and the interval of the median ratio."""
    a, b = np.asarray(pairs, np.float64).T
    ratios = b / a
    drawn = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.05, 0.95])
    return Compared(*(float(np.median(x)) for x in (a, b, ratios)), float(low), float(high))


def framework(name: str, folder: str) -> Framework:
    """Return the entry of the installation in `folder`; raises if Ribbit is imported elsewhere."""
    path = Path(folder).resolve()
    environment = {"PYTHONPATH": str(path), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", "import ribbit; print(ribbit.__file__)"],
        cwd=machine.ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
    if found != str(path / "ribbit" / "__init__.py"):
        raise ValueError(f"[interleaved] {name} must be a folder with a built ribbit, got {found}")
    return Framework(name, "benchmarks.ours.entries", (OURS,), env=environment)


def measure(
    workload: Any,
    entries: Sequence[Framework],
    pairs: int,
    seconds: float,
    *,
    processor: bool = False,
) -> Compared:
    """Time a workload in a new process of A and one of B, by turns."""
    processes = [Process(entry, workload.threads) for entry in entries]
    try:
        for process in processes:
            _checked(process, process.prepare(workload))
        found = []
        for number in range(pairs):
            times = [0.0, 0.0]
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                reply = processes[which].ask("time", seconds=seconds, processor=processor)
                times[which] = statistics.median(_checked(processes[which], reply)["seconds"])
            found.append((times[0], times[1]))
    finally:
        for process in processes:
            process.close()
    return compare(found)


def _checked(process: Process, reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        raise RuntimeError(f"[interleaved] {process.name} failed: {reply['error']}")
    return reply


def row(name: str, found: Compared) -> str:
    """Return the line of a workload."""
    times = f"{1e3 * found.a:>10.3f}{1e3 * found.b:>10.3f}{found.ratio:>8.3f}"
    result = "slower" if found.slower else "no slower"
    return f"{name:<30}{times}  {found.low:.3f} to {found.high:.3f}  {result}"


def main(given: list[str] | None = None) -> int:
    """Print a line for every workload, as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interleaved", description=__doc__)
    parser.add_argument(
        "a", metavar="A", help="folder for PYTHONPATH with the ribbit to compare to"
    )
    parser.add_argument("b", metavar="B", help="folder for PYTHONPATH with the ribbit to measure")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of times per workload")
    parser.add_argument("--seconds", type=float, default=0.05, help="least seconds of one time")
    parser.add_argument("--processor", action="store_true", help="processor time, not wall time")
    options = parser.parse_args(given)
    entries = [framework("A", options.a), framework("B", options.b)]
    print(f"{'workload':<30}{'A (ms)':>10}{'B (ms)':>10}{'B/A':>8}  90 % interval   result")

    def slower(name: str) -> bool:
        found = measure(
            WORKLOADS[name], entries, options.pairs, options.seconds, processor=options.processor
        )
        print(row(name, found), flush=True)
        return found.slower

    status = 0
    for name in options.workloads:
        if slower(name) and slower(name):
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
