"""Where the positions of draws are written."""

from __future__ import annotations

import numpy as np

from ribbit import _core
from ribbit.protocols import Array

_LARGE = 1 << 22  # bytes: what a thread takes to copy in a millisecond


def put_draw(draws: Array, index: int, position: Array) -> None:
    """Write draws (C, D, P)[:, index, :] = position (C, P); large ones by several threads."""
    large = isinstance(draws, np.ndarray) and draws.nbytes // draws.shape[1] >= _LARGE
    if large and draws.flags.c_contiguous and draws.dtype == position.dtype:
        _core.put_draw(draws, index, np.ascontiguousarray(position))
    else:
        draws[:, index, :] = position
