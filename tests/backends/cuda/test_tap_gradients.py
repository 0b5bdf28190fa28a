"""Gradients of the weights of nine taps: against double precision, in every order of threads."""

from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.device import pack
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.kernel_list import TAP_GRADIENTS
from tests.support.cuda.problems import compare, evaluate, program_of, starts
from tests.support.cuda.thread_orders import compile_all, in_every_order
from tests.support.layer_problems import SILU, net

pytestmark = pytest.mark.kernels

HEADER = str(Path(__file__).with_name("tensor_kernels.h"))
CHAINS, SIDE = 2, 8


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all(TAP_GRADIENTS)


def expected(x, delta, stride, pad):
    """Weights' gradients (C, 3, 3, channels, outs), with their first row above, and the bound."""
    padded = np.pad(x, [(0, 0), (0, 0), (pad, 2), (pad, 2), (0, 0)])
    size = stride * delta.shape[2]
    places = [(y, x) for y in range(3) for x in range(3)]
    taps = [padded[:, :, y : y + size : stride, x : x + size : stride] for y, x in places]
    made = np.stack([np.einsum("crhwi,crhwo->cio", tap, delta) for tap in taps], 1)
    return made, np.stack([np.einsum("crhwi,crhwo->cio", abs(t), abs(delta)) for t in taps], 1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", TAP_GRADIENTS)
def test_gradients(rng, name, rows):
    """Slices end inside of a stage; the numbers that are added to; sums of the deltas."""
    numbers = [int(n) for n in name.replace("TapGradient<Sliding<", "").replace(">", "").split(",")]
    channels, stride, pad, side, outs = (numbers[i] for i in (2, 5, 7, 9, 13))
    x = rng.standard_normal((CHAINS, rows, SIDE, SIDE, channels)).astype(np.float32)
    delta = rng.standard_normal((CHAINS, rows, side, side, outs)).astype(np.float32)
    rest = rng.standard_normal(9 * channels * outs + outs).astype(np.float32)
    terms, slices = rows * side * side, 2
    length = terms // 2 + 3  # the second is shorter
    size = len(rest)

    def run(device):
        grad = xp.asarray(np.tile(rest, (slices, CHAINS, 1)))
        fields = [
            *(xp.asarray(x), x[0].size, xp.asarray(delta), delta[0].size),
            *(grad, size, CHAINS * size, 0, 9 * channels * outs, 9 * channels, outs, 1),
            *(terms, slices, length, 1),
        ]
        shared = 3 * 32 * 4 * (144 + outs) + 4 * outs
        grid = (channels // 16, 1, CHAINS * slices)
        device.kernels([name])[name](grid, pack(device, fields), shared)
        return [grad.get()]

    found = in_every_order(run)[0].astype(float) - rest
    whole = found.sum(axis=0)
    sums, most = expected(x.astype(float), delta.astype(float), stride, pad)
    sums, most = sums.reshape(CHAINS, -1), most.reshape(CHAINS, -1)
    bound = 2.0**-23 * (terms * most + 4 * abs(rest[:-outs]))
    assert (abs(whole[:, :-outs] - sums) <= bound).all()
    plain, most = (a.astype(float).sum(axis=(1, 2, 3)) for a in (delta, abs(delta)))
    bound = 2.0**-23 * (terms * most + 4 * abs(rest[-outs:]))
    assert (abs(whole[:, -outs:] - plain) <= bound).all()
    assert (found != 0).mean() > 0.9  # of both slices


def test_a_posterior(rng):
    """Where shapes allow it; the first layer's inputs may lie anywhere."""
    model = net(
        (5, 6, 16),
        rb.Conv2D(16, 3, padding="same"),
        SILU,
        rb.Conv2D(48, 3, padding="same", bias=False),
        rb.Conv2D(64, 3, stride=2, padding="same"),
        rb.Conv2D(18, 3),
        rb.Conv2D(16, 1),
    )
    target = rb.Posterior(
        model,
        rng.standard_normal((40, *model.input_shape)).astype(np.float32),
        rng.standard_normal((40, *model.output_shape)).astype(np.float32),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )
    theta = starts(rng, target)
    program = program_of(target, len(theta))
    made = [one.name for one in program._gradient if one.name.startswith("TapGradient")]
    assert [name.rpartition(", ")[2] for name in made] == ["64>", "16>"]
    compare(target, theta, evaluate(program, theta))


def test_pairs_of_lanes_read_the_same_sixteen_bytes():
    """Lanes n and n ^ 2 have the same rows, n and n ^ 1 the same columns; teams have all places."""

    def run(device):
        out = xp.empty((3, 256, 2))
        device.launch("TapPlaces", (1, 1, 1), out)
        return [out.get()]

    threads = np.arange(256)
    found = in_every_order(run, (HEADER,))[0].astype(int)
    for across, places in zip((16, 32, 64), found, strict=True):
        rows, columns = places.T
        np.testing.assert_array_equal(rows, rows[threads ^ 2])
        np.testing.assert_array_equal(columns, columns[threads ^ 1])
        team = 4 * across
        for first in range(0, 256, team):
            pairs = zip(rows[first : first + team], columns[first : first + team], strict=True)
            assert set(pairs) == {(i, 4 * j) for i in range(16) for j in range(across // 4)}
