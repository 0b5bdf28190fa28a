"""Filter response norms that direct convolutions make: against the CPU, and double precision."""

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.cuda.programs import plan
from tests.support.cuda import direct_norms
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.direct_norms import NAMES
from tests.support.cuda.problems import compare, evaluate, program_of, starts
from tests.support.cuda.thread_orders import compile_all, in_every_order
from tests.support.layer_problems import SILU, TANH, net

pytestmark = pytest.mark.kernels


def unit(filters, kernel=3, **options):
    return [rb.Conv2D(filters, kernel, padding="same", **options), rb.FilterResponseNorm()]


def posterior(rng, model, rows):
    return rb.Posterior(
        model,
        rng.standard_normal((rows, *model.input_shape)).astype(np.float32),
        rng.standard_normal((rows, *model.output_shape)).astype(np.float32),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )


def sinks(program):
    """Sinks of the direct convolutions of a gradient, in order, and the other norms' kernels."""
    names = [one.name for one in program._gradient]
    direct = [name for name in names if name.startswith("DirectConvolution")]
    found = [name.partition("Sink")[0].rpartition(", ")[2] for name in direct]
    return (
        found,
        sum(name.startswith("ResponseNorm<") for name in names),
        sum(name.startswith("ResponseNormBackward<") for name in names),
    )


FORWARD, BACKWARD = "ResponseNorm", "ResponseNormDelta"
MODELS = {
    # as ResNet-20: sums of norms, of a norm and a value before it; what a 1 x 1 or a pool reads
    "residual": (
        net(
            (16, 16, 3),
            *unit(16),
            SILU,
            rb.Residual([*unit(16), SILU, *unit(16)]),
            SILU,
            rb.Residual([*unit(32), SILU, *unit(32)], unit(32, 1)),
            SILU,
            *unit(16, bias=False),
        ),
        [*[FORWARD] * 5, *[BACKWARD] * 5],
        (2, 2),
    ),
    # several readers of a norm's value, the convolution the first; of its input
    "readers": (
        net(
            (16, 8, 1),
            rb.Conv2D(32, 1),
            rb.Conv2D(32, 3, padding="same"),
            rb.FilterResponseNorm(threshold=False),
            TANH,
            rb.Residual([rb.Conv2D(32, 3, padding="same"), TANH]),
            rb.Residual([rb.FilterResponseNorm(), SILU, *unit(32)]),
        ),
        [FORWARD, "Activation", FORWARD, "Delta", BACKWARD, "Delta"],
        (1, 2),
    ),
    # blocks with a part of an image, and a sum of what users give
    "apart": (
        net((8, 8, 32), rb.Residual([rb.Conv2D(32, 1), *unit(32)]), SILU, rb.Conv2D(1, 8)),
        ["Activation", "Delta"],
        (1, 1),
    ),
    "large": (
        net((32, 16, 1), rb.Conv2D(64, 1), *unit(64), SILU, *unit(64), rb.AvgPool2D(16)),
        ["Activation", "Activation", "Delta", "Delta"],
        (2, 2),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all(NAMES)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", NAMES)
def test_kernels(rng, name, rows):
    """Blocks of one image and of several, whole and not; parameters that begin anywhere."""
    run, check = direct_norms.problem(rng, name, rows)
    check(in_every_order(run))


@pytest.mark.parametrize("name", MODELS)
def test_posteriors(rng, name):
    model, made, alone = MODELS[name]
    target = posterior(rng, model, 5)
    theta = starts(rng, target)
    program = program_of(target, len(theta))
    assert sinks(program) == (made, *alone)
    compare(target, theta, evaluate(program, theta))


def test_predictions(device, rng):
    """Without a way back, for which what a norm reads would be kept."""
    host = posterior(rng, MODELS["residual"][0], 5)
    theta = starts(rng, host)
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3)}
    x = device.asarray(host.x.reshape(-1, *host.model.input_shape))
    there = rb.Posterior(host.model, x, device.asarray(host.y), **options)
    found, expected = there.outputs(device.asarray(theta), x).get(), host.outputs(theta, x.get())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * abs(expected).max())


class SmallDevice(CpuDevice):
    free = 0

    def free_bytes(self):
        return self.free


def test_memory_changes_no_bit(rng, monkeypatch):
    """Panels of 256 and of all rows of a run."""
    run, rows = 1024, 300
    monkeypatch.setattr(plan, "_PANEL_BYTES", 1)
    monkeypatch.setattr(plan, "_RUN", run)
    model = net((8, 8, 1), rb.Conv2D(32, 1), *unit(32), SILU, *unit(32), SILU, rb.Conv2D(1, 8))
    target = posterior(rng, model, rows)
    theta = starts(rng, target, chains=1)
    found = []
    for panel in (256, run):
        device = SmallDevice()
        device.free = 2 * panel * 4 * plan.scalars_of(plan.rows_of(model.table))
        program = program_of(target, 1, device=device)
        made, forward, backward = sinks(program)
        panels = -(-rows // min(panel, rows))
        assert made.count(FORWARD) == 2 * panels
        assert made.count(BACKWARD) == panels
        assert (forward, backward) == (0, panels)
        found.append(evaluate(program, theta))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shared_memory_changes_no_bit(rng):
    """Blocks of half as many images."""
    model = net((8, 32, 1), rb.Conv2D(16, 1), *unit(16), SILU, *unit(16), SILU, rb.Conv2D(1, 8))
    target = posterior(rng, model, 7)
    theta = starts(rng, target, chains=2)
    found = []
    for size, share in ((110, 1), (99, 2)):
        device = CpuDevice()
        device.block_shared = size * 1024
        program = program_of(target, 2, device=device)
        assert sinks(program) == ([FORWARD, FORWARD, BACKWARD, "Delta"], 0, 1)
        direct = [one.name for one in program._gradient if one.name.startswith("DirectConv")]
        assert all(name.endswith(", 2>") == (share == 2) for name in direct)
        found.append(evaluate(program, theta))
    compare(target, theta, found[0])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_chains_change_no_bit(rng):
    """Seven together and one alone."""
    target = posterior(rng, MODELS["residual"][0], 3)
    theta = starts(rng, target, chains=7)
    together = evaluate(program_of(target, 7), theta)
    alone = evaluate(program_of(target, 1), theta[4:5])
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a[4:5], b)
