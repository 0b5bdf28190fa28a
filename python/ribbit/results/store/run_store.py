"""The folder of one call of ``sample``: opened, compared, filled beside sampling, closed.

Shapes: C chains, D draws, P parameters.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.namespace import host_dtype, to_host
from ribbit.errors import DataError
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState
from ribbit.results.store import checkpoint
from ribbit.results.store.chunks import need_crc, sync_folder
from ribbit.results.store.columns import Column
from ribbit.results.store.identity import plain, refuse_other
from ribbit.results.store.layout import Layout, create, record_layouts
from ribbit.results.store.lock import Lock
from ribbit.results.store.options import Store
from ribbit.results.store.stored import StoredArray, StoredStatistics
from ribbit.results.store.writer import Writer

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["RunStore", "StoredRecord", "failure", "folder_opened"]

_MOST_WAITING = 1 << 25  # bytes of draws that wait beside those being written
# What a folder may hold that a run was killed in before its first checkpoint.
_OURS = {"zarr.json", "lock", "posterior", "sample_stats", "warmup_posterior"}
_OURS |= {"warmup_sample_stats", "predictions"}

# Draws, warmup draws, state, statistics of predictions, seconds: where a run is.
Place: TypeAlias = "tuple[int, int, AnyState, RunningPrediction | None, float]"


class StoredRecord:
    """What `samplers.run.record.Record` is for draws in memory; see there."""

    def __init__(
        self, store: RunStore, prefix: str, positions: Column | None, stats: dict[str, Column]
    ) -> None:
        self._store, self._prefix = store, prefix
        self._positions, self._stats = positions, stats
        self._empty: npt.NDArray[Any] | None = None

    def put(self, index: int, position: Array, info: Mapping[str, Array]) -> None:
        """Take entry `index`; position (C, P)."""
        ready = 0
        if self._positions is not None:
            ready = self._positions.put(index, position)
        for name, value in info.items():
            ready += self._stats[name].put(index, value)
        if ready:
            self._store.ready(ready)

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
    return StoredArray(column.folder, column.layout, count, column.digests, column.held)


class RunStore:
    """One folder while one call of ``sample`` writes it.

    Attributes
    ----------
    begun : bool
        Whether the folder holds a run that goes on.
    kept, warm : int
        Draws and warmup draws that count already.
    origin : dict or None
        How the start was found.
    seconds : float
        What the calls before took.
    """

    def __init__(self, function: str, options: Store, request: dict[str, Any]) -> None:
        self.function, self.options, self.folder = function, options, options.folder
        self.begun, self.kept, self.warm, self.seconds = False, 0, 0, 0.0
        self.origin: dict[str, Any] | None = None
        request["store"] = {"keep": options.keep, "dtype": options.dtype}
        self._request = {key: plain(value) for key, value in request.items()}
        self._writer, self._records = Writer(), list[StoredRecord]()
        self._fixed: dict[str, Any] = {}
        self._predictions: Column | None = None
        self._is_ready, self._since, self._told = False, 0, False
        self._due = time.perf_counter() + options.flush_seconds
        self._took = 0.0
        self._header: dict[str, Any] = {}
        self._metadata: dict[str, int] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        if checkpoint.exists(self.folder):
            self._read()

    def _read(self) -> None:
        """Take up the checkpoint of a run of the same request."""
        with checkpoint.opened(self.function, self.folder) as (header, arrays):
            run = header["run"]
            if run["kind"] != "draws":
                raise DataError(
                    f"[{self.function}] expected the folder of a sampler's run, got that of a fit: "
                    f"{self.folder}"
                )
            refuse_other(self.function, self.folder, run["request"], self._request)
            self._layouts = checkpoint.stored_layouts(header, arrays)
            self.kept, self.warm = run["kept"], run["warm"]
            self.origin, self.seconds = run["origin"], float(run["seconds"])
            self._header, self._arrays, self._metadata = header, arrays, run["metadata"]
            checkpoint.check_metadata(self.function, self.folder, self._metadata)
            self._state = checkpoint.state_of(header, arrays)
        self.begun = True

    @property
    def state(self) -> AnyState:
        """Where the run goes on."""
        return self._state

    def restore(self, running: RunningPrediction | None) -> None:
        """Put back what was gathered of the draws before."""
        if running is None or not self.begun or self._header["prediction"] is None:
            return
        found = archive.get(self._arrays, "prediction")
        running.restore(self._header["prediction"], found, self._arrays.get("traced"))

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
    ) -> tuple[StoredRecord, StoredRecord | None]:
        """Return where draws and warmup go, `sizes` of them planned; what is there counts."""
        chains, dtype = state.position.shape[0], host_dtype(state.position).name
        if self.begun and self._layouts:
            sizes = _planned(self._layouts)
        stored = self.options.dtype or dtype
        planned = [("", sizes[0], positions and self.options.keep == "draws")]
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
        self._fixed = {
            "settings": settings,
            "predictive": predictive,
            "repeated": 0,
            "state": None,
        }
        self._begin(state)
        return self._records[0], self._records[1] if len(self._records) > 1 else None

    @property
    def _columns(self) -> list[Column]:
        found = [column for record in self._records for column in record.columns]
        return found + ([] if self._predictions is None else [self._predictions])

    def _begin(self, state: AnyState) -> None:
        """Make the folder's arrays, or take up those that are there."""
        if self.begun:
            for column in self._columns:
                _, count, digests = self._layouts[column.layout.name]
                column.go_on(self.function, count, digests)
            return
        layouts = [column.layout for column in self._columns]
        self._metadata = create(
            self.function, self.folder, layouts, _attributes(self._fixed["settings"])
        )
        for folder in sorted({self.folder / one.name for one in layouts}):
            sync_folder(folder)
            sync_folder(folder.parent)
        sync_folder(self.folder)
        self._checkpoint((0, 0, state, None, 0.0))()

    def ready(self, size: int) -> None:
        """Say that `size` bytes of full chunks wait."""
        self._is_ready, self._since = True, self._since + size

    def reserve(self) -> float:
        """Return seconds that the last flush will take, as far as one knows."""
        return 1.5 * self._took

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

    @contextlib.contextmanager
    def finishing(self, place: Callable[[], Place]) -> Iterator[None]:
        """Write what there is when the block ends, however it ends.

        Raises
        ------
        OSError
            When that fails; where the block ends with an exception that one gets a note instead.
        """
        try:
            yield
        except BaseException as error:
            self._finish(place)
            if self._writer.error is not None and not self._told:
                error.add_note(str(failure(self.function, self.folder, self._writer.error)))
            raise
        self._finish(place)
        self._raise()

    def _finish(self, place: Callable[[], Place]) -> None:
        if self._writer.error is None:
            self._hand_over()
            self._writer.submit(self._checkpoint(place()), 0, _MOST_WAITING)
        self._writer.close()
        if self._writer.error is None:
            for column in self._columns:
                column.held.clear()

    def _raise(self) -> None:
        if self._writer.error is not None:
            self._told = True
            raise failure(self.function, self.folder, self._writer.error)

    def _checkpoint(self, place: Place) -> Callable[[], None]:
        """Return a job that makes draws up to here count: all that changes later is copied now."""
        kept, warm, state, running, seconds = place
        layouts = [column.layout.describe() for column in self._columns]
        header: dict[str, Any] = {**self._fixed, "prediction": None, "seconds": seconds}
        header["run"] = {
            "version": checkpoint.VERSION,
            "kind": "draws",
            "request": self._request,
            "layouts": layouts,
            "metadata": self._metadata,
            "kept": kept,
            "warm": warm,
            "origin": self.origin,
            "seconds": seconds,
        }
        planned = self._records[0].columns[0].layout.shape[1]
        header["complete"] = kept == planned
        arrays: dict[str, Any] = {}
        archive.put_state(arrays, header, state)
        if running is not None and running.moments.count:
            header["prediction"], found = running.pack()
            archive.put(arrays, "prediction", {k: _copied(v) for k, v in found.items()})
            arrays["traced"] = _copied(running.traced)
        return functools.partial(self._write, header, arrays, kept, warm)

    def _write(self, header: dict[str, Any], arrays: dict[str, Any], kept: int, warm: int) -> None:
        begin = time.perf_counter()
        for column in self._columns:
            layout = column.layout
            count = warm if layout.name.startswith("warmup_") else kept
            chunk, rows = divmod(count, layout.length)
            if rows and chunk in column.held:
                column.write(chunk, rows)
            digests = column.digests[: -(-count // layout.length)]
            shape = (len(digests), layout.pieces)
            arrays[f"digests/{layout.name}"] = np.array(digests, np.uint32).reshape(shape)
            sync_folder(self.folder / layout.name)
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


def failure(function: str, folder: Path, error: BaseException) -> BaseException:
    """Return the error that says why a folder could not be written."""
    if not isinstance(error, OSError):
        return error
    place = error.filename or folder
    text = (
        f"[{function}] expected to write the run in {folder}, got {error.strerror or error}: "
        f"{place} (the folder is whole up to its last checkpoint; the same call goes on from there)"
    )
    found = OSError(error.errno or 5, text)
    found.__cause__ = error
    return found


@contextlib.contextmanager
def folder_opened(function: str, value: Any) -> Iterator[Store | None]:
    """Give the options of a folder that nobody else writes meanwhile; None for None.

    Raises
    ------
    ImportError
        Without the extra "store".
    ValueError
        When the folder holds something else, or another run writes it.
    OSError
        When it cannot be made.
    """
    if value is None:
        yield None
        return
    options = Store.of(function, value)
    need_crc(function)
    folder = options.folder
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"[{function}] expected a folder for store, got a file: {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    if not checkpoint.exists(folder):
        other = [entry for entry in sorted(os.listdir(folder)) if not _is_ours(entry)]
        if other:
            hint = (
                f": its checkpoint is gone, {checkpoint.PREVIOUS} in its place goes on earlier"
                if checkpoint.PREVIOUS in other
                else ""
            )
            raise ValueError(
                f"[{function}] expected a new or empty folder, or that of a run, got {folder} with "
                f"{other[0]} in it{hint}"
            )
    lock = Lock(function, folder)
    try:
        yield options
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # a run that never began leaves nothing
            os.rmdir(folder)


def _is_ours(entry: str) -> bool:
    return entry in _OURS or (entry.startswith(".") and entry.endswith(".tmp"))
