"""Gradients of convolutional and recurrent networks: resnet20, lenet5, cnn-lstm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.conftest import Measure
from benchmarks.harness.framework import Framework
from benchmarks.harness.workload import WrongAnswerError
from benchmarks.ours.entries import NETWORKS
from benchmarks.rivals import IN_PROCESS
from benchmarks.workloads import network_reference
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.table import WORKLOADS

NAMES = [name for name, workload in WORKLOADS.items() if isinstance(workload, NetworkGradient)]
SIZES = {"resnet20": 274_042, "lenet5": 91_946, "cnn-lstm": 2_700_098}


@pytest.mark.parametrize("framework", IN_PROCESS.values(), ids=list(IN_PROCESS))
@pytest.mark.parametrize("name", NAMES)
def test_network(name: str, framework: Framework, measure: Measure) -> None:
    """Value and gradient are the reference's; then the time."""
    measure(name, framework)


@pytest.mark.parametrize("name", NAMES)
def test_layout_is_the_models(name: str) -> None:
    """The flat vector holds the same arrays in the same order; a sequence has height 1."""
    model, layout = NETWORKS[WORKLOADS[name].wiring](), WORKLOADS[name].layout
    assert layout.dim == model.dim == SIZES[name]

    def shapes(arrays: object) -> list[list[int]]:
        return [[n for n in a.shape if n > 1] for a in arrays]  # type: ignore[attr-defined]

    assert shapes(layout.arrays) == shapes(model.parameters)


def test_flops_of_resnet20() -> None:
    """As counted by hand, in multiply-adds of one image: nothing but kernels and the dense layer.

    32 x 32 places: 3 -> 16, then six times 16 -> 16; and so on, with two 1 x 1 shortcuts.
    """
    first = 1024 * 9 * 3 * 16
    stages = [6 * 1024 * 9 * 16 * 16]
    for places, width in ((256, 32), (64, 64)):
        stages.append(places * width * (9 * width // 2 + 5 * 9 * width + width // 2))
    forward = first + sum(stages) + 640
    workload = WORKLOADS["resnet20"]
    assert workload.flops == 2 * workload.rows * (3 * forward - first)


@pytest.mark.parametrize("name", NAMES)
def test_reference_is_a_derivative(name: str) -> None:
    """A central difference along a random direction; along one array alone as well."""
    workload = WORKLOADS[name].reduced
    rows = slice(0, 4)
    x, y = (a[rows] for a in workload.data)

    def reference(theta: np.ndarray) -> tuple[float, np.ndarray]:  # type: ignore[type-arg]
        return network_reference.value_and_grad(
            workload.wiring, workload.layout.arrays, theta, x, y, workload.prior_scale, chunk=3
        )

    start = workload.start.astype(np.float64)
    gradient = reference(start)[1]
    rng = np.random.default_rng(5)
    for array in (slice(None), slice(-workload.layout.arrays[-3].size, None)):
        direction = np.zeros(workload.dim)
        direction[array] = rng.standard_normal(direction[array].size)
        direction *= 1e-5 / np.linalg.norm(direction)
        rise = reference(start + direction)[0] - reference(start - direction)[0]
        assert rise == pytest.approx(2.0 * gradient @ direction, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_check_has_teeth(name: str) -> None:
    """A gradient 0.1 % off, one bias without its gradient, another row's label: rejected."""
    workload = WORKLOADS[name].reduced
    expected = workload.expected
    workload.check(expected)
    prior = -workload.start.astype(float) / workload.prior_scale**2
    likelihood = expected["gradient"] - prior
    with pytest.raises(WrongAnswerError, match="gradient"):
        workload.check({**expected, "gradient": prior + 1.001 * likelihood})
    missing = likelihood.copy()
    missing[-workload.layout.outputs :] = 0.0  # the last bias
    tolerant = replace(workload, gradient_tolerance=10.0)
    tolerant.use_expected(expected)
    with pytest.raises(WrongAnswerError, match="array"):
        tolerant.check({**expected, "gradient": prior + missing})
    with pytest.raises(WrongAnswerError, match="value"):
        workload.check({**expected, "value": expected["value"] + 1.0})
