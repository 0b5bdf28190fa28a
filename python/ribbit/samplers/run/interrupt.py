"""Ctrl-C and SIGTERM during a run, and what an exception takes along.

Native code polls a flag; code that is not ours gets an exception.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from ribbit._arrays.threads import InterruptFlag
from ribbit.protocols import RowGroup
from ribbit.samplers.run import sigterm
from ribbit.samplers.run.holder import holder

__all__ = ["Carrying", "InterruptGuard", "way_on"]

_INSISTS = 1.0  # seconds after which asking again means: whatever the other ranks do


def way_on(store: Any | None) -> str | None:
    """Say how to resume a run in a folder; None for one in memory."""
    return None if store is None else f"the same call resumes, with store={str(store.folder)!r}"


class InterruptGuard:
    """Turns SIGINT and SIGTERM into a request to stop while the ``with`` block runs.

    Installed on the main thread only. SIGINT only where Python handles it (not when it is ignored
    or handled by C code), SIGTERM only where nobody handles it, so that it would kill the process:
    then it ends the run as Ctrl-C does, and ``SystemExit(143)`` leaves the block. Where somebody
    swallows that and samples on, the next SIGTERM ends the next run in the same way. Old handlers
    are put back in every case. Elsewhere the guard is inert. In a process that is forked meanwhile,
    such as a worker, SIGTERM means what it meant before: no run there ends by it.

    With a group the request is a wish, which becomes that of all ranks where they next meet. Asked
    again, a second later, a rank stops waiting for the others: the exception is raised at once.

    Parameters
    ----------
    group : RowGroup, optional

    Attributes
    ----------
    flag : InterruptFlag
        Polled by native trajectories.
    foreign : bool
        True while code runs that does not poll the flag (a user's callable): only then does the
        handler raise KeyboardInterrupt or SystemExit, so that bookkeeping is never cut in half.
    terminated : bool
        Whether SIGTERM came.
    asked : bool
        Whether the one who holds a background run has asked it to stop, who needs no warning.
    """

    def __init__(self, group: RowGroup | None = None) -> None:
        self._alone = group is None
        self.flag = InterruptFlag()
        self.foreign = False
        self.terminated = False
        self.asked = False
        self._old: dict[signal.Signals, Any] = {}
        self._process = os.getpid()
        self._asked: float | None = None  # when a group was first asked to stop

    @property
    def requested(self) -> bool:
        """Whether Ctrl-C was pressed, or SIGTERM came."""
        return bool(self.flag.is_set())

    @property
    def exception(self) -> BaseException:
        """What code that is not ours gets, and what a run without results ends with."""
        return SystemExit(128 + signal.SIGTERM) if self.terminated else KeyboardInterrupt()

    def begin_foreign(self) -> None:
        """Say that code begins that does not poll the flag; raise what came just before it."""
        self.foreign = True
        if self.requested:
            self.foreign = False
            raise self.exception

    def __enter__(self) -> Self:
        holding = holder()
        if holding is not None:
            holding.opened(self)
        if threading.current_thread() is threading.main_thread():
            old = signal.getsignal(signal.SIGINT)
            if callable(old) or old == signal.SIG_DFL:
                self._install(signal.SIGINT, old)
            old = signal.getsignal(signal.SIGTERM)
            if sigterm.free(old):
                self._install(signal.SIGTERM, old)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._old:
            signal.signal(*self._old.popitem())
        if error is None:
            self.check_terminated()

    def check_terminated(self) -> None:
        """Raise SystemExit once SIGTERM came."""
        if self.terminated:
            raise self.exception

    def _install(self, number: signal.Signals, old: Any) -> None:
        with contextlib.suppress(ValueError):  # the main thread of a subinterpreter may not
            signal.signal(number, self._handle)
            self._old[number] = old

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            if os.getpid() != self._process:
                signal.signal(number, self._old.get(signal.SIGTERM, signal.SIG_DFL))
                os.kill(os.getpid(), number)
                return
            self.terminated = True
        if not self._alone:
            now, before = time.monotonic(), self._asked
            if before is not None and now - before > _INSISTS:
                raise self.exception
            self._asked = now if before is None else before
            self.flag.ask()
            return
        self.flag.set()
        if self.foreign:
            self.foreign = False
            raise self.exception


class Carrying:
    """Whatever leaves the ``with`` block as an exception carries what was done.

    The exception object stays the same and gets an attribute and a note. Once SIGTERM came it is a
    SystemExit, whatever else was on its way, and standard error gets a line that says how to go on:
    Python prints nothing of a SystemExit.

    Parameters
    ----------
    function : str
        Who says so.
    attribute : str
        Name of the attribute: "draws" or "fit".
    done : callable
        Returns its value, and words for it.
    guard : InterruptGuard
    resume : str, optional
        How to go on, for the line after SIGTERM.
    """

    def __init__(
        self,
        function: str,
        attribute: str,
        done: Callable[[], tuple[Any, str]],
        guard: InterruptGuard,
        *,
        resume: str | None = None,
    ) -> None:
        self._function, self._attribute = function, attribute
        self._done, self._guard = done, guard
        self._resume = resume or (
            f"catch the SystemExit and save error.{attribute}, resume=error.{attribute} continues"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leaving = error
        if self._guard.terminated and not isinstance(error, SystemExit):
            leaving = self._guard.exception
        if leaving is None:
            return
        # What cannot be packed, or an exception that takes no attributes, must not hide the error.
        with contextlib.suppress(Exception):
            value, words = self._done()
            setattr(leaving, self._attribute, value)
            leaving.add_note(
                f"[{self._function}] ended after {words}: they are in `.{self._attribute}` of this "
                f"exception (continue with resume=error.{self._attribute})"
            )
            if self._guard.terminated:
                self._say(words)
        if leaving is not error:
            raise leaving from error

    def _say(self, words: str) -> None:
        if sys.stderr is not None:  # None under pythonw and in some embedded interpreters
            line = f"[{self._function}] SIGTERM after {words}: {self._resume}"
            print(line, file=sys.stderr, flush=True)
