"""Devices that give a block 99 KiB of shared memory: smaller tiles, with the bits of the others."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.codes import OPS
from ribbit._backends.cuda.layers import direct_conv, products, tail
from ribbit._backends.precision import Passes
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.problems import check, evaluate, persistent_of, problem, program_of, starts
from tests.support.cuda.thread_orders import in_every_order
from tests.support.layer_problems import SILU, net

pytestmark = pytest.mark.kernels

SMALL = 99 * 1024  # of compute capability 8.6, 8.9, 12.0


def small(device):
    device.block_shared = SMALL
    return device


def programs(target):
    """Kernels of a gradient on a large device and on a small one, and their numbers."""
    theta = starts(np.random.default_rng(3), target, 2)

    def names(device):
        return [one.name.replace(" ", "") for one in program_of(target, 2, device=device)._gradient]

    large = evaluate(program_of(target, 2), theta)
    found = in_every_order(
        lambda device: evaluate(program_of(target, 2, device=small(device)), theta)
    )
    return names(CpuDevice()), names(small(CpuDevice())), large, found


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize(("rows", "units", "block"), [(20, 2080, 8), (1030, 1296, 16)])
def test_the_last_layer_reads_its_inputs_in_two_parts(rng, rows, units, block, activation):
    options = {"rows": rows, "hidden": (units,), "activation": activation, "dtype": "float32"}
    target = problem(rng, "learned", **options)
    before, after, large, found = programs(target)
    (name,) = [n for n in before if n.startswith("Tail<")]
    assert f",{units},1,{block}," in name
    assert tail.shared_bytes(units, 1, block) > SMALL
    assert name.replace(">", ",2>") in after
    for a, b in zip(large, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_same_of_many_rows(rng):
    """Blocks of 64 rows, of which a thread multiplies two or, in parts, one."""
    target = problem(rng, "learned", rows=2100, hidden=(320,), dtype="float32")
    theta = starts(rng, target, 1)
    found = []
    for device in (CpuDevice(), small(CpuDevice())):
        program = program_of(target, 1, device=device)
        (name,) = [one.name for one in program._gradient if one.name.startswith("Tail<")]
        assert ", 320, 1, 64, " in name
        assert name.endswith(", 2>") == (device.block_shared == SMALL)
        found.append(evaluate(program, theta))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    check(target, theta)


def test_convolutions_have_smaller_tiles(rng):
    """Half as many lines; bands one after the other, several of a partial sum."""
    model = net(
        (8, 32, 1),
        rb.Conv2D(16, 1),
        SILU,
        rb.Conv2D(16, 3, padding="same"),
        SILU,
        rb.Conv2D(32, 3, padding="same"),
        rb.Conv2D(1, (8, 32)),
    )
    target = rb.Posterior(
        model,
        rng.standard_normal((3, *model.input_shape)).astype(np.float32),
        rng.standard_normal((3, *model.output_shape)).astype(np.float32),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )
    before, after, large, found = programs(target)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert [a.partition("<")[0] for a, _ in changed] == [
        *("DirectConvolution", "DirectGradient", "DirectConvolution", "DirectConvolution")
    ]
    for a, b in changed:
        last = 1 if a.startswith("DirectGradient") else 2
        assert b == re.sub(">$", f",{last}>", a)
    for a, b in zip(large, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_last_layer_fits():
    """Of blocks of 8, 16, 32 and 64 rows, each with the most inputs that one may have."""
    found = set()
    source = SimpleNamespace(value=0, derivative=0, delta=0, chain_stride=0, add=lambda: False)
    panel = SimpleNamespace(
        theta=lambda offset: offset,
        partials=lambda arrays, slices: SimpleNamespace(
            slice=lambda first, size: 0, size=0, slice_stride=0
        ),
        slices=[SimpleNamespace(count=1)],
        codes=[0],
        itemsize=4,
        adds=False,
        first=0,
        dim=0,
        block_shared=SMALL,
    )
    for inputs, outputs, run in itertools.product(
        range(4, 4097, 4), range(1, 17), (1024, 2048, 4096)
    ):
        row = {"op": OPS["dense"], "in_size": inputs, "out_size": outputs, "weight": 0, "bias": -1}
        rows = tail.block_rows([row, row], [0, 0], run)
        if rows == 0:
            continue
        panel.run = panel.count = run
        for one in tail.write(panel, rows, source, row, 0, ((), ()), steps=False):
            assert one.shared <= SMALL, one.name
            found.add((rows, one.name.endswith(", 2>")))
        assert inputs < 4096
    assert found == set(itertools.product((8, 16, 32, 64), (False, True)))


def test_every_direct_convolution_fits():
    """And every gradient; tiles are whole images or parts of one."""
    source, shares, stages = SimpleNamespace(), set(), set()
    panel = SimpleNamespace(scalar="float", passes=Passes(), cells=[None], block_shared=SMALL)
    sink = products.activation_sink("float", 1, None, 0, 0, None, 0, 64)
    ones = ("stride", "dilation", "pad")
    same = {f"{what}_{side}": 1 for what in ones for side in ("height", "width", "top", "left")}
    for height, width, outs, turned in itertools.product(
        range(1, 257), (8, 16, 32, 64), range(16, 129, 16), (False, True)
    ):
        row = same | {"kernel_height": 3, "kernel_width": 3, "argument": 1}
        row |= {"height": height, "width": width, "out_height": height, "out_width": width}
        row |= {"channels": 16, "out_channels": 16, "channels" if turned else "out_channels": outs}
        if direct_conv.fits(panel, row, source, turned=turned):
            operands = {"lines": 256 * height, "turned": turned, "room": SMALL}
            one = direct_conv.launch(row, (0, 0), (0, 0), sink, **operands)
            assert one.shared <= SMALL, one.name
            down = 256 * height // one.grid[0]
            assert height % down == 0 or down % height == 0
            shares.add(one.name.endswith(", 2>"))
        if not turned and direct_conv.gradient_fits(panel, row, source):
            two, alone = (direct_conv._bands(width, outs, n)[1] for n in (2, 1))
            assert alone <= SMALL
            stages.add(two <= SMALL)
    assert shares == stages == {False, True}


def test_products_on_tensor_cores_have_smaller_tiles():
    """The bits of a product are those of any tile: test_wide_tensor_products.py."""

    def tile(room):
        a, b = (products.matrix("float", 0, 0, 400) for _ in range(2))
        sink = products.activation_sink("float", 1, None, 0, 0, None, 0, 400)
        sizes = {"m": 10_000, "n": 400, "k": 784, "passes": 1, "chains": 128}
        launch = products.product("float", a, b, sink, **sizes, room=room)
        assert launch.shared <= room
        return launch.name.split(", ")[-6:-4]

    assert tile(227 << 10) == ["256", "208"]
    assert tile(SMALL) == ["256", "128"]


def test_blocks_of_clusters_that_have_no_room_are_not_asked_for(rng):
    """12.0 has clusters, and 99 KiB: the largest networks keep the forms that fit."""
    target = problem(rng, rows=600, hidden=(64, 64), dtype="float32")
    forms = [
        list(persistent_of(target, device=d)._forms) for d in (CpuDevice(), small(CpuDevice()))
    ]
    assert forms == [[1, 16, 8], [1, 16]]
