"""The folder of one call of ``sample``: opened, compared, filled beside sampling, closed.

Shapes: C chains, D draws, P parameters.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ribbit._arrays.namespace import host_dtype, to_host
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState
from ribbit.results.store import checkpoint
from ribbit.results.store.chunks import sync_folder
from ribbit.results.store.columns import Column
from ribbit.results.store.folder import RunFolder, failure
from ribbit.results.store.layout import Layout, create, prediction_layout, record_layouts
from ribbit.results.store.options import Store
from ribbit.results.store.stored import StoredArray, StoredStatistics

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Followed", "RunStore", "StoredRecord"]

_MOST_WAITING = 1 << 25  # bytes of draws that wait beside those being written


class Place(NamedTuple):
    """Where a run is: the contents of a checkpoint."""

    kept: int
    warm: int
    state: AnyState
    running: RunningPrediction | None
    seconds: float
    settings: dict[str, Any]
    watch: tuple[dict[str, Any], dict[str, Any]]
    complete: bool


class StoredRecord:
    """What `samplers.run.record.Record` is for draws in memory; see there."""

    def __init__(
        self, store: RunStore, prefix: str, positions: Column | None, stats: dict[str, Column]
    ) -> None:
        self._store, self._prefix = store, prefix
        self._positions, self._stats = positions, stats
        self._empty: npt.NDArray[Any] | None = None
        # The stretch of the statistics that is being filled: first entry, length, arrays (C, n).
        self._low, self._rows = 0, 0
        self._buffers: list[tuple[str, npt.NDArray[Any]]] = []

    def put(self, index: int, position: Array, info: Mapping[str, Array]) -> None:
        """Take entry `index`; position (C, P)."""
        ready = 0 if self._positions is None else self._positions.put(index, position)
        row = index - self._low
        if not 0 <= row < self._rows:
            row = self._turn(index)
        for name, buffer in self._buffers:
            value = info[name]
            buffer[:, row] = value if type(value) is np.ndarray else to_host(value)
        if row + 1 == self._rows:
            ready += sum(column.closed(index) for column in self._stats.values())
        if ready:
            self._store.ready(ready)

    def _turn(self, index: int) -> int:
        """Open the stretch of the statistics, all of one length, that entry `index` is of."""
        self._buffers = [(name, one.opened(index)) for name, one in self._stats.items()]
        length = next(iter(self._stats.values())).layout.length
        self._low = index // length * length
        self._rows = self._buffers[0][1].shape[1]
        return index - self._low

    def put_several(self, index: int, positions: Array, info: Mapping[str, Array]) -> None:
        """Take entries from `index` on; positions (C, K, P), info (C, K)."""
        for i in range(positions.shape[1]):
            one = {name: values[:, i] for name, values in info.items()}
            self.put(index + i, positions[:, i], one)

    def room(self, index: int) -> int:
        """Return that there is any room: on the disk, or `after_step` says so."""
        return sys.maxsize

    def statistics(self, count: int) -> dict[str, Array]:
        """Return the first `count` entries of the statistics, (C, D) each, in memory."""
        return dict(self.upto(count)[1])

    def upto(self, count: int) -> tuple[Any, Any]:
        """Return the first `count` entries, on the disk."""
        stats = {name: _array(column, count) for name, column in self._stats.items()}
        if self._positions is None:
            return self._empty, StoredStatistics(stats)
        return _array(self._positions, count), StoredStatistics(stats)

    @property
    def columns(self) -> list[Column]:
        """All of it."""
        return [*([] if self._positions is None else [self._positions]), *self._stats.values()]


def _array(column: Column, count: int) -> StoredArray:
    # As they are now: more may come while this is read. What has left `held` has its checksums.
    held = dict(column.held)
    return StoredArray(column.folder, column.layout, count, list(column.digests), held)


@dataclass(frozen=True, eq=False)
class Followed:
    """What ranks that write no folder know of the one that rank 0 writes; see `RunStore`."""

    begun: bool
    kept: int
    state: Any
    origin: dict[str, Any] | None
    found: dict[str, Any]
    prediction: tuple[Any, Any] | None
    stats: dict[str, npt.NDArray[Any]]

    def restore(self, running: RunningPrediction | None) -> None:
        """Put back what was gathered of the draws before."""
        if running is not None and self.prediction is not None:
            running.restore(*self.prediction)


class RunStore(RunFolder):
    """One folder while one call of ``sample`` writes it; see RunFolder.

    `kept` and `warm` count draws, `origin` says how the start was found, and `found` holds settings
    of the run next to its sampler's.
    """

    kind = "draws"

    def __init__(self, function: str, options: Store, request: dict[str, Any]) -> None:
        self.kept, self.warm = 0, 0
        self.origin: dict[str, Any] | None = None
        self.found: dict[str, Any] = {}
        self._records: list[StoredRecord] = []
        self._fixed: dict[str, Any] = {}
        self._metadata: dict[str, int] = {}
        self._predictions: Column | None = None
        self._is_ready, self._since = False, 0
        chosen = {"keep": options.keep, "dtype": options.dtype}
        super().__init__(function, options, {**request, "store": chosen})

    def _read(self, header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        run = header["run"]
        self._layouts = checkpoint.stored_layouts(header, arrays)
        self.kept, self.warm, self.origin = run["kept"], run["warm"], run["origin"]
        self.found = run["found"]
        self._metadata = run["metadata"]
        checkpoint.check_metadata(self.function, self.folder, self._metadata)
        self._state = checkpoint.state_of(header, arrays)

    @property
    def state(self) -> AnyState:
        """Where the run goes on."""
        return self._state

    def watched(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
        """Return what the monitor remembers of a run that goes on; None where it has not begun."""
        found = self._header.get("run", {}).get("watch")
        return (found, archive.get(self._arrays, "watch")) if found else None

    def restore(self, running: RunningPrediction | None) -> None:
        """Put back what was gathered of the draws before."""
        found = self._gathered()
        if running is not None and found is not None:
            running.restore(*found)

    def _gathered(self) -> tuple[Any, Any] | None:
        if not self.begun or self._header["prediction"] is None:
            return None
        return self._header["prediction"], archive.get(self._arrays, "prediction")

    def followed(self) -> Followed:
        """Return what other ranks must know."""
        state = self._state if self.begun else None
        stats = {
            name.removeprefix("sample_stats/"): np.asarray(
                StoredArray(self.folder, layout, count, list(digests))
            )
            for name, (layout, count, digests) in (self._layouts if self.begun else {}).items()
            if name.startswith("sample_stats/")
        }
        return Followed(
            self.begun, self.kept, state, self.origin, self.found, self._gathered(), stats
        )

    def records(
        self,
        state: AnyState,
        dim: int,
        sizes: tuple[int, int],
        statistics: Mapping[str, str],
        *,
        positions: bool,
        warmup: bool,
        settings: dict[str, Any],
        predictive: Any,
        running: RunningPrediction | None,
    ) -> tuple[StoredRecord, StoredRecord | None]:
        """Return where draws and warmup go, `sizes` of them planned; what is there counts."""
        chains, dtype = state.position.shape[0], host_dtype(state.position).name
        if self.begun and self._layouts:
            sizes = _planned(self._layouts)
            # a folder of an earlier build goes on with the statistics that it has
            known = {name.removeprefix("sample_stats/") for name in self._layouts}
            statistics = {name: kind for name, kind in statistics.items() if name in known}
        stored = self.options.dtype or dtype
        planned = [("", sizes[0], positions)]
        planned += [("warmup_", sizes[1], True)] if warmup and sizes[1] else []
        for prefix, size, own in planned:
            shape = (chains, size, dim) if own else None
            made, stats = record_layouts(
                prefix, shape, chains, size, dtype, stored, dict(statistics)
            )
            if self.begun:  # chunks are as long as they were, whatever flush_bytes is now
                stats = {name: self._layouts[one.name][0] for name, one in stats.items()}
                made = None if made is None else self._layouts[made.name][0]
            columns = {name: Column(self.folder, one) for name, one in stats.items()}
            own_column = None if made is None else Column(self.folder, made)
            record = StoredRecord(self, prefix, own_column, columns)
            record._empty = np.empty((chains, 0, dim), dtype)
            self._records.append(record)
        if self.options.keep == "predictions" and running is not None:
            flat = bool(getattr(running.predictive, "flat", False)) and running.shape[1:] == (1,)
            inner = running.shape[:1] if flat else running.shape
            one = prediction_layout((chains, sizes[0], *inner), running.dtype)
            if self.begun:
                one = self._layouts[one.name][0]
            self._predictions = Column(self.folder, one)
        self._fixed = {
            "predictive": predictive,
            "repeated": 0,
            "state": None,
        }
        self._begin(Place(0, 0, state, None, 0.0, settings, ({}, {}), False))
        return self._records[0], self._records[1] if len(self._records) > 1 else None

    @property
    def _columns(self) -> list[Column]:
        found = [column for record in self._records for column in record.columns]
        return found + ([] if self._predictions is None else [self._predictions])

    def put_predictions(self, index: int, values: Array) -> None:
        """Add the predictions (C, N, K) of draw `index`, if they are kept."""
        if self._predictions is not None:
            shape = self._predictions.layout.shape
            ready = self._predictions.put(index, values.reshape((shape[0], *shape[2:])))
            if ready:
                self.ready(ready)

    def predictions(self, count: int) -> StoredArray | None:
        """Return the predictions of the first draws, if they are kept."""
        return None if self._predictions is None else _array(self._predictions, count)

    def _begin(self, place: Place) -> None:
        """Make the folder's arrays, or take up those that are there."""
        if self.begun:
            for column in self._columns:
                _, count, digests = self._layouts[column.layout.name]
                column.go_on(self.function, count, digests)
            return
        try:
            layouts = [column.layout for column in self._columns]
            self._metadata = create(
                self.function, self.folder, layouts, _attributes(place.settings)
            )
            for folder in sorted({self.folder / one.name for one in layouts}):
                sync_folder(folder)
                sync_folder(folder.parent)
            sync_folder(self.folder)
            self._checkpoint(place)()
        except OSError as error:
            raise failure(self.function, self.folder, error) from error

    def ready(self, size: int) -> None:
        """Say that `size` bytes of full chunks wait."""
        self._is_ready, self._since = True, self._since + size

    def after_step(self, place: Callable[[], Place]) -> None:
        """Leave to the thread what is due.

        Raises
        ------
        OSError
            When what was left before could not be written.
        """
        if not self._is_ready and time.perf_counter() < self._due:
            return
        self._raise()
        self._hand_over()
        timed = time.perf_counter() >= self._due
        if self._since >= self.options.flush_bytes or (timed and not self._writer.busy):
            self._writer.submit(self._checkpoint(place()), 0, _MOST_WAITING)
            self._since, self._due = 0, time.perf_counter() + self.options.flush_seconds

    def _hand_over(self) -> None:
        self._is_ready = False
        for column in self._columns:
            while column.full:
                chunk = column.full.pop(0)
                job = functools.partial(column.write, chunk, column.layout.rows(chunk))
                self._writer.submit(job, column.held[chunk].nbytes, _MOST_WAITING)

    def finishing_at(self, place: Callable[[], Place]) -> AbstractContextManager[None]:
        """Write what there is when the block ends; see :meth:`RunFolder.finishing`."""
        return self.finishing(lambda: self._checkpoint(place()))

    def _finish(self, job: Callable[[], Callable[[], None]]) -> None:
        if self._writer.error is None:
            self._hand_over()
        super()._finish(job)
        if self._writer.error is None:
            for column in self._columns:
                column.held.clear()

    def _checkpoint(self, place: Place) -> Callable[[], None]:
        """Return a job that makes draws up to here count: all that changes later is copied now."""
        kept, warm, running, seconds = place.kept, place.warm, place.running, place.seconds
        layouts = [column.layout.describe() for column in self._columns]
        header: dict[str, Any] = {
            **self._fixed,
            "settings": place.settings,
            "complete": place.complete,
            "prediction": None,
            "seconds": seconds,
        }
        header["run"] = self._run(
            seconds,
            layouts=layouts,
            metadata=self._metadata,
            kept=kept,
            warm=warm,
            origin=self.origin,
            found=self.found,
        )
        arrays: dict[str, Any] = {}
        archive.put_state(arrays, header, place.state)
        header["run"]["watch"], found = place.watch
        archive.put(arrays, "watch", found)
        if running is not None and running.moments.count:
            header["prediction"], found = running.pack()
            archive.put(arrays, "prediction", {k: _copied(v) for k, v in found.items()})
        return functools.partial(self._write, header, arrays, kept, warm)

    def _write(self, header: dict[str, Any], arrays: dict[str, Any], kept: int, warm: int) -> None:
        begin = time.perf_counter()
        for column in self._columns:
            layout = column.layout
            count = warm if layout.name.startswith("warmup_") else kept
            column.write_upto(count)
            digests = column.digests[: -(-count // layout.length)]
            shape = (len(digests), layout.pieces)
            arrays[f"digests/{layout.name}"] = np.array(digests, np.uint32).reshape(shape)
        checkpoint.write(self.function, self.folder, header, arrays)
        self._took = time.perf_counter() - begin


def _copied(values: Array) -> npt.NDArray[Any]:
    return np.array(to_host(values), copy=True)


def _planned(layouts: dict[str, tuple[Layout, int, Any]]) -> tuple[int, int]:
    """Return draws and warmup draws that a run was planned with."""
    draws = warmup = 0
    for layout, _, _ in layouts.values():
        if layout.name.startswith("warmup_"):
            warmup = layout.shape[1]
        else:
            draws = layout.shape[1]
    return draws, warmup


def _attributes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what readers of the Zarr group see, in ArviZ's words."""
    return {
        "inference_library": "ribbit",
        "inference_library_version": settings.get("versions", {}).get("ribbit", "unknown"),
        "sampler": str(settings.get("sampler")),
        "seed": str(settings.get("seed")),
        "ribbit_run_version": checkpoint.VERSION,
    }
