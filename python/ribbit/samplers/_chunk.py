"""How many steps to make in one native call."""

from __future__ import annotations

import time

__all__ = ["Chunk"]

_SECONDS = 0.1


class Chunk:
    """Grows until a call takes about a tenth of a second; what is computed does not depend on it.

    Short enough that Ctrl-C, a time limit and the progress display are served, long enough that
    the calls cost nothing.
    """

    def __init__(self) -> None:
        self._most = 1
        self._began = 0.0

    def size(self, left: int) -> int:
        """Return how many of `left` steps to make now."""
        self._began = time.perf_counter()
        return min(self._most, left)

    def made(self, count: int) -> None:
        """Learn from the call that made `count` steps."""
        seconds = max(time.perf_counter() - self._began, 1e-6)
        if count == self._most:
            self._most = max(1, min(8 * count, int(count * _SECONDS / seconds), 1 << 20))
