"""Seconds of every kernel of a row, as CUPTI saw them: through PyTorch's profiler, if it is there.

The counts of `benchmarks.paper` say what each launch should take; this says what it took, kernel by
kernel, launches of a graph among them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["kernel_times", "short"]

_MOST, _LONG = 60, 240  # kernels of a row that are written down, and letters of their names


def short(name: str) -> str:
    """Return the kernel that `run` was made for, without namespaces; other names as they are."""
    found = re.search(r"run(?:_clusters)?<(.*?)\s*>\(", name)
    return re.sub(r"\bribbit::(?:cuda::)?", "", found[1] if found else name)


def kernel_times(call: Callable[[], Any], wait: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield, for each kernel of one call, how often it ran and the seconds of all its launches."""
    from torch.profiler import ProfilerActivity, profile

    call()
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        wait()
    found: dict[str, list[float]] = defaultdict(list)
    for event in seen.profiler.kineto_results.events():
        if "CUDA" in str(event.device_type()):
            found[short(event.name())].append(event.duration_ns() * 1e-9)
    total = sum(map(sum, found.values()))
    yield {"device_seconds": total, "launches": sum(map(len, found.values()))}
    costly = sorted(found, key=lambda name: -sum(found[name]))[:_MOST]
    yield {"kernels": {name[:_LONG]: [len(found[name]), sum(found[name])] for name in costly}}
