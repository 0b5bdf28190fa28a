"""Feeds the progress display from the statistics of calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ribbit._arrays.namespace import namespace, to_host
from ribbit.protocols import Array

__all__ = ["Report"]


class Report:
    """Feeds the progress display; arrays of a device are fetched a few times a second only."""

    def __init__(self, reporter: Any, *, on_host: bool) -> None:
        self.reporter, self.on_host = reporter, on_host
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        self.due = time.perf_counter() + 0.25

    def update(self, done: int, info: Mapping[str, Array], count: int = 1) -> None:
        """Report a call of `count` steps; statistics (C,) of the last one, or (C, K) of K."""
        if not self.reporter.wanted:
            return
        if self.on_host:
            self._show(done, info, count)
            return
        self.pending.append((done, info))
        if time.perf_counter() >= self.due:
            self.flush()

    def _show(self, done: int, info: Mapping[str, Any], count: int) -> None:
        first = next(iter(info.values()))
        if first.ndim == 1:
            self.reporter.update(done, info)
            return
        # The draws of a thinned run are not all steps of a call: its last one counts for them.
        each = first.shape[1] == count
        for back in range(count - 1 if each else 0, -1, -1):
            one = {k: v[:, -1 - back] for k, v in info.items()}
            if not each and "divergences" in info:
                one["diverging"] = info["divergences"].sum(axis=1)
            self.reporter.update(done - back, one)

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
