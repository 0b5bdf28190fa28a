"""Folders of runs and of fits, and reading them or a saved file.

A folder has append-only files of rows and a state file. The state file counts the rows, has a
checksum of each block of them, and holds all that a run needs to continue. It is replaced whole.

Shapes: C chains, D draws, P parameters, K draws of a call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import math
import os
import re
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import is_array, to_host
from ribbit._arrays.warning import warn
from ribbit.errors import DataError
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.archive import Arrays, whole
from ribbit.results.atomic_file import sync_folder
from ribbit.results.draws import Draws
from ribbit.results.lazy import JoinedArray, MappedArray, RoundedArray, encoded
from ribbit.results.running import RunningPrediction
from ribbit.results.saved import Fit, Rows, draws_of, fit_of, module_of
from ribbit.results.state import State

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Checkpoint", "Folder", "Lock", "Store", "folder_opened", "load", "writer"]

_FORMAT = 1
_BLOCK = 1 << 26  # bytes of a file that share a checksum
_PIECE = 1 << 22  # bytes that a check of a file reads at once
_STATE, _PREVIOUS, _NEW, _LOCK = "state", "state.previous", "state.new", "lock"
_HEAD = re.compile(rb'\{"ribbit run": (\d+), "crc32": "([0-9a-f]{8})", ')
_FILES = ("positions", "stats", "predictions", "warmup_positions", "warmup_stats")
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_NAME = "load"
_EXPECTED = "path must be a file of draws or of a fit, or the folder of a run"
_RESCUE = "rb.load(folder, rescue=True) returns the draws before the damage."
_OWN = "Give this run a folder of its own."


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
    """An append-only file of rows (D, C, ...), each a draw of all chains."""

    def __init__(
        self,
        folder: Path,
        name: str,
        stored: Any,  # dtype in the file, "bfloat16" too, or the fields of statistics
        dtype: str | None,  # of positions in memory
        shape: Iterable[int],
        rows: int = 0,
        crc32: Iterable[int] = (),  # of blocks of so many bytes; the last one may be shorter
        block: int | None = None,
    ) -> None:
        """Take what `describe` returned, checked, or describe a new file."""
        if name not in _FILES:
            raise ValueError(f"a file {name!r:.60}")
        self.path, self.stored, self.dtype = folder / f"{name}.bin", stored, dtype
        self.shape = tuple(whole("shape", n, below=2**40) for n in shape)
        self.rows = self.written = whole("rows", rows, below=2**40)
        self.crc32 = [whole("crc32", crc, below=2**32) for crc in crc32]
        self.block = whole("block", _BLOCK if block is None else block, below=2**40)
        self.unwritten: list[npt.NDArray[Any]] = []  # rows after an error stay in memory
        if isinstance(stored, str):
            self.disk = np.dtype("uint16" if stored == "bfloat16" else stored).newbyteorder("<")
        else:
            fields = [(field, np.dtype(kind).newbyteorder("<")) for field, kind in stored]
            self.disk = np.dtype(fields, align=True)
        self.each = math.prod(self.shape) * self.disk.itemsize  # bytes of a row
        kinds = {self.disk[field].kind for field in self.disk.names or ()} or {self.disk.kind}
        if not kinds <= set("biuf") or 0 in (self.block, *self.shape):
            raise ValueError(f"rows {self.shape} of {self.disk} in blocks of {self.block} bytes")
        if len(self.crc32) != -(-self.rows * self.each // self.block):
            raise ValueError(f"{len(self.crc32)} checksums of {self.rows * self.each} bytes")
        self._descriptor: int | None = None
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()  # no thread maps the file while another closes it

    def describe(self) -> dict[str, Any]:
        """Return plain values for the state file, copied."""
        names = ("stored", "dtype", "shape", "rows", "block")
        return {name: getattr(self, name) for name in names} | {"crc32": list(self.crc32)}

    def open(self, errors: list[BaseException]) -> None:
        """Make the file, or cut off what does not count; what goes wrong later joins `errors`."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        # After an error it stays open as long as this lives. A run may end with the process.
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False
        os.ftruncate(self._descriptor, self.rows * self.each)
        self._errors = errors

    def append(self, rows: Any) -> None:
        """Write rows (K, C, ...) or (K C, ...) to the system's cache, else keep them in memory."""
        assert self._descriptor is not None
        if isinstance(self.stored, str):
            rows = encoded(rows, self.stored)
        rows = np.ascontiguousarray(rows, self.disk).reshape((-1, *self.shape))
        self.rows += len(rows)
        data = rows.reshape(-1).view(np.uint8).data
        left = data
        try:
            while left and not self._errors:  # a full disk takes a part first
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            error.filename = str(self.path)
            self._errors.append(error)
        if left or self.unwritten:
            self.unwritten.append(rows.copy())
            return
        at, self.written = self.written * self.each, self.rows
        while data:
            left_of_block = self.block - at % self.block
            if left_of_block == self.block:
                self.crc32.append(0)
            self.crc32[-1] = zlib.crc32(data[:left_of_block], self.crc32[-1])
            at, data = at + min(left_of_block, len(data)), data[left_of_block:]

    def sync(self) -> None:
        """Flush what was written to the disk."""
        if self._descriptor is not None:
            getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def close(self) -> None:
        """Close the file, which is then mapped by its path."""
        with self._lock:
            if self._descriptor is not None:
                self._descriptor = None  # first: it is gone even if closing fails
                self._close()

    def array(self, count: int) -> Any:
        """Return the first rows as (C, count, ...); the file is mapped."""
        parts: list[Any] = [np.empty((0, *self.shape), self.disk)] if count == 0 else []
        mapped = min(count, self.written)
        with self._lock:
            own = self._descriptor
            if mapped:
                # By the descriptor of who writes: the folder may be gone.
                with open(self.path if own is None else own, "rb", closefd=own is None) as file:
                    parts.append(MappedArray(file, self.disk, "r", shape=(mapped, *self.shape)))
        for block in self.unwritten if count > mapped else []:
            parts.append(block[: count - mapped])
            mapped += len(parts[-1])
        parts = [np.swapaxes(part, 0, 1) for part in parts]
        if self.dtype is not None and self.stored != self.dtype:
            parts = [RoundedArray(part, self.dtype) for part in parts]
        return parts[0] if len(parts) == 1 else JoinedArray(parts, 1)

    def ends(self) -> list[tuple[int, int]]:
        """Return the end of each block in bytes, with its checksum."""
        size = self.rows * self.each
        return [(min((i + 1) * self.block, size), crc) for i, crc in enumerate(self.crc32)]

    def valid(self, known: Iterable[tuple[int, int]] = ()) -> int:
        """Return how many rows match the checksums, also `known` ones of another state."""
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

    def check(self, function: str, *, verify: bool = True) -> None:
        """Raise a DataError with the file's name if it is missing, short, or damaged."""
        size = self.path.stat().st_size if self.path.exists() else -1
        short = size < self.rows * self.each
        if short or (verify and self.valid() < self.rows):
            fault = "is missing or cut short" if short else "does not match its checksums"
            raise DataError(f"[{function}] {self.path} {fault}. {_RESCUE}")


class FileSink:
    """A sink: draws, or steps of warmup, in the files of positions and of statistics."""

    def __init__(self, files: Mapping[str, RowFile], empty: Any, prefix: str = "") -> None:
        self._positions = files.get(f"{prefix}positions")
        self._stats, self._empty = files[f"{prefix}stats"], empty  # (C, 0, P)

    @property
    def count(self) -> int:
        """Draws of each chain."""
        return self._stats.rows

    def room(self) -> int:
        """Return that there is any room: a full disk is told by the next checkpoint."""
        return sys.maxsize

    def append(self, positions: Array, stats: Mapping[str, Array]) -> None:
        """Add draws (C, K, P) and their statistics (C, K)."""
        rows = np.zeros((positions.shape[1], *self._stats.shape), self._stats.disk)
        for name in rows.dtype.names or ():
            rows[name] = np.swapaxes(to_host(stats[name]), 0, 1)
        if self._positions is not None:
            self._positions.append(np.swapaxes(to_host(positions), 0, 1))
        self._stats.append(rows)

    def positions(self, count: int) -> Any:
        """Return the first positions (C, count, P), a mapped file."""
        return self._empty if self._positions is None else self._positions.array(count)

    def stats(self, count: int) -> Arrays:
        """Return the first statistics (C, count), a mapped file."""
        rows = np.asarray(self._stats.array(count))
        return {name: rows[name] for name in rows.dtype.names or ()}


@dataclass(eq=False)
class Checkpoint:
    """Contents of the state file of a folder when a call began; empty for a new folder."""

    header: dict[str, Any]  # plain values
    arrays: Arrays  # for other ranks of a group, which do not write, with statistics of the draws

    @property
    def begun(self) -> bool:
        """Whether the folder held this run or fit."""
        return bool(self.header)

    @property
    def num_draws(self) -> int:
        """Draws of each chain; 0 for a fit."""
        files = self.header.get("files")
        return int(files["stats"]["rows"]) if files else 0

    @property
    def state(self) -> Any:
        """State where the run or fit continues."""
        return archive.state_of(self.header, self.arrays)

    def part(self, name: str) -> tuple[dict[str, Any], Arrays] | None:
        """Return the plain values and arrays of a name, None if it has none."""
        found = self.header.get(name)
        return None if found is None else (found, archive.get(self.arrays, name))


# Returns the contents of a state file: plain values and arrays of the host.
Save: TypeAlias = "Callable[[], tuple[dict[str, Any], Arrays]]"


class Folder(Checkpoint):
    """A folder that one call writes: files of rows, and the state file that counts them."""

    def __init__(self, function: str, options: Store, *, writes: bool) -> None:
        super().__init__({}, {})
        self.function, self.options, self.folder = function, options, options.folder
        self.files: dict[str, RowFile] = {}  # by their names without ".bin"
        self.errors: list[BaseException] = []  # once there are any, nothing is written
        self._writes = writes  # not for a run that has ended
        self._request: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._seconds = 0.0  # of the last checkpoint
        self._due = time.perf_counter() + options.flush_seconds

    def resume(self, request: dict[str, Any], *, fit: bool = False) -> None:
        """Read the state, if there is one; DataError if it is damaged, ValueError if not ours."""
        function, folder, options = self.function, self.folder, self.options
        if fit and (options.keep != "draws" or options.dtype is not None):
            expected = "store must be without keep= and dtype=, which are for draws"
            got = f"keep={options.keep!r}, dtype={options.dtype!r}"
            raise ValueError(f"[{function}] {expected}, got {got}")
        chosen = {"keep": options.keep, "dtype": options.dtype}
        self._request = {key: plain(value) for key, value in {**request, "store": chosen}.items()}
        path = folder / _STATE
        if not path.exists():
            return
        header, arrays = _read_state(function, path)
        if ("fit" in header) != fit:
            held, wanted = ("a sampler's run", "a fit") if fit else ("a fit", "a sampler's run")
            raise DataError(f"[{function}] {folder} holds {held}, not {wanted}. {_OWN}")
        with archive.reading(function, path, _RESCUE):
            self.files = _files_of(folder, header)
            self._writes = self._writes and not header["complete"]
        rows = 0 if fit else self.files["stats"].rows
        refusal = difference(function, folder, header["request"], self._request, rows)
        if refusal is not None:
            raise refusal
        for file in self.files.values():
            file.check(function)
        self.header, self.arrays = header, arrays

    def shared(self) -> Checkpoint:
        """Return what other ranks must know: the state, and the statistics of its draws."""
        arrays = dict(self.arrays)
        if "stats" in self.files:
            stats = np.asarray(self.files["stats"].array(self.num_draws))
            archive.put(arrays, "stats", {n: np.array(stats[n]) for n in stats.dtype.names or ()})
        return Checkpoint(self.header, arrays)

    def begin(
        self,
        empty: npt.NDArray[Any],  # (C, 0, P), with the dtype of the draws
        statistics: Mapping[str, str],
        *,
        positions: bool,
        warmup: bool,
        running: RunningPrediction | None,
    ) -> tuple[FileSink, FileSink | None, RowFile | None]:
        """Return where draws, warmup and predictions go, after the draws of the folder."""
        (chains, _, dim), dtype = empty.shape, empty.dtype.name
        if not self.begun:
            rows: dict[str, Any] = {}  # by name: dtype in the file and in memory, shape
            for prefix in ("", "warmup_") if warmup else ("",):
                rows[f"{prefix}stats"] = list(statistics.items()), None, (chains,)
                if positions or prefix:
                    stored = self.options.dtype or dtype
                    rows[f"{prefix}positions"] = stored, dtype, (chains, dim)
            if running is not None and self.options.keep == "predictions":
                flat = getattr(running.predictive, "flat", False) and running.shape[1:] == (1,)
                outputs = running.shape[:1] if flat else running.shape
                rows["predictions"] = running.dtype, running.dtype, (chains, *outputs)
            self.files = {name: RowFile(self.folder, name, *how) for name, how in rows.items()}
        if self._writes:
            try:
                for file in self.files.values():
                    file.open(self.errors)
            except OSError as error:
                raise _failure(self.function, self.folder, error) from error
        warm = FileSink(self.files, empty, "warmup_") if "warmup_stats" in self.files else None
        return FileSink(self.files, empty), warm, self.files.get("predictions")

    def reserve(self) -> float:
        """Return the seconds that the last checkpoint will take, as far as is known."""
        return 1.5 * self._seconds

    def checkpoint(self, save: Save, *, now: bool = False) -> None:
        """Write the state when it is due, with `now` before this returns; OSError if that fails."""
        early = time.perf_counter() < self._due or (self._thread and self._thread.is_alive())
        if early and not (now or self.errors):
            return
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._writes and not self.errors:
            values, arrays = save()
            files = {name: file.describe() for name, file in self.files.items()}
            state = {"request": self._request, "files": files, **values}, arrays
            if not now:
                self._thread = threading.Thread(target=self._write, args=state, daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter ends, and starts no thread
                    self._thread, now = None, True
            if now:
                self._write(*state)
            self._due = time.perf_counter() + self.options.flush_seconds
        if self.errors:
            raise _failure(self.function, self.folder, self.errors[0])

    def _write(self, header: dict[str, Any], arrays: Arrays) -> None:
        """Flush the files, then the state that counts their rows."""
        begin = time.perf_counter()
        try:
            for file in self.files.values():
                file.sync()
            _write_state(self.folder, header, archive.packed(arrays))
        except BaseException as error:  # raised by the next checkpoint
            self.errors.append(error)
        self._seconds = time.perf_counter() - begin

    @contextlib.contextmanager
    def finishing(self, save: Save) -> Iterator[None]:
        """Write the state when the block ends; OSError if that fails, or a note of its error."""
        try:
            yield
        except BaseException as error:
            try:
                self._finish(save)
            except Exception as other:
                if str(other) != str(error):  # else it is what ends the block
                    error.add_note(str(other))
            raise
        self._finish(save)

    def _finish(self, save: Save) -> None:
        """Write the last state and close the files: all that was drawn is in them."""
        self.checkpoint(save, now=True)
        for file in self.files.values():
            file.close()


def _write_state(folder: Path, header: dict[str, Any], data: bytes) -> None:
    """Replace the state file, flushed; the state before becomes state.previous."""
    header = {**header, "arrays": (len(data), zlib.crc32(data))}
    line = archive.text(header)[1:].encode() + b"\n"
    head = b'{"ribbit run": %d, "crc32": "%08x", ' % (_FORMAT, zlib.crc32(line))
    with open(folder / _NEW, "wb", buffering=0) as file:
        for part in (head + line, data):
            left = memoryview(part)
            while left:  # a full disk takes a part first
                left = left[file.write(left) or 0 :]
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder / _PREVIOUS)
    with contextlib.suppress(OSError):  # a file system without links does without
        os.link(folder / _STATE, folder / _PREVIOUS)
    os.replace(folder / _NEW, folder / _STATE)
    sync_folder(folder)


def _read_state(function: str, path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return the plain values and arrays of a state file; DataError with its name."""
    try:
        line, _, data = path.read_bytes().partition(b"\n")
    except FileNotFoundError as error:
        raise DataError(f"[{function}] {path} is missing. {_RESCUE}") from error
    with archive.reading(function, path, _RESCUE):
        head = _HEAD.match(line)
        if head is None:
            raise ValueError("another format")
        if int(head[1]) != _FORMAT:
            text = f"has format {int(head[1])} of a run, this Ribbit reads format {_FORMAT}"
            raise DataError(f"[{function}] {path} {text}. Load it with the Ribbit that wrote it.")
        if zlib.crc32(line[head.end() :] + b"\n") != int(head[2], 16):
            raise ValueError("a header that does not match its checksum")
        header: dict[str, Any] = json.loads(line)
        if [len(data), zlib.crc32(data)] != header["arrays"]:
            raise ValueError("arrays that do not match their checksum")
        return header, archive.unpacked(function, io.BytesIO(data), len(data))


def _files_of(folder: Path, header: dict[str, Any]) -> dict[str, RowFile]:
    """Return the files of a state; ValueError if they have different numbers of draws."""
    files = {name: RowFile(folder, name, **how) for name, how in header["files"].items()}
    for warmup in (False, True):
        rows = {f.rows for name, f in files.items() if name.startswith("warmup_") == warmup}
        if len(rows) > 1:
            raise ValueError(f"files of {sorted(rows)} draws")
    return files


def _failure(function: str, folder: Path, error: BaseException) -> BaseException:
    """Return the error that says why a folder could not be written."""
    if not isinstance(error, OSError):
        return error
    resumes = ". The folder is whole up to its last checkpoint; the same call resumes there"
    if not (folder / _STATE).exists():
        resumes = ""
    found = OSError(
        error.errno or 5,
        f"[{function}] could not write the run in {folder}: {error.strerror or error}, "
        f"{error.filename or folder}{resumes}",
    )
    found.__cause__ = error
    return found


@contextlib.contextmanager
def folder_opened(function: str, value: Any) -> Iterator[Folder | None]:
    """Give a folder that no other run writes meanwhile; None for None."""
    if value is None:
        yield None
        return
    options = Store.of(function, value)
    folder = options.folder
    made = not folder.exists()
    if not made and not folder.is_dir():
        raise NotADirectoryError(f"[{function}] store must be a folder, got the file {folder}")
    if made:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"[{function}] store must be a folder that can be made, got {error}"
            raise type(error)(text) from error
        for place in (folder.parent, folder.parent.parent):  # a power cut must not lose the name
            with contextlib.suppress(OSError):
                sync_folder(place)
    if not (folder / _STATE).exists():
        other = [entry for entry in sorted(os.listdir(folder)) if not _is_ours(folder / entry)]
        if other:
            hint = f". Its state is missing: rename {_PREVIOUS} to {_STATE} to resume from there"
            expected = "store must be a new or empty folder or the folder of a run"
            got = f"{folder} with {other[0]} in it{hint if _PREVIOUS in other else ''}"
            raise ValueError(f"[{function}] {expected}, got {got}")
    lock: Lock | None = None
    try:
        try:
            lock = Lock(function, folder)
        except OSError as error:
            if not _has_ended(folder):  # else nothing is written
                raise _failure(function, folder, error) from error
        yield Folder(function, options, writes=lock is not None)
    finally:
        if lock is not None:
            lock.release()
        if made:
            with contextlib.suppress(OSError):  # a run that never began leaves nothing
                os.rmdir(folder)


def _is_ours(path: Path) -> bool:
    """Whether a run left it that was killed before its first checkpoint."""
    return path.name in (_LOCK, _NEW) or (path.suffix == ".bin" and path.stat().st_size == 0)


def _has_ended(folder: Path) -> bool:
    """Whether a folder holds a run that is complete."""
    try:
        return _read_state(_NAME, folder / _STATE)[0]["complete"] is True
    except (DataError, OSError):
        return False


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
            except BaseException:  # Ctrl-C, and nothing else would give the lock back
                os.close(self._descriptor)
                raise
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
        except BaseException as error:  # a full disk, Ctrl-C
            self.release()
            if isinstance(error, OSError):
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


def plain(value: Any) -> Any:
    """Return what JSON knows: numbers, texts, lists and dicts as they are, arrays as checksums."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)  # NaN and infinity too
    if isinstance(value, np.generic):
        return plain(value.item())
    if is_array(value):
        import hashlib  # not with ribbit: slow to load

        host = np.ascontiguousarray(to_host(value))
        checksum = hashlib.blake2b(host.tobytes(), digest_size=16).hexdigest()
        return f"{host.dtype} {host.shape} {checksum}"
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    own = None
    if isinstance(value, State):
        own = value.fields
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if own is not None:
        # The content of a state, draws or a fit, without its target and without times.
        skipped = ("predictive", "prediction", "target", "settings", "seconds", "history", "stats")
        kept = {k: plain(v) for k, v in own.items() if k not in skipped}
        return {"kind": type(value).__name__, **kept}
    return type(value).__name__


def difference(
    function: str, folder: Path, before: dict[str, Any], now: dict[str, Any], kept: int = 0
) -> ValueError | None:
    """Return an error that names the first value of `now` that differs from the folder's."""
    found = [*_differences(before, now)]
    if not found:
        return None
    name, old, new = found[0]
    if not name.startswith("target."):
        return ValueError(
            f"[{function}] {folder} holds another run: this call has {name}={new!r:.80} where it "
            f"was {old!r:.80}. {_advice(folder, name, old, new, kept)}"
        )
    parts = [name.split(".")[1] for name, _, _ in found if name.startswith("target.")]
    others = [part for part in dict.fromkeys(parts) if part != "instruction set"]
    if "shards" in others:
        others = ["number of shards"]  # a partition has its own checksum
    if others:
        text = f"holds a run of a target with another {' and '.join(others)}"
        return ValueError(f"[{function}] {folder} {text}. {_OWN}")
    return ValueError(
        f"[{function}] {folder} holds a run with the instruction set {old}, this process uses "
        f"{new}: rounding would change within one run. RIBBIT_ISA={old} in the environment "
        "continues it bit-identically if the processor supports it."
    )


def _differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield names and both values where plain values differ; None is an option not given."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*new, *old]):
            inner = key if name in ("", "settings") else f"{name}.{key}"
            yield from _differences(old.get(key), new.get(key), inner)
    elif old != new:
        yield name, old, new


def _advice(folder: Path, name: str, old: Any, new: Any, kept: int) -> str:
    """Return how to make more draws or epochs of a run, else how to keep another run."""
    if name == "seed":
        return f"seed={old} resumes it. {_OWN}"
    if name not in ("num_draws", "num_epochs") or not isinstance(old, int) or new < old:
        return _OWN
    is_run = name == "num_draws"
    first, call = ("draws", f"sample({new - kept}") if is_run else ("fit", f"fit({new - old}")
    joined = "; rb.concatenate([draws, more]) has all draws" if is_run else ""
    return (
        f"To continue, {first} = rb.load({str(folder)!r}), then more = ...{call}, resume={first}, "
        f"store=another folder){joined}."
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
    source = Path(os.path.abspath(checks.path(_NAME, path)))
    rescue = checks.boolean(_NAME, "rescue", rescue)
    verify = checks.boolean(_NAME, "verify", verify)
    if not source.exists():
        raise FileNotFoundError(f"[{_NAME}] {_EXPECTED}, got none at {source}")
    if source.is_dir():
        return _load_folder(source, rescue, verify)
    if (source.parent / _STATE).exists() and (source.suffix == ".bin" or source.stem == _STATE):
        folder = os.path.dirname(source)
        raise DataError(f"[{_NAME}] {_EXPECTED}, got a part of a run: use rb.load({folder!r})")
    with archive.reading(_NAME, source, "Load another copy, or save it again."):
        header, arrays = archive.read(_NAME, source)
        build = fit_of if "fit" in header else draws_of
        return build(header, arrays, _predictive(header))


def _load_folder(folder: Path, rescue: bool, verify: bool) -> Draws | Fit:
    """Return the draws, or the fit so far, of the run in a folder."""
    places = [folder / name for name in (_STATE, _PREVIOUS)]
    if not any(path.exists() for path in places) and all(map(_is_ours, folder.glob("*.bin"))):
        parts = [p.name for p in folder.iterdir() if p.suffix == ".npz" or (p / _STATE).exists()]
        which = f", which holds {', '.join(sorted(parts)[:9])}" if parts else ""
        raise FileNotFoundError(
            f"[{_NAME}] {_EXPECTED}, got a folder without a run: {folder}{which}"
        )
    found, damage = [], None
    for place in places if rescue else places[:1]:
        try:
            found.append((place, *_read_state(_NAME, place)))
        except DataError as error:
            damage = damage or error
    if not found:
        assert damage is not None
        raise damage
    place, header, arrays = found[0]
    with archive.reading(_NAME, place, _RESCUE):
        predictive = _predictive(header)
        if "fit" in header:
            return fit_of(header, arrays, predictive)
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
        state = archive.state_of(header, arrays)
        assert state is not None
        position = state.position
        dim = position.shape[1] if predictive is None else predictive.dim
        empty = np.empty((len(position), 0, dim), position.dtype)
        if "watch/kept" in arrays:
            # A run continues from more draws than it shows, until the last batch is complete.
            every = header["settings"]["monitored"]["every"] // header["watch"]["every"]
            arrays["monitored"] = arrays["watch/kept"][:, ::every]
        draws, steps = FileSink(files, empty), None
        if "warmup_stats" in files:
            steps = FileSink(files, empty, "warmup_")
        rows = Rows(
            (draws.positions(kept), draws.stats(kept)),
            (None, None) if steps is None else (steps.positions(warm), steps.stats(warm)),
            files["predictions"].array(kept) if "predictions" in files else None,
            entire=all(counts[name] == file.rows for name, file in files.items()),
        )
        return draws_of(header, arrays, predictive, rows)


def _predictive(header: dict[str, Any]) -> Any:
    """Return what predicts; None without it, or if it is a module, which a file does not hold."""
    described = header["predictive"]
    if described is None or module_of(header):
        return None
    from ribbit.targets.predictive import predictive_from_description  # for readers alone

    return predictive_from_description(described)


explain(globals())
