"""The page docs/performance.md and its two charts: ``python -m benchmarks.performance``.

Reads what `benchmarks.report --write` and `benchmarks.effective` have recorded in
benchmarks/results; ``--measure`` runs both first (half an hour on two idle cores, and the other
libraries installed). Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.pages import duration
from benchmarks.studies import effective_lines
from benchmarks.studies.effective_lines import SECONDS, Line, costs, loaded, median
from benchmarks.studies.effective_page import by_entry
from benchmarks.studies.report import RECORD, is_ours
from benchmarks.workloads.effective_entries import ENTRIES
from benchmarks.workloads.table import WORKLOADS

PAGE = machine.ROOT / "docs" / "performance.md"
PICTURES = machine.ROOT / "docs" / "_static" / "performance"
PROBLEM = "bnn"  # the one that every library with a sampler of all data can run

# What each workload computes, for readers of the page.
TITLES = {
    "hmc-small-1": "HMC, 501 weights, 1 chain",
    "hmc-small-8": "HMC, 501 weights, 8 chains",
    "hmc-deep-4": "HMC, 5,601 weights, 4 chains",
    "hmc-synthreg": "HMC, 20,601 weights, 1 thread",
    "hmc-wide": "HMC, 269,322 weights",
    "bbb-seed": "Bayes by Backprop, epoch",
    "mc-forward": "predictions of 1,000 weight draws",
    "mc-dropout": "MC dropout, 100 masks",
    "sgld": "SGLD, batches of 128",
    "resnet20": "ResNet-20, gradient",
    "lenet5": "LeNet-5, gradient",
    "cnn-lstm": "CNN-LSTM, gradient",
    "reparam": "reparameterized weights",
    "normals": "normal numbers",
    "first-draw": "import to first draws",
}
NAMES = {
    "ribbit": "Ribbit",
    "jax": "JAX",
    "jax-plain": "JAX",
    "blackjax": "BlackJAX",
    "numpyro": "NumPyro",
    "nutpie": "nutpie",
    "torch": "PyTorch",
    "torch-compile": "torch.compile",
    "posteriors": "posteriors",
    "numpy": "NumPy",
}
COLOURS = {True: "#1b7f4d", False: "#9aa5ad"}

TEXT = """# Performance

Ribbit is compared with other libraries on the same machine, in turns, without compilation time.
`python -m benchmarks.performance --measure` makes this page again.

## How much faster is one unit of work?

Each bar shows how many times as long the best other library needs for the same work: a leapfrog
step, an epoch, a gradient or a prediction. The line shows the range over {rounds} rounds.

![Bars of ratios, from {lowest} to {highest}](_static/performance/ratios.png)

{ratios}

## How long until the chains have converged?

The problem is NumPyro's example of a Bayesian neural network: 3 inputs, two hidden layers of 5
units, 45 weights, 100 rows. Every sampler runs with the default settings of its library, from the
prior, until R-hat is at most 1.01 and the effective sample size at least 400 for outputs, noise and
log likelihood. The table gives medians over seeds.

![Bars of seconds to convergence](_static/performance/convergence.png)

{convergence}

Harder problems are in the developer pages: [time to convergence](developer/effective.md) also has
networks on which no sampler converges in its budget.

## How to read these figures

- One unit of work gains most for small networks, because a call into Ribbit costs little.
- Large dense products run near the peak of the processor in every library, so ratios are near 1.3.
- See the [performance guide](guide/speed.md) for threads, batches and GPUs, and the
  [benchmarks](developer/benchmarks.md) for times, versions and how each library was called.

Machine: {machine}. Versions: {versions}. Measured on {date}.
"""


@dataclass(frozen=True)
class Ratio:
    """Ribbit against the best other library on one workload; seconds per unit."""

    workload: str
    unit: str
    ours: float
    other: str
    theirs: float
    ratio: float
    low: float
    high: float


def ratios(record: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of a record of `benchmarks.report`, in the order of the workloads."""
    found = []
    for name in WORKLOADS:
        rounds = {
            reading["entry"]: reading["rounds"]
            for reading in record["readings"]
            if reading["workload"] == name and reading["rounds"]
        }
        others = {entry: times for entry, times in rounds.items() if not is_ours(entry)}
        if "ribbit" not in rounds or not others:
            continue
        best = min(others, key=lambda entry: statistics.median(others[entry]))
        each = [b / a for a, b in zip(rounds["ribbit"], others[best], strict=False)]
        ours, theirs = statistics.median(rounds["ribbit"]), statistics.median(others[best])
        unit, ratio = WORKLOADS[name].unit, statistics.median(each)
        found.append(Ratio(name, unit, ours, best, theirs, ratio, min(each), max(each)))
    return found


def converged(lines: list[Line]) -> dict[str, tuple[float, float, int]]:
    """Return the median seconds, the worst and the number of runs of each sampler on the problem.

    Seconds are infinite if half of the runs or more did not converge. Failed runs, and runs with
    other work on the machine, do not count.
    """
    sound = [line for line in lines if line["ended"] != "failed" and not loaded(line)]
    return {
        entry: (median(spent), max(spent), len(group))
        for entry, group in by_entry(sound, PROBLEM).items()
        for spent in [costs(group, SECONDS)]
    }


def library(entry: str) -> str:
    """Return the name of an entry for readers."""
    name, _, method = entry.partition(" ")
    return f"{NAMES.get(name, name)} {method.removesuffix(' 10')}".strip()  # of the tree depth


def _time(seconds: float) -> str:
    """Return a duration in the spelling of pages for users."""
    return duration(seconds).replace("us", "µs")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text(record: dict[str, Any], lines: list[Line]) -> str:
    """Return the page."""
    found, times = ratios(record), converged(lines)
    facts = dict(fact.partition(": ")[::2] for fact in record["facts"])
    rows = [
        [
            TITLES[r.workload],
            _time(r.ours),
            f"{_time(r.theirs)} ({library(r.other)})",
            f"**{r.ratio:.1f}** ({r.low:.1f} to {r.high:.1f})",
        ]
        for r in found
    ]
    seconds = [
        [
            library(entry),
            "not in the budget" if math.isinf(middle) else duration(middle),
            "not in the budget" if math.isinf(worst) else duration(worst),
            str(runs),
        ]
        for entry, (middle, worst, runs) in sorted(times.items(), key=lambda item: item[1])
    ]
    return TEXT.format(
        rounds=max(len(reading["rounds"]) for reading in record["readings"]),
        lowest=f"{min(r.ratio for r in found):.1f}",
        highest=f"{max(r.ratio for r in found):.1f}",
        ratios=table(["work", "Ribbit", "best other library", "ratio"], rows),
        convergence=table(["sampler", "median", "slowest run", "runs"], seconds),
        machine=facts["Machine"].partition(", Linux")[0],
        versions=facts["Versions"],
        date=facts["Date"].partition(",")[0],
    )


def draw(record: dict[str, Any], lines: list[Line], folder: Path) -> None:
    """Draw both charts."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(ratios(record), key=lambda r: r.ratio)
    figure, axes = plt.subplots(figsize=(7.5, 0.32 * len(found) + 1.0))
    axes.barh(
        [TITLES[r.workload] for r in found],
        [r.ratio for r in found],
        xerr=[[r.ratio - r.low for r in found], [r.high - r.ratio for r in found]],
        color=COLOURS[True],
        ecolor="#555555",
        error_kw={"lw": 1},
    )
    for place, r in enumerate(found):
        axes.annotate(
            f" {r.ratio:.1f}x {library(r.other)}", (r.high, place), va="center", fontsize=8
        )
    axes.axvline(1.0, color="#555555", lw=1)
    axes.set(xscale="log", xlim=(0.8, 30), xlabel="time of the best other library / time of Ribbit")
    axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    axes.minorticks_off()
    _save(figure, folder / "ratios.png")

    times = sorted(converged(lines).items(), key=lambda item: item[1], reverse=True)
    figure, axes = plt.subplots(figsize=(7.5, 0.32 * len(times) + 1.0))
    ends = [middle for _, (middle, _, _) in times if math.isfinite(middle)]
    for place, (entry, (middle, _, _)) in enumerate(times):
        said, end = "did not converge in its budget", min(ends)
        if math.isfinite(middle):
            said, end = f" {duration(middle)}", middle
            axes.barh(place, middle, color=COLOURS[is_ours(entry.partition(" ")[0])])
        axes.annotate(said, (end, place), va="center", fontsize=8)
    axes.set_yticks(range(len(times)), [library(entry) for entry, _ in times])
    axes.set(xscale="log", xlim=(min(ends) / 2, max(ends) * 4), ylim=(-0.6, len(times) - 0.4))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seconds to convergence (median of the runs)")
    _save(figure, folder / "convergence.png")


def _save(figure: Any, path: Path) -> None:
    for side in ("top", "right"):
        figure.axes[0].spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main(arguments: list[str] | None = None) -> None:
    """Measure if asked for, and write the page and its charts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run the benchmarks first")
    if parser.parse_args(arguments).measure:
        entries = [name for name, entry in ENTRIES.items() if entry.is_ours]
        ours = ["benchmarks.effective", "--problem", PROBLEM, "--entry", *entries, "--again", "old"]
        for command in (["benchmarks.report", "--write"], ours):
            subprocess.run([sys.executable, "-m", *command], check=True)
    record = json.loads(RECORD.read_text())
    lines = list(effective_lines.read().values())
    PAGE.write_text(text(record, lines), encoding="utf-8")
    draw(record, lines, PICTURES)


if __name__ == "__main__":
    main()
