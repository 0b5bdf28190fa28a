"""The look of the pictures: that of `rb.plots`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from ribbit.plots.style import COLORS, GREY, INK, finish
from studies.izmailov.outcomes import interval

__all__ = ["COLORS", "GREY", "INK", "axes", "bars", "finish", "line"]


def axes(count: int, *, height: float = 3.2) -> tuple[Any, list[Any]]:
    """Return a figure with axes side by side."""
    width = 6.0 if count == 1 else 3.4 * count
    figure, found = plt.subplots(1, count, figsize=(width, height), layout="constrained")
    return figure, [found] if count == 1 else list(found)


def line(
    ax: Any, x: Sequence[float], values: Sequence[Sequence[float]], label: str, color: str
) -> None:
    """Means over splits against x, with 95 % intervals."""
    means, halves = zip(*(interval(v) for v in values), strict=True)
    ax.errorbar(x, means, halves, fmt="o-", ms=4, capsize=2, lw=1.4, color=color, label=label)


def bars(ax: Any, names: Sequence[str], values: Sequence[Sequence[float]], title: str) -> None:
    """Means over splits as points on rows, the first at the top, with 95 % intervals."""
    means, halves = zip(*(interval(v) for v in values), strict=True)
    rows = range(len(names))
    ax.errorbar(means, rows, xerr=halves, fmt="o", ms=5, capsize=2, color=COLORS[0])
    ax.set_yticks(rows, names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel(title)
    finish(ax, legend=False)
