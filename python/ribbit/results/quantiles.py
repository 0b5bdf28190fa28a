"""Quantiles of values that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ribbit._arrays import checks
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["probabilities", "sorted_quantile"]


def probabilities(function: str, q: object, *, ends: bool) -> tuple[npt.NDArray[np.float64], bool]:
    """Return q as (Q,) float64 and whether it was one number; `ends` lets 0 and 1 in."""
    raw = checks.numeric(function, "q", q)
    if raw.ndim > 1 or raw.size == 0:
        raise ValueError(f"[{function}] expected q as a number or (Q,), got shape {raw.shape}")
    array = raw.astype(np.float64)
    good = (array >= 0.0) & (array <= 1.0) if ends else (array > 0.0) & (array < 1.0)
    interval = "[0, 1]" if ends else "(0, 1)"
    checks.all_true(function, f"q in {interval}", "q", array, good)
    return np.atleast_1d(array), array.ndim == 0


def sorted_quantile(xp: ModuleType, values: Array, q: Sequence[float]) -> Array:
    """Quantiles of values sorted along the last axis, linear between neighbours (NumPy's default).

    Parameters
    ----------
    values : (..., S) float64 array, ascending
    q : (Q,) in [0, 1]

    Returns
    -------
    (Q, ...) array
    """
    size = values.shape[-1]
    result = []
    for p in q:
        place = float(p) * (size - 1)
        low = min(int(place), size - 1)
        high = min(low + 1, size - 1)
        below, above = values[..., low], values[..., high]
        result.append(below + (above - below) * (place - low))
    return xp.stack(result, axis=0)
