"""Shapes of data rows: whether a network takes them, and blocks of many rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ribbit.errors import ShapeError

__all__ = ["BLOCK", "check_rows", "row_blocks"]

BLOCK = 1 << 17  # numbers that temporary arrays of some rows hold: 1 MiB in float64


def check_rows(function: str, shape: tuple[int, ...], wanted: tuple[int, ...], got: str) -> None:
    """Raise ShapeError unless `shape` is (N, *wanted) with rows; `got` describes the array."""
    if len(shape) == len(wanted) + 1 and shape[1:] == wanted and shape[0] > 0:
        return
    expected = ", ".join(["N", *map(str, wanted)])
    way = _way(shape, wanted)
    raise ShapeError(
        f"[{function}] expected x of shape ({expected}) with N >= 1 for a model with "
        f"input_shape {wanted}, got {got}{f': {way}' if way else ''}"
    )


def _way(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return the call that makes rows of an array of this shape, or an empty string."""
    if math.prod(shape) == 0:
        return ""
    if shape == wanted:
        return "a single row is x[None]"
    if len(wanted) == 3 and shape[1:] == (wanted[2], *wanted[:2]):
        return "channels stand last, np.moveaxis(x, 1, -1)"
    if wanted[-1] == 1 and len(shape) == len(wanted) and shape[1:] == wanted[:-1]:
        return f"give x[..., None], of one {'channel' if len(wanted) > 1 else 'column'}"
    if len(wanted) > 1 and shape[1:] == (math.prod(wanted),):
        return f"give x.reshape{(-1, *wanted)}, if its rows are in that order"
    if len(wanted) == 1 and len(shape) > 2 and math.prod(shape[1:]) == wanted[0]:
        return "give x.reshape(len(x), -1)"
    return ""


def row_blocks(rows: int, numbers: int, most: int = BLOCK) -> Iterator[slice]:
    """Yield slices of all rows, each of `most` numbers or fewer if a row has `numbers`."""
    size = max(1, most // max(1, numbers))
    return (slice(low, min(low + size, rows)) for low in range(0, rows, size))
