"""Ctrl-C during a run, and how an exception carries what was done."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

from ribbit._arrays.threads import InterruptFlag
from ribbit.protocols import RowGroup

_INSISTS = 1.0  # seconds after which a second Ctrl-C does not wait for the other ranks


class _Here(threading.local):
    handle: Any = None  # the RunHandle whose thread this is


here = _Here()


def how_to_resume(store: Any | None) -> str | None:
    """Say how to resume a run in a folder; None for one in memory."""
    return None if store is None else f"the same call resumes, with store={str(store.folder)!r}"


class InterruptGuard:
    """Turns Ctrl-C into a stop request while the ``with`` block runs."""

    def __init__(self, group: RowGroup | None = None) -> None:
        self.flag = InterruptFlag()  # native code polls it
        # Whether code runs that does not poll the flag. Only then does the handler raise
        # KeyboardInterrupt, so that bookkeeping is never cut in half.
        self.foreign = False
        self.asked = False  # whether a RunHandle has asked the run to stop, which needs no warning
        self._alone = group is None  # else the request takes effect once all ranks have agreed
        self._old: Any = None  # the handler before, while ours is installed
        self._asked: float | None = None  # when a group was first asked to stop

    @property
    def requested(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return bool(self.flag.is_set())

    def begin_foreign(self) -> None:
        """Say that code begins that does not poll the flag; raise what came just before it."""
        self.foreign = True
        if self.flag.is_set():
            self.foreign = False
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if here.handle is not None:
            here.handle._take_guard(self)
        if threading.current_thread() is threading.main_thread():
            old = signal.getsignal(signal.SIGINT)
            if callable(old) or old == signal.SIG_DFL:
                with contextlib.suppress(ValueError):  # the main thread of a subinterpreter may not
                    signal.signal(signal.SIGINT, self._handle)
                    self._old = old
        return self

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._alone:
            now, before = time.monotonic(), self._asked
            if before is not None and now - before > _INSISTS:
                raise KeyboardInterrupt
            self._asked = now if before is None else before
            self.flag.ask()
            return
        self.flag.set()
        if self.foreign:
            self.foreign = False
            raise KeyboardInterrupt


@contextlib.contextmanager
def foreign(guard: Any) -> Iterator[None]:
    """Run code that does not poll the flag of a guard, if there is one."""
    if guard is None:
        yield
        return
    guard.begin_foreign()
    try:
        yield
    finally:
        guard.foreign = False


@contextlib.contextmanager
def carrying(
    function: str,
    attribute: str,
    done: Callable[[], tuple[Any, str]],  # value of the attribute, and words for it
    resuming: str | None = None,
) -> Iterator[None]:
    """Give an exception that leaves the block what was done: as `attribute`, and in a note."""
    try:
        yield
    except BaseException as error:
        # A failure to pack, or an exception that takes no attributes, must not hide the error.
        with contextlib.suppress(Exception):
            value, words = done()
            setattr(error, attribute, value)
            how = resuming or f"continue with resume=error.{attribute}"
            place = f"in `.{attribute}` of this exception ({how})"
            error.add_note(f"[{function}] ended after {words}: they are {place}")
        raise
