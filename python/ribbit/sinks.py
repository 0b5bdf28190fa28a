"""The sink of the draws of a run in memory; `ribbit.store.FileSink` has them in files.

Shapes: C chains, D draws, K draws of a block, P parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from ribbit._arrays.draws import put_draw
from ribbit._arrays.namespace import host_dtype, namespace, require_memory
from ribbit.protocols import Array
from ribbit.store import FileSink

_FIRST, _BYTES = 64, 1 << 23  # draws of the first block that grows, and what it may take


class Memory:
    """Arrays of `most` draws; with `grows`, as many draws as came and a quarter more."""

    def __init__(
        self,
        theta: Array,
        most: int,
        statistics: Mapping[str, str],
        *,
        positions: bool,
        grows: bool = False,
    ) -> None:
        """Make room for draws like theta (C, P)."""
        self.count = 0
        self._like, self._dim, self._most, self._keeps = theta, theta.shape[1], most, positions
        self._lock = threading.RLock()
        xp, chains = namespace(theta), theta.shape[0]
        self._xp = xp
        self._stats: dict[str, Array] = {
            name: xp.empty((chains, 0), dtype=getattr(xp, dtype))
            for name, dtype in statistics.items()
        }
        self._dtypes = list(statistics.values())
        self._blocks: list[Array] = []  # of positions, joined when they are asked for
        self._begin = self._end = 0  # draws before and with the last block
        self._grow(0 if grows else most)

    def _block(self, size: int) -> Array:
        """Return an array for the positions of `size` draws; MemoryError if they do not fit."""
        xp, chains, dtype = self._xp, self._like.shape[0], self._like.dtype
        if self._keeps:
            what = f"{size} draws of {chains} chains and {self._dim} parameters"
            what += " (thin, or save_draws=False with predict_at, need less)"
            require_memory("sample", xp, chains * size * self._dim, dtype, what)
        return xp.empty((chains, size if self._keeps else 0, self._dim), dtype=dtype)

    def _grow(self, size: int) -> None:
        """Make room for `size` more draws; MemoryError if they do not fit."""
        xp, chains, end = self._xp, self._like.shape[0], self.count + size
        each = sum([np.dtype(dtype).itemsize for dtype in self._dtypes])
        require_memory("sample", xp, chains * end * each, np.uint8, f"statistics of {end} draws")
        block, stats = self._block(size), dict[str, Array]()
        for name, values in self._stats.items():
            stats[name] = xp.empty((chains, end), dtype=values.dtype)
            stats[name][:, : self.count] = values[:, : self.count]
        self._blocks, self._stats = [*self._blocks, block], stats
        self._begin, self._end = self.count, end

    def room(self) -> int:
        """Return for how many draws there is memory; MemoryError for 0."""
        with self._lock:
            if self.count == self._end < self._most:
                each = self._like.shape[0] * self._dim * host_dtype(self._like).itemsize
                least = max(1, min(_FIRST, _BYTES // max(1, each)))
                self._grow(min(max(least, self.count // 4), self._most - self.count))
            return self._end - self.count

    def append(self, positions: Array, stats: Mapping[str, Array]) -> None:
        """Add draws (C, K, P) and their statistics (C, K)."""
        done, count = 0, positions.shape[1]
        with self._lock:
            while done < count:  # at once, unless another thread has just joined the blocks
                size = min(count - done, self.room())
                low, place, to = self.count, self.count - self._begin, self._blocks[-1]
                if self._keeps and count == 1:
                    put_draw(to, place, positions[:, 0, :])
                elif self._keeps:
                    to[:, place : place + size, :] = positions[:, done : done + size, :]
                for name, values in self._stats.items():
                    values[:, low : low + size] = stats[name][:, done : done + size]
                self.count, done = low + size, done + size

    def positions(self, count: int) -> Array:
        """Return the first positions (C, count, P), a view."""
        with self._lock:
            if len(self._blocks) > 1:
                whole, low = self._block(self.count), 0
                while self._blocks:
                    block = self._blocks.pop(0)  # so that draws are never in memory twice
                    size = min(block.shape[1], self.count - low)
                    whole[:, low : low + size, :] = block[:, :size, :]
                    low += size
                self._blocks, self._begin, self._end = [whole], 0, self.count
            return self._blocks[0][:, :count, :] if self._keeps else self._blocks[0]

    def stats(self, count: int) -> dict[str, Array]:
        """Return the first statistics (C, count), views."""
        return {name: values[:, :count] for name, values in self._stats.items()}


Sink: TypeAlias = Memory | FileSink
