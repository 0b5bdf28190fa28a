"""Ctrl-C, or SIGTERM, in a long measurement: what was measured until then is printed."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Stop:
    """How a block ended; `status` is what a shell has: 130 after Ctrl-C, 143 after SIGTERM."""

    status: int = 0


@contextlib.contextmanager
def until_stopped() -> Iterator[Stop]:
    """Take Ctrl-C and SIGTERM as the end of the block: what follows it prints the rows so far.

    Yields
    ------
    Stop
        Its `status` is 0 unless the block was stopped.

    Examples
    --------
    >>> import os
    >>> rows = []
    >>> with until_stopped() as stop:
    ...     rows.append("measured")
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     rows.append("never")
    >>> rows, stop.status
    (['measured'], 143)
    """
    stop = Stop()

    def terminate(number: int, frame: Any) -> None:
        stop.status = 128 + number
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    before = signal.signal(signal.SIGTERM, terminate) if main else None
    try:
        yield stop
    except KeyboardInterrupt:
        stop.status = stop.status or 128 + signal.SIGINT
        print("stopped: what was measured until now follows", file=sys.stderr)
    finally:
        if main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
