"""Table and picture of the demo's comparison of methods."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from ribbit._cli.demo_methods import METHODS, Comparison, MethodResult
from ribbit._cli.demo_scores import LEVEL, RHAT, Array, converged

__all__ = ["draw_methods", "methods_notes", "methods_table"]

_SHOWN = 700  # data points per panel: more would hide the bands
_REACH = 0.15  # how far the panels go beyond the data, in units of x


def methods_table(comparison: Comparison) -> Any:
    """Return a rich table with a row per method."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("")
    for name in ("RMSE", "log lik.", "in 90 %", "time"):
        table.add_column(name, justify="right")
    table.add_column("worst R-hat")
    for name, result in comparison.results.items():
        scores = result.scores
        table.add_row(
            name if result.complete else f"{name} (stopped)",
            f"{scores.rmse:.4f}",
            f"{scores.log_likelihood:.3f}",
            f"{100 * scores.coverage:.1f} %",
            f"{result.seconds:.1f} s",
            _agreement(result.rhat),
        )
    return table


def _draws(comparison: Comparison) -> str:
    """Return how many draws each method has."""
    found: dict[int, list[str]] = {}
    for name, result in comparison.results.items():
        chains, kept, _ = result.draws.positions.shape
        found.setdefault(chains * kept, []).append(name)
    most = max(found, key=lambda count: len(found[count]))
    others = [f"{', '.join(names)} {n:,}" for n, names in found.items() if n != most]
    return "; ".join([f"{most:,} draws per method", *others])


def _agreement(rhat: tuple[float, float] | None) -> str:
    """Return the largest R-hat and what it means; nothing where there are no chains."""
    if rhat is None:
        return ""
    return f"{rhat[1]:.3f} {'converged' if converged(rhat[1]) else 'not converged'}"


def methods_notes(comparison: Comparison) -> str:
    """Return what the table's figures mean, in lines of at most 78 characters."""
    text = (
        f"RMSE of the true mean: {comparison.rmse_truth:.4f}; of a constant: "
        f"{comparison.rmse_constant:.4f}. {_draws(comparison)}. Log likelihood per test row; share "
        "of the test rows in their 90 % intervals. Time: fitting or sampling, and predicting the "
        "test rows; HMC and SGLD start from Bayes by Backprop, whose fit is in their time. "
    )
    if any(result.rhat is not None for result in comparison.results.values()):
        text += (
            f"R-hat of the predictions; converged means at most {RHAT}. Chains that are not are an "
            "ensemble whose members have moved, and not yet draws of the posterior. "
        )
    if "HMC" in comparison.results:
        divergences = int(comparison.results["HMC"].draws.stats["diverging"].sum())
        text += f"HMC diverged {divergences} times. "
    text += (
        "The noise of this curve changes with x, but every network learns one sd: 90 % holds over "
        "all rows, not at every x."
    )
    return textwrap.fill(text, 78)


def draw_methods(path: str, comparison: Comparison) -> None:
    """Save a panel per method, and one that compares how sure they are of the mean."""
    from matplotlib.figure import Figure  # not pyplot: no window, no global state
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from ribbit.plots.style import COLORS, GREY, INK, finish

    x, y = comparison.x_test[:_SHOWN, 0], comparison.y_test[:_SHOWN]
    low, high = float(comparison.x_test.min()), float(comparison.x_test.max())
    grid = np.linspace(low - _REACH, high + _REACH, 241)
    figure = Figure(figsize=(11.5, 7.0), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    widths = axes[-1]
    for number, (ax, name) in enumerate(zip(axes, METHODS, strict=False)):
        result, color = comparison.results.get(name), COLORS[number]
        ax.plot(x, y, ".", color=INK, ms=3.5, alpha=0.4, mew=0, zorder=1)
        if result is None:
            ax.set_title(f"{name}: not run", fontsize="medium")
        else:
            mean, noisy, inner = _curves(result, comparison, grid)
            ax.fill_between(grid, *noisy, color=color, alpha=0.22, lw=0, zorder=2)
            ax.fill_between(grid, *inner, color=color, alpha=0.45, lw=0, zorder=3)
            ax.plot(grid, mean, color=color, lw=1.6, zorder=4)
            ax.set_title(f"{name}: {100 * result.scores.coverage:.1f} % inside", fontsize="medium")
            widths.plot(grid, inner[1] - inner[0], color=color, lw=1.6, label=name)
        ax.set_ylim(y.min() - 0.7, y.max() + 0.5)
        if number in (0, 3):
            ax.set_ylabel("y (dimensionless)")
    widths.set_yscale("log")
    widths.set_ylabel("width (dimensionless)")
    widths.set_title("How wide is the 90 % band of the mean?", fontsize="medium")
    figure.suptitle(
        f"One curve, one network, five methods ({len(comparison.scaler.x):,} training rows)"
    )
    for ax in axes:
        for a, b in ((grid[0], low), (high, grid[-1])):
            ax.axvspan(a, b, color=GREY, alpha=0.13, lw=0, zorder=0)
        ax.set_xlim(grid[0], grid[-1])
        ax.set_xlabel("x (dimensionless)")
        finish(ax, legend=False)
    if comparison.results:
        bottom, top = widths.get_ylim()
        widths.set_ylim(bottom, 8.0 * top)  # room for the legend
        widths.legend(frameon=False, fontsize="small", ncols=2, loc="upper center")
    figure.legend(
        handles=[
            Line2D([], [], color=INK, marker=".", ls="", label=f"{len(x)} of the test rows"),
            Line2D([], [], color=INK, label="mean"),
            Patch(color=INK, alpha=0.5, lw=0, label="90 % band of the mean"),
            Patch(color=INK, alpha=0.2, lw=0, label="90 % band of y (mean and noise)"),
            Patch(color=GREY, alpha=0.25, lw=0, label="no data"),
        ],
        loc="outside lower center",
        ncols=5,
        frameon=False,
    )
    figure.savefig(path, dpi=150)


def _curves(
    result: MethodResult, comparison: Comparison, grid: Array
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    """Mean, 90 % band of y and 90 % band of the mean function at grid (N,)."""
    scaler = comparison.scaler
    prediction = result.draws.predict(scaler.transform(grid[:, None]))

    def band(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        lower, upper = (np.asarray(scaler.inverse_y(end)) for end in ends)
        return lower, upper

    mean = np.asarray(scaler.inverse_y(prediction.mean))
    return mean, band(prediction.interval(LEVEL)), band(prediction.mean_interval(LEVEL))
