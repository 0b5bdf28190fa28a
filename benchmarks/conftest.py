"""Fixtures of ``pytest benchmarks``: one way to check, then time, an entry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import framework as entry
from benchmarks.harness import machine
from benchmarks.harness.framework import OURS, Framework
from benchmarks.harness.workload import on_threads
from benchmarks.workloads.table import WORKLOADS

Measure = Callable[[str, Framework], None]

os.environ.setdefault(machine.JAX_DEVICES, str(min(2, len(machine.cores()))))

SECONDS = 1.0  # of timing per entry and workload


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the rivals warn: their deprecations are not ours to fix."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("default"))


def skip_if_missing(framework: Framework) -> None:
    """Skip a rival that is not installed; Ribbit itself must be."""
    if framework.name != OURS and not framework.installed():
        pytest.skip(f"{framework.name} is not installed")


@pytest.fixture
def measure(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Prepare, assert the answer, time: ``measure(workload name, framework)``.

    All entries run on the same cores. Compile time is not in the timing but in extra_info, with
    the errors against the reference and the versions.
    """

    def run(name: str, framework: Framework) -> None:
        skip_if_missing(framework)
        workload = WORKLOADS[name]
        if benchmark.disabled:
            workload = workload.reduced
            monkeypatch.setattr(entry, "racing", False)
        module = framework.load()
        left_out = framework.obstacle()
        if left_out:
            pytest.skip(f"{framework.name} is left out: {left_out}")
        if workload.kind not in module.PREPARE:
            pytest.skip(f"{framework.name} has no entry of kind {workload.kind}")
        machine.limit_blas(1)  # for the reference
        workload.compute_expected()
        if benchmark.disabled:  # the answer alone, on one thread: a busy machine cannot stall it
            workload = on_threads(workload, 1)
        with machine.pinned(workload.threads, anywhere=benchmark.disabled) as threads:
            started = time.perf_counter()
            prepared = framework.prepare(workload)
            first = prepared.run()
            build_seconds = time.perf_counter() - started - prepared.tuning_seconds
            errors = workload.check(prepared.answer(first))
            benchmark.group = name
            benchmark.extra_info.update(
                entry=framework.name,
                form=prepared.form,
                threads=threads,
                units=workload.units,
                unit=workload.unit,
                build_and_first_call_s=build_seconds,
                errors=errors,
                versions=module.versions(),
            )
            if benchmark.disabled:
                benchmark.pedantic(lambda: first)  # it has run, once is enough
                return
            started = time.perf_counter()
            prepared.run()
            rounds = min(200, max(3, round(SECONDS / (time.perf_counter() - started))))
            benchmark.pedantic(prepared.run, rounds=rounds)

    return run
