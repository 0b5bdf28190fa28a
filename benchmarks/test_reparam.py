"""Random weights: reparam (w = mean + softplus(rho) eps), normals (one core)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.conftest import Measure
from benchmarks.harness.framework import Framework
from benchmarks.harness.workload import WrongAnswerError
from benchmarks.rivals import IN_PROCESS
from benchmarks.workloads.random_weights import Normals, Reparam
from benchmarks.workloads.table import WORKLOADS

NAMES = [name for name, w in WORKLOADS.items() if isinstance(w, Reparam | Normals)]


@pytest.mark.parametrize("framework", IN_PROCESS.values(), ids=list(IN_PROCESS))
@pytest.mark.parametrize("name", NAMES)
def test_random_weights(name: str, framework: Framework, measure: Measure) -> None:
    """The draws have a standard normal's moments; then the time."""
    measure(name, framework)


def test_check_has_teeth() -> None:
    """Good normals pass; a scale 1 % off, or a vector drawn twice, is rejected."""
    workload = WORKLOADS["normals"]
    normals = np.random.default_rng(5).standard_normal(workload.count)
    workload.check({"normals": normals})
    with pytest.raises(WrongAnswerError, match="variance"):
        workload.check({"normals": 1.01 * normals})
    quarter = workload.count // 4
    with pytest.raises(WrongAnswerError, match="between"):
        workload.check({"normals": np.tile(normals[:quarter], 4)})
