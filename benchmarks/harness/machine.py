"""The machine a run is made on: its description, and equal cores for every entry."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Read by the math libraries when they are loaded; the affinity below holds for the others.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RIBBIT_NUM_THREADS",
)


# CPU devices of JAX, over which chains can be shared out; read when it starts.
JAX_DEVICES = "JAX_NUM_CPU_DEVICES"

OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",  # NumPy's wheels
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Environment of a process whose libraries start `threads` threads."""
    return dict.fromkeys((*THREAD_VARIABLES, JAX_DEVICES), str(threads))


def cores() -> list[int]:
    """List the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pick(available: list[int], threads: int) -> list[int]:
    """Take the last cores: the first serve the interrupts and whatever else was pinned."""
    return available[-threads:]


def pin(chosen: list[int]) -> None:
    """Confine every thread of this process, living and to come, to the chosen cores.

    The one limit that all libraries obey, whatever pools they have started. Does nothing where
    the system has no affinity calls.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    tasks = Path("/proc/self/task")
    threads = [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(thread, chosen)


@contextlib.contextmanager
def pinned(threads: int, *, anywhere: bool = False) -> Iterator[int]:
    """Run the body on `threads` cores; yields how many there are.

    With `anywhere` only NumPy's pool is limited and the system places the threads.
    """
    before = cores()
    chosen = pick(before, threads)
    limit_blas(len(chosen))
    if anywhere:
        yield len(chosen)
        return
    pin(chosen)
    try:
        yield len(chosen)
    finally:
        pin(before)


def limit_blas(threads: int) -> bool:
    """Set the threads of NumPy's OpenBLAS in this process; False where it cannot be found.

    Two OpenBLAS threads on one core wait for each other in a spin, a thousand times slower than
    one thread; the environment variable comes too late once NumPy is loaded.
    """
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return False
    found = False
    for path in {line.split()[-1] for line in maps.read_text().splitlines() if "blas" in line}:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for name in OPENBLAS_SETTERS:
                if hasattr(library, name):
                    getattr(library, name)(ctypes.c_int(threads))
                    found = True
    return found


def processor() -> str:
    """Model name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def vector_sets() -> str:
    """Name the widest vector instruction set that the processor announces."""
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text().split()
        for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")):
            if flag in flags:
                return name
    return ""


def commit() -> str:
    """Commit of the checkout, "+" when something but docs is changed; "unknown" outside git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--", ".", ":!docs") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
