"""Where draws and statistics go when nobody knows how many will come.

Shapes: C chains, D draws, P parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ribbit._arrays.namespace import namespace
from ribbit.protocols import Array
from ribbit.results.state import AnyState
from ribbit.samplers.run.record import Record

__all__ = ["GrowingRecord"]

_BLOCK, _BYTES = 64, 1 << 23  # draws of the first block, and what it may take


class GrowingRecord:
    """A :class:`Record` in blocks: each makes a quarter more, so that little lies empty.

    Blocks are joined when they are asked for, one after another, and each is let go once it is
    copied: draws are never in memory twice. Another thread may ask while no draw is put.
    """

    def __init__(
        self,
        state: AnyState,
        dim: int,
        most: int,
        statistics: Mapping[str, str],
        *,
        positions: bool,
    ) -> None:
        self._state, self._dim, self._most = state, dim, most
        self._statistics, self.keep_positions = dict(statistics), positions
        self._begin, self._size = 0, 0  # of the last block
        self._lock = threading.RLock()  # blocks are opened, read and joined one at a time
        self._blocks: list[Record] = [self._block(0)]

    def room(self, index: int) -> int:
        """Make place for entry `index`, the next one; MemoryError before anything is written.

        Returns for how many there is place from there on.
        """
        with self._lock:
            if index >= self._begin + self._size:
                self._open(index)
            return self._begin + self._size - index

    def _open(self, index: int) -> None:
        each = self._state.position.shape[0] * self._dim * self._state.position.dtype.itemsize
        least = max(1, min(_BLOCK, _BYTES // max(1, each)))
        size = min(max(least, index // 4), self._most - index)
        self._blocks.append(self._block(size))
        self._begin, self._size = index, size

    def put(self, index: int, position: Array, info: Mapping[str, Array]) -> None:
        """Write entry `index`; position (C, P)."""
        with self._lock:
            self.room(index)  # a join in between has let an empty block go
            self._blocks[-1].put(index - self._begin, position, info)

    def put_several(self, index: int, positions: Array, info: Mapping[str, Array]) -> None:
        """Write entries from `index` on; positions (C, K, P), info (C, K)."""
        done, count = 0, positions.shape[1]
        while done < count:
            with self._lock:
                end = min(count, done + self.room(index + done))
                part = {name: values[:, done:end] for name, values in info.items()}
                at = index + done - self._begin
                self._blocks[-1].put_several(at, positions[:, done:end], part)
            done = end

    def upto(self, count: int) -> tuple[Array, dict[str, Array]]:
        """Return the first `count` entries, which are all there are."""
        with self._lock:
            filled = [block for block in self._blocks if block.size]
            if len(filled) > 1 or (filled and filled[0].size != count):
                self._join(count)
            return self._blocks[-1].upto(count)

    def statistics(self, count: int) -> dict[str, Array]:
        """Return the first `count` entries of the statistics, (C, D) each."""
        parts = [stats for _, stats in self._parts(count)]
        if not parts:
            return self._blocks[0].upto(0)[1]
        xp = namespace(self._state.position)
        return {name: xp.concat([p[name] for p in parts], axis=1) for name in self._statistics}

    def _parts(self, count: int) -> list[tuple[Array, dict[str, Array]]]:
        found, done = [], 0
        with self._lock:
            for block in self._blocks:
                if block.size and done < count:
                    found.append(block.upto(min(block.size, count - done)))
                    done += block.size
        return found

    def _join(self, count: int) -> None:
        joined, done = self._block(0), 0
        joined.make(count)
        while self._blocks:
            block = self._blocks.pop(0)
            part = min(block.size, count - done)
            joined.copy(done, block, part)
            done += part
        self._blocks = [joined]
        self._begin, self._size = 0, count

    def _block(self, size: int) -> Record:
        return Record(self._state, self._dim, size, self._statistics, positions=self.keep_positions)
