"""The one look of all pictures, and the checks they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays import checks
from ribbit._arrays.packages import needing
from ribbit.errors import ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# blue, orange, green, red, purple, brown: told apart by most colour-blind readers and in print
COLORS = ("#2f6db3", "#e08214", "#2a9d6f", "#c43c4e", "#7b5ea7", "#8c6d46")
INK, GREY = "#263238", "#90a4ae"


def new_axes(function: str, ax: Axes | None) -> Axes:
    """Return `ax`, or the axes of a new pyplot figure."""
    with needing(function, "matplotlib"):
        import matplotlib.axes
    if ax is None:
        import matplotlib.pyplot as plt

        return plt.subplots(figsize=(6.4, 4.0), layout="constrained")[1]
    if not isinstance(ax, matplotlib.axes.Axes):
        raise TypeError(f"[{function}] expected ax as matplotlib Axes, got {checks.summary(ax)}")
    return ax


def has(function: str, name: str, value: object, member: str, expected: str) -> None:
    """Raise a TypeError unless `value` has `member`; a Prediction's members are not evaluated."""
    if not hasattr(type(value), member) and not hasattr(value, member):
        raise TypeError(f"[{function}] expected {name} as {expected}, got {checks.summary(value)}")


def finish(ax: Axes, *, legend: bool, grid: bool = True) -> None:
    """Give all pictures one look; only this Axes is changed, no rcParams."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if grid:
        ax.grid(True, color=GREY, alpha=0.25, lw=0.6)
        ax.set_axisbelow(True)
    if legend:
        ax.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize="small")


def line(
    function: str, name: str, x: npt.ArrayLike, rows: int | None = None
) -> npt.NDArray[np.float64]:
    """Return x (N,) or (N, 1) as (N,)."""
    raw = checks.numeric(function, name, x)
    if raw.ndim not in (1, 2) or (raw.ndim == 2 and raw.shape[1] != 1):
        raise ShapeError(f"[{function}] expected {name} of shape (N,) or (N, 1), got {raw.shape}")
    if rows is not None and len(raw) != rows:
        raise ShapeError(f"[{function}] expected {name} with {rows} rows, got {len(raw)}")
    checks.finite(function, name, raw)
    return raw.reshape(-1).astype(np.float64)


def palette_of(classes: int) -> npt.NDArray[np.float64]:
    """RGB (classes, 3)."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    if classes <= len(COLORS):
        return np.array([to_rgb(color) for color in COLORS[:classes]])
    names: Sequence[Any] = [
        colormaps["turbo"](0.05 + 0.9 * i / (classes - 1)) for i in range(classes)
    ]
    return np.array([to_rgb(color) for color in names])
