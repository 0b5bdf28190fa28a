"""Ribbit beside its rivals: the same work, the same answer, the same threads, then the time.

``pytest benchmarks`` times every workload with pytest-benchmark, one group per workload.
``python -m benchmarks.report`` prints the table of ratios from interleaved runs, one process
per framework. Both assert each answer against a float64 NumPy reference before any timing.
"""

from __future__ import annotations
