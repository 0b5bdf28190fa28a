"""What the workloads are: layouts, counts by hand, what is judged, what is covered."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect

import numpy as np
import pytest

import ribbit as rb
from benchmarks.harness import machine
from benchmarks.ours.effective import Ours, posterior
from benchmarks.ours.entries import NETWORKS as MODELS
from benchmarks.studies.roofline_counts import (
    COUNTS,
    FORWARD,
    GAUSSIAN,
    LEAPFROG,
    MOMENTUM,
    RELU,
    SILU,
    Count,
    Elements,
)
from benchmarks.studies.zoo import NETWORKS, SAMPLERS
from benchmarks.workloads import networks
from benchmarks.workloads.calls import CALLS
from benchmarks.workloads.effective_entries import ENTRIES
from benchmarks.workloads.effective_problems import PROBLEMS, Data, DensityError, Problem
from benchmarks.workloads.effective_run import NotStatedError
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
    """A network or a sampler that is added to Ribbit needs a row here.

    EnsembleStart gives starts, which `sample` takes: it answers nothing itself.
    """
    assert sorted(NETWORKS) == sorted(zoo.__all__)
    public = {name: getattr(rb.samplers, name) for name in rb.samplers.__all__}
    runs = [
        name
        for name, found in public.items()
        if {"sample", "fit"} & set(dir(found)) and not inspect.isabstract(found)
    ]
    assert sorted([*SAMPLERS, "EnsembleStart"]) == sorted(runs)


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


def test_floors_of_whole_calls_by_hand() -> None:
    """HMC: four chains, each a gradient at the start and 50 draws of 20 leapfrogs."""
    one = COUNTS["leapfrog"](dataclasses.replace(WORKLOADS["hmc-small-1"], num_steps=0))
    sampled = COUNTS["call"](CALLS["mlp HMC.sample"])
    assert sampled.flops == 4 * 1001 * one.flops
    assert sampled.slots == 4 * 1001 * one.slots + 4 * 50 * 501 * MOMENTUM
    predicted = COUNTS["call"](CALLS["mlp Draws.predict"])
    passes = 4 * 250 * 10_000
    assert predicted.flops == passes * 2 * 450
    assert predicted.slots == passes * (50 * FORWARD.silu + 2)
    for name in ("lenet5", "resnet20_frn", "cnn_lstm"):
        call = CALLS[f"{name} Draws.predict"]
        forward = Elements(call.of.wiring, call.of.input_shape, FORWARD)
        assert COUNTS["call"](call).flops == 2.0 * call.units * 1000 * sum(forward.macs)
        assert forward.slots < Elements(call.of.wiring, call.of.input_shape).slots


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


# --- effective ------------------------------------------------------------------------------------


def stated(name: str) -> Problem:
    """Return a problem, its data small and made up where they are not here."""
    problem = PROBLEMS[name]
    if name.startswith("bnn"):
        return problem
    rng = np.random.default_rng(2)
    shape = (problem.sizes[0],) if problem.sizes else (28, 28, 1)

    def rows() -> Data:
        x, x_test, inputs = (rng.standard_normal((n, *shape)) for n in (7, 3, 4))
        labels = [rng.integers(0, 10, n) for n in (7, 3)]
        values = [rng.standard_normal(n) for n in (7, 3)]
        y, y_test = labels if problem.noise == "classes" else values
        return Data(x, y, x_test, y_test, inputs)

    return dataclasses.replace(problem, load=rows)


STATED = ["bnn", "bnn-normal", "concrete-50", "yacht-4x16-0", "digits-lenet5"]


@pytest.mark.parametrize("name", STATED)
def test_density_of_ours_is_the_stated_one(name: str) -> None:
    """Value and gradient, in float64; another prior is noticed."""
    problem = stated(name)
    try:
        target = posterior(problem, np.float64)
    except NotStatedError as error:
        pytest.skip(str(error))
    assert target.dim == problem.dim
    assert problem.check(target.value_and_grad) <= 1e-6
    other = dataclasses.replace(problem, prior_scale=1.1 * problem.prior_scale)
    theta = problem.probes()
    monkey = dataclasses.replace(other, load=lambda: problem.data)
    object.__setattr__(monkey, "probes", lambda: theta)
    with pytest.raises(DensityError, match=name):
        monkey.check(target.value_and_grad)


@pytest.mark.parametrize("name", STATED)
def test_density_of_the_rivals_is_the_stated_one(name: str) -> None:
    """That of all entries on JAX, and of NumPyro's model."""
    for module, make in (
        ("jax", "blackjax_nuts"),
        ("numpyro", "numpyro_nuts"),
    ):
        if importlib.util.find_spec(module) and importlib.util.find_spec(make.split("_")[0]):
            run = importlib.import_module(f"benchmarks.rivals.{make}").NUTS(
                stated(name), 0, 1, depth=10
            )
            assert run.problem.check(run.density) <= 1e-4


def test_what_is_judged_is_the_models() -> None:
    problem = stated("bnn-normal")
    target = posterior(problem, np.float64)
    theta = np.random.default_rng(3).standard_normal((2, 3, problem.dim))
    quantities, test = problem.read(theta)
    assert quantities.shape == (2, 3, len(problem.quantities)) == (2, 3, 66)
    f = target.model.apply(theta[1, 2, :-1], problem.data.inputs)[:, 0]
    np.testing.assert_allclose(quantities[1, 2, :64], f, rtol=1e-10)
    assert quantities[1, 2, 64] == theta[1, 2, -1]
    likelihood = target.log_likelihood(theta.reshape(6, -1))
    np.testing.assert_allclose(quantities[..., -1].ravel(), likelihood, rtol=1e-10)
    outputs = problem.outputs(theta[0], problem.data.x_test)
    rows = problem.log_likelihood(theta[0], outputs, problem.data.y_test)
    alone = problem.read(theta[:1])[1]
    np.testing.assert_allclose(alone, np.logaddexp.reduce(rows, axis=0))
    assert np.all(test >= alone)


def test_what_is_judged_of_images_is_the_models() -> None:
    """Read in float32, whose digits are seven; logits of another class are noticed."""
    problem = stated("digits-lenet5")
    target = posterior(problem, np.float64)
    theta = 0.05 * np.random.default_rng(3).standard_normal((1, 2, problem.dim))
    quantities, _ = problem.read(theta)
    f = np.asarray(target.model.apply(theta[0, 1], problem.data.inputs))
    each = np.arange(len(f))
    want = f - f.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(quantities[0, 1, :-1], want[each, each % 10], atol=1e-5)
    assert np.abs(quantities[0, 1, :-1] - want[each, each + 1]).max() > 1e-3
    likelihood = target.log_likelihood(theta[0])
    np.testing.assert_allclose(quantities[0, :, -1], likelihood, rtol=1e-5)


def test_curve_is_standardised() -> None:
    data = PROBLEMS["bnn"].data
    assert data.x.shape == (100, 3)
    assert (abs(data.y.mean()) < 1e-12, data.y.std()) == (True, pytest.approx(1.0))
    assert len(data.inputs) == 64
    assert np.sum(np.abs(data.inputs[:, 1]) > 1.0) == 16


def test_every_entry_names_what_it_is() -> None:
    """A module and a class that are there, and its defaults in words."""
    for entry in ENTRIES.values():
        module = entry.made_by.split(":")[0].replace(".", "/")
        assert (machine.ROOT / f"{module}.py").is_file()
        assert entry.settings


@pytest.mark.parametrize(("sampler", "each"), [("MCLMC", 20), ("HMC", 1)])
def test_gradients_of_thinned_draws_are_counted(sampler: str, each: int) -> None:
    """A draw of MCLMC is 20 steps of one gradient; HMC's are its leapfrogs."""
    run = Ours(stated("bnn-normal"), 0, 1, sampler=sampler)
    run.draw(50)
    before = run.gradients
    run.draw(50)
    spent = run.gradients - before
    assert spent == 8 * 50 * each if sampler == "MCLMC" else spent > 8 * 50
