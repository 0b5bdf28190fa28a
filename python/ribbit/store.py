"""Folders of runs and of fits, and reading them or a saved file.

A folder has append-only files of rows and a state file. The state file counts the rows, has a
checksum of each block of them, and holds all that a run needs to continue. It is replaced whole.

Shapes: C chains, D draws, P parameters, K draws of a call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import re
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import is_array, to_host
from ribbit._arrays.warning import warn
from ribbit.errors import DataError
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.contents import whole
from ribbit.results.draws import Draws
from ribbit.results.lazy import JoinedArray, MappedArray, RoundedArray, encoded
from ribbit.results.saved import Fit, draws_of, fit_of, flag, module_of, run_of

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "Lock",
    "Opened",
    "Part",
    "Saved",
    "StateWriter",
    "Store",
    "StoreWriter",
    "difference",
    "folder_opened",
    "load",
    "writer",
]

_FORMAT = 1
_BLOCK = 1 << 26  # bytes of a file that share a checksum
_PIECE = 1 << 22  # bytes that a check of a file reads at once
_STATE, _PREVIOUS, _NEW, _LOCK = "state", "state.previous", "state.new", "lock"
_HEAD = re.compile(rb'\{"ribbit run": (\d+), "crc32": "([0-9a-f]{8})", ')
_OURS = (_LOCK, _NEW)  # what a run leaves that was killed before it had a state
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_KINDS = {"draws": "a sampler's run", "fit": "a fit"}
_NAME = "load"
_EXPECTED = "a file of draws or of a fit, or the folder of a run"
_RESCUE = "rb.load(..., rescue=True) returns the draws before the damage"


@dataclass(frozen=True)
class Store:
    """Options of the folder of a run, for ``sample(store=)`` and ``fit(store=)``.

    A path alone means ``Store(path)``. The folder is made. The same call again resumes an
    interrupted run, with results bit-identical to an uninterrupted one.

    Parameters
    ----------
    path : str or path
        A folder that is new, empty, or of the same run.
    flush_seconds : float
        Seconds between two checkpoints: the longest time that a kill or a power cut costs.
    keep : {"draws", "predictions"}
        "predictions": keep each draw's predictions at ``predict_at`` instead of its weights.
    dtype : {"float16", "bfloat16", "float32", "float64"}, optional
        Dtype of the stored weights. Default: the target's dtype. Draws are read in the target's
        dtype, rounded to this one. Resuming does not depend on it.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> store = rb.Store("run", flush_seconds=60, dtype="float16")
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False, store=store)
    >>> draws.positions.shape, draws.positions.dtype
    ((4, 20, 10), dtype('float32'))
    """

    path: str | os.PathLike[str]
    flush_seconds: float = 5.0
    keep: str = "draws"
    dtype: str | None = None

    def __post_init__(self) -> None:
        name = "Store"
        checks.path(name, self.path)
        checks.positive(name, "flush_seconds", self.flush_seconds)
        checks.choice(name, "keep", self.keep, ("draws", "predictions"))
        if self.dtype is not None:
            checks.choice(name, "dtype", self.dtype, _DTYPES)

    @staticmethod
    def of(function: str, value: Any) -> Store:
        """Return a Store unchanged, or make one from a path."""
        if isinstance(value, Store):
            return value
        return Store(checks.path(function, value, "store as a path or rb.Store(...)"))

    @property
    def folder(self) -> Path:
        """Absolute path of the folder."""
        return Path(os.path.abspath(checks.path("Store", self.path)))


class RowFile:
    """An append-only file of rows (D, C, ...), each a draw of all chains.

    `stored` is the dtype in the file ("bfloat16" too) or the fields of statistics, `dtype` the
    dtype of positions in memory. `crcs` are the CRC-32 of each block of `block` bytes; the last
    block may be shorter. Rows that cannot be written, and all after them, stay in memory (`held`).
    """

    def __init__(
        self,
        path: Path,
        stored: Any,
        dtype: str | None,
        shape: tuple[int, ...],
        rows: int = 0,
        crcs: Iterable[int] = (),
        block: int | None = None,
    ) -> None:
        self.path, self.stored, self.dtype, self.shape = path, stored, dtype, shape
        self.rows = self.written = rows
        self.crcs, self.block = list(crcs), block or _BLOCK
        self.held: list[npt.NDArray[Any]] = []
        if isinstance(stored, str):
            self.disk = np.dtype({"bfloat16": "uint16"}.get(stored, stored)).newbyteorder("<")
        else:
            fields = [(name, np.dtype(kind).newbyteorder("<")) for name, kind in stored]
            self.disk = np.dtype(fields, align=True)
        self.each = math.prod(shape) * self.disk.itemsize
        self._descriptor: int | None = None
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()  # no thread maps the file while another closes it

    def describe(self) -> dict[str, Any]:
        """Return plain values for the state file, copied."""
        return {
            "stored": self.stored,
            "dtype": self.dtype,
            "shape": self.shape,
            "rows": self.rows,
            "block": self.block,
            "crc32": list(self.crcs),
        }

    @staticmethod
    def from_description(folder: Path, name: str, found: dict[str, Any]) -> RowFile:
        """Rebuild from `describe`; ValueError, KeyError or TypeError for anything else."""
        if name not in ("positions", "stats", "predictions", "warmup_positions", "warmup_stats"):
            raise ValueError(f"a file {name!r:.60}")
        shape = tuple(whole("shape", n, below=2**40) for n in found["shape"])
        rows, block = whole("rows", found["rows"], below=2**40), found["block"]
        crcs = [whole("crc32", crc, below=2**32) for crc in found["crc32"]]
        file = RowFile(
            folder / f"{name}.bin", found["stored"], found["dtype"], shape, rows, crcs, block
        )
        kinds = {file.disk[field].kind for field in file.disk.names or ()} or {file.disk.kind}
        if whole("block", block, below=2**40) == 0 or not kinds <= set("biuf") or 0 in shape:
            raise ValueError(f"rows {shape} of {file.disk} in blocks of {block} bytes")
        if len(crcs) != -(-rows * file.each // block):
            raise ValueError(f"{len(crcs)} checksums of {rows * file.each} bytes")
        return file

    def open(self, errors: list[BaseException]) -> None:
        """Make the file, or cut off what does not count; what goes wrong later joins `errors`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(self.path, flags, 0o666)
        # After an error it stays open as long as this lives. A run may end with the process.
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False
        os.ftruncate(self._descriptor, self.rows * self.each)
        self._errors = errors

    def append(self, block: npt.NDArray[Any]) -> None:
        """Write rows (K, C, ...) to the system's cache; what cannot be written stays in memory."""
        assert self._descriptor is not None
        if isinstance(self.stored, str):
            block = encoded(block, self.stored)
        block = np.ascontiguousarray(block, self.disk)
        self.rows += len(block)
        data = block.reshape(-1).view(np.uint8).data
        left = data
        try:
            while left and not self._errors:  # a full disk takes a part first
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            error.filename = str(self.path)
            self._errors.append(error)
        if left or self.held:
            self.held.append(block.copy())
            return
        at = self.written * self.each
        self.written = self.rows
        while data:
            room = self.block - at % self.block
            if room == self.block:
                self.crcs.append(0)
            self.crcs[-1] = zlib.crc32(data[:room], self.crcs[-1])
            at, data = at + min(room, len(data)), data[room:]

    def sync(self) -> None:
        """Flush what was written to the disk."""
        if self._descriptor is not None:
            getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def close(self) -> None:
        """Close the file, which is then mapped by its path."""
        with self._lock:
            if self._descriptor is not None:
                self._descriptor = self._close()

    def array(self, rows: int) -> Any:
        """Return the first rows as (C, rows, ...); the file is mapped."""
        parts = [np.empty((0, *self.shape), self.disk)] if rows == 0 else []
        count = min(rows, self.written)
        with self._lock:
            own = self._descriptor
            if count:
                # By the descriptor of who writes: the folder may be gone.
                with open(self.path if own is None else own, "rb", closefd=own is None) as file:
                    parts.append(MappedArray(file, self.disk, "r", shape=(count, *self.shape)))
        for block in self.held if rows > count else []:
            parts.append(block[: rows - count])
            count += len(parts[-1])
        turned: list[Any] = [np.swapaxes(part, 0, 1) for part in parts]
        if self.dtype is not None and self.stored != self.dtype:
            turned = [RoundedArray(part, self.dtype) for part in turned]
        return turned[0] if len(turned) == 1 else JoinedArray(turned, 1)

    def valid(self, known: Iterable[tuple[int, int]] = ()) -> int:
        """Return how many rows at the start of the file have the right checksums.

        known: (end in bytes, checksum from the start of its block) that another state has.
        """
        good, at, crc = 0, 0, 0
        with contextlib.suppress(OSError), open(self.path, "rb", buffering=0) as file:
            for end, wanted in sorted({*self.ends(), *known}):
                while at < end:
                    crc = 0 if at % self.block == 0 else crc
                    part = file.read(min(end - at, self.block - at % self.block, _PIECE))
                    crc, at = zlib.crc32(part, crc), at + len(part) if part else end
                if crc != wanted or file.tell() < end:
                    break
                good = end
        return min(good // self.each, self.rows)

    def ends(self) -> list[tuple[int, int]]:
        """Return the end of each block in bytes, with its checksum."""
        size = self.rows * self.each
        return [(min((i + 1) * self.block, size), crc) for i, crc in enumerate(self.crcs)]

    def check(self, function: str, *, verify: bool = True) -> None:
        """Raise a DataError with the file's name if it is missing, short, or damaged."""
        wanted, got = self.rows * self.each, "no such file"
        if self.path.exists():
            size = self.path.stat().st_size
            got = f"{size} bytes where {wanted} were written" if size < wanted else ""
        if verify and not got and self.valid() < self.rows:
            got = "bytes that do not match their checksum"
        if got:
            text = f"expected a whole file, got {got}: {self.path} ({_RESCUE})"
            raise DataError(f"[{function}] {text}")


class Part:
    """Draws, or steps of warmup: positions, unless none are kept, and statistics, in two files."""

    def __init__(self, files: Mapping[str, RowFile], prefix: str = "") -> None:
        self._positions = files.get(f"{prefix}positions")
        self._stats = files[f"{prefix}stats"]

    @property
    def count(self) -> int:
        """Draws of each chain."""
        return self._stats.rows

    @property
    def row(self) -> np.dtype[Any]:
        """Dtype of the statistics of a draw of one chain."""
        return self._stats.disk

    def append(self, positions: Array, stats: Mapping[str, Array]) -> None:
        """Add draws (C, K, P) and their statistics (C, K)."""
        rows = np.zeros((positions.shape[1], *self._stats.shape), self.row)
        for name in self.row.names or ():
            rows[name] = np.swapaxes(to_host(stats[name]), 0, 1)
        if self._positions is not None:
            self._positions.append(np.swapaxes(to_host(positions), 0, 1))
        self._stats.append(rows)

    def upto(self, count: int) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """Return the first positions (C, count, P), None if none are kept, and statistics."""
        positions = None if self._positions is None else self._positions.array(count)
        stats = np.asarray(self._stats.array(count))
        return positions, {name: stats[name] for name in self.row.names or ()}


class Opened(NamedTuple):
    """A folder that no other run writes; `writable` is False for a finished run on such a disk."""

    options: Store
    writable: bool


# What `save` returns for a state file: plain values, and what makes the bytes of each section.
Saved: TypeAlias = "tuple[dict[str, Any], dict[str, Callable[[], bytes]]]"


class StateWriter:
    """The state file of a folder while one call writes it; `kind` is "draws" or "fit".

    `begun` and `complete` say whether the folder holds this run and whether it had ended, `seconds`
    how long the calls before took. `header` and `arrays` are the contents of the state that was
    there. `files` has a RowFile by each name, without ".bin".
    """

    def __init__(self, function: str, opened: Opened, kind: str, request: dict[str, Any]) -> None:
        self.function, self.kind, self.options = function, kind, opened.options
        self.folder = opened.options.folder
        self.begun, self.complete, self.seconds = False, False, 0.0
        self.header: dict[str, Any] = {}
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self.files: dict[str, RowFile] = {}
        self.errors: list[BaseException] = []
        self.writable = opened.writable
        self._request = {key: plain(value) for key, value in request.items()}
        self._thread: threading.Thread | None = None
        self._told, self._took = False, 0.0
        self._due = time.perf_counter() + self.options.flush_seconds
        if (self.folder / _STATE).exists():
            self._resume()

    def _resume(self) -> None:
        """Read the state; DataError if it is damaged, ValueError if another call wrote it."""
        function, folder = self.function, self.folder
        header, sections = _read_state(function, folder / _STATE)
        if header["kind"] != self.kind:
            own, other = (_KINDS[kind] for kind in (self.kind, header["kind"]))
            raise DataError(
                f"[{function}] expected the folder of {own}, got the folder of {other}: {folder}"
            )
        kept = header["files"]["stats"]["rows"] if self.kind == "draws" else None
        refusal = difference(function, folder, header["request"], self._request, kept)
        if refusal is not None:
            raise refusal
        with _reading(function, folder / _STATE):
            self.header, self.arrays = _unpacked(function, header, sections)
            self.files = _files_of(folder, header)
            self.seconds, self.complete = float(header["seconds"]), flag(header["complete"])
        for file in self.files.values():
            file.check(function)
        self.begun = True

    def reserve(self) -> float:
        """Return the seconds that the last checkpoint will take, as far as is known."""
        return 1.5 * self._took

    def checkpoint(self, save: Callable[[], Saved], *, now: bool = False) -> None:
        """Write the state during sampling when it is due; `now`: before this returns.

        Raises OSError when that failed, or an append before it.
        """
        early = time.perf_counter() < self._due or (self._thread and self._thread.is_alive())
        if early and not (now or self.errors):
            return
        self._join()
        if self.writable and not self.complete and not self.errors:
            job = self._job(*save())
            if not self.errors:  # of appends in `save`
                thread = threading.Thread(target=job, name="ribbit store", daemon=True)
                try:
                    (job if now else thread.start)()
                    self._thread = None if now else thread
                except RuntimeError:  # the interpreter ends, and starts no thread
                    job()
            self._due = time.perf_counter() + self.options.flush_seconds
        if self.errors:
            self._told = True
            raise _failure(self.function, self.folder, self.errors[0])

    def _join(self) -> None:
        """Wait for the thread that writes, if there is one."""
        if self._thread is not None:
            self._thread.join()

    @contextlib.contextmanager
    def finishing(self, save: Callable[[], Saved]) -> Iterator[None]:
        """Write the state when the block ends, however it ends.

        Raises OSError when that fails; an exception that ends the block gets a note instead.
        """
        try:
            yield
        except BaseException as error:
            self._join()
            if not self._told:
                try:
                    self._finish(save)
                except Exception as other:
                    error.add_note(str(other))
            raise
        self._finish(save)

    def _finish(self, save: Callable[[], Saved]) -> None:
        self.checkpoint(save, now=True)
        for file in self.files.values():  # all that was drawn is in them
            file.close()

    def _job(
        self, values: dict[str, Any], sections: dict[str, Callable[[], bytes]]
    ) -> Callable[[], None]:
        """Return what writes a state; all that appends change is copied here."""
        header = {
            "kind": self.kind,
            "request": self._request,
            "files": {name: file.describe() for name, file in self.files.items()},
            **values,
        }

        def job() -> None:
            begin = time.perf_counter()
            try:
                for file in self.files.values():
                    file.sync()
                _write_state(self.folder, header, {name: make() for name, make in sections.items()})
            except BaseException as error:  # for the thread that samples
                self.errors.append(error)
            self._took = time.perf_counter() - begin

        return job


class StoreWriter(StateWriter):
    """The files of draws and the state file that counts them; see `StateWriter`."""

    draws: Part
    warmup: Part | None = None
    predictions: RowFile | None = None

    def begin(
        self,
        shape: tuple[int, int],
        dtype: str,
        statistics: Mapping[str, str],
        *,
        positions: bool,
        warmup: bool,
        predictions: tuple[tuple[int, ...], str] | None,
    ) -> None:
        """Make the files of draws (C, P), or take up those that are there.

        predictions: shape of a row, (C, N) or (C, N, K), and dtype.
        """
        stored, kinds = self.options.dtype or dtype, list(statistics.items())
        made: dict[str, Any] = {"stats": (kinds, None, shape[:1])}
        if positions:
            made["positions"] = stored, dtype, shape
        if warmup:
            made["warmup_stats"] = kinds, None, shape[:1]
            made["warmup_positions"] = stored, dtype, shape
        if predictions is not None:
            made["predictions"] = predictions[1], predictions[1], predictions[0]
        if not self.begun:
            files = {name: RowFile(self.folder / f"{name}.bin", *how) for name, how in made.items()}
            self.files = files
        if self.writable and not self.complete:
            try:
                for file in self.files.values():
                    file.open(self.errors)
            except OSError as error:
                raise _failure(self.function, self.folder, error) from error
        self.draws = Part(self.files)
        self.warmup = Part(self.files, "warmup_") if "warmup_stats" in self.files else None
        self.predictions = self.files.get("predictions")


def _write_state(folder: Path, header: dict[str, Any], sections: dict[str, bytes]) -> None:
    """Replace the state file, flushed; the state before becomes state.previous."""
    header["sections"] = [(name, len(data), zlib.crc32(data)) for name, data in sections.items()]
    line = archive.text(header)[1:].encode() + b"\n"
    with open(folder / _NEW, "wb", buffering=0) as file:
        head = b'{"ribbit run": %d, "crc32": "%08x", ' % (_FORMAT, zlib.crc32(line))
        for data in (head + line, *sections.values()):
            left = memoryview(data)
            while left:  # a full disk takes a part first
                left = left[file.write(left) or 0 :]
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / _PREVIOUS)
    with contextlib.suppress(OSError):  # a file system without links does without
        os.link(folder / _STATE, folder / _PREVIOUS)
    os.replace(folder / _NEW, folder / _STATE)
    _sync_folder(folder)


def _read_state(function: str, path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the plain values and the sections of a state file; DataError with its name."""
    try:
        line, _, rest = path.read_bytes().partition(b"\n")
    except FileNotFoundError as error:
        raise DataError(
            f"[{function}] expected a whole run, got no file {path} ({_RESCUE})"
        ) from error
    with _reading(function, path):
        head = _HEAD.match(line)
        if head is None:
            raise ValueError("another format")
        if int(head[1]) != _FORMAT:
            raise DataError(
                f"[{function}] expected a run of format {_FORMAT}, got {int(head[1])}: {path} "
                "(written by another version of Ribbit)"
            )
        if zlib.crc32(line[head.end() :] + b"\n") != int(head[2], 16):
            raise ValueError("bytes that do not match their checksum")
        header: dict[str, Any] = json.loads(line)
        sections, at = {}, 0
        for name, size, crc in header["sections"]:
            sections[name] = rest[at : at + size]
            if len(sections[name]) != size or zlib.crc32(sections[name]) != crc:
                raise ValueError(f"bytes of {name} that do not match their checksum")
            at += size
        if at != len(rest):
            raise ValueError(f"{len(rest) - at} bytes more")
        return header, sections


@contextlib.contextmanager
def _reading(function: str, path: Path) -> Iterator[None]:
    """Raise what goes wrong with the contents of a file as a DataError with its name."""
    try:
        yield
    except (DataError, OSError, MemoryError):
        raise
    except Exception as error:  # zipfile, numpy and json raise all kinds
        raise DataError(
            f"[{function}] expected the whole state of a run, got a damaged or foreign file: "
            f"{path} ({type(error).__name__}: {error}; {_RESCUE})"
        ) from error


def _unpacked(
    function: str, header: dict[str, Any], sections: dict[str, bytes]
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the plain values and arrays of a state and its sections."""
    values, arrays = dict(header), dict[str, Any]()
    for data in sections.values():
        more, found = archive.unpacked(function, data)
        values |= more
        arrays |= found
    return values, arrays


def _files_of(folder: Path, header: dict[str, Any]) -> dict[str, RowFile]:
    """Return the files of a state; ValueError if they have different numbers of draws."""
    described = header["files"].items()
    files = {name: RowFile.from_description(folder, name, how) for name, how in described}
    for warmup in (False, True):
        rows = {f.rows for name, f in files.items() if name.startswith("warmup_") == warmup}
        if len(rows) > 1:
            raise ValueError(f"files of {sorted(rows)} draws")
    return files


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where folders can be opened (not on Windows)."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _failure(function: str, folder: Path, error: BaseException) -> BaseException:
    """Return the error that says why a folder could not be written."""
    if not isinstance(error, OSError):
        return error
    text = (
        f"[{function}] expected to write the run in {folder}, got {error.strerror or error}: "
        f"{error.filename or folder} (the folder is whole up to its last checkpoint; the same call "
        "resumes there)"
    )
    found = OSError(error.errno or 5, text)
    found.__cause__ = error
    return found


@contextlib.contextmanager
def folder_opened(function: str, value: Any) -> Iterator[Opened | None]:
    """Give a folder that no other run writes meanwhile; None for None."""
    if value is None:
        yield None
        return
    options = Store.of(function, value)
    folder = options.folder
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"[{function}] expected a folder for store, got a file: {folder}")
    if not folder.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"[{function}] expected a folder for store that can be made, got {error}"
            ) from error
        for place in (folder.parent, folder.parent.parent):  # a power cut must not lose the name
            with contextlib.suppress(OSError):
                _sync_folder(place)
    if not (folder / _STATE).exists():
        other = [entry for entry in sorted(os.listdir(folder)) if not _is_ours(folder / entry)]
        if other:
            hint = (
                f": its state is gone; to resume from an earlier one rename {_PREVIOUS} to {_STATE}"
                if _PREVIOUS in other
                else ""
            )
            raise ValueError(
                f"[{function}] expected a new or empty folder for store, or a run's, got "
                f"{folder} with {other[0]} in it{hint}"
            )
    lock: Lock | None = None
    try:
        try:
            lock = Lock(function, folder)
        except OSError as error:
            if not _has_ended(folder):  # else nothing is written
                raise _failure(function, folder, error) from error
        yield Opened(options, lock is not None)
    finally:
        if lock is not None:
            lock.release()
        with contextlib.suppress(OSError):  # a run that never began leaves nothing
            os.rmdir(folder)


_locks: set[int] = set()  # descriptors of this process


def _forget() -> None:
    """Close the locks in a fork, which may outlive the run."""
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_forget)


class Lock:
    """The kernel's lock on the file "lock", until :meth:`release` or the end of the process."""

    def __init__(self, function: str, folder: Path) -> None:
        self._path, self._process, who = folder / _LOCK, os.getpid(), ""
        for _ in range(5):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._descriptor).st_nlink > 0:
                    break  # else the run before has just removed the file
            except BlockingIOError:  # another run has it, or `writer` for less than a millisecond
                who = os.pread(self._descriptor, 4096, 0).decode()
            except OSError:
                text = "is on a file system without locks. Do not start a second run in it."
                warn(f"[{function}] {folder} {text}")
                break
            os.close(self._descriptor)
            time.sleep(0.01)
        else:
            ranks = {"PMI_RANK", "OMPI_COMM_WORLD_RANK"} & {*os.environ}
            hint = " (under mpiexec a posterior of all ranks needs group=)" if ranks else ""
            wait = f"Wait until it ends, or use another folder{hint}"
            raise ValueError(f"[{function}] {who or 'another process'} writes {folder}. {wait}")
        _locks.add(self._descriptor)
        try:
            os.ftruncate(self._descriptor, 0)
            who = f"process {self._process} on {os.uname().nodename}"
            os.pwrite(self._descriptor, who.encode(), 0)
        except OSError as error:  # a full disk
            self.release()
            error.filename = str(self._path)
            raise

    def release(self) -> None:
        """Let the next run in; a fork has no lock to release."""
        if self._process == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            _locks.discard(self._descriptor)
            os.close(self._descriptor)


def writer(folder: Path) -> str | None:
    """Return process and host of the run that writes a folder; None if no run does."""
    with contextlib.suppress(FileNotFoundError), open(folder / _LOCK, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return file.read()
    return None


def _is_ours(path: Path) -> bool:
    """Whether a run left it that was killed before its first checkpoint."""
    return path.name in _OURS or (path.suffix == ".bin" and path.stat().st_size == 0)


def _has_ended(folder: Path) -> bool:
    try:
        return _read_state(_NAME, folder / _STATE)[0]["complete"] is True
    except (DataError, OSError):
        return False


def plain(value: Any) -> Any:
    """Return what JSON knows: numbers, texts, lists and dicts as they are, arrays as digests."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)  # NaN and infinity too
    if isinstance(value, np.generic):
        return plain(value.item())
    if is_array(value):
        import hashlib  # not with ribbit: slow to load

        host = np.ascontiguousarray(to_host(value))
        digest = hashlib.blake2b(host.tobytes(), digest_size=16).hexdigest()
        return f"{host.dtype} {host.shape} {digest}"
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        # What a state, draws or a fit are made of; not the target behind them, nor the clock.
        skipped = ("predictive", "prediction", "target", "settings", "seconds", "history", "stats")
        kept = {k: plain(v) for k, v in own.items() if k not in skipped}
        return {"kind": type(value).__name__, **kept}
    return type(value).__name__


def difference(
    function: str,
    folder: Path,
    before: dict[str, Any],
    now: dict[str, Any],
    kept: int | None = None,
) -> ValueError | None:
    """Return an error that names the first value of `now` that differs from the folder's.

    `kept`: draws in the folder.
    """
    before, now = (_given(json.loads(json.dumps(values))) for values in (before, now))
    name = next((k for k in [*now, *before] if before.get(k) != now.get(k)), None)
    if name is None:
        return None
    old, new = before.get(name), now.get(name)
    if name == "target" and isinstance(old, dict) and isinstance(new, dict):
        return _other_target(function, folder, old, new)
    while isinstance(old, dict) and isinstance(new, dict):
        inner = next(k for k in [*new, *old] if old.get(k) != new.get(k))
        name = inner if name == "settings" else f"{name}.{inner}"
        old, new = old.get(inner), new.get(inner)
    return ValueError(
        f"[{function}] expected the run in {folder}, got another one with {name}={new!r:.80} where "
        f"it was {old!r:.80}: {_advice(folder, name, old, new, kept)}"
    )


def _advice(folder: Path, name: str, old: Any, new: Any, kept: int | None) -> str:
    """Return how to make more draws or epochs of a run, else how to keep another run."""
    more = isinstance(old, int) and isinstance(new, int) and new > old
    if name in ("num_draws", "num_epochs") and more:
        call = f"fit({new - old}" if kept is None else f"sample({new - kept}"
        joined = "" if kept is None else "; rb.concatenate([draws, more]) has all draws"
        first, second = ("fit", "more") if kept is None else ("draws", "more")
        return (
            f"to continue, {first} = rb.load({str(folder)!r}), then {second} = "
            f"...{call}, resume={first}, store=another folder){joined}"
        )
    if name == "seed":
        return f"seed={old} resumes it; give another run a folder of its own"
    return "give it a folder of its own"


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is None, at any depth: an option that did not exist yet is one not given."""
    return {
        key: _given(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _other_target(
    function: str, folder: Path, old: dict[str, str], new: dict[str, str]
) -> ValueError:
    names = [k for k in [*new, *old] if old.get(k) != new.get(k)]
    other = [name for name in dict.fromkeys(names) if name != "instruction set"]
    if "shards" in other:
        other = ["number of shards"]  # by which rows have their digests
    if other:
        return ValueError(
            f"[{function}] expected the target of the run in {folder}, got one with another "
            f"{' and '.join(other)}: give it a folder of its own"
        )
    before = old["instruction set"]
    return ValueError(
        f"[{function}] expected the instruction set of the run in {folder}, {before}, got "
        f"{new['instruction set']}: rounding would change within one run. RIBBIT_ISA={before} in "
        "the environment continues it bit-identically if the processor supports it"
    )


def load(path: str | os.PathLike[str], *, rescue: bool = False, verify: bool = True) -> Draws | Fit:
    """Return draws or a fit from a file, or from the folder of a run.

    Files are written by :meth:`ribbit.Draws.save` and by ``save`` of a fit. Arrays are read as
    NumPy arrays. The result predicts and resumes like the one that was saved.

    Folders are written by ``sample(store=)`` and ``fit(store=)``. You can load a folder during the
    run: the result has the draws up to the last checkpoint. ``draws.positions`` and ``draws.stats``
    are views of the files in the folder, which are mapped (``numpy.memmap``).

    Parameters
    ----------
    path
        Path of the file or folder.
    rescue : bool
        For a damaged folder, return the draws before the damage. A checksum covers 64 MiB of a
        file, or a smaller file.
    verify : bool
        Compare the files of a folder with their checksums, which reads them once.

    Returns
    -------
    Draws, MeanField, DropoutFit, EnsembleFit, SWAGFit or LaplaceFit
        With ``complete=False`` if a run in a folder has not ended. Rescued draws cannot be resumed
        if some are missing.

    Raises
    ------
    FileNotFoundError
        If the path does not exist, or the folder has no run.
    DataError
        A ValueError: a file is damaged, truncated, missing, of another format or a newer version,
        or has invalid contents.
    MemoryError
        If the arrays of a file do not fit into free memory.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False, store="run")
    >>> rb.load("run").predict(x).mean.shape
    (20, 1)
    >>> draws.save("draws.npz")
    >>> bool((rb.load("draws.npz").positions == draws.positions).all())
    True
    >>> rb.BBB(target).fit(20, progress=False).save("fit.npz")
    >>> rb.load("fit.npz").predict(x).mean.shape
    (20, 1)
    """
    source = checks.path(_NAME, path)
    rescue = checks.boolean(_NAME, "rescue", rescue)
    verify = checks.boolean(_NAME, "verify", verify)
    source = Path(os.path.abspath(source))
    if not source.exists():
        raise FileNotFoundError(f"[{_NAME}] expected {_EXPECTED}, got none at {source}")
    if source.is_dir():
        return _load_folder(source, rescue, verify)
    if (source.parent / _STATE).exists() and (source.suffix == ".bin" or source.stem == _STATE):
        raise DataError(
            f"[{_NAME}] expected {_EXPECTED}, got a part of a run: use "
            f"rb.load({os.path.dirname(source)!r})"
        )
    with archive.opened(_NAME, source, "draws or a fit") as (header, arrays):
        build = fit_of if "fit" in header else draws_of
        return build(header, arrays, _predictive(header))


def _load_folder(folder: Path, rescue: bool, verify: bool) -> Draws | Fit:
    """Return the draws, or the fit so far, of the run in a folder."""
    places = [folder / _STATE, *([folder / _PREVIOUS] if rescue else [])]
    if all(_is_ours(path) for path in folder.glob("*.bin")) and not any(
        (folder / name).exists() for name in (_STATE, _PREVIOUS)
    ):
        parts = [p for p in folder.iterdir() if p.suffix == ".npz" or (p / _STATE).exists()]
        got = f"got a folder without a run: {folder}"
        got += f", which holds {', '.join(sorted(one.name for one in parts)[:9])}" * bool(parts)
        raise FileNotFoundError(f"[{_NAME}] expected {_EXPECTED}, {got}")
    found, damage = [], None
    for place in places:
        try:
            found.append((place, *_read_state(_NAME, place)))
        except DataError as error:
            damage = damage or error
    if not found:
        assert damage is not None
        raise damage
    place, header, sections = found[0]
    with _reading(_NAME, place):
        values, arrays = _unpacked(_NAME, header, sections)
        predictive = _predictive(values)
        if header["kind"] == "fit":
            return fit_of(values, arrays, predictive)
        files = _files_of(folder, header)
        counts = {name: file.rows for name, file in files.items()}
        if rescue:
            same = [one for _, one, _ in found[1:] if one["request"] == header["request"]]
            others = [_files_of(folder, one) for one in same]
            for name, file in files.items():
                known = [end for other in others if name in other for end in other[name].ends()]
                counts[name] = file.valid(known)
        else:
            for file in files.values():
                file.check(_NAME, verify=verify)
        warm = min((n for name, n in counts.items() if name.startswith("warmup_")), default=0)
        kept = min(n for name, n in counts.items() if not name.startswith("warmup_"))
        entire = all(counts[name] == file.rows for name, file in files.items())
        return run_of(
            values,
            arrays,
            predictive,
            Part(files).upto(kept),
            Part(files, "warmup_").upto(warm) if "warmup_stats" in files else (None, None),
            files["predictions"].array(kept) if "predictions" in files else None,
            entire=entire,
        )


def _predictive(header: dict[str, Any]) -> Any:
    """Return what predicts; None without it, or if it is a module, which a file does not hold."""
    described = header["predictive"]
    if described is None or module_of(header):
        return None
    from ribbit.targets.predictive import predictive_from_description  # for readers alone

    return predictive_from_description(described)


explain(globals())
