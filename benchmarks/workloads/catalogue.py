"""Every workload by its name: those of the table and the shapes beside it."""

from __future__ import annotations

from typing import Any

from benchmarks.workloads.shapes import SHAPES
from benchmarks.workloads.table import WORKLOADS


def find(name: str) -> Any:
    """Return the workload; raises KeyError for a name that is in neither catalogue."""
    return WORKLOADS[name] if name in WORKLOADS else SHAPES[name]
