"""Tables as they come from a user: columns that are no numbers, an order of rows, their weights."""

# Shapes: N rows, D columns, J columns of y.

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit.errors import DataError, DTypeError

if TYPE_CHECKING:
    import numpy.typing as npt


_MOST = 4  # times the rows that came


def fault(x: Any) -> tuple[str, str] | None:
    """Return the first cell of a table that is no finite number, and advice."""
    for title, values in _columns(x):
        found = _fault(values, numeric=True) if title else None
        if found is None:
            continue
        row, what = found
        if what in ("NaN", "inf"):
            advice = "fill gaps before, for example with SimpleImputer in a Pipeline"
            advice = advice if what == "NaN" else "correct the cell, or leave the row out"
            return f"no {what}, got one in {title} in row {row}", advice
        return (
            f"columns of numbers, got {title} with {what} in row {row}",
            "encode it before, for example with OneHotEncoder(sparse_output=False) in a "
            "ColumnTransformer",
        )
    return None


def target(function: str, y: Any, *, numeric: bool) -> None:
    """Raise for a gap in y (N,) or (N, K), with `numeric` also for a value that is no number."""
    checks.unmasked(function, "y", y)
    if isinstance(y, np.ndarray):
        checks.own_memory(function, "y", y)
    for title, values in _columns(y):
        found = _fault(values, numeric=numeric)
        if found is None:
            continue
        row, what = found
        where = f"row {row}" + (f" of {title}" if title else "")
        if what in ("NaN", "inf"):
            kind = "without missing values" if what == "NaN" else "of finite numbers"
            raise DataError(
                f"[{function}] expected y {kind}, got {what} in {where}: leave such rows out of X "
                "and y"
            )
        label = what.startswith(("str", "bytes"))
        advice = "BNNClassifier takes labels" if label else "make numbers of it first"
        raise DTypeError(f"[{function}] expected y of numbers, got {what} in {where}: {advice}")


def _columns(table: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield title and values (N,) of the columns of a frame or array; "" titles a vector."""
    try:
        names = getattr(table, "columns", None)
        if names is not None:
            counts = Counter(names)
            for j, name in enumerate(names):
                number = f" (number {j})" if counts[name] > 1 else ""
                values = table.iloc[:, j] if hasattr(table, "iloc") else table[name]
                yield f"column {name!r}{number}", np.asarray(values)
            return
        array = np.asarray(table)
        if isinstance(table, list | tuple) and array.dtype.kind in "UST":
            array = np.asarray(table, object)  # NaN among texts would be the text "nan"
    except (TypeError, ValueError, RuntimeError, MemoryError):
        return
    if array.ndim == 1:
        yield "", array
    elif array.ndim == 2:
        yield from ((f"column {j}", array[:, j]) for j in range(array.shape[1]))


def _fault(values: npt.NDArray[Any], *, numeric: bool) -> tuple[int, str] | None:
    """Return row and text of the first missing or infinite value; `numeric`: or text."""
    if values.size == 0:
        return None
    if values.dtype.kind == "f":
        good = np.isfinite(values)
        row = int(np.argmin(good))
        return None if good.all() else (row, "NaN" if np.isnan(values[row]) else "inf")
    if values.dtype.kind in ("biuc" if numeric else "biucUS"):
        return None
    for row, value in enumerate(values.tolist()):
        if _missing(value):
            return row, "NaN"
        if not numeric:
            continue
        try:
            if values.dtype.kind in "UST" or _is_time(value):
                raise ValueError
            if not np.isfinite(float(value)):
                return row, "inf"
        except (TypeError, ValueError):
            return row, checks.summary(value)
    return None


def _missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas.NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Number) and bool(value != value)


def _is_time(value: Any) -> bool:
    known = datetime.date | datetime.time | datetime.timedelta | np.datetime64 | np.timedelta64
    return isinstance(value, known) or type(value).__name__ == "Period"


def numbers(function: str, name: str, value: Any) -> None:
    """Raise for what scikit-learn would read as numbers in silence: texts, times, masked values."""
    checks.unmasked(function, name, value)
    if isinstance(value, np.ndarray):
        checks.own_memory(function, name, value)
    for title, values in _columns(value):
        first = None
        if values.dtype.kind == "O":
            first = next((one for one in values.tolist() if not _missing(one)), None)
        if values.dtype.kind in "mM" or _is_time(first):
            held = values.dtype if first is None else type(first).__name__
            raise DataError(
                f"[{function}] expected numbers in {name}, got {held} in {title or name}: make "
                "numbers of dates and times, such as days since a fixed day"
            )
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
    """Return how often rows (N,) are copied to have small whole weights, None for other weights."""
    # Copies have the bits of rows repeated by hand, which no weighted sum has; they cost as many
    # rows more.
    if weights.sum() > _MOST * len(weights) or (weights != np.floor(weights)).any():
        return None
    return weights.astype(np.int64)
