"""A file written whole or not at all.

The new contents are written beside the destination, flushed to the disk, then renamed over it, and
the folder is flushed: whatever happens meanwhile, the destination holds the old file or the new
one. A save that is killed leaves its temporary file behind; the next one removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from ribbit._arrays import checks

fcntl: ModuleType | None
try:
    import fcntl  # type: ignore[no-redef,unused-ignore]
except ImportError:  # Windows: a file that is open cannot be removed there, which serves as well
    fcntl = None

__all__ = ["describe_kind", "write_atomically"]

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def describe_kind(mode: int) -> str:
    """Name what is no regular file, from its ``st_mode``."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def write_atomically(
    function: str, path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> None:
    """Call `write` with a file that then takes the place of `path`.

    A symbolic link is followed, and the permissions (where allowed also the owner) of a file that
    is replaced are kept.

    Raises
    ------
    TypeError, ValueError
        When `path` is no path.
    OSError
        When the folder is missing or cannot be written to, or `path` exists and is no regular
        file: pipes, devices and sockets are left alone.
    """
    # The link stays, and what it points to is replaced in its own folder.
    destination = Path(os.path.realpath(checks.path(function, path)))
    if not destination.parent.is_dir():
        raise FileNotFoundError(
            f"[{function}] expected an existing folder, got {destination.parent}"
        )
    old = _status(function, destination)
    _remove_left_behind(destination)
    temporary, file = _open_temporary(destination, 0o666 if old is None else 0o600)
    try:
        with file:
            write(file)
            file.flush()
            if old is not None:
                _take_permissions(file.fileno(), old)
            os.fsync(file.fileno())
            if fcntl is not None:  # under the lock still: nobody takes it for left behind
                os.replace(temporary, destination)
        if fcntl is None:
            os.replace(temporary, destination)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _flush_folder(destination.parent)


def _status(function: str, destination: Path) -> os.stat_result | None:
    """Status of the file to replace, None where there is none."""
    try:
        found = os.lstat(destination)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    if stat.S_ISLNK(found.st_mode):  # realpath leaves only links that end nowhere
        raise FileExistsError(f"[{function}] expected a file, got a circle of links: {destination}")
    kind = describe_kind(found.st_mode)
    error = IsADirectoryError if stat.S_ISDIR(found.st_mode) else FileExistsError
    raise error(f"[{function}] expected a regular file or a new name, got {kind}: {destination}")


def _open_temporary(destination: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create and lock a file beside `destination` under a name nobody else has."""
    while True:
        temporary = destination.with_name(f"{_stem(destination)}{os.urandom(6).hex()}.tmp")
        file = os.fdopen(os.open(temporary, _FLAGS, mode), "w+b")
        if fcntl is None:
            return temporary, file
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        # Between creation and lock another save may have taken it for left behind.
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()


def _remove_left_behind(destination: Path) -> None:
    """Remove temporary files of saves to `destination` that were killed."""
    name = re.compile(re.escape(_stem(destination)) + r"[0-9a-f]{12}\.tmp")
    with contextlib.suppress(OSError):
        for entry in os.listdir(destination.parent):
            if name.fullmatch(entry):
                _remove_unlocked(destination.parent / entry)


def _remove_unlocked(path: Path) -> None:
    """Remove a file unless a process that is alive holds its lock."""
    with contextlib.suppress(OSError):
        if fcntl is None:
            os.unlink(path)
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(descriptor)


def _stem(destination: Path) -> str:
    """Return how names of temporary files begin; cut, because a name has at most 255 bytes."""
    return f".{destination.name[:50]}."


def _take_permissions(descriptor: int, old: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):  # only root may give files away
            os.fchown(descriptor, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be opened (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
