"""How time and memory grow with the size of a problem: ``python -m benchmarks.scaling [--write]``.

Varies one size at a time: rows N, parameters P, chains, threads, draws. Prints the exponents and
the expected exponents. ``--write`` also writes docs/developer/scaling.md and
docs/developer/scaling.png, which needs matplotlib. It takes under two minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.harness.pages import print_table
from benchmarks.harness.stopping import until_stopped
from benchmarks.studies import scaling_curves
from benchmarks.studies.scaling_curves import Curve
from ribbit import _core

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENT = machine.ROOT / "docs" / "developer" / "scaling.md"
LINEAR = (0.95, 1.05)
COUNTED = 0.05  # largest distance from the exponent by count
LEAST_SPEED_UP = 1.9  # speed-up of chains on two cores
FLAT = 0.01  # largest ratio of memory per draw, without kept draws over with kept draws


@dataclass
class Measured:
    """All curves of a run; a run that was stopped lacks the later ones."""

    rows: list[Curve] = field(default_factory=list)
    parameters: list[Curve] = field(default_factory=list)
    chains: list[Curve] = field(default_factory=list)
    chains_speed: Curve | None = None
    threads: list[Curve] = field(default_factory=list)
    draws: list[Curve] = field(default_factory=list)
    memory: list[Curve] = field(default_factory=list)


def measure(rounds: int, found: Measured) -> None:
    """Measure all curves into `found`; print the current one on stderr."""

    def say(what: str) -> None:
        print(what, file=sys.stderr)

    say("rows")
    found.rows = scaling_curves.against_rows(rounds)
    say("parameters")
    found.parameters = scaling_curves.against_parameters(rounds)
    say("chains")
    found.chains, found.chains_speed = scaling_curves.against_chains(rounds)
    say("threads")
    found.threads = scaling_curves.against_threads(rounds)
    say("draws")
    found.draws, found.memory = scaling_curves.against_draws()


def per_draw(curve: Curve) -> float:
    """Return the bytes that a draw adds at the end of a curve of MB."""
    (low, few), (high, many) = list(zip(curve.sizes, curve.values, strict=True))[-2:]
    return (many - few) * 1e6 / (high - low)


def statements(found: Measured) -> list[list[str]]:
    """Return rows of the table: quantity, range, found, expected, met."""
    table = []
    for what, curves in (("N", found.rows), ("P", found.parameters)):
        for curve in curves:
            met = LINEAR[0] <= curve.exponent <= LINEAR[1]
            expected, outcome = f"{LINEAR[0]}-{LINEAR[1]}", "yes" if met else "NO"
            if curve.counted:
                expected += f", or by count {curve.counted_exponent:.3f} +- {COUNTED}"
                if not met and abs(curve.exponent - curve.counted_exponent) <= COUNTED:
                    outcome = "yes, by count"
            table.append(
                [
                    f"time of a gradient, exponent in {what}: {curve.name}",
                    f"{what} >= {min(n for n in curve.sizes if n >= curve.begin):,}",
                    f"{curve.exponent:.3f}",
                    expected,
                    outcome,
                ]
            )
    if found.chains_speed is not None:
        table += chain_statements(found.chains_speed)
    if not found.memory:
        return table
    kept, *streamed = found.memory
    begin = f"from {kept.sizes[-2]:,} draws"
    table.append([f"bytes per draw: {kept.name}", begin, f"{per_draw(kept):,.0f}", "", "-"])
    for curve in streamed:
        met = per_draw(curve) <= FLAT * per_draw(kept)
        found_bytes = f"{max(per_draw(curve), 0.0):,.0f}"
        row = [f"bytes per draw: {curve.name}", begin, found_bytes, f"<= {FLAT:.0%} of kept draws"]
        table.append([*row, "yes" if met else "NO"])
    return table


def chain_statements(speed: Curve) -> list[list[str]]:
    """Return rows of the speed-up of several chains, with an expected value on two cores."""
    cores = len(machine.cores())
    best = dict(zip(speed.sizes, speed.values, strict=True))
    table = []
    for chains in (8, 64):
        met = best[chains] >= LEAST_SPEED_UP
        table.append(
            [
                f"speed-up of {speed.name}, {chains} chains",
                "",
                f"{best[chains]:.2f}x",
                f">= {LEAST_SPEED_UP}x" if cores == 2 else "",
                ("yes" if met else "NO") if cores == 2 else "-",
            ]
        )
    return table


def facts() -> list[str]:
    """Return machine, versions, date and commit."""
    return [
        f"Machine: {machine.processor()}, {len(machine.cores())} cores, instruction set "
        f"{_core.isa()}, {scaling_curves.second_level_cache() // 1024:,} KiB of second-level cache",
        f"Versions: Python {platform.python_version()}, ribbit {rb.__version__}",
        f"Date: {datetime.date.today().isoformat()}, commit {machine.commit()}",
    ]


def markdown(table: list[list[str]]) -> str:
    """Return the text of docs/developer/scaling.md."""
    text = [
        "# Scaling",
        "",
        "Written by `python -m benchmarks.scaling --write`, with the picture.",
        "",
        "- **Times** of gradients and chains are the smallest of the rounds. Speed-ups are",
        "  medians over the rounds of the ratio within a round. Sizes and threads take turns",
        "  within a round.",
        "- **Exponents** are least-squares slopes of log time on log size. The fit begins at the",
        "  size at which the inputs (for N) or the weights and their gradient (for P) no longer",
        "  fit into the second-level cache of a core.",
        "- **Exponents by count** are slopes of a counted time: products at the peak, then bytes",
        "  at the copy bandwidth of the level that holds all of them. The bytes are weights (read",
        "  once per group of 128 rows), their gradient (read and written once per block), and",
        "  activations. Peak and bandwidths are measured in the same run. The step at which the",
        "  bytes leave the last-level cache makes an exponent larger than 1.",
        "- **Memory** is the peak of a separate process above its peak after ten draws.",
        "  Predictions are means at 1,000 rows. Two things remain if no draws are kept: the",
        "  statistics of each transition, and a block of outputs that stops growing at 17 MB.",
        "",
        "## Machine and run",
        "",
        *(f"- {line}" for line in facts()),
        "",
        "## Results",
        "",
        "![Time and memory against rows, parameters, chains, threads and draws](scaling.png)",
        "",
        "| quantity | range | found | expected | met |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table),
    ]
    return "\n".join(text) + "\n"


def draw_curves(ax: Axes, curves: list[Curve], factor: float, *, exponents: bool) -> None:
    """Draw points and lines, exponents in the legend, and a dotted line at the begin of a fit."""
    from ribbit.plots.style import COLORS, INK

    for curve, color in zip(curves, COLORS, strict=False):
        label = f"{curve.name}: {curve.exponent:.2f}" if exponents else curve.name
        values = [factor * value for value in curve.values]
        ax.plot(curve.sizes, values, "o-", ms=3.5, lw=1.4, color=color, label=label)
        if exponents:
            ax.axvline(curve.begin, ymax=0.72, color=color, lw=0.9, ls=":")
    ax.tick_params(labelsize=8, colors=INK)


def draw_threads(ax: Axes, curves: list[Curve]) -> None:
    """Draw speed-ups on linear axes, and the speed-up of a perfect division of the work."""
    from ribbit.plots.style import GREY

    draw_curves(ax, curves, 1.0, exponents=False)
    counts = curves[0].sizes
    ax.plot(counts, counts, "--", lw=1.0, color=GREY, label="as many times as threads")
    ax.set_xticks(counts)
    ax.set_ylim(0.0, 1.75 * max(counts))  # space for the legend


def picture(found: Measured, path: Path) -> None:
    """Draw the six axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from ribbit.plots.style import finish

    figure, axes = plt.subplots(2, 3, figsize=(12.0, 7.2), layout="constrained")
    rows, parameters, chains, threads, draws, memory = axes.flat
    draw_threads(threads, found.threads)
    threads.set(title="Speed-up against threads", xlabel="threads", ylabel="speed-up")
    logarithmic = [
        (rows, found.rows, 1e3, "Gradient against rows, one thread", "rows N"),
        (parameters, found.parameters, 1e3, "Gradient against parameters, N=1,024", "parameters P"),
        (chains, found.chains, 1e6, "Leapfrog of all chains, MLP 8-50-1, N=927", "chains"),
        (draws, found.draws, 1.0, "Draws and their predictions, P=2,701", "draws"),
        (memory, found.memory, 1.0, "Peak memory above that of ten draws", "draws"),
    ]
    for ax, curves, factor, title, size in logarithmic:
        draw_curves(ax, curves, factor, exponents=ax in (rows, parameters, draws))
        ax.set(title=title, xlabel=size, xscale="log", yscale="log")
        ax.set_ylabel({1.0: "time, s", 1e3: "time, ms", 1e6: "time, us"}[factor])
        low, high = ax.get_ylim()
        low = max(low, 0.1) if ax is memory else low  # smaller values are noise
        ax.set_ylim(low, high * (high / low) ** 0.4)  # space for the legend
    memory.set_ylabel("memory, MB")
    chains.minorticks_off()
    chains.set_xticks(found.chains[0].sizes, [str(size) for size in found.chains[0].sizes])
    for ax in axes.flat:
        ax.title.set_size(10)
        ax.xaxis.label.set_size(9)
        ax.yaxis.label.set_size(9)
        finish(ax, legend=False)
        title = "exponent right of the dotted line" if ax in (rows, parameters, draws) else None
        look = {"fontsize": 8, "title_fontsize": 8, "alignment": "left", "frameon": False}
        ax.legend(loc="upper left", title=title, **look)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; return 0 for all outcomes unless the run was stopped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    options = parser.parse_args(arguments)
    if options.write:
        import matplotlib  # noqa: F401  # fails before minutes of measurement, not after
    found = Measured()
    with until_stopped() as stop:
        measure(options.rounds, found)
    table = statements(found)
    if options.write and not stop.status:
        options.write.write_text(markdown(table))
        picture(found, options.write.with_suffix(".png"))
    print_table(("Scaling", ["quantity", "range", "found", "expected", "met"], table))
    print("\n".join(facts()))
    return stop.status
