"""Tables as they come from a user: columns that are no numbers, an order of rows, their weights.

Shapes: N rows, D columns, J columns of y.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ordered", "repeats", "word_column"]

_DENOMINATOR = 1000  # of a weight, at most
_MOST = 20  # times the rows that came, at most


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


def ordered(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return the order of rows (N,) by their values, so that a fit does not depend on theirs."""
    columns = [*np.atleast_2d(x.T)[::-1], *y.reshape(len(y), -1).T[::-1]]
    return np.lexsort(columns)


def repeats(function: str, weights: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], float]:
    """Return whole numbers (N,) and what all of them are divided by: the weights, exactly.

    A likelihood whose row i counts w_i times is that of k_i copies of the row at a temperature t,
    k_i / t = w_i: no more is asked of a target than rows and a likelihood temperature.

    Parameters
    ----------
    function : str
        Who asks, for the error.
    weights : (N,) array
        Finite, none below 0, one at least above.

    Raises
    ------
    ValueError
        Where the weights are no small multiples of one number.
    """
    exact = [Fraction(value).limit_denominator(_DENOMINATOR) for value in weights.tolist()]
    close = all(
        math.isclose(float(found), value, rel_tol=1e-12, abs_tol=0.0)
        for found, value in zip(exact, weights.tolist(), strict=True)
    )
    least = math.lcm(*(found.denominator for found in exact)) if close else 0
    whole = [int(found * least) for found in exact]
    divisor = math.gcd(*whole) if close else 1
    if not close or sum(whole) // divisor > _MOST * len(whole):
        raise ValueError(
            f"[{function}] expected weights that are small multiples of one number, such as 1, 2 "
            f"and 3, got {weights.min():.6g} to {weights.max():.6g}: a row counts as often as it "
            f"is repeated (at most {_MOST} times as many rows in all), and the native likelihood "
            "has no weights"
        )
    return np.array(whole, np.int64) // divisor, least / divisor
