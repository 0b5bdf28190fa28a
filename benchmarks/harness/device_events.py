"""Times on a device, between two of its events."""

from __future__ import annotations

from typing import Any


def event_times(cupy: Any, call: Any, inputs: int, repeats: int) -> list[float]:
    """Seconds of `call(i)` between two device events, inputs taking turns, after a warm-up."""
    for i in range(inputs):
        call(i)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    found = []
    for i in range(repeats):
        begin.record()
        call(i % inputs)
        end.record()
        end.synchronize()
        found.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
    return found
