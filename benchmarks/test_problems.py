"""What the workloads are: layouts, counts by hand, what is judged, what is covered."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ribbit as rb
from benchmarks.ours.entries import NETWORKS as MODELS
from benchmarks.studies.roofline_counts import (
    COUNTS,
    GAUSSIAN,
    LEAPFROG,
    RELU,
    SILU,
    Count,
    Elements,
)
from benchmarks.studies.zoo import NETWORKS, SAMPLERS
from benchmarks.workloads import networks
from benchmarks.workloads.effective_problems import PROBLEMS, Posterior
from benchmarks.workloads.effective_problems import curve as load_curve
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.shapes import GRID, SHAPES
from benchmarks.workloads.table import WORKLOADS
from ribbit.models import zoo

GRADIENTS = [name for name, w in WORKLOADS.items() if isinstance(w, NetworkGradient)]
SIZES = {"resnet20": 274_042, "lenet5": 91_946, "cnn-lstm": 2_700_098}


@pytest.mark.parametrize("name", GRADIENTS)
def test_layout_is_the_models(name: str) -> None:
    """The flat vector holds the same arrays in the same order; a sequence has height 1."""
    model, layout = MODELS[WORKLOADS[name].wiring](), WORKLOADS[name].layout
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


def test_zoo_leaves_nothing_out() -> None:
    """A network or a sampler that is added to Ribbit needs a row here."""
    assert sorted(NETWORKS) == sorted(zoo.__all__)
    public = {name: getattr(rb.samplers, name) for name in rb.samplers.__all__}
    runs = [
        name
        for name, found in public.items()
        if {"sample", "fit"} & set(dir(found)) and not inspect.isabstract(found)
    ]
    assert sorted(SAMPLERS) == sorted(runs)


def test_grid_covers_every_value() -> None:
    widths, hidden, rows, chains = map(set, zip(*GRID, strict=True))
    assert widths == {7, 33, 129, 400}
    assert hidden == {1, 2}
    assert rows == {50, 1_000, 100_000}
    assert chains == {1, 3, 16}
    assert len(SHAPES) == len(GRID) + 4


def test_names_are_unique() -> None:
    assert not SHAPES.keys() & WORKLOADS.keys()


def test_floor_of_a_leapfrog_by_hand() -> None:
    w = WORKLOADS["hmc-small-1"]
    count = COUNTS["leapfrog"](w)
    assert count.flops == 201 * 2 * 927 * (3 * 450 - 400)
    assert count.slots == 201 * (927 * (50 * SILU + GAUSSIAN) + 501 * LEAPFROG)


def test_only_taps_that_meet_a_cell_count() -> None:
    """5 x 5 taps on 28 cells: 28 * 5 - 2 * (2 + 1) meet a cell along an axis; ReLU once each."""

    def one(net, x):  # type: ignore[no-untyped-def]
        return net.flatten(net.relu(net.conv(x, 6, (5, 5))))

    counted = Elements(one, (28, 28, 1))
    assert counted.macs == [6 * 134**2]
    assert networks.Layout(one, (28, 28, 1)).macs == [6 * 140**2]
    assert counted.slots > RELU * 28 * 28 * 6


def test_floor_is_the_larger_part() -> None:
    count = Count(flops=100.0, slots=50.0, bytes=30.0, working_set=20.0)
    assert count.floor(peak=10.0, bandwidth=1.0, cache=10.0) == (30.0, "memory")
    assert count.floor(peak=10.0, bandwidth=1.0, cache=40.0) == (20.0, "arithmetic")


@pytest.fixture
def curve() -> Posterior:
    problem = PROBLEMS["bnn"]
    assert isinstance(problem, Posterior)
    return problem


def test_judge_is_ribbits_density(curve: Posterior) -> None:
    """The log density that is judged is the sampled one, up to its constant; so is the network."""
    x, y, x_test, _ = curve.data
    hidden = [layer for _ in range(2) for layer in (rb.Dense(5, bias=False), rb.Activation("tanh"))]
    model = rb.Model([*hidden, rb.Dense(1, bias=False)], input_shape=(3,))
    target = rb.Posterior(
        model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), dtype=np.float64
    )
    assert target.dim == curve.dim == 46
    theta = np.random.default_rng(3).standard_normal((2, 3, curve.dim))
    judged = curve.judge(theta)
    value = target.value_and_grad(theta.reshape(6, -1))[0].reshape(2, 3)
    constant = value - judged["quantities"][..., -1]
    np.testing.assert_allclose(constant, constant[0, 0], rtol=1e-12)
    outputs = model.apply(theta[1, 2, :-1], x_test)[:, 0]
    np.testing.assert_allclose(curve.outputs(theta[1, 2:], x_test)[0], outputs, rtol=1e-10)
    assert judged["quantities"][1, 2, 0] == pytest.approx(outputs[0])


def test_mixture_is_no_less_than_the_mean(curve: Posterior) -> None:
    theta = np.random.default_rng(4).standard_normal((2, 5, curve.dim))
    judged = curve.judge(theta)
    assert judged["mixture"] >= judged["held_out"].mean()
    alone = curve.judge(theta[:1, :1])
    assert alone["mixture"] == pytest.approx(alone["held_out"][0, 0])


def test_curve_is_standardised() -> None:
    x, y, x_test, y_test = load_curve()
    assert x.shape == (100, 3)
    assert (abs(y.mean()) < 1e-12, y.std()) == (True, pytest.approx(1.0))
    assert len(x_test) == len(y_test) == 200
