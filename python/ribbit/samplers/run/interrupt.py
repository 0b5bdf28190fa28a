"""Ctrl-C during a run: a flag for native code, KeyboardInterrupt for code that is not ours."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from ribbit._arrays.threads import InterruptFlag

__all__ = ["InterruptGuard"]


class InterruptGuard:
    """Turns SIGINT into a request to stop while the ``with`` block runs.

    Installed on the main thread only, and only where Python handles SIGINT (not when it is ignored
    or handled by C code); the old handler is put back in every case. Elsewhere the guard is inert.

    Attributes
    ----------
    flag : InterruptFlag
        Polled by native trajectories.
    foreign : bool
        True while code runs that does not poll the flag (a user's callable): only then does the
        handler raise KeyboardInterrupt, so that bookkeeping is never cut in half.
    """

    def __init__(self) -> None:
        self.flag = InterruptFlag()
        self.foreign = False
        self._old: Any = None
        self._installed = False

    @property
    def requested(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return bool(self.flag.is_set())

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            old = signal.getsignal(signal.SIGINT)
            if callable(old) or old == signal.SIG_DFL:
                try:
                    signal.signal(signal.SIGINT, self._handle)
                except ValueError:  # the main thread of a subinterpreter may not
                    return self
                self._old, self._installed = old, True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGINT, self._old)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.flag.set()
        if self.foreign:
            self.foreign = False
            raise KeyboardInterrupt
