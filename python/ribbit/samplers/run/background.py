"""A run that goes on beside the program: its handle, and how it ends with the process."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ribbit._arrays import checks
from ribbit._arrays.warning import warn
from ribbit.errors import RibbitWarning
from ribbit.results.draws import Draws
from ribbit.samplers.run.interrupt import handled_by
from ribbit.samplers.run.options import check_progress
from ribbit.samplers.run.progress_view import format_line

if TYPE_CHECKING:
    from ribbit.samplers.run.interrupt import InterruptGuard
    from ribbit.samplers.run.run import ProgressOption, Run

__all__ = ["BackgroundRun", "begin"]

_PATIENCE = 1.0  # seconds in which `start` tells of wrong arguments
_HEARD = 0.1  # seconds after which a wait hears of a signal at the latest
_LAST = 10.0  # seconds that the end of the process waits for each run
_LINE = 5.0  # seconds between lines of progress=True

_alive: set[BackgroundRun] = set()
_lock = threading.Lock()


class BackgroundRun:
    """A run in a thread of its own, started by :meth:`ribbit.Sampler.start`.

    ``sampler.sample(...)`` with the same arguments gives bit-identical draws. As a context manager
    it is stopped at the end of the block. Ctrl-C in the main thread does not stop it. A target has
    one such run at a time. Runs of several targets share the threads of the native code, which
    slows each down. At the end of the program the run ends after the current step. Draws that you
    have not taken are then lost, unless they are in a folder (``store=``).

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> run = rb.HMC(target).start(200, seed=1)
    >>> run.progress["phase"] in ("warmup", "sampling")
    True
    >>> draws = run.wait()
    >>> len(draws)
    200
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("[BackgroundRun] runs are made by sampler.start(...), got a call")

    def _prepare(self, name: str, target: Any, progress: ProgressOption) -> None:
        """Fill the handle of a run of `name`, such as "HMC"; `begin` starts it."""
        if getattr(target, "group", None) is not None:
            raise ValueError(
                f"[{name}.start] expected a target whose rows are all here, got one with group=: "
                "call sample on every rank"
            )
        self._name, self._target, self._pid = name, target, os.getpid()
        check_progress(f"{name}.start", progress)
        self._show = _display(progress)
        self._guard: InterruptGuard | None = None
        self._run: Run | None = None
        self._snapshot: dict[str, Any] = {}
        self._warnings: list[tuple[str, type[RibbitWarning]]] = []
        self._asked = False
        self._result: Draws | None = None
        self._error: BaseException | None = None
        self._begun, self._done = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._started = time.perf_counter()

    @property
    def running(self) -> bool:
        """Whether the run has not ended yet."""
        return not self._done.is_set()

    @property
    def progress(self) -> dict[str, Any]:
        """The dict that a ``progress`` callable of ``sample`` gets, and "running".

        Keys include "phase" ("starting", "fitting" a start, "warmup", "sampling"), "draws" per
        chain and "acceptance_rate" of each chain. "done" and "total" count steps (with ``until=``
        the total is a guess). "elapsed" and "eta" (time left; None if unknown) are in seconds.
        """
        found: dict[str, Any] = {
            "title": self._name,
            "phase": "starting",
            "done": 0,
            "total": None,
            "draws": 0,
            "elapsed": time.perf_counter() - self._started,
            "eta": None,
            **self._snapshot,
            "running": self.running,
        }
        run = self._run
        if run is not None and found["phase"] != "fitting":
            state = run.state
            found["done"], found["draws"] = state.step - run.first, run.kept
            if found["phase"] == "starting":  # no display has been due yet
                found["phase"] = "warmup" if state.step < state.warmup else "sampling"
                found["total"] = run.total
        return found

    def draws(self) -> Draws:
        """Return the draws so far, or all of them after the end.

        You can summarise, save and resume them and predict with them like any others; they have
        ``complete=False``. The run is slowed down only by a copy of its running predictions.

        Returns
        -------
        Draws

        Raises
        ------
        RuntimeError
            While the run still finds its start, and in a fork of the process.
        BaseException
            The exception of a run that ended before it had any draws.
        """
        self._here("draws")
        if not self.running:
            if self._result is not None:
                return self._result
            left = getattr(self._error, "draws", None)
            if isinstance(left, Draws):
                return left
            self._raise()
        if self._run is None:
            raise RuntimeError(
                "[BackgroundRun.draws] expected a run that has begun, got one that finds its start"
            )
        return self._run.snapshot()

    def stop(self, timeout: float | None = None) -> Draws:
        """End the run at the next step, as Ctrl-C does, without a warning.

        Parameters
        ----------
        timeout : float, optional
            As for :meth:`wait`.

        Returns
        -------
        Draws
            With ``complete=False`` unless the run had ended by itself; ``resume=`` continues them.

        Raises
        ------
        RuntimeError
            If it was stopped before it had a start, and in a fork of the process.
        """
        self._here("stop")
        timeout = _seconds("stop", timeout)
        self._ask()
        return self._wait("stop", timeout)

    def wait(self, timeout: float | None = None) -> Draws:
        """Wait until the run has ended, and return its draws.

        Ctrl-C ends the waiting, not the run.

        Parameters
        ----------
        timeout : float, optional
            Longest wait in seconds.

        Returns
        -------
        Draws
            As from ``sample``. Its warnings are issued here, once.

        Raises
        ------
        TimeoutError
            If the run has not ended by then; nothing is lost.
        BaseException
            The exception that ended the run; its attribute ``draws`` has the draws so far.
        """
        self._here("wait")
        return self._wait("wait", _seconds("wait", timeout))

    def __repr__(self) -> str:
        if self._pid != os.getpid():
            return f"BackgroundRun({self._name}: runs in another process)"
        if self.running:
            found = self.progress
            known = "chains" in found
            said = format_line(found) if known else f"{self._name}: {found['phase']}"
            return f"BackgroundRun({said})"
        if self._error is not None:
            return f"BackgroundRun({self._name}: ended by {type(self._error).__name__})"
        return f"BackgroundRun({self._name}: ended, {self._result!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ask()
        if error is None:
            self.wait()
        else:
            self._ended(None)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "[BackgroundRun] expected to stay in its process, got pickled: the draws of "
            "run.wait() or run.draws() can travel"
        )

    # The run calls these; see `interrupt.handled_by`.

    def opened(self, guard: InterruptGuard) -> None:
        """Take the run's guard; fits and runs inside it have their own."""
        if self._guard is None:
            self._guard = guard
            if self._asked:
                self._ask()

    def begun(self, run: Run) -> None:
        """Take the run."""
        if self._run is None:
            self._run = run
            self._begun.set()

    def warned(self, message: str, category: type[RibbitWarning]) -> None:
        """Keep a warning until :meth:`wait`."""
        self._warnings.append((message, category))

    def _note(self, snapshot: dict[str, Any]) -> None:
        self._snapshot = snapshot
        if self._show is not None:
            self._show(snapshot)

    def _work(self, call: Callable[[Any], Draws]) -> None:
        try:
            with handled_by(self):
                self._result = call(self._note)
        except BaseException as error:  # for who waits
            self._error = error
        finally:
            with _lock:
                _alive.discard(self)
            self._done.set()
            self._begun.set()

    def _ask(self) -> None:
        self._asked = True
        if self._guard is not None:
            self._guard.asked = True
            self._guard.flag.set()

    def _ended(self, timeout: float | None) -> bool:
        """Wait until the run has ended, and say whether it has.

        In pieces: free-threaded CPython 3.13 hears of a signal that comes as a wait begins only
        when that wait ends.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done.wait(max(0.0, min(_HEARD, end - time.monotonic()))):
            if time.monotonic() >= end:
                return self._done.is_set()
        return True

    def _wait(self, method: str, timeout: float | None) -> Draws:
        if not self._ended(timeout):
            found = self.progress
            raise TimeoutError(
                f"[BackgroundRun.{method}] expected the run to end within {timeout:g} s, got "
                f"{found['done']} of {found['total']} steps: it still runs"
            )
        told, self._warnings = self._warnings, []
        for message, category in told:
            warn(message, category)
        if self._result is None:
            self._raise()
        return self._result

    def _raise(self) -> NoReturn:
        if self._asked and self._run is None and isinstance(self._error, KeyboardInterrupt):
            raise RuntimeError(
                "[BackgroundRun] expected a run that has begun, got one that was stopped while it "
                "found its start: there are no draws"
            )
        assert self._error is not None
        raise self._error

    def _here(self, method: str) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"[BackgroundRun.{method}] expected the process that started the run, got a fork "
                "of it: the run continues there, and its draws come from there"
            )


def begin(
    name: str, target: Any, call: Callable[[Any], Draws], progress: ProgressOption
) -> BackgroundRun:
    """Run `call(progress)` in a thread, and return its handle.

    Raises
    ------
    ValueError
        For another run of the target.
    Exception
        What the call finds wrong at once, before there is a run.
    """
    run = BackgroundRun.__new__(BackgroundRun)
    run._prepare(name, target, progress)
    with _lock:
        other = next((one for one in _alive if one._target is target), None)
        if other is None:
            _alive.add(run)
    if other is not None:
        raise ValueError(
            f"[{name}.start] expected no other run of this target in the background, got {other}: "
            "run.wait() or run.stop() first"
        )
    run._thread = threading.Thread(
        target=run._work, args=(call,), name=f"ribbit {name}", daemon=True
    )
    try:
        run._thread.start()
    except BaseException:
        with _lock:
            _alive.discard(run)
        raise
    run._begun.wait(_PATIENCE)
    if run._run is None and isinstance(run._error, Exception):
        raise run._error
    return run


def _display(progress: ProgressOption) -> Callable[[dict[str, Any]], object] | None:
    """Return who else sees snapshots: the user's callable, or plain lines for True."""
    if callable(progress):
        return progress
    if not progress:
        return None
    due = time.perf_counter() + _LINE

    def line(snapshot: dict[str, Any]) -> None:
        nonlocal due
        ends = snapshot["done"] >= snapshot["total"] or "stopped" in snapshot
        if time.perf_counter() < due and not ends:
            return
        due = time.perf_counter() + _LINE
        with contextlib.suppress(Exception):  # a display is worth less than the run
            print(format_line(snapshot), file=sys.stderr, flush=True)

    return line


def _seconds(method: str, timeout: float | None) -> float | None:
    if timeout is None:
        return None
    seconds = checks.real(f"BackgroundRun.{method}", "timeout", timeout)
    if not 0.0 <= seconds <= threading.TIMEOUT_MAX:
        raise ValueError(
            f"[BackgroundRun.{method}] expected timeout from 0 to {threading.TIMEOUT_MAX:g} s, got "
            f"{seconds:g}"
        )
    return seconds


def _end_all() -> None:
    """End what still runs when the process ends; stores are flushed, threads leave native code."""
    with _lock:
        runs = list(_alive)
    for run in runs:
        run._ask()
    for run in runs:
        run._done.wait(_LAST)


def _forget() -> None:
    """Leave the runs to the parent: a fork has none of their threads."""
    global _lock
    _lock = threading.Lock()
    _alive.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
