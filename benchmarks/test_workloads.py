"""Every workload with every entry: the answer is the reference's, then the time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import ribbit as rb
from benchmarks.conftest import Measure, skip_if_missing
from benchmarks.harness import first_draw, machine
from benchmarks.harness.framework import OURS, Framework
from benchmarks.harness.workload import on_threads
from benchmarks.rivals import FRAMEWORKS, IN_PROCESS
from benchmarks.studies.zoo import NETWORKS, SAMPLERS
from benchmarks.workloads.calls import CALLS
from benchmarks.workloads.shapes import SHAPES
from benchmarks.workloads.table import WORKLOADS
from ribbit.errors import ConvergenceWarning

NAMES = [name for name in WORKLOADS if name != "first-draw"]
FRESH = [entry for entry in FRAMEWORKS.values() if entry.fresh]


@pytest.mark.parametrize("framework", IN_PROCESS.values(), ids=list(IN_PROCESS))
@pytest.mark.parametrize("name", NAMES)
def test_workload(name: str, framework: Framework, measure: Measure) -> None:
    """What is not random is the reference's, the rest has its law; then the time."""
    measure(name, framework)


@pytest.mark.parametrize("framework", FRESH, ids=[entry.name for entry in FRESH])
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


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_sampler_on_network(network: str, sampler: str, benchmark: Any) -> None:
    """A first step is the reference's, two runs are equal to the bit; then the time."""
    machine.limit_blas(1)  # for the reference
    with machine.pinned(2, anywhere=benchmark.disabled) as threads:
        rb.set_num_threads(1 if benchmark.disabled else threads)
        run, check = SAMPLERS[sampler](NETWORKS[network])
        first = run()
        benchmark.group = f"zoo: {network}"
        benchmark.extra_info.update(errors=check(first), threads=threads)
        if benchmark.disabled:
            benchmark.pedantic(lambda: first)  # it has run, once is enough
        else:
            benchmark.pedantic(run, rounds=3)


@pytest.mark.parametrize("name", CALLS)
def test_call(name: str) -> None:
    """A whole call makes as many gradients as its floor counts, and its chains move."""
    workload = on_threads(CALLS[name].reduced, 1)
    prepared = FRAMEWORKS[OURS].prepare(workload)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of three draws
        workload.check(prepared.answer(prepared.run()))


@pytest.mark.parametrize(
    "name", ["mlp2-w7-n50-c16", "mlp2-w33-n1000-c1", "mlp1-w400-n50-c1", "strided-n50"]
)
def test_shape(name: str) -> None:
    """Ribbit's answer is the reference's; the check itself is tested with the table's shapes."""
    workload = on_threads(SHAPES[name].reduced, 1)
    prepared = FRAMEWORKS[OURS].prepare(workload)
    workload.check(prepared.answer(prepared.run()))
