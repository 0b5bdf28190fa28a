"""Seconds to a test error on digits: ``python -m benchmarks.digits [--quick] [--write]``.

Compares Bayes by Backprop and SGLD with JAX and PyTorch. ``--write`` also writes
docs/developer/digits.md. Needs the development data.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.framework import OURS
from benchmarks.harness.pages import Table, duration, facts, markdown, print_table
from benchmarks.harness.stopping import until_stopped
from benchmarks.rivals import FRAMEWORKS
from benchmarks.workloads.digits import DIGITS, Digits, MissingDataError

DOCUMENT = machine.ROOT / "docs" / "developer" / "digits.md"
LEARNERS = {
    OURS: "benchmarks.ours.digits",
    "jax": "benchmarks.rivals.jax_digits",
    "torch": "benchmarks.rivals.torch_digits",
}
PREAMBLE = """
`python -m benchmarks.digits --write` makes this page. Every entry fits the same problem in its own
process, on the same cores, one after the other.

The data are MNIST digits, 10,000 for training and 2,000 for the test. The network is
784-400-400-10 with ReLU. Only training is timed, until the test error is at most the level of the
row; the error is computed after each epoch. The seconds are the median over seeds. Batch size,
learning rate, start and network are the same for all entries.
"""


def run(module: str, name: str, quick: bool) -> Any:
    """Run one child: what each seed found, or {"failure"}."""
    threads = min(DIGITS[name].threads, len(machine.cores()))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.studies.digits_child", module, name, str(out)]
        done = subprocess.run(
            [*command, *(["quick"] if quick else [])],
            cwd=machine.ROOT,
            env=os.environ | machine.thread_environment(threads),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
            return {"failure": last}
        return json.loads(out.read_text())


def learning_row(digits: Digits, entry: str, runs: Any) -> list[str]:
    """Median over the seeds of the seconds to the level."""
    method = {"bbb": "Bayes by Backprop", "sgld": "SGLD"}[digits.method]
    start = [method, f"{digits.level:.0%}", entry]
    if "failure" in runs:
        return [*start, *["-"] * 5, f"FAILED {runs['failure']}"]
    if any(found["errors"][-1] > digits.level for found in runs):
        lowest = [min(found["errors"]) for found in runs]
        return [*start, *["-"] * 5, f"NOT REACHED: {max(lowest):.1%}"]
    epochs = [len(found["errors"]) for found in runs]
    each = [second for found in runs for second in found["seconds"]]
    return [
        *start,
        duration(statistics.median(sum(found["seconds"]) for found in runs)),
        "",
        f"{statistics.median(epochs):g} ({min(epochs)}-{max(epochs)})",
        duration(statistics.median(each)),
        duration(runs[0]["compile"]),
        runs[0]["form"],
    ]


def measure(names: list[str], quick: bool) -> tuple[list[Table], dict[str, str], list[str], int]:
    """Return the table, the versions, what was left out or failed, and a status when stopped."""
    rows: list[list[str]] = []
    versions: dict[str, str] = {}
    notes: list[str] = []
    with until_stopped() as stop:
        learn(names, quick, rows, versions, notes)
    notes += [f"FAILED {' '.join(row[:3])}: {row[-1]}" for row in rows if row[3] == "-"]
    head = ["method", "error at most", "entry", "training", "ratio", "epochs (range)"]
    tables = [("Digits", [*head, "an epoch", "compile", "form"], rows)] if rows else []
    return tables, versions, notes, stop.status


def learn(
    names: list[str],
    quick: bool,
    rows: list[list[str]],
    versions: dict[str, str],
    notes: list[str],
) -> None:
    """Run every entry on every problem; a row, versions and notes are added as they are known."""
    for name in names:
        digits = DIGITS[name]
        try:
            _ = digits.data
        except MissingDataError as error:
            notes.append(f"Left out: {name}, {error}")
            continue
        seconds: dict[str, float] = {}
        for entry in (e for e in LEARNERS if FRAMEWORKS[e].installed()):
            print(f"{name}: {entry}", file=sys.stderr)
            runs = run(LEARNERS[entry], name, quick)
            if isinstance(runs, list):
                versions |= runs[0]["versions"]
            row = learning_row(digits, entry, runs)
            rows.append(row)
            if row[3] != "-":
                seconds[entry] = statistics.median(sum(found["seconds"]) for found in runs)
            if entry == OURS and OURS in seconds:
                row[4] = "1"
            elif OURS in seconds and entry in seconds:
                row[4] = f"{seconds[entry] / seconds[OURS]:.1f}x"


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns 1 when an entry failed or did not reach the level."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits", description=__doc__)
    parser.add_argument("--problems", nargs="+", choices=list(DIGITS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.digits", *given])
    tables, versions, notes, status = measure(options.problems or list(DIGITS), options.quick)
    lines = facts(versions, command) + notes
    if options.write and not status:
        options.write.write_text(markdown("Digits", PREAMBLE, tables, lines))
    for table in tables:
        print_table(table)
    print("\n".join(lines))
    return status or (1 if any(note.startswith("FAILED") for note in notes) else 0)
