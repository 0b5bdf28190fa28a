"""What a user waits for: ``python -m benchmarks.effective [--quick] [--write]``.

Effective samples per second and per gradient of Ribbit's HMC beside NUTS of NumPyro and BlackJAX
on two posteriors, and seconds to a test error on digits by Bayes by Backprop and SGLD beside JAX
and PyTorch. ``--write`` also writes docs/effective.md. Needs `arviz-stats`; concrete and the digits
need the development data and are left out without them.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.harness.framework import OURS
from benchmarks.harness.pages import Table, duration, facts, markdown, print_table
from benchmarks.rivals import FRAMEWORKS
from benchmarks.workloads.effective_problems import PROBLEMS, Digits, MissingDataError, Posterior

DOCUMENT = machine.ROOT / "docs" / "effective.md"
SAMPLERS = {
    OURS: "benchmarks.ours.effective",
    "numpyro": "benchmarks.rivals.numpyro_nuts",
    "blackjax": "benchmarks.rivals.blackjax_nuts",
}
LEARNERS = {
    OURS: "benchmarks.ours.effective",
    "jax": "benchmarks.rivals.jax_digits",
    "torch": "benchmarks.rivals.torch_digits",
}
AGREE = 5.5  # Monte Carlo standard errors of a difference
RHAT = 1.1  # of the worst quantity; above it no time is reported
PREAMBLE = f"""
Written by `python -m benchmarks.effective --write`. Every entry samples or fits the same problem in
a process of its own, on the same cores, one after the other. NUTS runs in the fastest of three
forms (all chains by vmap, or shared out over the cores), raced before. Each chain tunes itself.

Effective samples (bulk ESS by arviz-stats) are of functions, as weights of a network are not
identified: the predictions at 20 test rows and the log density; the least is over these 21. They
are divided by the seconds of sampling; compilation and warmup stand apart. A gradient is one
gradient of one chain on all rows. The noise is learned, log_noise ~ N(0, 1) for all entries
(NumPyro's example has a Gamma prior of the precision, which Ribbit cannot state). Before a time is
reported the worst R-hat must be at most {RHAT} and the expected log likelihood per test row must be
that of the other entries within {AGREE} Monte Carlo standard errors; else the row says so.

What is compared, and what is not: NUTS doubles its trajectory up to the default limit of ten times,
1,023 gradients; where "gradients" over draws is near that it sits at its maximum, and another limit
would give other figures. The lengths of Ribbit's trajectories were set by hand, in the column
"form" at the end, while NUTS finds its own: the time of finding them is in no column. Every row is
one run with one seed, so the least of 21 ESS has an error of its own, of tens of percent where it
is near 100: read the ratios as sizes and not to the digit.

On digits (MNIST, 10,000 for training, 784-400-400-10 ReLU) the clock counts training alone until
the error on 2,000 test digits is at most the level, judged after each epoch by the same rule; the
seconds are the median of the seeds. Batch size, learning rate, start and network are the same.
"""


@dataclass
class Found:
    """One entry on one posterior."""

    entry: str
    result: dict[str, Any]
    least: float = 0.0
    median: float = 0.0
    rhat: float = float("nan")
    held_out: float = float("nan")
    error: float = float("nan")
    mixture: float = float("nan")
    failure: str = ""
    notes: list[str] = field(default_factory=list)


def run(module: str, name: str, quick: bool) -> tuple[Any, Any]:
    """Run one child: positions (C, D, P) or None, and what it says; a failure is {"failure"}."""
    problem = PROBLEMS[name]
    threads = min(problem.threads, len(machine.cores()))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.npz"
        command = [
            sys.executable,
            "-m",
            "benchmarks.studies.effective_child",
            module,
            name,
            str(out),
        ]
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
            return None, {"failure": last}
        with np.load(out) as file:
            positions = file.get("positions")
            return positions, json.loads(str(file["facts"]))


def judge(problem: Posterior, entry: str, positions: Any, result: dict[str, Any]) -> Found:
    """Effective samples, convergence and held-out log likelihood of one entry."""
    from arviz_stats.base import array_stats

    if "failure" in result:
        return Found(entry, result, failure=result["failure"])
    judged = problem.judge(positions)
    quantities, held_out = judged["quantities"], judged["held_out"]
    axes = {"chain_axis": 0, "draw_axis": 1}
    ess = np.asarray(array_stats.ess(quantities, **axes, method="bulk"))
    return Found(
        entry,
        result,
        least=float(ess.min()),
        median=float(np.median(ess)),
        rhat=float(np.max(array_stats.rhat(quantities, **axes))),
        held_out=float(held_out.mean()),
        error=float(array_stats.mcse(held_out, **axes, method="mean")),
        mixture=float(judged["mixture"]),
    )


def assert_agreement(entries: list[Found]) -> None:
    """Mark those that have not converged, or whose held-out log likelihood is another's.

    The reference of an entry is the mean over the others that have converged, weighted by their
    precision.
    """
    for found in entries:
        if not found.failure and not found.rhat <= RHAT:
            found.failure = f"R-hat {found.rhat:.2f}"
    sound = [found for found in entries if not found.failure]
    for found in sound:
        others = [other for other in sound if other is not found]
        if not others:
            continue
        weights = np.array([other.error**-2 for other in others])
        centre = float(weights @ [other.held_out for other in others] / weights.sum())
        error = float(np.sqrt(found.error**2 + 1.0 / weights.sum()))
        if abs(found.held_out - centre) > AGREE * error:
            found.failure = f"held out {found.held_out:.4f}, the others {centre:.4f} +- {error:.4f}"


def sampling_table(problem: Posterior, entries: list[Found]) -> Table:
    """Effective samples per second and per gradient; what they cost before."""
    head = ["entry", "draws", "ESS least", "median", "sampling", "ESS/s least", "ratio"]
    head += ["median", "gradients", "ESS per 1,000 gradients", "per gradient"]
    head += ["compile", "warmup", "R-hat", "held out per row", "of the mixture"]
    ours = next((f for f in entries if f.entry == OURS and not f.failure), None)
    rows = []
    for found in entries:
        if found.failure:
            rows.append([found.entry, *["-"] * (len(head) - 2), f"NOT REPORTED: {found.failure}"])
            continue
        result = found.result
        seconds, gradients = result["sampling"], result["gradients"]
        rate = found.least / seconds
        ratio = "-" if ours is None else f"{ours.least / ours.result['sampling'] / rate:.1f}x"
        rows.append(
            [
                found.entry,
                result["draws"],
                f"{found.least:.0f}",
                f"{found.median:.0f}",
                duration(seconds),
                f"{rate:.3g}",
                "1" if found is ours else ratio,
                f"{found.median / seconds:.3g}",
                f"{gradients:,.0f}",
                f"{1e3 * found.least / gradients:.3g}",
                duration(seconds / gradients),
                duration(result["compile"]),
                duration(result["warmup"]),
                f"{found.rhat:.3f}",
                f"{found.held_out:.4f} +- {found.error:.4f}",
                f"{found.mixture:.4f}",
            ]
        )
    return f"{problem.name}: {problem.title}", head, rows


def learning_row(name: str, problem: Digits, entry: str, runs: Any) -> list[str]:
    """Median over the seeds of the seconds to the level."""
    method = {"bbb": "Bayes by Backprop", "sgld": "SGLD"}[problem.method]
    start = [method, f"{problem.level:.0%}", entry]
    if "failure" in runs:
        return [*start, *["-"] * 5, f"FAILED {runs['failure']}"]
    if any(found["errors"][-1] > problem.level for found in runs):
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


def measure(names: list[str], quick: bool) -> tuple[list[Table], dict[str, str], list[str]]:
    """All tables, the versions, and what was left out or failed."""
    tables: list[Table] = []
    learned: list[list[str]] = []
    forms: list[list[str]] = []
    versions: dict[str, str] = {}
    notes: list[str] = []
    for name in names:
        problem = PROBLEMS[name]
        try:
            _ = problem.data
        except MissingDataError as error:
            notes.append(f"Left out: {name}, {error}")
            continue
        modules = SAMPLERS if isinstance(problem, Posterior) else LEARNERS
        entries: list[Found] = []
        seconds: dict[str, float] = {}
        for entry in (e for e in modules if FRAMEWORKS[e].installed()):
            print(f"{name}: {entry}", file=sys.stderr)
            positions, result = run(modules[entry], name, quick)
            first = result if isinstance(result, dict) else result[0]
            versions |= first.get("versions", {})
            if first.get("form"):
                forms.append([name, entry, first["form"]])
            if isinstance(problem, Posterior):
                if positions is not None:
                    result["draws"] = " x ".join(map(str, positions.shape[:2]))
                entries.append(judge(problem, entry, positions, result))
                continue
            row = learning_row(name, problem, entry, result)
            learned.append(row)
            total = "-"
            if row[3] != "-":
                seconds[entry] = statistics.median(sum(found["seconds"]) for found in result)
                if OURS in seconds:
                    total = "1" if entry == OURS else f"{seconds[entry] / seconds[OURS]:.1f}x"
            row[4] = total
        if isinstance(problem, Posterior):
            assert_agreement(entries)
            notes += [f"FAILED {name}, {f.entry}: {f.failure}" for f in entries if f.failure]
            tables.append(sampling_table(problem, entries))
    if learned:
        notes += [f"FAILED {' '.join(row[:3])}: {row[-1]}" for row in learned if row[3] == "-"]
        head = ["method", "error at most", "entry", "training", "ratio", "epochs (range)"]
        tables.append(("Digits", [*head, "an epoch", "compile", "form"], learned))
    tables.append(("Forms", ["problem", "entry", "form"], forms))
    return tables, versions, notes


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns 1 when an entry failed, disagreed or did not converge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.effective", description=__doc__)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a fifth of the draws, one seed")
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.effective", *given])
    tables, versions, notes = measure(options.problems or list(PROBLEMS), options.quick)
    lines = facts(versions, command) + notes
    if options.write:
        options.write.write_text(markdown("What a user waits for", PREAMBLE, tables, lines))
    for table in tables:
        print_table(table)
    print("\n".join(lines))
    return 1 if any(note.startswith("FAILED") for note in notes) else 0
