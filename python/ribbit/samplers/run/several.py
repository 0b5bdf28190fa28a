"""Several draws in one call, where steps cost less than what is done around a call.

Shapes: C chains, K draws, P parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.results.state import AnyState
from ribbit.samplers.run.calendar import Calendar
from ribbit.samplers.run.record import Chunk

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Several"]

_BYTES = 1 << 22  # of the draws of a call, which stay in a cache until they are put down


class Several:
    """Which draws come in the next call, and where they lie until they are put down.

    Draws, their statistics and the last state are what single calls give, bit for bit.
    """

    def __init__(
        self, state: AnyState, calendar: Calendar, dim: int, *, draws: bool = True
    ) -> None:
        """Make no space yet; `dim`: parameters of a kept draw, P; not `draws`: warmup alone."""
        self._calendar, self._dim, self._draws = calendar, dim, draws
        chains = state.position.shape[0]
        self._most = _BYTES // (chains * dim * state.position.dtype.itemsize)
        self._dtype = state.position.dtype
        self.ended = False  # a call has failed: from now on draws come one by one
        self._space: npt.NDArray[Any] = np.empty(0, self._dtype)

    def stops(self, state: AnyState, most: int, chunk: Chunk) -> npt.NDArray[np.int64] | None:
        """Return the steps (K,) of the next draws, at most `most` of them; None: not several."""
        step, most = state.step - state.warmup, min(most, self._most)
        if step < 0 or most < 2 or self.ended or not self._draws:
            return None
        calendar = self._calendar
        before = calendar.count(step)
        size = chunk.size(calendar.step(before + most) - step)
        count = calendar.count(step + size) - before
        return None if count < 2 else state.warmup + calendar.several(step, count)

    def warmup_stops(
        self, state: AnyState, most: int, chunk: Chunk
    ) -> npt.NDArray[np.int64] | None:
        """Return the next steps (K,) of warmup, at most `most`; None: not several."""
        most = min(most, self._most)
        size = 0 if most < 2 or self.ended else chunk.size(most)
        return None if size < 2 else state.step + 1 + np.arange(size)

    def space(self, state: AnyState, count: int) -> npt.NDArray[Any]:
        """Return an array (C, K, P) for so many draws; the next call gets the same memory."""
        chains, dim = state.position.shape[0], self._dim
        if self._space.size < chains * count * dim:
            self._space = np.empty(chains * count * dim, self._dtype)
        return self._space[: chains * count * dim].reshape(chains, count, dim)
