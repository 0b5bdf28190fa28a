"""The page docs/developer/effective.md, from the lines of `benchmarks.effective`."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.harness.pages import Table, duration, markdown
from benchmarks.studies import effective_lines as results
from benchmarks.studies.effective_lines import (
    EFFECTIVE,
    GRADIENTS,
    NLL,
    RHAT,
    SECONDS,
    Line,
    costs,
    median,
)
from benchmarks.workloads.effective_entries import ENTRIES
from benchmarks.workloads.effective_problems import PROBLEMS

DOCUMENT = machine.ROOT / "docs" / "developer" / "effective.md"
SEEDS = 10  # that a cell should have behind it
REFERENCE = 10 * 400  # effective samples that a reference of means has at least
RESAMPLES = 2000  # of the bootstrap over seeds

PREAMBLE = """
`python -m benchmarks.effective --write` makes this page from `benchmarks/results/effective.jsonl`.
The file has one line per problem, entry and seed. Each line is a run in its own process on the same
two cores.

**Monitored quantities** are the outputs f at 64 inputs, the log noise (or the mean log sd if the
noise is an output) and the log likelihood. 16 of these inputs lie outside the data. They are points
of the curve with |u| from 1.1 to 2. In the UCI sets they are test rows at three times their
distance from the mean, and for digits they have black and white exchanged.

**A run has converged** if E >= 400 and R-hat <= 1.01. E is the smallest of the bulk, tail and
squares effective sample sizes of these quantities, computed as in arviz-stats. R-hat is the largest
rank-normalised split R-hat. Both are computed each time the number of draws has grown by a quarter.
Beyond 4,000 draws per chain they use every second draw, then every fourth, and so on.

**Gradients** count one chain on all rows once. The sum covers all chains, warmup, tuning and
starts, but not the search for a first step size (about ten per chain). **Seconds** are measured
from a cold start, without compilation and without computing the monitored quantities. If other
processes used the machine during a run, its remark is "loaded" and its seconds are too large. CPU
seconds are summed over all threads of a whole run and suffer less. Ratios are to the best exact
entry of Ribbit.

**Settings** are the defaults of each library (last table), for every problem. A run that does not
converge within its budget of gradients and seconds counts as infinite. The median of ten runs is
infinite if six of them did not converge. Before it runs, the density and gradient of every entry
are compared with one implementation in NumPy. The targets y are standardised with the training
rows, and the test NLL is in these units. If the budgets of a problem's rows differ (see the
remarks), E, R-hat and CPU seconds come from runs of different lengths.

**Squared bias** is the mean over quantities of ((mean - reference) / sd)^2, as the median over
seeds. The reference is the mean over all converged runs of exact entries with other libraries or
algorithms. It has at least ten times the effective samples that convergence requires. An exact
entry has a squared bias of about 1 / E by chance; a larger value is bias.

The rows of ribbit MCLMC were measured with an earlier default of one draw every 25 steps, except
for bnn and LeNet-5.

LeNet-5 on 100 digits has one run each of HMC, NUTS and MCLMC of at most two hours, because a
gradient takes 11 ms on two cores. NUTS and MCLMC ran at the same time as other work, and MCLMC was
stopped early. None of them converged. NUTS builds trees of 255 leapfrog steps. Its warmup of 500
iterations therefore takes 164,000 gradients for four chains.
"""


def by_entry(lines: list[Line], problem: str) -> dict[str, list[Line]]:
    """Lines of one problem, by entry in the order of the table of entries."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["problem"] == problem:
            found[line["entry"]].append(line)
    return {name: found[name] for name in ENTRIES if name in found}


def last(line: Line, column: int) -> float:
    """Return the last value of a curve, NaN if it is missing or not finite."""
    value = line["curve"][-1][column] if line["curve"] else None
    return math.nan if value is None else float(value)


def number(value: float, digits: int = 3) -> str:
    """Return a number with commas, "-" for NaN and "never" for infinity."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def interval(values: list[float]) -> str:
    """Median with the bootstrap's 95 % interval over the seeds."""
    sound = np.array([v for v in values if math.isfinite(v)])
    if not sound.size:
        return "-"
    if sound.size == 1:
        return number(float(sound[0]))
    rng = np.random.default_rng(0)
    again = np.median(rng.choice(sound, (RESAMPLES, sound.size)), axis=1)
    low, high = np.quantile(again, [0.025, 0.975])
    return f"{number(float(np.median(sound)))} ({number(float(low))}-{number(float(high))})"


def rates(lines: list[Line], column: int, factor: float) -> list[float]:
    """E over gradients or seconds at the end of each run; a run with no draws has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return [factor * last(line, EFFECTIVE) / (last(line, column) or math.nan) for line in lines]


def processor(lines: list[Line]) -> float:
    """Median CPU seconds of whole runs, NaN where no line has them."""
    found = [line["cpu_seconds"] for line in lines if line.get("cpu_seconds")]
    return median(found) if found else math.nan


def reference(groups: dict[str, list[Line]], entry: str) -> tuple[Any, Any] | None:
    """Means and sds (Q,) of the exact others that converged; None where they are too few."""
    algorithm = entry.split(" ", 1)[1] if " " in entry else entry
    others = [
        line
        for name, lines in groups.items()
        if ENTRIES[name].exact and name != entry and algorithm not in name
        for line in lines
        if results.outcome(line) and line.get("means")
    ]
    if sum(last(line, EFFECTIVE) for line in others) < REFERENCE:
        return None
    weights = np.array([last(line, EFFECTIVE) for line in others])
    means = np.array([line["means"] for line in others], dtype=float)
    sds = np.array([line["sds"] for line in others], dtype=float)
    return weights @ means / weights.sum(), np.median(sds, axis=0)


def squared_bias(groups: dict[str, list[Line]], entry: str) -> float:
    """Median over the seeds; NaN without a reference."""
    against = reference(groups, entry)
    if against is None:
        return math.nan
    means, sds = against
    each = [
        float(np.mean(((np.array(line["means"], dtype=float) - means) / sds) ** 2))
        for line in groups[entry]
        if line.get("means") and None not in line["means"]
    ]
    return float(np.median(each)) if each else math.nan


def remarks(lines: list[Line], now: str) -> str:
    """Return what a reader has to know about these lines."""
    found = []
    count = sum(map(results.loaded, lines))
    if count:
        found.append(f"loaded {count}/{len(lines)}")
    other = [line for line in lines if line["code"] != now]
    if now and ENTRIES[lines[0]["entry"]].is_ours and other:
        found.append(f"earlier version {len(other)}/{len(lines)}")
    for ended in ("gradients", "seconds", "draws", "killed", "failed"):
        count = sum(line["ended"] == ended for line in lines)
        if count and PROBLEMS[lines[0]["problem"]].mixes:
            said = {"draws": "out of draws", "killed": "killed", "failed": "failed"}
            found.append(f"{said.get(ended, f'out of {ended}')} {count}/{len(lines)}")
    problem = PROBLEMS[lines[0]["problem"]]
    usual = {"gradients": problem.gradients, "seconds": problem.seconds}
    for line in lines:
        own = line.get("budget", usual)
        text = f"budget {own['gradients']:,.0f} gradients and {own['seconds']:g} s"
        if own != usual and text not in found:
            found.append(text)
    return ", ".join(found) or "-"


def mixing_table(name: str, groups: dict[str, list[Line]], now: str) -> Table:
    """Gradients and seconds to convergence; ESS per gradient and second of whole runs."""
    head = ["entry", "seeds", "converged", "gradients: median", "worst", "ratio"]
    head += ["seconds: median", "worst", "ratio", "CPU s", "ratio", "compile", "R-hat at the end"]
    head += ["ESS per 1,000 gradients", "ESS per second", "squared bias", "remarks"]
    ours = [lines for entry, lines in groups.items() if ENTRIES[entry].is_ours]

    def least(column: int) -> float:
        exact = [g for g in ours if ENTRIES[g[0]["entry"]].exact]
        return min((median(costs(lines, column)) for lines in exact), default=math.nan)

    best = {column: least(column) for column in (GRADIENTS, SECONDS)}
    exact = [lines for entry, lines in groups.items() if ENTRIES[entry].exact]
    cpu = min(
        (processor(g) for g in exact if ENTRIES[g[0]["entry"]].is_ours and processor(g) > 0.0),
        default=math.nan,
    )
    rows = []
    for entry, lines in groups.items():
        row = [entry, f"{len(lines)}" + ("" if len(lines) >= SEEDS else f" of {SEEDS}")]
        row.append(f"{sum(results.outcome(line) is not None for line in lines)}/{len(lines)}")
        for column in (GRADIENTS, SECONDS):
            spent = costs(lines, column)
            ratio = median(spent) / best[column] if math.isfinite(best[column]) else math.nan
            row += [number(median(spent)), number(max(spent))]
            row.append(f"{ratio:.3g}x" if math.isfinite(ratio) else "-")
        used = processor(lines)
        row += [number(used), f"{used / cpu:.3g}x" if used / cpu > 0.0 else "-"]
        row.append(duration(median([line.get("compile") or math.nan for line in lines])))
        row.append(interval([last(line, RHAT) for line in lines]))
        row.append(interval(rates(lines, GRADIENTS, 1e3)))
        row.append(interval(rates(lines, SECONDS, 1.0)))
        row.append(number(squared_bias(groups, entry), 2))
        row.append(remarks(lines, now))
        rows.append(row)
    return f"{name}: {PROBLEMS[name].title}", head, rows


def at(line: Line, gradients: float) -> float:
    """Return the NLL of the last point of at most so many gradients, NaN where there is none."""
    values = [p[NLL] for p in line["curve"] if p[GRADIENTS] <= 1.02 * gradients]
    return math.nan if not values or values[-1] is None else float(values[-1])


def mode_table(name: str, groups: dict[str, list[Line]], now: str) -> Table:
    """Test NLL at parts of the budget, and R-hat, for problems whose chains stay in their modes."""
    budget = PROBLEMS[name].gradients
    shares = [budget / 4.0, budget / 2.0, budget]
    head = ["entry", "seeds", *(f"NLL at {share:,.0f} gradients" for share in shares)]
    head += ["NLL at the end", "worst", "gradients", "seconds", "CPU s", "compile"]
    head += ["R-hat at the end", "E at the end", "remarks"]
    rows = []
    for entry, lines in groups.items():
        ends = [last(line, NLL) for line in lines]
        worst = max((e for e in ends if math.isfinite(e)), default=math.nan)
        row = [entry, f"{len(lines)}" + ("" if len(lines) >= SEEDS else f" of {SEEDS}")]
        row += [interval([at(line, share) for line in lines]) for share in shares]
        row += [interval(ends), number(worst)]
        row += [number(median([last(line, c) for line in lines])) for c in (GRADIENTS, SECONDS)]
        row.append(number(processor(lines)))
        row.append(duration(median([line.get("compile") or math.nan for line in lines])))
        row += [interval([last(line, RHAT) for line in lines])]
        row += [interval([last(line, EFFECTIVE) for line in lines]), remarks(lines, now)]
        rows.append(row)
    return f"{name}: {PROBLEMS[name].title}", head, rows


def tables(lines: list[Line]) -> list[Table]:
    """One per problem that has lines, and the entries."""
    now, found = results.code(), []
    for name, problem in PROBLEMS.items():
        groups = by_entry(lines, name)
        if groups:
            make = mixing_table if problem.mixes else mode_table
            found.append(make(name, groups, now))
    shown = {line["entry"] for line in lines}
    forms = {line["entry"]: line.get("form", "-") for line in lines}
    rows = [[name, entry.settings, forms[name]] for name, entry in ENTRIES.items() if name in shown]
    found.append(("Entries", ["entry", "its defaults", "form"], rows))
    return found


def unconverged(lines: list[Line]) -> str:
    """Return a list of the problems on which no run converged, with R-hat and E of each entry."""
    found = []
    for name in PROBLEMS:
        groups = by_entry(lines, name)
        if groups and not any(results.outcome(line) for group in groups.values() for line in group):
            each = [f"{entry} {_ends(group)}" for entry, group in groups.items()]
            text = f"- {name}: {', '.join(each)}"
            found += textwrap.wrap(text, 100, subsequent_indent="  ")
    if not found:
        return ""
    said = "**No entry converged** on these problems. R-hat and E at the end of the runs (medians):"
    return "\n".join(["", said, "", *found, ""])


def likelihoods(lines: list[Line]) -> str:
    """Return the log likelihood of the training rows of each classifier, by entry."""
    said = []
    for name, problem in PROBLEMS.items():
        groups = by_entry(lines, name) if problem.noise == "classes" else {}
        each = [
            f"{number(median(means))} (sd {number(median(sds))}) by {entry}"
            for entry, group in groups.items()
            if (means := [line["means"][-1] for line in group if line.get("means")])
            and (sds := [line["sds"][-1] for line in group if line.get("sds")])
        ]
        if each:
            said.append(f"The log likelihood of {name}'s training rows is {', '.join(each)}.")
    return "".join(f"\n{textwrap.fill(one, 100)}\n" for one in said)


def _ends(lines: list[Line]) -> str:
    rhat, ess = ([last(line, column) for line in lines] for column in (RHAT, EFFECTIVE))
    worst = median([value if math.isfinite(value) else math.inf for value in rhat])
    if math.isinf(worst):
        return "none"
    return f"{number(worst)} ({number(median([v for v in ess if math.isfinite(v)]))})"


def facts(lines: list[Line], command: str) -> list[str]:
    """Machines, versions, dates and codes of the lines."""
    versions: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for name, version in line.get("versions", {}).items():
            versions[name].add(version)
    said = ", ".join(f"{name} {' or '.join(sorted(v))}" for name, v in sorted(versions.items()))
    dates = sorted(line["date"] for line in lines) or ["-"]
    commits = sorted({line["commit"] for line in lines})
    machines = sorted({f"{line['machine']}, {line['cores']} cores" for line in lines})
    return [
        f"Machine: {'; '.join(machines) or '-'}",
        f"Versions: {said or '-'}",
        f"Runs: {len(lines)}, from {dates[0]} to {dates[-1]}, commits {', '.join(commits) or '-'}",
        f"Runs next to other work on the machine (loaded): {sum(map(results.loaded, lines))}",
        f"Command: `{command}`",
    ]


def page(lines: list[Line], command: str, picture: str = "") -> str:
    """Write the page."""
    preamble = (
        PREAMBLE
        + unconverged(lines)
        + likelihoods(lines)
        + (f"\n![{picture}]({picture})\n" if picture else "")
    )
    return markdown(
        "Time to convergence with default settings", preamble, tables(lines), facts(lines, command)
    )


def write(path: Path, lines: list[Line], command: str) -> None:
    """Write the page, and its picture if matplotlib is installed."""
    picture = path.with_suffix(".png")
    drawn = draw(picture, lines)
    path.write_text(page(lines, command, picture.name if drawn else ""))


def draw(path: Path, lines: list[Line]) -> bool:
    """Draw the test NLL against gradients and seconds; return False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator

    problems = [name for name in PROBLEMS if by_entry(lines, name)]
    if not problems:
        return False
    figure, axes = plt.subplots(
        len(problems), 2, figsize=(9.0, 2.8 * len(problems)), squeeze=False, sharey="row"
    )
    colours = {name: f"C{k % 10}" for k, name in enumerate(ENTRIES)}
    styles = {name: "-" if ENTRIES[name].is_ours else "--" for name in ENTRIES}
    for row, name in zip(axes, problems, strict=True):
        for axis, column, label in zip(
            row, (GRADIENTS, SECONDS), ("gradients", "seconds"), strict=True
        ):
            ends: list[float] = []
            for entry, group in by_entry(lines, name).items():
                for k, line in enumerate(group):
                    points = [p for p in line["curve"] if p[NLL] is not None and p[column]]
                    if points:
                        x, y = zip(*[(p[column], p[NLL]) for p in points], strict=True)
                        style = {"color": colours[entry], "linestyle": styles[entry], "lw": 0.9}
                        axis.plot(x, y, label=entry if k == 0 else None, **style)
                        ends += y[len(y) // 2 :]
            axis.set(xscale="log", xlabel=label)
            low, high = axis.get_xlim()
            steps = (1.0, 2.0, 5.0) if high < 200.0 * low else (1.0,)  # more would overlap
            axis.xaxis.set_major_locator(LogLocator(subs=steps, numticks=8))
            plain = FuncFormatter("{:,g}".format) if label == "seconds" else EngFormatter(sep="")
            axis.xaxis.set_major_formatter(plain)
            axis.minorticks_off()
            if ends:  # what is far above the rest is cut
                low, high = min(ends), float(np.quantile(ends, 0.9))
                spread = max(high - low, 0.02)
                axis.set_ylim(low - 0.1 * spread, high + 0.5 * spread)
        row[0].set_ylabel("test NLL per row")
        row[0].set_title(name, loc="left", fontsize=9)
        row[1].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)
    return True
