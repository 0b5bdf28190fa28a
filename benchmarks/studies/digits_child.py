"""One entry of `benchmarks.digits` in a process of its own.

``python -m benchmarks.studies.digits_child MODULE PROBLEM OUT [QUICK]`` confines itself to the
problem's threads before the framework is imported, runs, and writes what was found to OUT (JSON).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

from benchmarks.harness import machine
from benchmarks.workloads.digits import DIGITS


def main(module: str, name: str, out: Path, quick: bool) -> None:
    """Run and write; one seed if quick."""
    digits = DIGITS[name]
    threads = min(digits.threads, len(machine.cores()))
    seeds = digits.seeds[:1] if quick else digits.seeds
    digits = dataclasses.replace(digits, threads=threads, seeds=seeds)
    machine.pin(machine.pick(machine.cores(), threads))
    _ = digits.data  # before any clock
    entry = importlib.import_module(module)
    out.write_text(json.dumps([entry.learn(digits, seed) for seed in digits.seeds]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:] == ["quick"])
