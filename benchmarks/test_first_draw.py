"""From a fresh process to 100 draws: import, build hmc-small-1, sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.conftest import skip_if_missing
from benchmarks.harness import first_draw, machine
from benchmarks.harness.framework import Framework
from benchmarks.harness.workload import WrongAnswerError
from benchmarks.rivals import FRAMEWORKS
from benchmarks.workloads.table import WORKLOADS

ENTRIES = [entry for entry in FRAMEWORKS.values() if entry.fresh]


@pytest.mark.parametrize("framework", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_first_draw(framework: Framework, benchmark: Any, tmp_path: Path) -> None:
    """Statistics of the draws are the reference's; then the wall time of the process."""
    skip_if_missing(framework)
    workload = WORKLOADS["first-draw"]
    machine.limit_blas(1)  # for the reference
    spec = tmp_path / "spec.npz"
    first_draw.write_spec(workload, spec)

    def run() -> dict[str, float]:
        return first_draw.time_process(framework, spec, workload.threads)[1]

    first = run()
    errors = workload.check(first)
    benchmark.group = workload.name
    benchmark.extra_info.update(entry=framework.name, errors=errors, threads=workload.threads)
    if benchmark.disabled:
        benchmark.pedantic(lambda: first)  # it has run, once is enough
    else:
        benchmark.pedantic(run, rounds=3)


def test_check_has_teeth() -> None:
    """A tenth of the distance, or log densities that never left the start, are rejected."""
    workload = WORKLOADS["first-draw"]
    right = {key: float(values.mean()) for key, values in workload.expected.items()}
    workload.check(right)
    with pytest.raises(WrongAnswerError, match="distance"):
        workload.check({**right, "distance": 0.1 * right["distance"]})
    start = workload.of.density.value_and_grad(workload.of.start[0][0].astype(float))[0]
    with pytest.raises(WrongAnswerError, match="logdensity"):
        workload.check({**right, "logdensity": start})
