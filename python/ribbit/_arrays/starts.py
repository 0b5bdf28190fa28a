"""Standard normal numbers that starts are made of: element e of chain c at (seed, init, c, e)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.checks import FloatArray

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["normal_starts"]


def normal_starts(
    function: str,
    seed: checks.Seed,
    chains: int | npt.ArrayLike | None,
    dim: int,
    dtype: np.dtype[Any],
) -> FloatArray:
    """Return standard normals (C, dim), chain c the same whatever the others; None: one chain."""
    number = checks.seed(function, seed)
    ids = checks.chain_ids(function, 1 if chains is None else chains, each=dtype.itemsize * dim)
    out: FloatArray = random_numbers.normal(
        np,
        (ids.size, dim),
        dtype,
        seed=number,
        step=0,
        chains=ids,
        purpose=random_numbers.INIT,
    )
    return out
