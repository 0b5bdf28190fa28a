"""The workers of an executor: one job, whose tasks are given out, collected, and made again.

A task is a pure function of a state: one that is lost with its worker is given to another.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.threads import Interrupted, num_threads, set_num_threads
from ribbit.density import Density
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.worker import MISSING, Job, Made, Task, digest, work

__all__ = ["Call", "Workers"]

_POLL = 0.05  # seconds between looks for Ctrl-C
_TRIES = 3  # losses in a row, with no task done in between, that are borne

# Errors of executors that say that a worker is gone, not that its work failed.
_LOST = {"KilledWorker", "WorkerCrashedError", "NodeDiedError", "TerminatedWorkerError"}


@dataclass
class Call:
    """Chains whose tasks follow one another: `state` lies behind all that is made."""

    state: Any
    stops: tuple[int, ...] = ()
    future: Any = None
    asked: bool = False  # whether its worker has not got the job
    sent: bool = False  # whether its task has it
    error: NonFiniteError | None = None  # of a task that failed as any run may


class Workers:
    """The workers of a job, which is pickled and sent to each of them once."""

    def __init__(self, function: str, density: Density, job: Job, executor: Any) -> None:
        self._function = function
        if density.xp is not np:
            raise ValueError(
                f"[{function}] expected a target on NumPy arrays with executor=, got one on "
                f"{density.xp.__name__}: a device is not shared among workers"
            )
        try:
            self._payload = pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise TypeError(
                f"[{function}] expected a target that can be pickled with executor=, since it is "
                f"sent to the workers, got {type(density.target).__name__}: {error}"
            ) from error
        self._make: Callable[[], Any] | None = None
        self._executor = executor
        if isinstance(executor, type) or not hasattr(executor, "submit"):
            if not callable(executor):
                raise _no_executor(function, executor)
            self._make, self._executor = executor, _called(function, executor)
            if not hasattr(self._executor, "submit"):
                made = f", which makes {checks.summary(self._executor)}"
                raise _no_executor(function, executor, made)
        self._key = digest(self._payload)
        self._calls: Sequence[Call] = []
        self._losses = self._broken = 0
        self._begun = False  # a task has come back
        self._news = threading.Event()
        self._threads = self._share = num_threads()

    def __enter__(self) -> Self:
        import tempfile  # not with ribbit: slow to load

        # A file spares local workers' pipes; its name is random, and only the owner reads it.
        number, self._path = tempfile.mkstemp(prefix="ribbit-", suffix=".pickle")
        with os.fdopen(number, "wb") as file:
            file.write(self._payload)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()
        if num_threads() != self._threads:  # workers that are threads of this process
            set_num_threads(self._threads)
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        if self._make is not None:
            self._shut()

    def cut(self, chains: int) -> list[slice]:
        """Cut chains into as many groups as there are workers; one each where nobody says."""
        import concurrent.futures

        workers = getattr(self._executor, "_max_workers", None)
        count = min(chains, workers) if isinstance(workers, int) and workers > 0 else chains
        self._share = max(1, self._threads // count)
        if isinstance(self._executor, concurrent.futures.ThreadPoolExecutor):
            set_num_threads(self._share)
        return [slice(chains * g // count, chains * (g + 1) // count) for g in range(count)]

    def take(self, calls: Sequence[Call]) -> None:
        """Work on these calls from now on."""
        self.drop()
        self._calls = calls

    def drop(self) -> None:
        """Work on nothing."""
        for call in self._calls:
            if call.future is not None:
                with contextlib.suppress(Exception):
                    call.future.cancel()
        self._calls = []

    def holds(self, call: Call) -> bool:
        """Whether a call has to wait: another one's task is taking the job to its worker."""
        return call.asked and any(other.sent for other in self._calls)

    def give(self, call: Call) -> None:
        """Give a call's task to a worker."""
        call.asked, call.sent = False, call.asked
        payload = self._payload if call.sent else None
        task = Task(
            self._key, self._path, payload, call.state, call.stops, self._share, os.getpid()
        )
        call.future = self._submit(task)
        hear = getattr(call.future, "add_done_callback", None)
        if hear is not None:
            hear(lambda _: self._news.set())

    def collect(self, guard: InterruptGuard | None) -> Iterator[tuple[Any, Made]]:
        """Wait for news, and yield what has been made; tasks of the lost are nobody's again.

        Raises
        ------
        Interrupted
            After Ctrl-C.
        """
        if guard is not None and guard.requested:
            raise Interrupted
        self._news.wait(_POLL)
        self._news.clear()
        for call in self._calls:
            if call.future is None or not call.future.done():
                continue
            made = self._result(call)
            if made is not None:
                yield call, made

    def _result(self, call: Call) -> Made | None:
        future, call.future = call.future, None
        try:
            made: Made | str = future.result()
        except NonFiniteError as error:
            call.error = error
            return None
        except BaseException as error:
            if not _lost(error):
                raise
            self._losses += 1
            if self._losses > _TRIES * len(self._calls):
                raise
            call.sent = False
            if isinstance(error, _broken()):
                self._replace(error)
            return None
        if isinstance(made, str):
            assert made == MISSING, made
            call.asked = True
            return None
        self._losses, self._begun = 0, True
        if call.sent:
            call.sent = False
            for other in self._calls:
                other.asked = False
        return made

    def _submit(self, task: Task) -> Any:
        try:
            return self._executor.submit(work, task)
        except Exception as error:
            if not _lost(error):
                raise
            self._replace(error)
            return self._executor.submit(work, task)

    def _replace(self, error: BaseException) -> None:
        """Put a new executor in the place of a broken one, where there is a way to make it.

        All tasks of the old one are lost.
        """
        if self._make is None:
            error.add_note(
                f"[{self._function}] the executor broke and takes no more tasks. With a callable "
                "that makes executors, such as executor=lambda: ProcessPoolExecutor(4), the run "
                "continues with a new one"
            )
            raise error
        self._broken += 1
        if self._broken > 1 and not self._begun:
            error.add_note(
                f"[{self._function}] two executors broke before a task came back. If processes "
                "begin by importing the script (spawn, forkserver), put the code that it runs "
                "under if __name__ == '__main__':"
            )
            raise error
        self._shut()
        self._executor = self._make()
        for call in self._calls:
            call.future = None

    def _shut(self) -> None:
        shutdown = getattr(self._executor, "shutdown", None)
        if shutdown is not None:
            with contextlib.suppress(Exception):
                shutdown(wait=False, cancel_futures=True)


def _broken() -> type[BaseException]:
    from concurrent.futures import BrokenExecutor  # not with ribbit: slow to load

    return BrokenExecutor


def _lost(error: BaseException) -> bool:
    """Whether an error says that a worker is gone."""
    from concurrent.futures import CancelledError

    return isinstance(error, (_broken(), CancelledError)) or type(error).__name__ in _LOST


def _no_executor(function: str, executor: Any, more: str = "") -> TypeError:
    return TypeError(
        f"[{function}] expected executor with a method submit, such as "
        "concurrent.futures.ProcessPoolExecutor(4), or a callable that makes one, got "
        f"{checks.summary(executor)}{more}"
    )


def _called(function: str, executor: Any) -> Any:
    """Return the result of a call without arguments."""
    try:
        return executor()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # of its own
    raise _no_executor(function, executor, ", which needs arguments")
