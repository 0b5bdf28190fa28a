"""Who holds the run of a thread, where it goes on in the background: a seam, and nothing else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from ribbit._arrays.warning import warnings_to
from ribbit.errors import RibbitWarning

__all__ = ["Holder", "held_by", "holder"]


class Holder(Protocol):
    """What a background run is told; see :class:`ribbit.samplers.run.background.BackgroundRun`."""

    def opened(self, guard: Any) -> None:
        """Take the guard by which the run can be stopped; the first one is the run's."""

    def begun(self, run: Any) -> None:
        """Take the run: arguments are checked, steps begin; the first one is it."""

    def warned(self, message: str, category: type[RibbitWarning]) -> None:
        """Take a warning, which is for who waits for the run."""


_here = threading.local()


def holder() -> Holder | None:
    """Return who holds the run of this thread; None in the foreground."""
    found: Holder | None = getattr(_here, "holder", None)
    return found


@contextlib.contextmanager
def held_by(one: Holder) -> Iterator[None]:
    """Let `one` hold what this thread runs in the block."""
    _here.holder = one
    try:
        with warnings_to(one.warned):
            yield
    finally:
        _here.holder = None
