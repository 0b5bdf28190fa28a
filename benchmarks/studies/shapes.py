"""Shapes that are not in the table: ``python -m benchmarks.shapes [--quick] [--write]``.

Runs every shape of `benchmarks.workloads.shapes` with the other libraries that are installed, as
`benchmarks.report` runs its workloads, and prints the ratio to the best of them, worst first.
``--write`` also writes docs/developer/shapes.md. `--quick` takes every third shape.
"""

from __future__ import annotations

import argparse
import functools
import math
import shlex
import sys
import time
from pathlib import Path

from benchmarks.harness import machine
from benchmarks.harness.compare import Comparison, compare
from benchmarks.harness.framework import OURS
from benchmarks.harness.pages import Table, duration, markdown, print_table
from benchmarks.harness.stopping import until_stopped
from benchmarks.rivals import FRAMEWORKS
from benchmarks.studies.report import facts, failures, judge, raw
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.shapes import SHAPES

DOCUMENT = machine.ROOT / "docs" / "developer" / "shapes.md"
ENTRIES = (OURS, "numpy", "jax", "torch", "torch-compile")
PREAMBLE = """
`python -m benchmarks.shapes --write` makes this page. It times trajectories and gradients at shapes
that are not in the table of [benchmarks](benchmarks.md), in the same way. Every answer is compared
with a float64 NumPy reference before it is timed. Every entry has its own process on the same
cores, and entries take turns. A ratio is the median over the rounds of the ratio within a round.

BlackJAX and NumPyro are left out because their trajectories are JAX programs, and JAX is here.
Widths from 129 with 100,000 rows and 16 chains are left out because they take too long. The worst
ratio comes first.
"""


def describe(workload: object) -> list[str]:
    """Network, rows and chains."""
    if isinstance(workload, Leapfrog):
        network = "-".join(map(str, workload.sizes))
        return [network, f"{workload.rows:,}", str(workload.chains)]
    return [workload.wiring.__name__, f"{workload.rows:,}", "-"]  # type: ignore[attr-defined]


def table(comparisons: list[Comparison], entries: list[str]) -> Table:
    """One row per shape, worst ratio first."""
    found = []
    for comparison in comparisons:
        outcome, readings = judge(comparison), comparison.readings
        span = outcome.ratio_range
        cells = [
            *describe(comparison.workload),
            comparison.workload.unit,
            *(
                duration(readings[e].median) if e in readings and readings[e].rounds else "-"
                for e in entries
            ),
            outcome.best.entry if outcome.best else "-",
            f"{outcome.ratio:.2f}x" if outcome.ratio else "-",
            f"{span[0]:.2f}-{span[1]:.2f}" if span else "-",
            f"{outcome.share:.0%}" if outcome.share else "-",
        ]
        found.append((outcome.ratio or 0.0, cells))
    head = [
        "network",
        "N",
        "chains",
        "per",
        *entries,
        "best other library",
        "ratio",
        "range",
        "FMA peak",
    ]
    return "Ratios, the worst first", head, [cells for _, cells in sorted(found)]


def outcome_lines(comparisons: list[Comparison]) -> list[str]:
    """Return how many shapes are slower than the best other library, and the mean ratio."""
    ratios = [r for r in (judge(c).ratio for c in comparisons) if r is not None]
    if not ratios:
        return ["No other library is installed"]
    slower = sum(ratio < 1.0 for ratio in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return [
        f"Ratios: {len(ratios)} shapes, {slower} slower than the best other library; worst "
        f"{min(ratios):.2f}x, geometric mean {mean:.2f}x, best {max(ratios):.2f}x"
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns 1 when an answer was wrong or an entry failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), metavar="NAME")
    parser.add_argument("--entries", nargs="+", choices=list(FRAMEWORKS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="every third shape, 3 short rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, help="default: 2, or what there is")
    parser.add_argument(
        "--processor-time", action="store_true", help="on a busy machine, with --threads 1"
    )
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the raw readings")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (3 if options.quick else 5)
    names = options.shapes or list(SHAPES)[:: 3 if options.quick else 1]
    entries = options.entries or [e for e in ENTRIES if FRAMEWORKS[e].installed()]
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.shapes", *given])
    started = time.perf_counter()
    comparisons: list[Comparison] = []
    say = functools.partial(print, file=sys.stderr)
    seconds = 0.05 if options.quick else 0.15
    processor = options.processor_time
    frameworks = [FRAMEWORKS[e] for e in entries]
    workloads = [SHAPES[n] for n in names]
    wrong: list[str] = []
    with until_stopped() as stop:
        for comparison in compare(
            workloads, frameworks, rounds, seconds, say, options.threads, processor
        ):
            comparisons.append(comparison)
            minutes = (time.perf_counter() - started) / 60
            lines = outcome_lines(comparisons) + facts(comparisons, command, rounds, minutes)
            lines.append(f"Threads of every entry: {comparison.threads}")
            wrong = [f"FAILED {line}" for line in failures(comparisons)]
            shown = table(comparisons, entries)
            if options.json:
                options.json.write_text(raw(comparisons, lines))
            if options.write:
                options.write.write_text(markdown("Shapes", PREAMBLE, [shown], lines + wrong))
    if comparisons:
        print_table(shown)
        print("\n".join(lines + wrong))
    return stop.status or (1 if wrong else 0)
