"""The handle of a run in a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Self

from ribbit._arrays import checks
from ribbit._arrays.warning import warn, warnings_to
from ribbit.errors import RibbitWarning
from ribbit.interrupt import InterruptGuard, here
from ribbit.progress import LINE_SECONDS, check_progress, format_line, print_line
from ribbit.results.draws import Draws

__all__ = ["RunHandle"]

_PATIENCE = 1.0  # seconds in which the call itself raises what the run raises
_HEARD = 0.1  # seconds after which a wait notices a signal at the latest
_LAST = 10.0  # seconds that the end of the process waits for all runs

_alive: set[RunHandle] = set()
_lock = threading.Lock()


class RunHandle:
    """A run in a thread of its own, from :meth:`ribbit.Sampler.sample` with ``blocking=False``.

    The draws are bit-identical to the draws of a blocking call. As a context manager the run is
    stopped at the end of the block. Ctrl-C in the main thread does not stop it. A target has one
    such run at a time. Runs of several targets share the threads of the native code, which slows
    each down. At the end of the program the run ends after the current step. Draws that you have
    not taken are then lost, unless they are in a folder (``store=``).

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> run = rb.HMC(target).sample(200, seed=1, blocking=False)
    >>> run.progress["phase"] in ("warmup", "sampling")
    True
    >>> draws = run.wait()
    >>> len(draws)
    200
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("[RunHandle] handles are made by sample(..., blocking=False), got a call")

    def _begin(
        self, name: str, target: Any, sample: Callable[..., Any], options: dict[str, Any]
    ) -> Self:
        """Run ``sample(**options)`` of the sampler `name`, such as "HMC", in a thread."""
        if getattr(target, "group", None) is not None:
            raise ValueError(f"[{name}.sample] blocking must be True if the target has a group")
        check_progress(f"{name}.sample", options["progress"])
        self._name, self._target, self._pid = name, target, os.getpid()
        self._show, self._asked = options["progress"], False
        self._guard: InterruptGuard | None = None
        self._run: Any = None  # the Run of sample.py, once it has a start
        self._snapshot: dict[str, Any] = {}
        self._warnings: list[tuple[str, type[RibbitWarning]]] = []
        self._result: Draws | None = None
        self._error: BaseException | None = None
        self._begun, self._done = threading.Event(), threading.Event()
        self._started = self._shown = time.perf_counter()
        work = sample, {**options, "progress": self._note}
        thread = threading.Thread(target=self._work, args=work, name=f"ribbit {name}", daemon=True)
        with _lock:
            for other in _alive:
                if other._target is target:
                    text = "this target has a run in a thread already. Call its wait() or stop()"
                    raise ValueError(f"[{name}.sample] {text} first: {other}")
            thread.start()
            _alive.add(self)
        try:
            self._begun.wait(_PATIENCE)
        except BaseException:  # Ctrl-C: the caller gets no handle to stop the run with
            self._ask()
            raise
        if self._run is None and isinstance(self._error, Exception):
            raise self._error
        return self

    @property
    def running(self) -> bool:
        """Whether the run has not ended yet."""
        return not self._done.is_set()

    @property
    def progress(self) -> dict[str, Any]:
        """The dict that a ``progress`` callable of ``sample`` gets, and "running".

        "phase" is also "starting", with "total" None, before the run has a start.
        """
        found = {"title": self._name, "phase": "starting", "done": 0, "total": None, "draws": 0}
        found |= {"elapsed": time.perf_counter() - self._started, "eta": None, **self._snapshot}
        if (run := self._run) is not None and found["phase"] != "fitting":
            chains = run.chains
            found |= {"done": chains.step - run.first, "draws": run.kept}
            if found["phase"] == "starting":  # no display has been due yet
                found["phase"] = "warmup" if chains.warming_up else "sampling"
                found["total"] = run.total
        return found | {"running": self.running}

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
        self._refuse_a_fork("draws")
        if self.running:
            if self._run is None:
                text = "the run still finds its start. Ask again later."
                raise RuntimeError(f"[RunHandle.draws] {text}")
            return self._run.snapshot()  # type: ignore[no-any-return]
        found = getattr(self._error, "draws", None)
        return found if isinstance(found, Draws) else self._end()

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
        return self._wait("wait", timeout)

    def __repr__(self) -> str:
        if self._pid != os.getpid():
            state = f"{self._name}: runs in another process"
        elif self.running:
            found = self.progress  # without "chains" before the first refresh
            state = format_line(found) if "chains" in found else f"{self._name}: {found['phase']}"
        elif self._error is not None:
            state = f"{self._name}: ended by {type(self._error).__name__}"
        else:
            state = f"{self._name}: ended, {self._result!r}"
        return f"RunHandle({state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        elif self._pid == os.getpid():
            self._ask()
            self._ended(None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("[RunHandle] a run stays in its process. Pickle the draws of wait().")

    # The thread of the run calls these.

    def _take_guard(self, guard: InterruptGuard) -> None:
        if self._guard is None:  # fits and runs inside the run have their own
            self._guard = guard
            if self._asked:
                self._ask()

    def _take_run(self, run: Any) -> None:
        if self._run is None:
            self._run = run
            self._begun.set()

    def _note(self, snapshot: dict[str, Any]) -> None:
        """Take what a display gets, and show it as `progress` says."""
        self._snapshot, now = snapshot, time.perf_counter()
        ends = snapshot["done"] >= snapshot["total"] or "stopped" in snapshot
        if callable(self._show):
            self._show(snapshot)
        elif self._show and (ends or now >= self._shown + LINE_SECONDS):
            self._shown = now
            with contextlib.suppress(Exception):  # a display is worth less than the run
                print_line(snapshot)

    def _work(self, sample: Callable[..., Draws], options: dict[str, Any]) -> None:
        here.handle = self
        try:
            with warnings_to(lambda *told: self._warnings.append(told)):
                self._result = sample(**options)
        except BaseException as error:  # raised again by wait()
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
        """Wait until the run has ended, and return whether it has."""
        # In pieces: free-threaded CPython 3.13 hears of some signals only when a wait ends.
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0.0 and not self._done.wait(min(_HEARD, left)):
            pass
        return self._done.is_set()

    def _wait(self, method: str, timeout: float | None) -> Draws:
        self._refuse_a_fork(method)
        name, most = f"RunHandle.{method}", threading.TIMEOUT_MAX
        if timeout is not None:
            timeout = checks.real(name, "timeout", timeout)
            if not 0.0 <= timeout <= most:
                raise ValueError(f"[{name}] expected timeout from 0 to {most:g} s, got {timeout:g}")
        if method == "stop":
            self._ask()
        if not self._ended(timeout):
            found = self.progress
            done = f"{found['done']} of {found['total']} steps"
            text = f"the run did not end within {timeout:g} s, after {done}"
            raise TimeoutError(f"[{name}] {text}. It still runs: wait again.")
        told, self._warnings = self._warnings, []
        for message, category in told:
            warn(message, category)
        return self._end()

    def _end(self) -> Draws:
        """Return the draws of a run that has ended, or raise its exception."""
        if self._asked and self._run is None and isinstance(self._error, KeyboardInterrupt):
            raise RuntimeError("[RunHandle] the run was stopped before its start: no draws.")
        if self._result is None:
            assert self._error is not None
            raise self._error
        return self._result

    def _refuse_a_fork(self, method: str) -> None:
        if self._pid != os.getpid():
            text = "the run is in the process that this one was forked from"
            raise RuntimeError(f"[RunHandle.{method}] {text}")


def _end_all() -> None:
    """End all runs as the process ends, so that folders are whole and no thread is in C++."""
    end = time.monotonic() + _LAST
    with _lock:
        runs = list(_alive)
    for run in runs:
        run._ask()
    for run in runs:
        run._done.wait(max(0.0, end - time.monotonic()))


def _forget() -> None:
    """Leave the runs to the parent: a fork has none of their threads."""
    global _lock
    _lock = threading.Lock()
    _alive.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
