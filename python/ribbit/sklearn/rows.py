"""Tables as they come from a user: columns that are no numbers, an order of rows, their weights.

Shapes: N rows, D columns, J columns of y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["copies", "gap", "numbers", "ordered", "word_column"]

_MOST = 4  # times the rows that came


def word_column(x: Any) -> str | None:
    """Say which column of a frame holds what is no number; None where `x` is no frame or all are.

    Returns
    -------
    str or None
        Such as ``"column 'city' with 'Paris' in row 3"``.
    """
    if not hasattr(x, "columns"):
        return None
    for name in x.columns:
        values = np.asarray(x[name])
        if values.dtype.kind in "mM":
            return f"column {name!r} of times"
        try:
            values.astype(np.float64)
        except (TypeError, ValueError):
            for row, value in enumerate(values.tolist()):
                try:
                    float(value)
                except (TypeError, ValueError):
                    return f"column {name!r} with {checks.summary(value)} in row {row}"
            return f"column {name!r} of {values.dtype}"
    return None


def gap(x: Any) -> str | None:
    """Say where a frame has its first gap; None where `x` is no frame or has none.

    Returns
    -------
    str or None
        Such as ``"column 'width' in row 3"``.
    """
    if not hasattr(x, "columns"):
        return None
    for name in x.columns:
        missing = np.isnan(np.asarray(x[name], dtype=np.float64))
        if missing.any():
            return f"column {name!r} in row {int(np.argmax(missing))}"
    return None


def numbers(function: str, name: str, value: Any) -> None:
    """Raise for what scikit-learn would read as numbers in silence: texts, times, masked values.

    Raises
    ------
    TypeError, ValueError
        Naming the argument.
    """
    checks.unmasked(function, name, value)
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind not in "biufcO":
        raise TypeError(
            f"[{function}] expected {name} as an array of numbers, got {checks.summary(value)}"
        )


def ordered(
    x: npt.NDArray[Any], y: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.intp]:
    """Return the order of rows (N,) by their values, so that a fit does not depend on theirs."""
    columns = [*np.atleast_2d(x.T)[::-1], *y.reshape(len(y), -1).T[::-1]]
    return np.lexsort(columns if weights is None else [weights, *columns])


def copies(weights: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Return how often rows (N,) are copied to have small whole weights, None for other weights.

    Copies have the bits of the rows that were repeated by hand, which no weighted sum has; they
    cost as many rows more.
    """
    if weights.sum() > _MOST * len(weights) or (weights != np.floor(weights)).any():
        return None
    return weights.astype(np.int64)
