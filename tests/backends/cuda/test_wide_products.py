"""Wide products of float32: the bits of `Product`, whatever the tiles, edges and alignment."""

from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.device import pack
from ribbit._backends.cuda.layers import few_rows, products, tail
from ribbit._backends.cuda.layers.panel import Cell
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.kernel_list import WIDE_PRODUCTS as WIDE
from tests.support.cuda.problems import compare, evaluate, program_of, starts
from tests.support.cuda.thread_orders import compile_all, in_every_order
from tests.support.layer_problems import net

HEADER = str(Path(__file__).with_name("tensor_kernels.h"))
# Rows, columns, terms: less than a tile, whole tiles, one more, and tails of terms; slices.
SHAPES = [
    (40, 36, 33, 1),
    (128, 128, 48, 1),
    (129, 132, 100, 3),
    (200, 68, 64, 2),
    (132, 200, 40, 1),
    (65, 63, 50, 1),
]
CHAINS = 2
GAP = 4  # numbers between matrices


def plain(name):
    """The product of the same operands with today's small tiles."""
    a, b, sink = split(name)
    return f"Product<float, {a}, {b}, {sink}, 64, 64, 16>"


def split(name):
    """Operands and sink of a wide product."""
    inner, depth, parts, part = name.removeprefix("WideProduct<"), 0, [], ""
    for letter in inner:
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return parts[:3]


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all([*WIDE, *dict.fromkeys(map(plain, WIDE))])
    compile_all(["WidePlaces"], (HEADER,))


def fitting(name, m, n):
    """Whether a kernel's copies of four fit the sizes."""
    vector_a, vector_b, vector_sink = (int(v) for v in name[:-1].split(", ")[-3:])
    return (
        (vector_a == 1 or m % 4 == 0)
        and (vector_b == 1 or n % 4 == 0)
        and (vector_sink == 1 or n % 4 == 0)
    )


def launched(rng, name, shape, *, aligned):
    """What the wide product and the plain one make of the same numbers, by rows of 4 or not."""
    m, n, k, slices = shape
    left, right, sink = split(name)
    ones = left.startswith("WithOnes")
    lay = {"false": (m, k), "true": (k, m)}["true" if "true" in left else "false"]
    other = {"false": (k, n), "true": (n, k)}["true" if "true" in right else "false"]
    strides = [-(-size[1] // 4) * 4 if aligned else size[1] + 1 for size in (lay, other)]
    held = [
        numbers(rng, CHAINS, size[0] * stride + GAP)
        for size, stride in zip((lay, other), strides, strict=True)
    ]
    bias, slope = numbers(rng, CHAINS, n + n % 4), numbers(rng, CHAINS, (m + 1) * n)
    left = numbers(rng, CHAINS, (m + 1) * n)  # of a value above
    length = -(-k // slices)
    tile = [int(v) for v in name[:-1].split(", ")[-5:-3]]

    def run(kernel, tiles):
        def launch(device):
            value = xp.asarray(np.full((slices, CHAINS, (m + 1) * n), 7.0, np.float32))
            extra = xp.asarray(np.full((CHAINS, (m + 1) * n), 7.0, np.float32))
            given = [xp.asarray(array) for array in held]
            fields = [
                *(given[0], held[0].shape[1], strides[0]),
                *([m] if ones else []),
                *(given[1], held[1].shape[1], strides[1]),
            ]
            stride = (m + 1) * n
            if sink.startswith("ActivationSink"):
                fields += [xp.asarray(bias), bias.shape[1], value, extra, stride, n]
            elif sink.startswith("DeltaSink"):
                first = (xp.asarray(left), stride, 1) if aligned else (value, stride, 0)
                fields += [value, xp.asarray(slope), stride, n, *first]
            else:
                fields += [value, stride, CHAINS * stride, 0, m * n, m, n, 1]
            rows = m + ones
            cut = m if kernel == name else rows
            grid = (-(-cut // tiles[0]), -(-n // tiles[1]), CHAINS * slices)
            fields += [rows, n, k, slices, length]
            large = kernel == name and tiles == [128, 128]
            shared = 3 * 16 * 4 * (sum(tiles) + 8) + (4 * tiles[1] if ones else 16)
            arguments = pack(device, fields)
            device.kernels([kernel])[kernel](grid, arguments, shared if large else 0)
            return [value.get(), extra.get()]

        return in_every_order(launch)

    return run(name, tile), run(plain(name), (64, 64))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_bits_are_those_of_the_plain_product(rng, name, shape):
    m, n, k, slices = shape
    if not fitting(name, m, n):
        m, n = -(-m // 4) * 4, -(-n // 4) * 4
    if "GradientSink" not in name:
        slices = 1  # of other sinks nobody adds the slices up
    aligned = name[:-1].split(", ")[-3:] != ["1", "1", "1"]
    wide, small = launched(rng, name, (m, n, k, slices), aligned=aligned)
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
    return products.product("float", a, b, sink, m=m, n=n, k=k, chains=chains, **options)


def test_tiles_fill_the_device():
    """Few blocks: small tiles. Many: large ones, which have fewer instructions."""
    assert ", 32, 16, 1, 1, 1>" in chosen(128, 256, 784, 1).name
    assert ", 64, 64, 1, 4, 4>" in chosen(1024, 512, 784, 1).name
    assert ", 128, 64, 1, 4, 4>" in chosen(8192, 256, 784, 1).name
    assert ", 128, 128, 1, 4, 4>" in chosen(50_000, 256, 784, 1).name
    assert ", 128, 128, 1, 4, 4>" in chosen(128, 256, 784, 2000).name
    assert chosen(50_000, 256, 784, 1).shared == 50_704
    assert chosen(128, 256, 784, 1).shared == 0  # fits into what every block has
    assert ", 128, 16, 1, 1, 1>" in chosen(50_000, 10, 256, 1).name
    for m, n, k in ((16, 256, 784), (64, 64, 63)):
        assert chosen(m, n, k, 1).name.startswith("Product<")
    assert chosen(128, 256, 1 << 26, 1).name.startswith("Product<")
    assert chosen(128, 256, 784, 1, passes=1).name.startswith("TensorProduct<")
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


def test_pairs_of_lanes_read_the_same_sixteen_bytes():
    """Lanes n and n ^ 2 have the same rows, n and n ^ 1 the same columns, all 16 x 16 places."""

    def run(device):
        out = xp.empty((256, 2))
        device.launch("WidePlaces", (1, 1, 1), out)
        return [out.get()]

    rows, columns = in_every_order(run, (HEADER,))[0].astype(int).T
    threads = np.arange(256)
    np.testing.assert_array_equal(rows, rows[threads ^ 2])
    np.testing.assert_array_equal(columns, columns[threads ^ 1])
    places = {(r, c) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)}
    assert places == {(4 * i, 4 * j) for i in range(16) for j in range(16)}


def test_every_kind_of_tile_is_listed():
    assert len({tuple(split(name)) for name in WIDE}) == 4
    sizes = {tuple(name[:-1].split(", ")[-5:-3]) for name in WIDE}
    assert sizes == {tuple(map(str, tile)) for tile in products._TILES}
