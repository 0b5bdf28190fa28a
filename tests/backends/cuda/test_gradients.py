"""Log densities and gradients from the device's kernels, run on the CPU, against the CPU core.

float64: differences of summation order alone, <= 1e-12 of the largest entry. float32: <= 4e-6 of
it, both being within a few times that of the float64 answer.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.cuda.programs import gradient, plan
from ribbit.models.layers import ACTIVATIONS
from tests.support import layer_problems
from tests.support.cuda import kernel_list
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.problems import (
    LIKELIHOODS,
    PRIORS,
    check,
    evaluate,
    problem,
    program_of,
    starts,
)
from tests.support.layer_problems import COMPILED


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """All kernels in one go; one library per test takes longer."""
    CpuDevice().compiler(kernel_list.names())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_likelihoods(rng, likelihood, dtype):
    target = problem(rng, likelihood, dtype=dtype, temperature=1.3, likelihood_temperature=0.7)
    check(target, starts(rng, target))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("prior", PRIORS)
def test_priors(rng, prior, dtype):
    target = problem(rng, prior=prior, dtype=dtype, temperature=0.8)
    check(target, starts(rng, target))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(rng, activation):
    target = problem(rng, activation=activation, dtype="float64")
    check(target, starts(rng, target))


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 255, 256, 257, 2500])
@pytest.mark.parametrize("hidden", [(), (1,), (16, 17), (65,)])
def test_sizes(rng, rows, hidden):
    """Edges of tiles, blocks of rows and slices of a weight's gradient."""
    target = problem(rng, rows=rows, hidden=hidden, dtype="float64")
    check(target, starts(rng, target, chains=2))


def test_minibatches(rng):
    target = problem(rng, rows=40, dtype="float64")
    check(target, starts(rng, target), rows=[3, 39, 3, 0, 17])


def test_panels(rng, monkeypatch):
    """Several panels, the last one short, add up to one pass."""
    target = problem(rng, rows=150, hidden=(20,), dtype="float64")
    monkeypatch.setattr(plan, "_FEW_ROWS", 1)
    monkeypatch.setattr(plan, "_PANEL_BYTES", 64 * 8 * (3 * 20 + 2 * 2))
    assert plan.panel_rows(target.model.table, 8) == 64
    check(target, starts(rng, target))
    check(target, starts(rng, target), rows=list(range(149, 20, -1)))


def test_order_of_threads_and_chains(rng):
    """The same bits whatever the order of blocks and threads, alone and beside other chains."""
    target = problem(rng, "categorical", rows=1100, hidden=(33,))
    theta = starts(rng, target)
    found = []
    for seed in (1, 77, 12345):
        device = CpuDevice()
        device.seed = seed
        found.append(evaluate(program_of(target, 3, device=device), theta))
    found.append(evaluate(program_of(target, 5), theta))
    for terms, grad in found[1:]:
        np.testing.assert_array_equal(terms, found[0][0])
        np.testing.assert_array_equal(grad, found[0][1])
    terms, grad = evaluate(program_of(target, 1), theta[1:2])
    np.testing.assert_array_equal(grad, found[0][1][1:2])
    np.testing.assert_array_equal(terms, found[0][0][1:2])


def test_rows_of_a_panel():
    """What fits 128 MB, but 512 where 2.7 GB allow them, and no value with 2^31 numbers."""
    assert plan.panel_rows(rb.mlp(784, (256, 256), 10).table, 4) == 21_564
    assert plan.panel_rows(rb.zoo.resnet20_frn().table, 4) == 512
    assert plan.panel_rows(rb.mlp(10, (200_000,), 1).table, 8) == 512
    assert plan.panel_rows(rb.mlp(10, (3_000_000,), 1).table, 8) == 37
    assert plan.panel_rows(rb.mlp(1_000_000, (2,), 1).table, 4) == ((1 << 31) - 1) // 1_000_000


@pytest.mark.parametrize(("name", "less"), [("images", 0), ("groups", 80), ("sequences", 0)])
def test_memory_of_a_panel_is_what_is_taken(name, less):
    """Of values, deltas, derivatives and states, where every Dropout drops.

    `less`: a Dropout on the inputs has no delta.
    """

    model, rng = COMPILED[name], np.random.default_rng(0)

    def taken(num_rows):
        x = layer_problems.inputs(model, rng, num_rows).reshape(num_rows, *model.input_shape)
        y = rng.normal(size=(num_rows, *model.output_shape))
        target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))
        rates = [0.5] * len(model.table)
        program = program_of(target, 1, rates=rates)
        return sum(a.nbytes for a in program._keep) / target.dtype.itemsize

    each = plan.scalars_of(plan.rows_of(model.table))
    assert taken(14) - taken(7) == 7 * (each - less)


def test_slices_of_a_weight_fill_a_device():
    """By shapes: many for small weights, few for large ones or few rows."""

    def found(model, panel):
        return list(gradient.slices_of(plan.rows_of(model.table), panel).values())

    assert found(rb.mlp(22, (40,), 1), 58_368) == [228, 228]
    assert found(rb.mlp(784, (256, 256), 10), 8192) == [5, 16, 32]
    assert found(rb.mlp(784, (256, 256), 10), 128) == [1, 1, 1]
    assert found(rb.mlp(2, (300_000,), 1), 65_535) == [1, 3]
    assert found(rb.mlp(40_000, (64, 64), 2), 65_535) == [1, 255, 255]
    # a grid has 16 bits for chains x slices; the control: one chain more
    most = max(found(rb.mlp(2, (3,), 1), 65_535))
    assert most * gradient.MOST_CHAINS < 1 << 16 <= 256 * (gradient.MOST_CHAINS + 1)
