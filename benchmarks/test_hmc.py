"""HMC trajectories of MLPs: hmc-small-1, hmc-small-8, hmc-deep-4, hmc-synthreg, hmc-wide."""

from __future__ import annotations

import pytest

from benchmarks.conftest import Measure
from benchmarks.harness.framework import Framework
from benchmarks.harness.workload import WrongAnswerError
from benchmarks.rivals import IN_PROCESS
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.table import WORKLOADS

NAMES = [name for name, workload in WORKLOADS.items() if isinstance(workload, Leapfrog)]


@pytest.mark.parametrize("framework", IN_PROCESS.values(), ids=list(IN_PROCESS))
@pytest.mark.parametrize("name", NAMES)
def test_leapfrog(name: str, framework: Framework, measure: Measure) -> None:
    """The end of the trajectory is the reference's; then the time."""
    measure(name, framework)


@pytest.mark.parametrize("name", NAMES)
def test_check_has_teeth(name: str) -> None:
    """A trajectory one step short, or a log density 0.1 % off, is rejected."""
    workload = WORKLOADS[name].reduced
    expected = workload.expected
    workload.check(expected)
    with pytest.raises(WrongAnswerError, match="position"):
        workload.check({**expected, "position": expected["before"]})
    with pytest.raises(WrongAnswerError, match="logdensity"):
        workload.check({**expected, "logdensity": 1.001 * expected["logdensity"] + 1.0})
