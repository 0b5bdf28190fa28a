"""Times on a device, between two of its events."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["call_seconds", "calls_of", "event_times", "wait"]

_WINDOW = 0.02  # seconds between two events, at least
_MOST_CALLS = 500


def calls_of(seconds: float) -> int:
    """Return how many calls of so many seconds are timed together."""
    return max(1, min(_MOST_CALLS, round(_WINDOW / max(seconds, 1e-7))))


def event_times(cupy: Any, call: Any, inputs: int, repeats: int) -> list[float]:
    """Seconds of `call(i)` between two device events, inputs taking turns, after a warm-up.

    Short calls follow each other between the events, so that the device has work while the host
    prepares the next: what is measured is the slower of both.
    """
    for i in range(inputs):
        call(i)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()

    def seconds(many: int) -> float:
        begin.record()
        for i in range(many):
            call(i % inputs)
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3

    many = calls_of(seconds(1))
    return [seconds(many) / many for _ in range(repeats)]


def wait(xp: Any) -> None:
    """Wait for the device, where there is one."""
    if hasattr(xp, "cuda"):
        xp.cuda.Device().synchronize()


def call_seconds(xp: Any, call: Any, repeats: int) -> float:
    """Median seconds from a call to its end on the device, one call at a time."""
    times = []
    for i in range(repeats):
        begun = time.perf_counter()
        call(i)
        wait(xp)
        times.append(time.perf_counter() - begun)
    return sorted(times)[repeats // 2]
