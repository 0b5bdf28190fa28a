"""Where the columns of data lie and how wide they are.

A column of rows (N, J) is one of the J. Of images (N, H, W, C) and sequences (N, T, C) it is a
channel: all its places have one unit, and a pixel of the margin, dark in nearly every image, is no
measurement of its own. Divided by its sd it would be hundreds where it is lit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.mapped import MappedRows
from ribbit._arrays.namespace import errstate, namespace, to_host

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["moments", "spread"]


def moments(
    array: Any, weights: npt.NDArray[np.float64] | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and sd (J,) of the columns of an array (N, ..., J), in float64 on the host.

    () of an array (N,). weights: (N,) of the rows of an array on the host, one at least above 0.
    """
    return _over_places(*_moments(array, weights))


def _over_places(
    mean: npt.NDArray[np.float64], sd: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and sd (J,) of channels, of those (..., J) over rows at each place."""
    places = tuple(range(mean.ndim - 1))
    if not places:
        return mean, sd
    with np.errstate(over="ignore", invalid="ignore"):
        middle = mean.mean(axis=places)
        return middle, np.sqrt((sd**2 + (mean - middle) ** 2).mean(axis=places))


def _moments(
    array: Any, weights: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and sd (...) over the rows of an array (N, ...)."""
    if isinstance(array, MappedRows):
        return _moments_of_blocks(array)
    if weights is not None:
        share = weights / weights.max()  # so that no sum overflows
        share /= share.sum()
        numbers = np.asarray(array, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            middle = np.tensordot(share, numbers, axes=1)
            return middle, np.sqrt(np.tensordot(share, (numbers - middle) ** 2, axes=1))
    xp = namespace(array)
    rows = xp.astype(array, xp.float64)
    with errstate(xp):
        mean, sd = xp.mean(rows, axis=0), xp.std(rows, axis=0)
    return np.asarray(to_host(mean)), np.asarray(to_host(sd))


def spread(
    array: Any, weights: npt.NDArray[np.float64] | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what to subtract from an array (N, ...) and to divide it by: 1 for constant columns.

    Of the shape (...) both: the places of a channel have the same two numbers. A column is constant
    by comparison: rounding gives its computed sd some 1e-17. weights: as of :func:`moments`; rows
    of weight 0 are left out.
    """
    if weights is not None:
        array, weights = array[weights > 0], weights[weights > 0]
    if isinstance(array, MappedRows):
        row = array[0:1][0]
        same, first = np.ones(row.shape, np.bool_), row.astype(np.float64)
        for _, rows in array.blocks():
            same &= (rows == row).all(axis=0)
    else:
        xp = namespace(array)
        same = to_host(xp.max(array, axis=0) == xp.min(array, axis=0))
        first = to_host(array[0, ...]).astype(np.float64)
    mean, sd = _moments(array, weights)
    shape, places = mean.shape, tuple(range(mean.ndim - 1))
    if places:
        mean, sd = _over_places(mean, sd)
        same = same.all(axis=places) & (first.max(axis=places) == first.min(axis=places))
        first = first[(0,) * len(places)]
    mean, sd = np.where(same, first, mean), np.where(same | (sd == 0.0), 1.0, sd)
    return np.broadcast_to(mean, shape).copy(), np.broadcast_to(sd, shape).copy()


def _moments_of_blocks(
    array: MappedRows,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and sd, with the sums of NumPy on an array of all rows, which adds them in order.

    A single column it adds in another order: that is one number per row.
    """
    if math.prod(array.shape[1:]) == 1:
        return _moments(np.asarray(array, np.float64), None)

    def total(each: Callable[[npt.NDArray[np.float64]], Any]) -> npt.NDArray[np.float64]:
        found: Any = None
        for _, rows in array.blocks():
            terms = each(rows.astype(np.float64))
            if found is not None:
                terms = np.concatenate([found[None], terms])
            found = np.add.reduce(terms, axis=0)
        return np.asarray(found)

    with np.errstate(over="ignore", invalid="ignore"):
        mean = total(lambda rows: rows) / len(array)
        return mean, np.sqrt(total(lambda rows: (rows - mean) ** 2) / len(array))
