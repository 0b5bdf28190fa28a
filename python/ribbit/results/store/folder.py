"""A folder that one call fills: opened, compared with what is asked for, closed.

What runs of samplers and fits share.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ribbit._arrays.packages import need
from ribbit._arrays.warning import warn
from ribbit.errors import DataError
from ribbit.results.store import checkpoint
from ribbit.results.store.chunks import sync_folder
from ribbit.results.store.identity import difference, plain
from ribbit.results.store.options import Store
from ribbit.results.store.writer import Writer

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Lock", "RunFolder", "failure", "folder_opened", "writer"]

_LOCK = "lock"
# What a folder may hold that a run was killed in before its first checkpoint.
_OURS = {"zarr.json", _LOCK, "posterior", "sample_stats", "warmup_posterior"}
_OURS |= {"warmup_sample_stats", "predictions"}
# What a write leaves that was killed: ours, and zarr-python's of its metadata.
_HALF = re.compile(r"\..*\.tmp|zarr\.[0-9a-f]{32}\.partial")


class RunFolder:
    """One folder while one call writes it.

    `begun` says whether it holds a run that goes on, `seconds` how long the calls before took.
    """

    kind: str  # "draws" or "fit"

    def __init__(self, function: str, options: Store, request: dict[str, Any]) -> None:
        self.function, self.options, self.folder = function, options, options.folder
        self.begun, self.seconds = False, 0.0
        self._request = {key: plain(value) for key, value in request.items()}
        self._writer = Writer()
        self._told = False
        self._due = time.perf_counter() + options.flush_seconds
        self._took = 0.0
        self._header: dict[str, Any] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        if checkpoint.exists(self.folder):
            refusal: ValueError | None = None  # raised outside: the file is not damaged
            with checkpoint.opened(function, self.folder) as (header, arrays):
                self._header, self._arrays = header, arrays
                refusal = self._refusal(header["run"])
                if refusal is None:
                    self.seconds = float(header["run"]["seconds"])
                    self._read(header, arrays)
            if refusal is not None:
                raise refusal
            self.begun = True

    def _refusal(self, run: dict[str, Any]) -> ValueError | None:
        """Return what is wrong where the folder is not of this call."""
        if run["kind"] != self.kind:
            return DataError(
                f"[{self.function}] expected the folder of {_of(self.kind)}, got the "
                f"folder of {_of(run['kind'])}: {self.folder}"
            )
        return difference(
            self.function, self.folder, run["request"], self._request, run.get("kept")
        )

    def _read(self, header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Take up the checkpoint of the same run."""

    def _run(self, seconds: float, **more: Any) -> dict[str, Any]:
        """Return what every checkpoint says of the run."""
        return {
            "version": checkpoint.VERSION,
            "kind": self.kind,
            "request": self._request,
            "seconds": seconds,
            **more,
        }

    def reserve(self) -> float:
        """Return seconds that the last flush will take, as far as one knows."""
        return 1.5 * self._took

    @contextlib.contextmanager
    def finishing(self, job: Callable[[], Callable[[], None]]) -> Iterator[None]:
        """Write what there is when the block ends, however it ends.

        `job` returns what writes the last checkpoint.

        Raises
        ------
        OSError
            When that fails; where the block ends with an exception that one gets a note instead.
        """
        try:
            yield
        except BaseException as error:
            self._finish(job)
            if self._writer.error is not None and not self._told:
                error.add_note(str(failure(self.function, self.folder, self._writer.error)))
            raise
        self._finish(job)
        self._raise()

    def _finish(self, job: Callable[[], Callable[[], None]]) -> None:
        if self._writer.error is None:
            self._writer.submit(job(), 0, 0)
        self._writer.close()

    def _raise(self) -> None:
        """Raise what stopped the thread."""
        if self._writer.error is not None:
            self._told = True
            raise failure(self.function, self.folder, self._writer.error)


def _of(kind: str) -> str:
    return "a sampler's run" if kind == "draws" else "a fit"


def failure(function: str, folder: Path, error: BaseException) -> BaseException:
    """Return the error that says why a folder could not be written."""
    if not isinstance(error, OSError):
        return error
    place = error.filename or folder
    text = (
        f"[{function}] expected to write the run in {folder}, got {error.strerror or error}: "
        f"{place} (the folder is whole up to its last checkpoint; the same call resumes there)"
    )
    found = OSError(error.errno or 5, text)
    found.__cause__ = error
    return found


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
    need(function, "google_crc32c", "zarr")
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
                sync_folder(place)
    if not checkpoint.exists(folder):
        other = [entry for entry in sorted(os.listdir(folder)) if not _is_ours(entry)]
        if other:
            hint = (
                f": its checkpoint is gone; to resume from an earlier one rename "
                f"{checkpoint.PREVIOUS} to {checkpoint.NAME}"
                if checkpoint.PREVIOUS in other
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
            raise failure(function, folder, error) from error
        yield options
    finally:
        if lock is not None:
            lock.release()
        with contextlib.suppress(OSError):  # a run that never began leaves nothing
            os.rmdir(folder)


def _is_ours(entry: str) -> bool:
    return entry in _OURS or _HALF.fullmatch(entry) is not None
