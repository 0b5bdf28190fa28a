"""Workers of an executor, which move groups of chains or of members.

A task is a pure function of a group's state and last step; a lost one is submitted again.
Shapes: C chains, K draws, P parameters.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.threads import num_threads, set_num_threads
from ribbit.chains import AnyChains, Block, PythonChains, Start, Thinning, joined_blocks
from ribbit.density import Density
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.results.state import AnyState, State

__all__ = ["SECONDS", "Group", "RemoteChains", "Workers", "work"]

SECONDS = 0.5  # length of a task: the time that is lost with a worker
_POLL = 0.05  # seconds between interrupt checks
_GROWTH = 8  # largest growth of a task's steps from one task to the next
_AHEAD = 2  # results of a group that may wait for other groups
_BYTES = 1 << 26  # size of the draws that one task of each group returns, all groups together
_LOSSES = 3  # lost tasks per group that a run survives, without a finished task in between
_JOBS = 2  # jobs that each thread of a worker keeps
# Errors of executors that say that a worker is gone, not that its work failed.
_LOST = concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError
_LOST_BY_NAME = {"KilledWorker", "WorkerCrashedError", "NodeDiedError", "TerminatedWorkerError"}

# Maps a state and a last step to the state there and results; a pure function.
Job: TypeAlias = Callable[[Any, int], tuple[Any, Any]]

_checksum = functools.partial(hashlib.blake2b, digest_size=16)
_kept = threading.local()  # jobs of this thread, by their keys
_own_threads: dict[int, int] = {}  # number of threads of a process before it was a worker, by pid


@dataclass(frozen=True)
class Task:
    """A group to move to step `end`, by a worker that may have to load the job first."""

    key: str  # checksum of the pickled job
    path: str  # file of the pickled job
    payload: bytes | None  # the pickled job, for a worker that does not see the file
    state: Any
    end: int
    threads: int  # that the worker may use
    client: int  # process that submits the task


@dataclass(frozen=True)
class Made:
    """The result of a task, and the seconds that it took."""

    state: Any
    found: Any
    seconds: float


def work(task: Task) -> Made | None:
    """Do a task; None if the worker needs the payload."""
    job = _job(task)
    if job is None:
        return None
    # Some executors hand over arrays that are read-only.
    state = _cut(task.state, slice(None))
    with contextlib.nullcontext() if os.getpid() == task.client else _as_worker(task):
        begin = time.perf_counter()
        state, found = job(state, task.end)
        return Made(state, found, time.perf_counter() - begin)


def _job(task: Task) -> Job | None:
    """Return this thread's own copy of the job, or None."""
    jobs: OrderedDict[str, Job] = _kept.__dict__.setdefault("jobs", OrderedDict())
    if task.key not in jobs:
        if (payload := task.payload) is None:
            with contextlib.suppress(OSError):
                payload = Path(task.path).read_bytes()
            if payload is None or _checksum(payload).hexdigest() != task.key:
                return None
        jobs[task.key] = pickle.loads(payload)
        while len(jobs) > _JOBS:
            jobs.popitem(last=False)
    return jobs[task.key]


@contextlib.contextmanager
def _as_worker(task: Task) -> Iterator[None]:
    """Use this process's share of the threads, and leave Ctrl-C to the client."""
    own = _own_threads.setdefault(os.getpid(), num_threads())  # a later run may leave it more
    set_num_threads(min(own, task.threads))
    main = threading.current_thread() is threading.main_thread()
    old = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if old is not None:
            signal.signal(signal.SIGINT, old)


def _mapped(change: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """Return the first value, its arrays (C, ..) replaced by `change` of the arrays of all."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return change(values)
    if isinstance(first, tuple):
        return tuple(_mapped(change, list(parts)) for parts in zip(*values, strict=True))
    if isinstance(first, dict):
        return {key: _mapped(change, [value[key] for value in values]) for key in first}
    if not dataclasses.is_dataclass(first):
        return first
    fields = [one.name for one in dataclasses.fields(first)]
    changes = {name: _mapped(change, [getattr(v, name) for v in values]) for name in fields}
    mass = getattr(first, "inverse_mass", None)
    if mass is not None and mass.ndim == 1:  # (P,), which all chains share
        changes["inverse_mass"] = mass.copy()
    return dataclasses.replace(first, **changes)  # type: ignore[type-var]


def _cut(state: Any, chains: slice) -> Any:
    """Return the state of some chains, in arrays of its own."""
    if isinstance(state, State):
        return state._split(chains)
    return _mapped(lambda arrays: arrays[0][chains].copy(), [state])


@dataclass
class Group:
    """Chains, or members, that one worker moves at a time; `state` is the newest one."""

    state: Any
    end: int = 0  # of the last task
    future: Any = None  # of the task that is under way
    needs_job: bool = False  # whether the next task must take the job along
    error: BaseException | None = None  # of its last task
    ready: deque[Made] = field(default_factory=deque)


class Workers:
    """The workers of an executor and one job, which is sent to each of them once."""

    def __init__(self, function: str, density: Density, job: Job, executor: Any) -> None:
        self._function = function
        if density.xp is not np:
            expected = "a target on NumPy arrays with executor="
            got = f"one on {density.xp.__name__}: a device is not shared among workers"
            raise ValueError(f"[{function}] expected {expected}, got {got}")
        try:
            self._payload = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            expected = (
                "a target that can be pickled with executor=, since it is sent to the workers"
            )
            got = f"{type(density.target).__name__}: {error}"
            raise TypeError(f"[{function}] expected {expected}, got {got}") from error
        self._make: Callable[[], Any] | None = None
        if isinstance(executor, type) or not hasattr(executor, "submit"):
            self._make, executor = executor, _called(function, executor)
        self._executor = executor
        self._key = _checksum(self._payload).hexdigest()
        self.groups: list[Group] = []
        self._carrier: Group | None = None  # whose task takes the job to its worker
        self._losses = self._broken = 0
        self._begun = False  # a task has come back
        self._news = threading.Event()
        self._threads = self._share = num_threads()

    def __enter__(self) -> Self:
        # A file spares local workers' pipes; its name is random, and only the owner reads it.
        number, self._path = tempfile.mkstemp(prefix="ribbit-", suffix=".pickle")
        with os.fdopen(number, "wb") as file:
            file.write(self._payload)
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        if num_threads() != self._threads:  # workers that are threads of this process
            set_num_threads(self._threads)
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        if self._make is not None:
            self._shut()

    def parts(self, chains: int) -> list[slice]:
        """Return the chains of each worker's group; a chain each if their number is not known."""
        workers = getattr(self._executor, "_max_workers", None)
        count = min(chains, workers) if isinstance(workers, int) and workers > 0 else chains
        self._share = max(1, self._threads // count)
        if isinstance(self._executor, concurrent.futures.ThreadPoolExecutor):
            set_num_threads(self._share)
        return [slice(chains * g // count, chains * (g + 1) // count) for g in range(count)]

    def submit(self, group: Group, end: int = 0) -> None:
        """Submit a task, unless the group has one or waits for the job to reach a worker."""
        if group.future is not None or (group.needs_job and self._carrier is not None):
            return
        payload = None
        if group.needs_job:
            payload, self._carrier, group.needs_job = self._payload, group, False
        group.end = end
        task = Task(self._key, self._path, payload, group.state, end, self._share, os.getpid())
        try:
            future = self._executor.submit(work, task)
        except _LOST as error:
            self._lose(error)
            future = self._executor.submit(work, task)
        group.future = future
        if hasattr(future, "add_done_callback"):
            future.add_done_callback(lambda _: self._news.set())

    def collect(self) -> Iterator[tuple[Group, Made]]:
        """Wait for news, 50 ms at most, and yield the results of the tasks that are done."""
        self._news.wait(_POLL)
        self._news.clear()
        for group in self.groups:
            if group.future is None or not group.future.done():
                continue
            future, group.future = group.future, None
            carried = group is self._carrier
            if carried:
                self._carrier = None
            try:
                made = future.result()
            except BaseException as error:
                if isinstance(error, _LOST) or type(error).__name__ in _LOST_BY_NAME:
                    self._lose(error)
                else:
                    group.error = error
                continue
            if made is None:
                group.needs_job = True
                continue
            if carried:  # the others may meet a worker that has the job now
                for other in self.groups:
                    other.needs_job = False
            self._losses, self._begun = 0, True
            group.state = made.state
            yield group, made

    def cancel(self) -> None:
        """Forget all groups and their tasks."""
        for group in self.groups:
            if group.future is not None:
                with contextlib.suppress(Exception):
                    group.future.cancel()
        self.groups = []

    def _lose(self, error: BaseException) -> None:
        """Count a lost task and replace a broken executor, or raise the error."""
        broken = isinstance(error, concurrent.futures.BrokenExecutor)
        self._losses, self._broken = self._losses + 1, self._broken + broken
        if broken and self._make is None:
            error.add_note(
                f"[{self._function}] the executor broke and takes no more tasks. With a callable "
                "that makes executors, such as executor=lambda: ProcessPoolExecutor(4), the run "
                "continues with a new one"
            )
        elif self._broken > 1 and not self._begun:
            error.add_note(
                f"[{self._function}] two executors broke before a task came back. If processes "
                "begin by importing the script (spawn, forkserver), put the code that it runs "
                "under if __name__ == '__main__':"
            )
        elif self._losses <= _LOSSES * len(self.groups):
            if broken and self._make is not None:
                self._shut()
                self._executor, self._carrier = self._make(), None
                for group in self.groups:  # their tasks are lost, too
                    group.future = None
            return
        raise error

    def _shut(self) -> None:
        with contextlib.suppress(Exception):  # also of an executor without it
            self._executor.shutdown(wait=False, cancel_futures=True)


def _called(function: str, make: Any) -> Any:
    """Return the executor that a callable makes."""
    expected = (
        f"[{function}] expected executor with a method submit, such as "
        "concurrent.futures.ProcessPoolExecutor(4), or a callable that makes one, got "
        f"{checks.summary(make)}"
    )
    if not callable(make):
        raise TypeError(expected)
    try:
        executor = make()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # the callable itself raised it
        raise TypeError(f"{expected}, which needs arguments") from None
    if not hasattr(executor, "submit"):
        raise TypeError(f"{expected}, which makes {checks.summary(executor)}")
    return executor


class RemoteChains(PythonChains):
    """Chains that the workers of an executor move in groups, all to the same last steps."""

    def __init__(
        self,
        function: str,
        executor: Any,
        sampler: Any,
        density: Density,
        chains: Any,
        thinning: Thinning,
    ) -> None:
        """Begin at the state of `chains`."""
        super().__init__()
        self._at = chains.state
        self.seed, self.ids, self.warmup = chains.seed, chains.ids, chains.warmup
        self._chains, self._thinning = chains, thinning  # the chains move only after a failure
        self._sampler, self._function, self._density = sampler, function, density
        job = functools.partial(_move, sampler, density, thinning)
        self._workers = Workers(function, density, job, executor)
        row = self._at.position.shape[0] * density.full_dim * density.dtype.itemsize
        self._fits = max(1, _BYTES // row)  # draws of a task
        self._steps = 1  # of the next task, by the rate of the last ones
        self._ends = deque[int]()  # last steps of tasks whose results the caller has not got
        self._failed: Group | None = None

    def __enter__(self) -> Self:
        self._workers.__enter__()
        parts = self._workers.parts(self._at.position.shape[0])
        self._workers.groups = [Group(_cut(self._at, chains)) for chains in parts]
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.__exit__()

    @property
    def state(self) -> AnyState:
        """The state after the last step."""
        return self._at  # type: ignore[no-any-return]

    @property
    def step_size(self) -> Any:
        """Step sizes (C,) of the next transition of HMC and NUTS."""
        return self._at.step_size

    def position(self, guard: InterruptGuard | None = None) -> Any:
        """Return the current draws (C, P)."""
        return self._here(guard).position(guard)

    def _here(self, guard: InterruptGuard | None) -> AnyChains:
        """Return chains in this process that continue."""
        start = Start.at(self._at, self._thinning)
        chains: AnyChains = self._sampler._chains(self._function, self._density, start, guard)
        return chains

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Return the draws of the next task of every group, at most `most`."""
        self.calls = []
        if self._failed is None and self._wait(most, guard, stop):
            return self._next()
        if self._failed is None:  # interrupted
            return None, {}
        error = self._failed.error
        assert error is not None
        if self.step >= self._failed.end or not isinstance(error, NonFiniteError):
            raise error
        # All chains move here, so that the error comes at the step where the first one fails.
        if self._chains.step != self.step:
            self._chains = self._here(guard)
        block: Block = self._chains.advance(most, seconds, guard, stop)
        self._at, self.calls = self._chains.state, self._chains.calls
        return block

    def raise_deferred(self) -> None:
        """Raise the error that came after the steps of the last block, if there was one."""
        self._chains.raise_deferred()

    def _wait(self, most: int, guard: InterruptGuard, stop: int) -> bool:
        """Wait for a result of every group; False after Ctrl-C, or if a task has failed."""
        limit = self._at.warmup if self.warming_up else self._after(self.step, most)
        limit = min(limit, stop) if stop > self.step else limit
        groups = self._workers.groups
        while not guard.requested:
            for group in groups:
                if group.error is not None and not group.ready:
                    self._failed = group
                    self._workers.cancel()
                    return False
                self._submit(group, limit)
            if all(group.ready for group in groups):
                return True
            for group, made in self._workers.collect():
                group.ready.append(made)
        return False

    def _submit(self, group: Group, limit: int) -> None:
        """Submit a group's next task up to step `limit`, unless the group is too far ahead."""
        at = group.state.step
        if group.error is not None or len(group.ready) >= _AHEAD or at >= limit:
            return
        end = next((end for end in self._ends if end > at), None)
        if end is None:
            largest = self._fits if self.warming_up else min(self._fits, self.largest)
            end = min(at + self._steps, self._after(at, largest), limit)
            self._ends.append(end)
        self._workers.submit(group, end)

    def _after(self, step: int, draws: int) -> int:
        """Return the step of a later draw; in warmup all steps count, up to its end."""
        warmup, thinning = int(self.warmup), self._thinning
        if step < warmup:
            return min(step + draws, warmup)
        return warmup + thinning.step(thinning.count(step - warmup) + draws)

    def _next(self) -> Block:
        """Join the next results of all groups."""
        made = [group.ready.popleft() for group in self._workers.groups]
        rate = (self._ends.popleft() - self.step) / max(1e-6, *(one.seconds for one in made))
        self._steps = max(1, min(_GROWTH * self._steps, int(rate * SECONDS)))
        positions, stats, told = _mapped(np.concatenate, [one.found for one in made])
        states = [one.state for one in made]
        own = isinstance(states[0], State)
        self._at = State._merged(states) if own else _mapped(np.concatenate, states)
        self.calls = [(self.step, told)]
        return positions, stats


def _move(
    sampler: Any, density: Density, thinning: Thinning, state: AnyState, end: int
) -> tuple[AnyState, tuple[Any, ...]]:
    """Return the state at step `end`; positions and statistics of draws, statistics to display."""
    guard, name = InterruptGuard(), type(sampler).__name__
    chains: AnyChains = sampler._chains(name, density, Start.at(state, thinning), guard)
    warming, blocks = chains.warming_up, list[Block]()
    while chains.step < end:
        if warming:
            rows = end - chains.step
        else:
            at, count = chains.step - state.warmup, thinning.count
            rows = max(1, count(end - state.warmup) - count(at))
        positions, stats = chains.advance(rows, math.inf, guard, end)
        if stats:  # the next call writes its positions into the same memory
            blocks.append((None if positions is None else positions.copy(), stats))
    positions, stats = joined_blocks(blocks)
    if warming and getattr(sampler, "_chunked", False) and not thinning.each:
        # The number of calls depends on the clock, so that it differs between groups.
        stats = {name: values[:, -1:] for name, values in stats.items()}
    return chains.state, (positions, stats, stats or chains.calls[-1][1])
