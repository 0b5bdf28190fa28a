"""Where draws and statistics go while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ribbit._arrays.draws import put_draw
from ribbit._arrays.namespace import namespace, require_memory, to_host
from ribbit.protocols import Array
from ribbit.results.state import AnyState

__all__ = ["Chunk", "Record", "Report"]


class Record:
    """Buffers for positions (C, D, P) and statistics (C, D)."""

    def __init__(
        self,
        state: AnyState,
        dim: int,
        size: int,
        statistics: Mapping[str, str],
        *,
        positions: bool,
    ) -> None:
        self.xp = namespace(state.position)
        self.chains = state.position.shape[0]
        each = sum(np.dtype(dtype).itemsize for dtype in statistics.values())
        require_memory(
            "sample", self.xp, self.chains * size * each, np.uint8, f"statistics of {size} draws"
        )
        if positions:
            require_memory(
                "sample",
                self.xp,
                self.chains * size * dim,
                state.position.dtype,
                f"{size} draws of {self.chains} chains and {dim} parameters (thin, or "
                "save_draws=False with predict_at, need less)",
            )
        self.keep_positions = positions
        self._dim, self._dtype, self._statistics = dim, state.position.dtype, dict(statistics)
        self.make(size)

    def make(self, size: int) -> None:
        """Make buffers of so many entries, empty."""
        self.size = size
        self.positions = self.xp.empty(
            (self.chains, size if self.keep_positions else 0, self._dim), dtype=self._dtype
        )
        self.stats: dict[str, Array] = {
            name: self.xp.empty((self.chains, size), dtype=getattr(self.xp, dtype))
            for name, dtype in self._statistics.items()
        }

    def room(self, index: int) -> int:
        """Make place for entry `index`: there is. Returns for how many from there on."""
        return self.size - index

    def restore(self, count: int, stats: Mapping[str, Array]) -> None:
        """Take the statistics (C, count) of the first entries, whose positions are elsewhere."""
        for name, values in stats.items():
            self.stats[name][:, :count] = values

    def copy(self, at: int, other: Record, count: int) -> None:
        """Take the first `count` entries of another one, from entry `at` on."""
        positions, stats = other.upto(count)
        if self.keep_positions:
            self.positions[:, at : at + count, :] = positions
        for name, values in stats.items():
            self.stats[name][:, at : at + count] = values

    def put(self, index: int, position: Array, info: Mapping[str, Array]) -> None:
        """Write entry `index`; position (C, P)."""
        if self.keep_positions:
            put_draw(self.positions, index, position)
        for name, value in info.items():
            self.stats[name][:, index] = value

    def put_several(self, index: int, positions: Array, info: Mapping[str, Array]) -> None:
        """Write entries from `index` on; positions (C, K, P), info (C, K)."""
        count = positions.shape[1]
        if self.keep_positions:
            self.positions[:, index : index + count, :] = positions
        for name, value in info.items():
            self.stats[name][:, index : index + count] = value

    def upto(self, count: int) -> tuple[Array, dict[str, Array]]:
        """Return the first `count` entries; views."""
        positions = self.positions[:, :count, :] if self.keep_positions else self.positions
        return positions, {k: v[:, :count] for k, v in self.stats.items()}


class Report:
    """Feeds the progress display; arrays of a device are fetched a few times a second only."""

    def __init__(self, reporter: Any, *, on_host: bool) -> None:
        self.reporter, self.on_host = reporter, on_host
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        self.due = time.perf_counter() + 0.25

    def update(self, done: int, info: Mapping[str, Array]) -> None:
        """Report one step."""
        if self.on_host:
            self.reporter.update(done, info)
            return
        if not self.reporter.wanted:
            return
        self.pending.append((done, info))
        if time.perf_counter() >= self.due:
            self.flush()

    def update_each(self, done: int, info: Mapping[str, Array], count: int) -> None:
        """Report the last `count` of `done` steps; statistics (C, count), on the host."""
        if self.reporter.wanted:
            for i in range(count):
                one = {name: values[:, i] for name, values in info.items()}
                self.reporter.update(done - count + 1 + i, one)

    def flush(self) -> None:
        """Hand over what is waiting."""
        pending, self.pending = self.pending, []
        if pending:
            # One copy per statistic, not one per step: every copy waits for the device.
            names = pending[0][1]
            xp = namespace(*names.values())
            rows = {k: to_host(xp.stack([info[k] for _, info in pending])) for k in names}
            for i, (done, _) in enumerate(pending):
                self.reporter.update(done, {k: v[i] for k, v in rows.items()})
        self.due = time.perf_counter() + 0.25


class Chunk:
    """Grows until a call takes about so many seconds; what is computed does not depend on it.

    Short enough that Ctrl-C, a time limit and the progress display are served, long enough that
    the calls cost nothing.
    """

    def __init__(self, seconds: float = 0.1) -> None:
        """Begin with single steps."""
        self._seconds, self._most = seconds, 1
        self._began = 0.0
        self._whole = False  # whether the call could have been longer

    def size(self, left: int) -> int:
        """Return how many of `left` steps to make now."""
        self._began = time.perf_counter()
        self._whole = left >= self._most
        return min(self._most, left)

    def made(self, count: int) -> None:
        """Learn from the call that made `count` steps."""
        seconds = max(time.perf_counter() - self._began, 1e-6)
        if seconds > 4 * self._seconds:  # steps have become slower
            self._most = max(1, min(self._most, int(count * self._seconds / seconds)))
        # Of several draws the last may come some steps before.
        elif self._whole and 2 * count > self._most:
            self._most = max(1, min(8 * count, int(count * self._seconds / seconds), 1 << 20))
