"""Wide products of float32: the bits of `Product`, whatever the tiles, edges and alignment."""

from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.cuda.layers import few_rows, products, tail
from ribbit._backends.cuda.layers.panel import Cell
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.kernel_list import WIDE_PRODUCTS as WIDE
from tests.support.cuda.problems import compare, evaluate, program_of, starts
from tests.support.cuda.thread_orders import compile_all, in_every_order
from tests.support.cuda.wide_products import SHAPES, fitting, launched, numbers, split, tile_of
from tests.support.layer_problems import net

pytestmark = pytest.mark.kernels

HEADER = str(Path(__file__).with_name("tensor_kernels.h"))
PLACES = {"128, 128": (16, 16), "256, 80": (64, 4)}  # threads below each other and side by side
ROOM = 227 << 10  # bytes of shared memory of a block of an H100


def plain(name):
    """The product of the same operands with today's small tiles."""
    a, b, sink = split(name)[0]
    return f"Product<float, {a}, {b}, {sink}, 64, 64, 16>"


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all([*WIDE, *dict.fromkeys(map(plain, WIDE))])
    compile_all([f"WidePlaces<{sizes}>" for sizes in PLACES], (HEADER,))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_bits_are_those_of_the_plain_product(rng, name, shape):
    wide, small = launched(rng, name, [plain(name)], fitting(name, shape))
    for got, expected in zip(wide, small, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    assert (wide[0] != 7.0).any()


def test_a_product_is_right(rng):
    """The control of the other test: against double precision."""
    name = next(n for n in WIDE if "GradientSink<float>, 128, 64" in n)
    m, n, k = 70, 66, 90
    a, b = numbers(rng, k, m), numbers(rng, k, n)

    def run(device):
        out = xp.asarray(np.zeros((m, n), np.float32))
        fields = [xp.asarray(a), 0, m, xp.asarray(b), 0, n, out, 0, 0, 0, 0, m, n, 0]
        device.launch(name, (1, 2, 1), *fields, m, n, k, 1, k)
        return [out.get()]

    found = in_every_order(run)[0]
    exact = a.T.astype(np.float64) @ b
    bound = k * 2.0**-24 * (np.abs(a.T).astype(np.float64) @ np.abs(b))
    assert (np.abs(found - exact) <= bound).all()
    assert (np.abs(found - a[1:].T.astype(np.float64) @ b[1:]) > bound).any()  # a term less


def chosen(m, n, k, chains, **options):
    a = products.matrix("float", 0, 0, k)
    b = products.matrix("float", 0, 0, n)
    sink = products.delta_sink("float", Cell(n, 0, m * n), n)
    return products.product("float", a, b, sink, m=m, n=n, k=k, chains=chains, room=ROOM, **options)


def test_tiles_fill_the_device():
    """Few blocks: small tiles. Many: large ones, which have fewer instructions."""
    assert ", 32, 16, 1, 1, 1>" in chosen(128, 256, 784, 1).name
    # Rows as they lie are copied one number at a time to what is wide.
    assert ", 64, 64, 1, 4, 4>" in chosen(1024, 512, 784, 1).name
    assert ", 128, 64, 1, 4, 4>" in chosen(8192, 256, 784, 1).name
    assert ", 128, 128, 1, 4, 4>" in chosen(50_000, 256, 784, 1).name
    assert ", 128, 128, 1, 4, 4>" in chosen(128, 256, 784, 2000).name
    assert ", 256, 80, 1, 4, 4>" in chosen(2048, 400, 784, 128).name  # 5 x 80 columns
    assert chosen(50_000, 256, 784, 1).shared == 50_704
    assert chosen(128, 256, 784, 1).shared == 0  # fits into what every block has
    assert ", 128, 16, 4, 1, 1>" in chosen(50_000, 10, 256, 1).name
    for m, n, k in ((16, 256, 784), (64, 64, 63)):
        assert chosen(m, n, k, 1).name.startswith("Product<")
    assert chosen(128, 256, 1 << 26, 1).name.startswith("Product<")
    assert chosen(16, 256, 784, 1, passes=1).name.startswith("TensorProduct<")
    for passes, columns in ((1, 208), (3, 80)):
        name = chosen(2048, 400, 784, 128, passes=passes).name
        assert name.endswith(f"DeltaSink<float>, {passes}, 256, {columns}, 2, 4, 4, 2>")
        assert ", 64, 32, 2, 4, 4, 2>" in chosen(128, 256, 784, 1, passes=passes).name
    assert ", 1, 1, 1>" in chosen(129, 255, 784, 1).name


NETWORKS = {
    "unaligned": rb.mlp(37, (70, 68), 2, activation="silu"),
    "aligned": rb.mlp(36, (64, 132), 2, activation="silu"),
    "images": net(
        (6, 7, 16),
        rb.Conv2D(20, 3, padding="same"),
        rb.Activation("silu"),
        rb.Conv2D(32, 3, stride=2),
        rb.Residual([rb.Conv2D(32, 1), rb.Activation("tanh")]),
        rb.Conv2D(68, 2),
    ),
    "odd images": net((6, 6, 18), rb.Conv2D(17, 3, dilation=2), rb.Conv2D(66, 1), rb.Conv2D(16, 2)),
    # 16 sites at a time: whole lines, one, half a line, every other cell; 128 rows are whole slices
    "steps": net(
        (32, 32, 4),
        rb.Conv2D(16, 3, padding="same"),
        rb.Activation("silu"),
        rb.Conv2D(20, 3, stride=2, padding="same"),
        rb.Conv2D(8, 2, padding="same", dilation=2),
        rb.AvgPool2D(2),
        rb.Conv2D(12, 3, stride=2, padding="same"),
        rb.AvgPool2D(4),
    ),
    # tiles of cells that the same taps meet, or of the ends of two groups of images
    "strides": net(
        (16, 32, 4),
        rb.Conv2D(16, 3, padding="same"),
        rb.Residual([rb.Conv2D(16, 3, stride=2)], [rb.Conv2D(16, 3, stride=2)]),
        rb.Conv2D(17, 2),
        rb.Conv2D(32, 3, stride=(3, 2), padding=(1, 0)),
        rb.Conv2D(4, 1),
    ),
    "groups": net((5, 6, 16), rb.Conv2D(24, 3, groups=2), rb.Conv2D(32, 2, groups=4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_posterior_has_the_same_bits_without_them(monkeypatch, rng, name):
    """All that a gradient has; the sizes are aligned, or not."""
    monkeypatch.setattr(tail, "_MOST_OUTPUTS", 0)  # these kernels alone
    monkeypatch.setattr(few_rows, "MOST_ROWS", 0)
    model, rows = NETWORKS[name], 128 if name == "steps" else 150
    target = rb.Posterior(
        model,
        *(numbers(rng, rows, *model.input_shape), numbers(rng, rows, *model.output_shape)),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )
    theta = starts(rng, target)

    def found(least):
        monkeypatch.setattr(products, "_WIDE", least)
        program = program_of(target, len(theta))
        wide = [n for n in program.names if n.startswith("Wide")]
        of = {n.partition("<")[2].partition("<")[0] for n in wide}
        assert any(", true, true>" in n for n in wide) == (name == "steps" and least == 1)
        return evaluate(program, theta), of

    (wide, used), (small, control) = found(1), found(1 << 60)
    dense = {"Matrix", "WithOnes"}
    ordered = {"Patches", "OrderedDeltaPatches", "DeltaPatches", *dense}
    images = {"Patches", "DeltaPatches", *dense}
    expected = dict.fromkeys(("images", "odd images", "steps"), images) | {"strides": ordered}
    assert used == expected.get(name, dense)
    assert not control
    for got, expected in zip(wide, small, strict=True):
        np.testing.assert_array_equal(got, expected)
    compare(target, theta, wide)


@pytest.mark.parametrize("sizes", PLACES)
def test_pairs_of_lanes_read_the_same_sixteen_bytes(sizes):
    """Lanes n and n ^ 2 have the same rows, n and n ^ 1 the same columns, all places of a tile."""

    def run(device):
        out = xp.empty((256, 2))
        device.launch(f"WidePlaces<{sizes}>", (1, 1, 1), out)
        return [out.get()]

    rows, columns = in_every_order(run, (HEADER,))[0].astype(int).T
    threads = np.arange(256)
    np.testing.assert_array_equal(rows, rows[threads ^ 2])
    np.testing.assert_array_equal(columns, columns[threads ^ 1])
    places = {(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)}
    down, across = PLACES[sizes]
    assert places == {(4 * i, 4 * j) for i in range(down) for j in range(across)}


def test_every_kind_of_tile_is_listed():
    assert len({tuple(split(name)[0]) for name in WIDE}) == 4
    assert {tuple(tile_of(name)) for name in WIDE} == set(products._TILES)
