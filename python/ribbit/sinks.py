"""Where the draws of a run go: memory, or the files of a folder (`ribbit.store.FileSink`).

Shapes: C chains, D draws, K draws of a block, P parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ribbit._arrays.draws import put_draw
from ribbit._arrays.namespace import namespace, require_memory
from ribbit.protocols import Array

__all__ = ["Memory", "Sink"]

_FIRST, _BYTES = 64, 1 << 23  # draws of the first block that grows, and what it may take


class Sink(Protocol):
    """What a run gives its draws to."""

    @property
    def count(self) -> int:
        """Draws so far."""
        ...

    def room(self) -> int:
        """Return for how many draws there is memory; MemoryError if there is none."""
        ...

    def append(self, positions: Array, stats: Mapping[str, Array]) -> None:
        """Add draws (C, K, P) and their statistics (C, K)."""
        ...

    def upto(self, count: int) -> tuple[Array, dict[str, Array]]:
        """Return the first positions (C, count, P) and statistics (C, count)."""
        ...

    def statistics(self, count: int) -> dict[str, Array]:
        """Return the first statistics alone, in memory."""
        ...


class Memory:
    """Arrays of `most` draws; with `grows`, blocks that are joined when they are asked for.

    A block adds a quarter. A joined block is let go once it is copied, so that draws are never in
    memory twice. Another thread may ask between two appends.
    """

    def __init__(
        self,
        position: Array,
        dim: int,
        most: int,
        statistics: Mapping[str, str],
        *,
        positions: bool,
        grows: bool = False,
    ) -> None:
        """Make room for chains like `position` (C, Q), with draws of `dim` parameters."""
        self.count = 0
        self._like, self._dim, self._most = position, dim, most
        self._statistics, self._keeps = dict(statistics), positions
        self._lock = threading.RLock()
        self._begin, self._end = 0, 0 if grows else most  # draws before and with the last block
        self._blocks = [self._block(self._end)]

    def _block(self, size: int) -> tuple[Array, dict[str, Array]]:
        """Return arrays for `size` draws; MemoryError if they do not fit."""
        xp, chains = namespace(self._like), self._like.shape[0]
        each = sum(np.dtype(dtype).itemsize for dtype in self._statistics.values())
        total = chains * size * each
        require_memory("sample", xp, total, np.uint8, f"statistics of {size} draws")
        if self._keeps:
            what = f"{size} draws of {chains} chains and {self._dim} parameters"
            what += " (thin, or save_draws=False with predict_at, need less)"
            require_memory("sample", xp, chains * size * self._dim, self._like.dtype, what)
        shape = (chains, size if self._keeps else 0, self._dim)
        stats = {
            name: xp.empty((chains, size), dtype=getattr(xp, dtype))
            for name, dtype in self._statistics.items()
        }
        return xp.empty(shape, dtype=self._like.dtype), stats

    def room(self) -> int:
        """Return for how many draws there is memory; MemoryError if there is none."""
        with self._lock:
            if self.count == self._end < self._most:
                each = self._like.shape[0] * self._dim * self._like.dtype.itemsize
                least = max(1, min(_FIRST, _BYTES // max(1, each)))
                size = min(max(least, self.count // 4), self._most - self.count)
                if self._begin == self._end:  # the first one, empty
                    self._blocks.pop()
                self._blocks.append(self._block(size))
                self._begin, self._end = self.count, self.count + size
            return self._end - self.count

    def append(self, positions: Array, stats: Mapping[str, Array]) -> None:
        """Add draws (C, K, P) and their statistics (C, K)."""
        done, count = 0, positions.shape[1]
        with self._lock:
            while done < count:
                end = min(count, done + self.room())
                to, columns = self._blocks[-1]
                low = self.count - self._begin
                high = low + end - done
                if self._keeps and count == 1:
                    put_draw(to, low, positions[:, 0, :])
                elif self._keeps:
                    to[:, low:high, :] = positions[:, done:end, :]
                for name, column in columns.items():
                    column[:, low:high] = stats[name][:, done:end]
                self.count += end - done
                done = end

    def upto(self, count: int) -> tuple[Array, dict[str, Array]]:
        """Return the first positions (C, count, P) and statistics (C, count), views."""
        with self._lock:
            if len(self._blocks) > 1:
                self._join()
            positions, stats = self._blocks[0]
            if self._keeps:
                positions = positions[:, :count, :]
            return positions, {name: values[:, :count] for name, values in stats.items()}

    def statistics(self, count: int) -> dict[str, Array]:
        """Return the first statistics alone."""
        with self._lock:
            xp, parts = namespace(self._like), [stats for _, stats in self._blocks]
            joined = {name: xp.concat([p[name] for p in parts], axis=1) for name in parts[0]}
            return {name: values[:, :count] for name, values in joined.items()}

    def _join(self) -> None:
        """Copy all blocks into one, and let each go."""
        to, columns = self._block(self.count)
        low = 0
        while self._blocks:
            positions, stats = self._blocks.pop(0)
            size = min(next(iter(stats.values())).shape[1], self.count - low)
            if self._keeps:
                to[:, low : low + size, :] = positions[:, :size, :]
            for name, column in columns.items():
                column[:, low : low + size] = stats[name][:, :size]
            low += size
        self._blocks, self._begin, self._end = [(to, columns)], 0, self.count
