"""What would be needed for the rest, a sentence per workload, written from its profile."""

from __future__ import annotations

from benchmarks.roofline_counts import COUNTS
from benchmarks.workloads import WORKLOADS

NEEDED = dict.fromkeys((n for n, w in WORKLOADS.items() if w.kind in COUNTS), "-")
