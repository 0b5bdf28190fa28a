"""The table of ratios: ``python -m benchmarks.report [--workloads NAME ...] [--quick]``.

Runs every workload with every rival that is installed, one process per framework, taking turns,
and prints Ribbit's time, each rival's, the ratio to the best of them, the target, and the share
of the FMA peak measured in the same run. ``--write`` also writes docs/developer/benchmarks.md and
benchmarks/results/report.json, which `benchmarks.performance` reads. ``--quick`` ends within five
minutes on two slow cores: it leaves out torch-compile, which compiles for minutes, and NumPyro, and
takes fewer rows of the large networks. Ctrl-C prints the rows that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, pages
from benchmarks.harness.compare import Comparison, Reading, compare
from benchmarks.harness.framework import OURS
from benchmarks.harness.pages import Table, duration, markdown, print_table
from benchmarks.harness.stopping import until_stopped
from benchmarks.rivals import FRAMEWORKS, IN_PROCESS, NUMPY_SKYLAKEX, OURS_AVX2
from benchmarks.workloads.table import WORKLOADS

DOCUMENT = machine.ROOT / "docs" / "developer" / "benchmarks.md"
RECORD = machine.ROOT / "benchmarks" / "results" / "report.json"
PREAMBLE = """
Written by `python -m benchmarks.report --write`. Every answer is compared with a float64 NumPy
reference before it is timed. All libraries run on the same cores, each in its own process, in
turns. A ratio is the median over rounds of the ratio within a round, and the range is over
rounds. Times exclude compilation.

GFLOP/s and the share of the FMA peak count the multiplications and additions of dense,
convolutional and LSTM layers, including the padding that Ribbit skips. "Ratio at peak" is the
largest ratio that any code could reach on this machine. ribbit-avx2 is Ribbit under
`RIBBIT_ISA=avx2`.
"""


_MET = {True: "yes", False: "NO", None: "-"}
# torch-compile takes minutes to compile; NumPyro and BlackJAX run the same XLA programs; the other
# is a second form of an entry.
NOT_QUICK = ("torch-compile", "jax-plain", "numpyro")


@dataclass(frozen=True)
class Outcome:
    """What a comparison says; None where there is nothing to say."""

    best: Reading | None
    ratio: float | None
    ratio_range: tuple[float, float] | None
    share: float | None
    limit: float | None
    met: bool | None
    named: float | None = None  # ratio to the rival that the goal names


def is_ours(entry: str) -> bool:
    """Whether an entry is Ribbit, on whatever instruction set."""
    return entry.split("-")[0] == OURS


def judge(comparison: Comparison) -> Outcome:
    """Form ratios within rounds and hold their median against the goal."""
    goal = comparison.workload.goal
    ours = comparison.readings.get(OURS)
    if ours is None or not ours.rounds:
        return Outcome(None, None, None, None, None, None)
    rivals = [r for r in comparison.readings.values() if r.rounds and not is_ours(r.entry)]
    best = min(rivals, key=lambda r: r.median, default=None)
    ratio, ratio_range, share = None, None, None
    named: float | None = None
    conditions: list[bool | None] = []
    if best is not None:
        ratios = [b / a for a, b in zip(ours.rounds, best.rounds, strict=False)]
        ratio, ratio_range = statistics.median(ratios), (min(ratios), max(ratios))
    if goal.ratio is not None:
        conditions.append(None if ratio is None else ratio >= goal.ratio)
    if goal.against is not None:
        name, least = goal.against
        other = comparison.readings.get(name)
        found = [b / a for a, b in zip(ours.rounds, other.rounds, strict=False)] if other else []
        named = statistics.median(found) if found else None
        conditions.append(None if named is None else named >= least)
    if comparison.peaks:
        rate = comparison.workload.flops / comparison.workload.units
        shares = [
            rate / a / (peak * comparison.threads)
            for a, peak in zip(ours.rounds, comparison.peaks, strict=False)
        ]
        share = statistics.median(shares)
    if goal.share is not None:
        conditions.append(None if share is None else share >= goal.share)
    if goal.seconds is not None:
        conditions.append(ours.median <= goal.seconds)
    # The ratio at which Ribbit would run its products at the FMA peak and nothing else.
    limit = ratio / share if ratio and share else None
    met = False if False in conditions else None if None in conditions else True
    return Outcome(best, ratio, ratio_range, share, limit, met, named)


def goal_text(workload: Any) -> str:
    """Write the goal as the targets page does."""
    goal = workload.goal
    parts = [] if goal.ratio is None else [f">= {goal.ratio:g}x"]
    parts += [] if goal.against is None else [f">= {goal.against[1]:g}x {goal.against[0]}"]
    parts += [] if goal.share is None else [f">= {goal.share:.0%} of peak"]
    parts += [] if goal.seconds is None else [f"<= {duration(goal.seconds)}"]
    return ", ".join(parts)


def ratio_text(outcome: Outcome, workload: Any) -> str:
    """Write the ratio to the best rival, and to the one that the goal names."""
    if not outcome.ratio:
        return "-"
    named = f", {outcome.named:.2f}x {workload.goal.against[0]}" if outcome.named else ""
    return f"{outcome.ratio:.2f}x{named}"


def ratio_table(comparisons: list[Comparison], *, targets: bool = True) -> Table:
    """One row per workload: ours against the best other library and, with `targets`, the goal."""
    head = ["workload", "per", "threads", "ribbit", "best other", "its time", "ratio", "range"]
    head += ["target", "met"] if targets else []
    head += ["GFLOP/s", "FMA peak", "ratio at peak"]
    rows = []
    for comparison in comparisons:
        outcome, workload = judge(comparison), comparison.workload
        ours, best = comparison.readings.get(OURS), outcome.best
        span = outcome.ratio_range
        rows.append(
            [
                workload.name,
                workload.unit,
                str(comparison.threads),
                _median(ours),
                best.entry if best else "-",
                _median(best),
                ratio_text(outcome, workload),
                f"{span[0]:.2f}-{span[1]:.2f}" if span else "-",
                *([goal_text(workload), _MET[outcome.met]] if targets else []),
                f"{_rate(workload, ours) / 1e9:.0f}" if outcome.share and ours else "-",
                f"{outcome.share:.0%}" if outcome.share else "-",
                f"{outcome.limit:.2f}x" if outcome.limit else "-",
            ]
        )
    return "Ribbit and the best other library", head, rows


def readings_table(comparisons: list[Comparison], entries: list[str]) -> Table:
    """Time per unit of every entry: the median of the rounds."""
    rows = [
        [c.workload.name, *(_median(c.readings.get(entry)) for entry in entries)]
        for c in comparisons
    ]
    return "Time per unit, median of the rounds", ["workload", *entries], rows


def build_table(comparisons: list[Comparison], entries: list[str]) -> Table:
    """Seconds before the first answer: build, compile, first call. Not part of the times."""
    rows = []
    for comparison in comparisons:
        found = [comparison.readings.get(entry) for entry in entries]
        if any(r and r.build_seconds is not None for r in found):
            cells = [duration(r.build_seconds) if r and r.build_seconds else "-" for r in found]
            rows.append([comparison.workload.name, *cells])
    return "Build, compile and first call (not in the times above)", ["workload", *entries], rows


def form_table(comparisons: list[Comparison]) -> Table:
    """How Ribbit and the rivals of the first table are written; the fastest of several forms."""
    rows = []
    for comparison in comparisons:
        against, found = comparison.workload.goal.against, comparison.readings
        readings = [found.get(OURS), judge(comparison).best]
        readings += [found.get(against[0])] if against else []
        for entry in dict.fromkeys(r.entry for r in readings if r and r.form):
            rows.append([comparison.workload.name, entry, found[entry].form])
    return "How each library was called", ["workload", "entry", "form"], rows


def _rate(workload: Any, reading: Reading) -> float:
    """Flop/s of what is counted."""
    return float(workload.flops / workload.units / reading.median)


def _median(reading: Reading | None) -> str:
    if reading is None or reading.left_out:
        return "-"
    if not reading.rounds:
        return "failed"
    return duration(reading.median)


def facts(comparisons: list[Comparison], command: str, rounds: int, minutes: float) -> list[str]:
    """Machine, versions, date, commit, command."""
    versions: dict[str, str] = {}
    for comparison in comparisons:
        for reading in comparison.readings.values():
            if reading.entry == OURS or not is_ours(reading.entry):
                versions |= reading.versions
    peaks = [peak for comparison in comparisons for peak in comparison.peaks]
    lines = pages.facts(versions, command)
    lines[-1] += f", {rounds} rounds, {minutes:.0f} minutes"
    if peaks:
        lines.append(
            f"FMA peak of one core, float32: {statistics.median(peaks) / 1e9:.0f} GFLOP/s "
            f"({min(peaks) / 1e9:.0f}-{max(peaks) / 1e9:.0f})"
        )
    readings = [r for comparison in comparisons for r in comparison.readings.values()]
    return lines + sorted({f"Left out: {r.entry}, {r.left_out}" for r in readings if r.left_out})


def less(comparisons: list[Comparison]) -> list[str]:
    """Say which workloads are less than those that the targets are of."""
    found = [c.workload for c in comparisons if c.workload != WORKLOADS[c.workload.name]]
    return [
        f"Fewer rounds: {made.name} has {made.most_rounds}"
        if made.kind == "first_draw"
        else f"Fewer rows: {made.name} has {made.rows:,} in place of {WORKLOADS[made.name].rows:,}"
        for made in found
    ]


def failures(comparisons: list[Comparison]) -> list[str]:
    """Entries that were not timed because something was wrong."""
    return [
        f"{reading.workload}, {reading.entry}: {reading.failure}"
        for comparison in comparisons
        for reading in comparison.readings.values()
        if reading.failure
    ]


def summary(
    comparisons: list[Comparison], entries: list[str], command: str, rounds: int, minutes: float
) -> tuple[list[Table], list[str]]:
    """All tables of the page, and the facts."""
    shown = [entry for entry in entries if any(entry in c.readings for c in comparisons)]
    tables = [
        ratio_table(comparisons, targets=False),
        readings_table(comparisons, shown),
        build_table(comparisons, shown),
        form_table(comparisons),
    ]
    return tables, facts(comparisons, command, rounds, minutes)


def raw(comparisons: list[Comparison], lines: list[str]) -> str:
    """All readings as JSON."""
    readings = [dataclasses.asdict(r) for c in comparisons for r in c.readings.values()]
    peaks = {c.workload.name: c.peaks for c in comparisons}
    return json.dumps({"facts": lines, "readings": readings, "peaks": peaks}, indent=1)


def default_entries(quick: bool = False) -> list[str]:
    """Ribbit, beside it Ribbit on AVX2 where it is wider, and every rival that is installed.

    Quickly: Ribbit and rivals, without those that compile for minutes and second forms of one.
    """
    names = list(IN_PROCESS)
    if quick:
        names = [name for name in names if name not in NOT_QUICK]
        return [name for name in names if FRAMEWORKS[name].installed()]
    if machine.vector_sets() == "AVX-512":
        names.insert(names.index(OURS) + 1, OURS_AVX2.name)
        names.insert(names.index("numpy") + 1, NUMPY_SKYLAKEX.name)
    return [name for name in names if FRAMEWORKS[name].installed()]


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns 1 when an answer was wrong or an entry of ours failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), metavar="NAME")
    parser.add_argument(
        "--entries",
        nargs="+",
        choices=list(FRAMEWORKS),
        metavar="NAME",
        help="default: Ribbit and every rival that is installed",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="3 short rounds instead of 7, fewer rows of large networks, neither torch-compile "
        "nor NumPyro",
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the raw readings")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (3 if options.quick else 7)
    seconds = 0.1 if options.quick else 0.4
    entries = options.entries or default_entries(options.quick)
    names = options.workloads or list(WORKLOADS)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.report", *given])
    comparisons: list[Comparison] = []
    page = options.write
    kept = pages.overhead_of(page.read_text(encoding="utf-8")) if page and page.is_file() else ""
    begun = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {what}", file=sys.stderr, flush=True)

    workloads = [WORKLOADS[n].quick if options.quick else WORKLOADS[n] for n in names]
    frameworks = [FRAMEWORKS[e] for e in entries]
    wrong: list[str] = []
    with until_stopped() as stop:
        for comparison in compare(workloads, frameworks, rounds, seconds, say):
            comparisons.append(comparison)
            # After every workload: a run that is killed leaves what it has measured.
            minutes = (time.monotonic() - begun) / 60
            tables, lines = summary(comparisons, entries, command, rounds, minutes)
            lines += less(comparisons)
            wrong = failures(comparisons)
            if options.json:
                options.json.write_text(raw(comparisons, lines))
            if options.write:
                failed = [f"FAILED {line}" for line in wrong]
                made = markdown("Benchmarks", PREAMBLE, tables, lines + failed)
                options.write.write_text(f"{made}\n{kept}" if kept else made, encoding="utf-8")
    if comparisons:
        if options.write == DOCUMENT:
            RECORD.write_text(raw(comparisons, lines))
        print_table(ratio_table(comparisons))
        for table in tables[1:]:
            print_table(table)
        print("\n".join([*lines, *(f"FAILED {line}" for line in wrong)]))
    return stop.status or (1 if wrong else 0)
