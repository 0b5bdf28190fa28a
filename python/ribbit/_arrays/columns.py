"""Where the columns of data lie and how wide they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import errstate, namespace, to_host

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["moments", "spread"]


def moments(array: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and sd (...) over the rows of an array (N, ...), in float64 on the host."""
    xp = namespace(array)
    rows = xp.astype(array, xp.float64)
    with errstate(xp):
        mean, sd = xp.mean(rows, axis=0), xp.std(rows, axis=0)
    return np.asarray(to_host(mean)), np.asarray(to_host(sd))


def spread(array: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what to subtract from an array (N, ...) and to divide it by: 1 for constant columns.

    A column is constant by comparison: rounding gives its computed sd some 1e-17.
    """
    xp = namespace(array)
    mean, sd = moments(array)
    constant = to_host(xp.max(array, axis=0) == xp.min(array, axis=0))
    first = to_host(array[0, ...]).astype(np.float64)
    return np.where(constant, first, mean), np.where(constant | (sd == 0.0), 1.0, sd)
