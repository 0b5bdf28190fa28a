"""Where the columns of data lie and how wide they are."""

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
    """Return mean and sd (...) over the rows of an array (N, ...), in float64 on the host.

    weights: (N,) of the rows of an array on the host, one at least above 0.
    """
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

    A column is constant by comparison: rounding gives its computed sd some 1e-17. weights: as of
    :func:`moments`; rows of weight 0 are left out.
    """
    if weights is not None:
        array, weights = array[weights > 0], weights[weights > 0]
    if isinstance(array, MappedRows):
        mean, sd = _moments_of_blocks(array)
        first = array[0:1][0]
        same = np.ones(first.shape, np.bool_)
        for _, rows in array.blocks():
            same &= (rows == first).all(axis=0)
        return np.where(same, first, mean), np.where(same | (sd == 0.0), 1.0, sd)
    xp = namespace(array)
    mean, sd = moments(array, weights)
    constant = to_host(xp.max(array, axis=0) == xp.min(array, axis=0))
    first = to_host(array[0, ...]).astype(np.float64)
    return np.where(constant, first, mean), np.where(constant | (sd == 0.0), 1.0, sd)


def _moments_of_blocks(
    array: MappedRows,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and sd, with the sums of NumPy on an array of all rows, which adds them in order.

    A single column it adds in another order: that is one number per row.
    """
    if math.prod(array.shape[1:]) == 1:
        return moments(np.asarray(array, np.float64))

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
