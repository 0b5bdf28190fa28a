"""Warnings of a run that do not end it."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

from ribbit.samplers.run.holder import holder

__all__ = ["left_to_rank_0", "warn"]

_quiet = threading.local()


@contextlib.contextmanager
def left_to_rank_0(leads: bool) -> Iterator[None]:
    """Drop this thread's warnings unless it leads: of one run that all ranks make they are one."""
    before = getattr(_quiet, "on", False)
    _quiet.on = before or not leads
    try:
        yield
    finally:
        _quiet.on = before


def warn(message: str, *, stacklevel: int, category: type[Warning] = RuntimeWarning) -> None:
    """Warn, `stacklevel` counted as if ``warnings.warn`` were called.

    Of a background run it is for who waits for the run. What cannot be shown is dropped: Python's
    display raises where standard error is closed, and draws would be lost with it. A filter that
    turns warnings into errors is obeyed.
    """
    if getattr(_quiet, "on", False):
        return
    holding = holder()
    if holding is not None:
        holding.warned(message, category)
        return
    try:
        warnings.warn(message, category, stacklevel=stacklevel + 1)
    except Warning:
        raise
    except Exception:
        return
