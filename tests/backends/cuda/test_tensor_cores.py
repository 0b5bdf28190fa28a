"""Products on tensor cores, one step at a time: rounding, fragments, tiles, faults.

The CPU stands for the tensor cores: it multiplies the fragments of a warp as the PTX ISA lays them
out, cuts off what is no TF32 and truncates sums. Bounds are in units of sum |a| |b|. TF32: two
factors rounded to 2^-11 each, 1.01 x 2^-10. 3xTF32: what the split leaves, 2^-22 for the product of
small parts and 2^-23 cut off each of them, and sums, 2^-22 for up to 100 terms: 2^-20; float32's
own worst case is 100 x 2^-24.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

from ribbit._arrays import kernel_sources
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.kernel_list import WIDE_TENSOR_PRODUCTS
from tests.support.cuda.tf32 import nearest
from tests.support.cuda.thread_orders import ORDERS, compile_all, compiler, in_every_order

pytestmark = pytest.mark.kernels

HEADER = str(Path(__file__).with_name("tensor_kernels.h"))
FAULTS = ("FragmentsTooEarly", "ProductOfSomeLanes")
MATRICES = [f"MatricesOfRows<{n}, {flag}>" for n in (2, 4) for flag in ("false", "true")]
BOUND = {1: 1.01 * 2.0**-10, 3: 2.0**-20}
TILES = {"few": (16, 64, 8), "some": (64, 64, 4), "gates": (128, 64, 1)}


def tile_name(passes, tile, turned_a, turned_b):
    a, b = (f"Matrix<float, {str(turned).lower()}>" for turned in (turned_a, turned_b))
    m, n, across = TILES[tile]
    return f"TensorProduct<{a}, {b}, GradientSink<float>, {passes}, {m}, {n}, {across}>"


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    flags = (False, True)
    compile_all([tile_name(*c) for c in itertools.product((1, 3), TILES, flags, flags)])
    faulty = [f"{name}<{str(flag).lower()}>" for name in FAULTS for flag in flags]
    compile_all(["Rounded", "RoundedToEven", "WarpProducts", *MATRICES, *faulty], (HEADER,))
    compile_all(WIDE_TENSOR_PRODUCTS)


def launched(name, grid, out, *fields, headers=(HEADER,)):
    """What a kernel makes of its last member, in every order."""

    def run(device):
        given = xp.asarray(out)
        device.launch(name, grid, *(xp.asarray(f) for f in fields), given)
        return [given.get()]

    return in_every_order(run, headers)[0]


def rounded(x):
    """Numbers rounded to TF32, and what the split leaves of them."""

    def run(device):
        out, small = xp.empty(x.shape, np.float32), xp.empty(x.shape, np.float32)
        device.launch("Rounded", (3, 1, 1), xp.asarray(x), out, small, x.size)
        return [out.get(), small.get()]

    return in_every_order(run, (HEADER,))


def words_of(rng):
    """Numbers of all kinds, with ties and those next to them, but NaN."""
    words = rng.integers(0, 2**32, size=40_000, dtype=np.uint32)
    tops = rng.integers(0, 2**19, size=(4000, 1), dtype=np.uint32) << np.uint32(13)
    lows = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], dtype=np.uint32)
    odd = np.array([0, 1, 0x80000000, 0x0FFF, 0x1000, 0x7F7FFFFF, 0x7F7FEFFF, 0x7F7FF000])
    words = np.concatenate([words, (tops | lows).ravel(), odd.astype(np.uint32), [0x7F800000]])
    x = words.astype(np.uint32).view(np.float32)
    return x[~np.isnan(x)]


def rounded_to_even(x):
    def run(device):
        out = xp.empty(x.shape, np.float32)
        device.launch("RoundedToEven", (3, 1, 1), xp.asarray(x), out, x.size)
        return [out.get()]

    return in_every_order(run, (HEADER,))[0]


def test_rounding_to_even(rng):
    """Bit for bit: to nearest, ties to even, ten bits; over the largest one infinity."""
    x = words_of(rng)
    found = rounded_to_even(x)
    np.testing.assert_array_equal(
        found.view(np.uint32), nearest(x, ties_away=False).view(np.uint32)
    )
    assert (found.view(np.uint32) != nearest(x).view(np.uint32)).any()  # the control
    odd = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000], dtype=np.uint32).view(np.float32)
    assert np.isnan(rounded_to_even(odd)).all()


def test_rounding(rng):
    """Bit for bit: to nearest, ties away from zero, ten bits; over the largest one infinity."""
    x = words_of(rng)
    found, small = rounded(x)
    np.testing.assert_array_equal(found.view(np.uint32), nearest(x).view(np.uint32))
    # what is left of it is exact where it is finite, and 2^-11 of it at most
    finite = np.isfinite(found)
    exact, left = x.astype(float)[finite], small.astype(float)[finite]
    np.testing.assert_array_equal(found.astype(float)[finite] + left, exact)
    assert (np.abs(left) <= np.maximum(2.0**-11 * np.abs(exact), 2.0**-137)).all()
    assert not np.isfinite(small[~finite]).any()
    # the controls: ties to even, and truncation, are other numbers
    assert (found.view(np.uint32) != nearest(x, ties_away=False).view(np.uint32)).any()
    assert (found.view(np.uint32) != (x.view(np.uint32) & 0xFFFFE000)).any()


def test_not_a_number_stays_one():
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000], dtype=np.uint32).view(np.float32)
    found, small = rounded(x)
    assert np.isnan(found).all()
    assert np.isnan(small).all()


def places():
    """Rows and columns of each lane's numbers of a, b and c, as in the PTX ISA."""
    lane = np.arange(32)[:, None]
    group, within = lane >> 2, lane % 4
    i = np.arange(4)
    a = group + 8 * np.isin(i, (1, 3)), within + 4 * (i >= 2)
    b = within + 4 * i[:2], group + 0 * i[:2]
    c = group + 8 * (i >= 2), within * 2 + (i & 1)
    return a, b, c


def test_fragments(rng):
    """Whole numbers, which TF32 and sums hold exactly: the product of matrices in any order."""
    at_a, at_b, at_c = places()
    left = rng.integers(-1000, 1000, size=(8, 2, 16, 8)).astype(np.float32)
    right = rng.integers(-1000, 1000, size=(8, 2, 8, 8)).astype(np.float32)
    add = rng.integers(-1000, 1000, size=(8, 2, 2, 16, 8)).astype(np.float32)
    a = left[:, :, *at_a].transpose(0, 2, 1, 3).reshape(256, 8)  # by thread: fragment, number
    b = right[:, :, *at_b].transpose(0, 2, 1, 3).reshape(256, 4)
    c = add[:, :, :, *at_c].transpose(0, 3, 1, 2, 4).reshape(256, 16)
    found = launched("WarpProducts", (1, 1, 1), c, a, b)
    expected = add + left[:, :, None] @ right[:, None, :]
    expected = expected[:, :, :, *at_c].transpose(0, 3, 1, 2, 4).reshape(256, 16)
    np.testing.assert_array_equal(found, expected)
    # the control: fragments of b turned over
    turned = right.swapaxes(2, 3)[:, :, *at_b].transpose(0, 2, 1, 3).reshape(256, 4)
    assert (launched("WarpProducts", (1, 1, 1), c, a, np.ascontiguousarray(turned)) != found).any()


@pytest.mark.parametrize("count", [2, 4])
def test_matrices_of_rows(count):
    """Number l % 4 of row l / 4 of each matrix, whose rows begin where each lane says."""
    given = np.arange(32 * 8, dtype=np.float32).reshape(32, 8)
    lane = np.arange(32)
    row, number = lane // 4, lane % 4
    expected = np.stack([given[8 * q + row, number] for q in range(count)], axis=1)
    out = np.zeros((32, count), np.float32)
    found = launched(f"MatricesOfRows<{count}, false>", (1, 1, 1), out, given)
    np.testing.assert_array_equal(found, expected)
    # rows that begin at no multiple of 16 bytes: a device refuses them
    for runner in dict(ORDERS):
        device, name = CpuDevice(compiler(runner, (HEADER,))), f"MatricesOfRows<{count}, true>"
        with pytest.raises(RuntimeError, match="16 bytes"):
            device.launch(name, (1, 1, 1), xp.asarray(given), xp.asarray(out))


def test_sums_are_truncated():
    """The worst that is known of tensor cores: 1 + (1 - 2^-11) 2^-23 is 1."""
    a, b, c = (np.zeros((256, n), np.float32) for n in (8, 4, 16))
    a[:, 0], b[:, 0] = 1.0 - 2.0**-11, 2.0**-23  # term t of row and column g: four of them
    a[1::4] = a[2::4] = a[3::4] = 0.0
    c[:] = 1.0
    assert (launched("WarpProducts", (1, 1, 1), c, a, b) == 1.0).all()
    assert (launched("WarpProducts", (1, 1, 1), -c, -a, b) == -1.0).all()
    assert np.float32(1.0 + (1.0 - 2.0**-11) * 2.0**-23) > 1.0  # the control: rounded it is more


def errors(rng, passes, tile, turned, shape, slices=1):
    """Sums (2, m, n), and the largest error in units of sum |a| |b|."""
    m, n, k = shape
    left = rng.normal(size=(2, m, k)).astype(np.float32)
    right = rng.normal(size=(2, k, n)).astype(np.float32)
    a, b = (
        np.ascontiguousarray(x.swapaxes(1, 2)) if flag else x
        for x, flag in zip((left, right), turned, strict=True)
    )
    rows, columns = TILES[tile][:2]

    def run(device):
        out = xp.asarray(np.full((slices, 2, m, n), np.nan, np.float32))
        fields = [xp.asarray(a), m * k, m if turned[0] else k]
        fields += [xp.asarray(b), k * n, k if turned[1] else n]
        fields += [out, m * n, 2 * m * n, 0, 0, m, n, 0]  # GradientSink
        fields += [m, n, k, slices, -(-k // slices)]
        grid = -(-m // rows), -(-n // columns), 2 * slices
        device.launch(tile_name(passes, tile, *turned), grid, *fields)
        return [out.get()]

    found = in_every_order(run)[0]
    exact, size = (f(left.astype(float)) @ f(right.astype(float)) for f in (lambda x: x, np.abs))
    with np.errstate(invalid="ignore"):
        error = np.abs(found.astype(float).sum(axis=0) - exact) / size
    return found, error.max()


@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("passes", [1, 3])
def test_products(passes, tile, turned):
    """Edges of tiles and of terms; the bits are those of any other tile."""
    for shape, slices in {
        (70, 67, 83): 1, (64, 64, 32): 1, (1, 17, 1): 1, (129, 65, 17): 1, (19, 18, 100): 3,
    }.items():  # fmt: skip
        found, error = errors(np.random.default_rng(3), passes, tile, turned, shape, slices)
        assert error <= BOUND[passes]
        other = "some" if tile != "some" else "few"
        again, _ = errors(np.random.default_rng(3), passes, other, (False, True), shape, slices)
        np.testing.assert_array_equal(found, again)


def test_three_passes_are_needed(rng):
    """The control: plain TF32 is far outside of the bound of three products."""
    assert errors(rng, 1, "some", (False, False), (70, 67, 83))[1] > 50 * BOUND[3]


def test_no_terms():
    """A sum of none is 0, as an LSTM's first step asks for."""
    found, _ = errors(np.random.default_rng(1), 3, "some", (False, False), (20, 20, 0))
    assert (found == 0.0).all()


def test_numbers_that_are_lost(rng):
    """Infinity and NaN do not vanish in three products."""
    for bad in (np.inf, -np.inf, np.nan, 3.4e38):
        left = rng.normal(size=(1, 20, 30)).astype(np.float32)
        left[0, 3, 7] = bad
        right = 10.0 + rng.normal(size=(1, 30, 20)).astype(np.float32)
        fields = (left, 600, 30, right, 600, 20)

        def run(device, fields=fields):
            out = xp.empty((20, 20), np.float32)
            given = [xp.asarray(f) if isinstance(f, np.ndarray) else f for f in fields]
            name = tile_name(3, "some", turned_a=False, turned_b=False)
            device.launch(
                name, (1, 1, 1), *given, out, 400, 400, 0, 0, 20, 20, 0, 20, 20, 30, 1, 30
            )
            return [out.get()]

        found = in_every_order(run)[0]
        assert not np.isfinite(found[3]).any()
        assert np.isfinite(np.delete(found, 3, axis=0)).all()


def test_faults():
    """A missing barrier, and lanes that do not come: noticed, and only there."""
    values = np.arange(1.0, 65.0, dtype=np.float32)
    out = np.zeros(64, np.float32)
    rows = np.arange(32) // 4
    expected = {
        "FragmentsTooEarly": 8 * np.concatenate([values[32 + rows], values[rows]]),
        "ProductOfSomeLanes": np.full(64, 8.0),
    }
    assert set(expected) == set(FAULTS)
    for name, result in expected.items():
        found = launched(f"{name}<false>", (1, 1, 1), out, values)
        np.testing.assert_array_equal(found, result)
        with pytest.raises((AssertionError, RuntimeError)):
            launched(f"{name}<true>", (1, 1, 1), out, values)


def test_every_tile_is_a_kernel_of_the_list():
    """What is compiled for devices has the tiles of this file."""
    from tests.support.cuda import kernel_list

    names = [n for n in kernel_list.names() if n.startswith("TensorProduct<")]
    found = {tuple(int(x) for x in n.rstrip(">").split(", ")[-4:]) for n in names}
    wanted = {(passes, *tile) for passes in (1, 3) for tile in TILES.values()}
    # gradients are plain TF32, gates are forward: no other pair is missing
    assert found == wanted
    assert "TensorProduct" in kernel_sources.source()
