"""Direct convolutions of 3 x 3: against double precision, in every order of threads."""

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.device import pack
from ribbit._backends.cuda.programs import plan
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.direct_convolutions import expected, parts, tile
from tests.support.cuda.kernel_list import DIRECT_CONVOLUTIONS, DIRECT_GRADIENTS, SMALL_SHARED
from tests.support.cuda.problems import compare, evaluate, program_of, starts
from tests.support.cuda.thread_orders import compile_all, in_every_order
from tests.support.layer_problems import SILU, net

pytestmark = pytest.mark.kernels

CHAINS = 2
ONE_STAGE = SMALL_SHARED[0]
GAP = 3  # numbers between the weights of chains, which may begin anywhere


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all([*DIRECT_CONVOLUTIONS, *DIRECT_GRADIENTS, ONE_STAGE])


def launched(name, x, weights, extra, *, offset=1):
    """What the kernel makes of images (C, rows, height, width, channels); weights as they lie.

    The forward sink adds a bias and writes a derivative, of 1; that of deltas multiplies by a
    derivative and adds the delta of a value above, times the derivative too.
    """
    height, width, _, outs, turned = parts(name)
    chains, rows = x.shape[:2]
    lines = rows * height
    size = weights[0].size + GAP
    flat = np.full((chains, size), np.nan, np.float32)
    flat[:, offset : offset + weights[0].size] = weights.reshape(chains, -1)
    block, down, shared = tile(height, width, outs)
    stride = lines * width * outs

    def run(device):
        out = xp.asarray(np.full((chains, rows, height, width, outs), 7.0, np.float32))
        other = xp.asarray(np.full_like(out.get(), 7.0))
        held = xp.asarray(flat)
        fields = [xp.asarray(x), x[0].size, device.pointer(held) + 4 * offset, size]
        if turned:
            slope, above = (xp.asarray(a) for a in extra)
            fields += [out, slope, stride, outs, above, stride, 1]
        else:
            fields += [xp.asarray(extra[0]), outs, out, other, stride, outs]
        grid = (-(-lines // down), outs // block, chains)
        limit = shared if shared > 48 * 1024 else 0
        device.kernels([name])[name](grid, pack(device, [*fields, lines]), limit)
        return [out.get(), other.get()]

    return in_every_order(run)


def problem(rng, name, rows):
    """Images, weights as they lie and as sums take them, and what the sink adds."""
    height, width, channels, outs, turned = parts(name)

    def numbers(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    x = numbers(CHAINS, rows, height, width, channels)
    if turned:
        weights = numbers(CHAINS, 3, 3, outs, channels)
        taken = weights[:, ::-1, ::-1].swapaxes(3, 4)
        extra = [numbers(CHAINS, rows, height, width, outs) for _ in range(2)]
    else:
        weights = taken = numbers(CHAINS, 3, 3, channels, outs)
        extra = [numbers(CHAINS, outs)]
    return x, weights, taken, extra


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", DIRECT_CONVOLUTIONS)
def test_convolutions(rng, name, rows):
    """Blocks of several images and of part of one, whole and not; weights that begin anywhere."""
    *_, channels, _, turned = parts(name)
    x, weights, taken, extra = problem(rng, name, rows)
    found, other = launched(name, x, weights, extra)
    sums, most = expected(x.astype(float), taken.astype(float))
    if turned:
        slope, above = (a.astype(float) for a in extra)
        sums, most = slope * sums + above * slope, abs(slope) * (most + abs(above))
    else:
        bias = extra[0].astype(float)[:, None, None, None]
        sums, most = sums + bias, most + abs(bias)
        assert (other == 1.0).all()
    assert (abs(found - sums) <= 2.0**-23 * (9 * channels + 3) * most).all()
    # the control: with the taps in the opposite order
    wrong = expected(x.astype(float), taken[:, ::-1, ::-1].astype(float))[0]
    assert np.median(abs(found - wrong)) > 0.1


@pytest.mark.parametrize("name", DIRECT_CONVOLUTIONS)
def test_bits_of_an_image_are_the_same_among_others(rng, name):
    """Of five images and two chains, and alone."""
    turned = parts(name)[-1]
    x, weights, _, extra = problem(rng, name, 5)
    whole = launched(name, x, weights, extra)[0]
    extra = [a[1:, 3:4] if turned else a[1:] for a in extra]
    alone = [np.ascontiguousarray(a) for a in (x[1:, 3:4], weights[1:], *extra)]
    one = launched(name, *alone[:2], alone[2:], offset=2)[0]
    np.testing.assert_array_equal(whole[1:, 3:4].view(np.uint32), one.view(np.uint32))


def expected_gradient(x, delta):
    """Weights' gradients (C, 9, channels, outs) by images and deltas, and their bound."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1), (0, 0)])
    height, width = x.shape[2:4]
    places = [(top, left) for top in range(3) for left in range(3)]
    taps = [padded[:, :, y : y + height, z : z + width] for y, z in places]
    made = np.stack([np.einsum("crhwi,crhwo->cio", tap, delta) for tap in taps], 1)
    return made, np.stack([np.einsum("crhwi,crhwo->cio", abs(t), abs(delta)) for t in taps], 1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", [*DIRECT_GRADIENTS, ONE_STAGE])
def test_gradients(rng, name, rows):
    """Slices of unequal lengths; the numbers that are added to; sums of the deltas."""
    numbers = [int(n) for n in name.removeprefix("DirectGradient<").removesuffix(">").split(",")]
    (height, width, channels, outs, across), stages = numbers[:5], (*numbers, 2)[5]
    x = rng.standard_normal((CHAINS, rows, height, width, channels)).astype(np.float32)
    delta = rng.standard_normal((CHAINS, rows, height, width, outs)).astype(np.float32)
    rest = rng.standard_normal(9 * channels * outs + outs).astype(np.float32)
    bands, slices = rows * (height // 8), 2
    length = bands // 2 + 1  # the second is shorter, or empty
    size = len(rest)
    stage = 10 * (width + 2) * 16 + 8 * width * across
    shared = 4 * (max(stages * stage, 72 * 128) + 256)

    def run(device):
        grad = xp.asarray(np.tile(rest, (slices, CHAINS, 1)))
        fields = [
            *(xp.asarray(x), x[0].size, xp.asarray(delta), delta[0].size),
            *(grad, size, CHAINS * size, 0, 9 * channels * outs, 9 * channels, outs, 1),
            *(bands, slices, length, 1),
        ]
        grid = (channels // 16, outs // across, CHAINS * slices)
        limit = shared if shared > 48 * 1024 else 0
        device.kernels([name])[name](grid, pack(device, fields), limit)
        return [grad.get()]

    made = in_every_order(run)[0]
    if stages == 1:
        name, shared = name.replace(", 1>", ">"), 4 * (max(2 * stage, 72 * 128) + 256)
        np.testing.assert_array_equal(made, in_every_order(run)[0])
    found = made.astype(float) - rest
    whole = found.sum(axis=0)
    sums, most = (
        a.reshape(CHAINS, -1) for a in expected_gradient(x.astype(float), delta.astype(float))
    )
    terms = rows * height * width
    bound = 2.0**-23 * (terms * most + 4 * abs(rest[:-outs]))
    assert (abs(whole[:, :-outs] - sums) <= bound).all()
    # the control: the lines of an image in the opposite order
    wrong = expected_gradient(x[:, :, ::-1].astype(float), delta.astype(float))[0]
    assert np.median(abs(whole[:, :-outs] - wrong.reshape(CHAINS, -1))) > 0.1
    plain, most = (a.astype(float).sum(axis=(1, 2, 3)) for a in (delta, abs(delta)))
    bound = 2.0**-23 * (terms * most + 4 * abs(rest[-outs:]))
    assert (abs(whole[:, -outs:] - plain) <= bound).all()


def test_a_posterior(rng):
    """Where shapes allow it; the first layer's inputs may lie anywhere."""
    model = net(
        (8, 16, 16),
        rb.Conv2D(16, 3, padding="same"),
        SILU,
        rb.Conv2D(48, 3, padding="same", bias=False),
        rb.Residual([rb.Conv2D(48, 3, padding="same"), SILU]),
        rb.Conv2D(17, 3, padding="same"),
        rb.Conv2D(32, 3, padding="same", dilation=2),
        rb.Conv2D(64, 3, padding="same"),
        rb.Conv2D(16, 3),
    )
    target = rb.Posterior(
        model,
        rng.standard_normal((20, *model.input_shape)).astype(np.float32),
        rng.standard_normal((20, *model.output_shape)).astype(np.float32),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )
    theta = starts(rng, target)
    program = program_of(target, len(theta))
    made = [parts(one.name)[2:] for one in program._gradient if one.name.startswith("DirectC")]
    forward = [(16, 48, False), (48, 48, False), (32, 64, False)]
    assert made == [*forward, *((o, c, True) for c, o, _ in reversed(forward))]
    made = [one.name for one in program._gradient if one.name.startswith("DirectGradient")]
    assert [name.removesuffix(">").partition(", 16, ")[2] for name in made] == [
        "32, 64, 64",
        "48, 48, 16",
        "16, 48, 16",
    ]
    compare(target, theta, evaluate(program, theta))


class SmallDevice(CpuDevice):
    free = 0

    def free_bytes(self):
        return self.free


def small_target(rng, rows):
    """One direct convolution, with both of its gradients, between a product and a last layer."""
    model = net(
        (8, 8, 1), rb.Conv2D(16, 1), SILU, rb.Conv2D(32, 3, padding="same"), rb.Conv2D(1, 8)
    )
    return rb.Posterior(
        model,
        rng.standard_normal((rows, *model.input_shape)).astype(np.float32),
        rng.standard_normal((rows, *model.output_shape)).astype(np.float32),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )


def test_memory_changes_no_bit(rng, monkeypatch):
    """Panels of 256, 512 and all rows of a run."""
    run, rows = 1024, 600
    monkeypatch.setattr(plan, "_PANEL_BYTES", 1)
    monkeypatch.setattr(plan, "_RUN", run)
    target = small_target(rng, rows)
    table = target.model.table
    theta = starts(rng, target, chains=1)
    found = {}
    for panel in (256, 512, run):
        device = SmallDevice()
        device.free = 2 * panel * 4 * plan.scalars_of(plan.rows_of(table))
        program = program_of(target, 1, device=device)
        names = [one.name for one in program._gradient]
        panels = -(-rows // min(panel, rows))
        assert sum(name.startswith("DirectConvolution<8, 8, 16, 32") for name in names) == panels
        assert sum(name.startswith("DirectGradient<8, 8, 16, 32") for name in names) == panels
        found[panel] = evaluate(program, theta)
    for panel in (256, 512):
        for a, b in zip(found[panel], found[run], strict=True):
            np.testing.assert_array_equal(a, b)


def test_chains_change_no_bit(rng):
    """Seven together and one alone."""
    target = small_target(rng, 5)
    theta = starts(rng, target, chains=7)
    together = evaluate(program_of(target, 7), theta)
    alone = evaluate(program_of(target, 1), theta[4:5])
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a[4:5], b)
