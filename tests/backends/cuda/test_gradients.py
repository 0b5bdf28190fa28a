"""Log densities and gradients from the device's kernels, run on the CPU, against the CPU core.

float64: differences of summation order alone, <= 1e-12 of the largest entry. float32: <= 4e-6 of
it, both being within a few times that of the float64 answer.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.codes import OPS
from ribbit._backends.cuda.layers import op_table
from ribbit._backends.cuda.programs import gradient, plan, slices
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
from tests.support.layer_problems import COMPILED, SILU, TANH, net

pytestmark = pytest.mark.kernels


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
    monkeypatch.setattr(plan, "_RUN", 1)
    monkeypatch.setattr(plan, "_PANEL_BYTES", 64 * 8 * (3 * 20 + 2 * 2))
    assert plan.run_rows(target.model.table, 8) == 64
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


def test_rows_of_a_run():
    """What fits 128 MB, but 4,096 where 2.7 GB hold 256, and no value with 2^31 numbers."""
    assert plan.run_rows(rb.mlp(784, (256, 256), 10).table, 4) == 21_564
    assert plan.run_rows(rb.zoo.resnet20_frn().table, 4) == 4096
    assert plan.run_rows(rb.mlp(10, (200_000,), 1).table, 8) == 4096
    assert plan.run_rows(rb.mlp(10, (3_000_000,), 1).table, 8) == 37
    assert plan.run_rows(rb.mlp(1_000_000, (2,), 1).table, 4) == ((1 << 31) - 1) // 1_000_000


@pytest.mark.parametrize(
    ("rows", "room", "panel"),
    [(4096, 0, 256), (4096, 256, 256), (4096, 4095, 2048), (4096, 4096, 4096), (1000, 700, 512)],
)
def test_rows_of_a_panel(rows, room, panel):
    """Whole groups of a run, as many as the memory of `room` rows holds, in panels alike."""
    table = rb.zoo.resnet20_frn().table
    each = 4 * plan.scalars_of(plan.rows_of(table))
    assert plan.panel_rows(table, rows, 4, room * each) == panel
    assert plan.panel_rows(table, 200, 4, 0) == 200  # less than a group
    small = rb.mlp(784, (256, 256), 10).table
    assert plan.panel_rows(small, 21_564, 4, 0) == 21_564  # what fits 128 MB is never cut


class SmallDevice(CpuDevice):
    free = 0

    def free_bytes(self):
        return self.free


CUT = net(
    (4, 4, 2),
    rb.Conv2D(8, 3, padding="same"),
    rb.FilterResponseNorm(),
    rb.Residual(
        [rb.Conv2D(8, 3, padding="same"), SILU, rb.LayerNorm()],
        [rb.Conv2D(8, 1), rb.FilterResponseNorm()],
    ),
    TANH,
    rb.Conv2D(4, 3, groups=2, padding="same"),
    rb.GroupNorm(2),
    rb.Flatten(),
    rb.Dropout(0.3),
    rb.Dense(5),
    TANH,
    outputs=2,
)


@pytest.mark.parametrize("rates", ["none", "given", "learned"])
@pytest.mark.parametrize("rows", [700, 1500])
def test_memory_changes_no_bit(rng, monkeypatch, rows, rates):
    """Panels of 256, 512 and all rows of a run: the same bits, and those of the CPU's sums."""
    run = 1024
    monkeypatch.setattr(plan, "_PANEL_BYTES", 1)
    monkeypatch.setattr(plan, "_RUN", run)
    x = layer_problems.inputs(CUT, rng, rows).reshape(rows, *CUT.input_shape)
    y = rng.normal(size=(rows, 2))
    target = rb.Posterior(
        CUT, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1), dtype="float32"
    )
    each = 4 * plan.scalars_of(plan.rows_of(CUT.table))
    drops = np.flatnonzero(CUT.table[:, 0] == OPS["dropout"])
    theta = starts(rng, target, chains=2)
    options = {}
    if rates != "none":
        options["rates"] = np.zeros(len(CUT.table))
        options["rates"][drops] = 0.3
    if rates == "learned":
        options["learned"] = tuple(drops.tolist())
        theta = np.concatenate([theta, [[-1.2], [0.7]]], axis=1).astype(np.float32)
    found = {}
    for panel in (256, 512, run):
        device = SmallDevice()
        device.free = 2 * 2 * panel * each
        program = program_of(target, 2, device=device, **options)
        found[panel] = evaluate(program, theta)
        panels = sum(
            -(-min(run, rows - begin) // min(panel, rows)) for begin in range(0, rows, run)
        )
        assert sum("LikelihoodRows" in one.name for one in program._gradient) == panels
        assert sum("SumRows" in one.name for one in program._gradient) == -(-rows // run)
    for panel in (256, 512):
        for a, b in zip(found[panel], found[run], strict=True):
            np.testing.assert_array_equal(a, b)
    if rates == "none":
        check(target, theta)


def test_memory_and_chains_change_no_bit_on_tensor_cores(rng, monkeypatch):
    """Panels of 256, 512 and all rows, one chain and several: tiles differ, bits do not."""
    run, rows = 1024, 700
    monkeypatch.setattr(plan, "_PANEL_BYTES", 1)
    monkeypatch.setattr(plan, "_RUN", run)
    model = net(
        (4, 4, 2),
        rb.Conv2D(20, 3, padding="same"),
        SILU,
        rb.Conv2D(18, 3, stride=2, padding="same"),
        TANH,
        rb.Flatten(),
        rb.Dense(24),
        TANH,
        outputs=2,
    )
    x = layer_problems.inputs(model, rng, rows).reshape(rows, *model.input_shape)
    target = rb.Posterior(
        model, x, rng.normal(size=(rows, 2)), prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    each = 4 * plan.scalars_of(plan.rows_of(model.table))
    theta = starts(rng, target, chains=2)
    found = []
    for panel, chains in ((256, 2), (512, 2), (run, 2), (run, 7)):
        device = SmallDevice()
        device.free = 2 * 2 * panel * each
        program = program_of(target, chains, device=device, precision="mixed")
        assert any("WideTensorProduct<WithOnes" in name for name in program.names)
        found.append(evaluate(program, theta))
    for one in found[1:]:
        for a, b in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(a, b)
    _, exact = evaluate(program_of(target, 2), theta)
    error = np.abs(found[0][1] - exact).max() / np.abs(exact).max()
    assert 1e-6 < error < 2.0**-8  # the control: not float32's


def test_norms_before_a_sum_have_its_delta():
    """Where nobody else reads them and no activation is between; then nothing is handed down."""

    def found(model):
        rows = plan.rows_of(model.table)
        return op_table.lent_deltas(rows, op_table.skipped_rows(rows, [0.0] * len(rows)))

    def sums(model):
        return np.flatnonzero(model.table[:, 0] == OPS["add"]).tolist()

    assert set(found(CUT).values()) == set(sums(CUT)) != set()
    residual = rb.resnet20_frn(10)  # two of its sums are of two norms
    assert set(found(residual).values()) == set(sums(residual))
    assert len(found(residual)) == 11
    norm, conv = rb.FilterResponseNorm(), rb.Conv2D(3, 1)
    for path in ([conv, norm, SILU], [conv], [norm, conv], [norm, rb.Residual([conv])]):
        assert found(net((2, 2, 3), rb.Residual(path))) == {}, path  # read twice, or no norm


def test_norms_make_the_value_of_a_sum_and_convolutions_its_delta():
    """One launch for a norm, a sum and its activation; what a sum hands down a product adds."""
    model = rb.resnet20_frn(10, input_shape=(8, 8, 3))
    small = layer_problems.problem(model, num_rows=2, chains=1)
    names = [one.name for one in program_of(small.native(np.dtype("f")), 1)._gradient]
    assert not any(name.startswith(("Elementwise", "HandDown")) for name in names)
    assert sum(name.startswith("ResponseNorm<") for name in names) == 21

    def found(*layers, fixed=()):
        model = net((2, 2, 3), *layers)
        rows = plan.rows_of(model.table)
        return op_table.joined_sums(rows, op_table.skipped_rows(rows, [0.0] * len(rows)), fixed)

    def path(*more):
        return [rb.Conv2D(3, 1), *more]

    def norm():
        return rb.FilterResponseNorm()

    assert found(rb.Residual(path(norm()))) == {1: (0, 2)}
    assert found(rb.Residual(path(norm())), fixed={0, 1}) == {}
    two = rb.Residual(path(norm()), path(norm()))
    assert found(two) == {3: (2, 4)}  # the first has a value
    assert found(rb.Residual(path(norm()), path())) == {}  # which is made later
    assert found(rb.Residual(path(norm(), SILU))) == found(rb.Residual(path())) == {}


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
    # of one block of the last layer, whose sums it makes by itself
    assert taken(8) - taken(1) == 7 * (each - less)


def test_slices_of_a_weight_fill_a_device():
    """By shapes: many for small weights, few for large ones or few rows."""

    def found(model, run):
        made = slices.slices_of(plan.rows_of(model.table), run, grouped=False)
        return [one.count for one in made.values()]

    assert found(rb.mlp(22, (40,), 1), 58_368) == [228, 228]
    assert found(rb.mlp(784, (256, 256), 10), 8192) == [5, 16, 32]
    assert found(rb.mlp(784, (256, 256), 10), 128) == [1, 1, 1]
    assert found(rb.mlp(2, (300_000,), 1), 65_535) == [1, 3]
    assert found(rb.mlp(40_000, (64, 64), 2), 65_535) == [1, 255, 255]
    # a grid has 16 bits for chains x slices; the control: one chain more
    most = max(found(rb.mlp(2, (3,), 1), 65_535))
    assert most * gradient.MOST_CHAINS < 1 << 16 <= 256 * (gradient.MOST_CHAINS + 1)
