"""One process at a time writes a folder.

The kernel's lock on the file "lock" ends with the process that holds it. What the file says of the
holder is for people, and for file systems without such locks.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

fcntl: ModuleType | None
try:
    import fcntl  # type: ignore[no-redef,unused-ignore]
except ImportError:
    fcntl = None

__all__ = ["Lock", "writer"]

_NAME = "lock"


class Lock:
    """Held from construction to :meth:`release`.

    Raises
    ------
    ValueError
        When another run holds it, with host and process; a lock that a dead process left is taken.
    """

    def __init__(self, function: str, folder: Path) -> None:
        self._path = folder / _NAME
        self._descriptor = -1
        while self._descriptor < 0:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._descriptor = self._taken(function, folder, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(_myself()).encode(), 0)
        except OSError as error:  # a full disk
            self.release()
            error.filename = error.filename or str(self._path)
            raise

    def _taken(self, function: str, folder: Path, descriptor: int) -> int:
        """Return the descriptor once it is ours, -1 where the file was removed meanwhile."""
        kernel = False
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kernel = True
            except BlockingIOError:
                raise _refusal(function, folder, _holder(descriptor)) from None
            except OSError:  # a file system without locks: what the file says has to do
                pass
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == os.stat(self._path).st_ino:
                holder = _holder(descriptor)
                # Kernels of two machines do not always know of each other's locks.
                elsewhere = holder.get("host") not in (None, _host())
                if elsewhere or (not kernel and _alive(holder)):
                    raise _refusal(function, folder, holder)
                return descriptor
        os.close(descriptor)
        return -1

    def release(self) -> None:
        """Let the next one in."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = -1


def writer(folder: Path) -> dict[str, Any] | None:
    """Return host and process of the run that writes a folder; None where nobody does.

    The lock is read and never taken, so that a run can begin meanwhile. A process of another
    machine is believed to live.
    """
    try:
        descriptor = os.open(folder / _NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        holder = _holder(descriptor)
    finally:
        os.close(descriptor)
    if holder.get("host") == _host() and not _alive(holder):
        return None
    return holder


def _refusal(function: str, folder: Path, holder: dict[str, Any]) -> ValueError:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    ranks = any(name in os.environ for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK"))
    return ValueError(
        f"[{function}] expected a folder that no other run writes, got {folder}, which {who} holds "
        f"(if that is gone for good, remove {folder / _NAME})"
        + (": under mpiexec a posterior of all ranks needs group=" if ranks else "")
    )


def _host() -> str:
    import socket  # not with ribbit: slow to load

    return socket.gethostname()


def _myself() -> dict[str, Any]:
    return {"host": _host(), "pid": os.getpid(), "started": _started(os.getpid())}


def _holder(descriptor: int) -> dict[str, Any]:
    """Return what a lock says; nothing where it says nothing."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _alive(holder: dict[str, Any]) -> bool:
    """Whether the process still runs, and is not another one with its number."""
    pid = holder.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return holder.get("started") == _started(pid)


def _started(pid: int) -> str | None:
    """Return when a process began, since which start of the machine; None where nobody says."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return None
