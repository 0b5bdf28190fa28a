"""A file written whole or not at all.

The new contents are written beside the destination, flushed to the disk, then renamed over it, and
the folder is flushed. The destination always holds the old file or the new one. A save that is
killed leaves its temporary file behind; the next one removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ribbit._arrays import checks

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


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the folder may be read."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(
    function: str, path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> None:
    """Write a file by calling `write`, and rename it to `path`."""
    # Permissions of a file that is replaced are kept, and its owner if that is allowed. Pipes,
    # devices and sockets are refused. A link stays: the file that it points to is replaced, in its
    # own folder.
    destination = Path(os.path.realpath(checks.path(function, path)))
    if not destination.parent.is_dir():
        raise FileNotFoundError(
            f"[{function}] path must be in an existing folder, got {destination}"
        )
    old = _status(function, destination)
    _remove_left_behind(destination)
    temporary, file = _open_temporary(destination, 0o666 if old is None else 0o600)
    try:
        with file:
            write(file)
            file.flush()
            if old is not None:
                with contextlib.suppress(OSError):  # only root may give files away
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)
            os.fsync(file.fileno())
            os.replace(temporary, destination)  # under the lock, or another save may remove it
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # the file is in its place
        sync_folder(destination.parent)


def _status(function: str, destination: Path) -> os.stat_result | None:
    """Return the status of the file to replace, None where there is none."""
    try:
        found = os.lstat(destination)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    # realpath leaves only links that end nowhere
    kind = "a circle of links" if stat.S_ISLNK(found.st_mode) else describe_kind(found.st_mode)
    error = IsADirectoryError if stat.S_ISDIR(found.st_mode) else FileExistsError
    raise error(f"[{function}] path must be a regular file or new, got {kind}: {destination}")


def _open_temporary(destination: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create and lock a file next to `destination` under a new name."""
    while True:
        temporary = destination.with_name(f"{_stem(destination)}{os.urandom(6).hex()}.tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        file = os.fdopen(descriptor, "w+b")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Between creation and lock another save may have taken it for left behind.
        if os.fstat(descriptor).st_nlink:
            return temporary, file
        file.close()


def _remove_left_behind(destination: Path) -> None:
    """Remove temporary files of saves to `destination` that were killed: they have no lock."""
    name = re.compile(re.escape(_stem(destination)) + r"[0-9a-f]{12}\.tmp")
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [one for one in os.listdir(destination.parent) if name.fullmatch(one)]
    for one in names:
        with contextlib.suppress(OSError):
            path = destination.with_name(one)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb"):
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)


def _stem(destination: Path) -> str:
    """Return how names of temporary files begin; cut, because a name has at most 255 bytes."""
    return f".{destination.name[:50]}."
