"""What a worker of an executor does: work on some chains, from a state to states.

A worker may be a process or a thread, here or on another machine. It gets the job once: from a
file where it sees the file system of the one who asks, else with a task that it had to refuse.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ribbit._arrays.threads import num_threads, set_num_threads
from ribbit.parts import part

__all__ = ["MISSING", "SECONDS", "Job", "Made", "Steps", "Task", "digest", "work"]

MISSING = "missing"  # the answer of a worker that has not got the job
SECONDS = 0.5  # of a task: what is lost with a worker, and how long Ctrl-C leaves it busy
_KEPT = 2  # jobs of a thread

_known = threading.local()
_threads: dict[int, int] = {}  # of a process, before it was a worker's


class Job(Protocol):
    """What workers are sent once, and then asked for piece by piece."""

    def make(self, state: Any, stops: tuple[int, ...]) -> list[Any]:
        """Return what comes of a state; a pure function."""
        ...


@dataclass(frozen=True)
class Task:
    """A piece of a job.

    Attributes
    ----------
    key : str
        Digest of the pickled job.
    path : str
        A file with it, where the worker may see it.
    payload : bytes or None
        The pickled job, for a worker that has asked for it.
    state : dataclass of arrays
    stops : tuple of int
        Step numbers at which states are wanted, the last one at the end; () where the job knows.
    threads : int
        What the worker may use at most.
    asker : int
        Process that asks: there signals and threads are its own business.
    """

    key: str
    path: str
    payload: bytes | None
    state: Any
    stops: tuple[int, ...]
    threads: int
    asker: int


@dataclass(frozen=True)
class Made:
    """What came of a task, such as states and statistics at its stops, and its seconds."""

    found: list[Any]
    seconds: float


@dataclass(frozen=True)
class Steps:
    """The job of moving chains.

    Attributes
    ----------
    mover
        Has ``_advance(state, num_steps, guard)``, which returns a state and statistics.
    """

    mover: Any

    def make(self, state: Any, stops: tuple[int, ...]) -> list[Any]:
        """Return states and statistics at the stops."""
        found = []
        for stop in stops:
            state, info = self.mover._advance(state, stop - state.step, None)
            found.append((state, info))
        return found


def digest(payload: bytes) -> str:
    """Return what a pickled job is known by."""
    import hashlib  # not with ribbit: slow to load

    return hashlib.blake2b(payload, digest_size=16).hexdigest()


def work(task: Task) -> Made | str:
    """Do a task; a pure function of it."""
    job = _job(task)
    if job is None:
        return MISSING
    # Some executors hand over arrays that nobody may write to.
    state = part(task.state, slice(None))
    with _quiet(task):
        begin = time.perf_counter()
        found = job.make(state, task.stops)
        return Made(found, time.perf_counter() - begin)


def _job(task: Task) -> Job | None:
    """Return this thread's own copy of the job, or None."""
    jobs: OrderedDict[str, Job] = _known.__dict__.setdefault("jobs", OrderedDict())
    if task.key not in jobs:
        payload = task.payload
        if payload is None:
            with contextlib.suppress(OSError):
                payload = Path(task.path).read_bytes()
            if payload is None or digest(payload) != task.key:
                return None
        jobs[task.key] = pickle.loads(payload)
        while len(jobs) > _KEPT:
            jobs.popitem(last=False)
    return jobs[task.key]


@contextlib.contextmanager
def _quiet(task: Task) -> Iterator[None]:
    """Use the threads that are this worker's share, and leave Ctrl-C to the one who asks."""
    if os.getpid() == task.asker:
        yield
        return
    own = _threads.setdefault(os.getpid(), num_threads())  # a later run may leave it more
    set_num_threads(min(own, task.threads))
    main = threading.current_thread() is threading.main_thread()
    old = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if old is not None:
            signal.signal(signal.SIGINT, old)
