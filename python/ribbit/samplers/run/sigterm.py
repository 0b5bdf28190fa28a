"""SIGTERM while runs go on in the background: the process ends as after ``sys.exit(143)``.

So its end ends them in order, and stores are flushed; by default the signal kills at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["come", "free", "put_back", "take"]

_alive: list[Callable[[], bool]] = []  # at most one: whether a run goes on
_come = threading.Event()


def take(alive: Callable[[], bool]) -> None:
    """Take the signal while ``alive()``, where nobody else has; on the main thread only."""
    _alive[:] = [alive]
    if _on_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # the main thread of a subinterpreter may not
            signal.signal(signal.SIGTERM, _handle)


def put_back() -> None:
    """Let the signal kill again."""
    if _on_main_thread() and signal.getsignal(signal.SIGTERM) is _handle:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def free(handler: Any) -> bool:
    """Whether a handler is that of nobody but us: a run in the foreground may take its place."""
    return handler == signal.SIG_DFL or handler is _handle


def come() -> bool:
    """Whether it came."""
    return _come.is_set()


def _handle(number: int, frame: FrameType | None) -> None:
    if any(alive() for alive in _alive):
        _come.set()
        raise SystemExit(128 + signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
