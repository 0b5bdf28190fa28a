"""Wide products on tensor cores: the bits of the small ones, whatever the tiles and alignment.

A row of ones is summed outside of the tensor cores: the bits of float32's `Product`. Against double
precision in units of sum |a| |b|: see test_tensor_cores.
"""

import numpy as np
import pytest

from tests.support.cuda.kernel_list import WIDE_TENSOR_PRODUCTS as WIDE
from tests.support.cuda.thread_orders import compile_all
from tests.support.cuda.wide_products import CHAINS, SHAPES, fitting, launched, split, tile_of

pytestmark = pytest.mark.kernels


def plain(name):
    """The products of the same operands by small tiles: on tensor cores, and in float32."""
    (a, b, sink), (passes, *_) = split(name)
    operands = f"{a}, {b}, {sink}"
    return [
        f"TensorProduct<{operands}, {passes}, 64, 64, 4>",
        f"Product<float, {operands}, 64, 64, 16>",
    ]


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all([*WIDE, *dict.fromkeys(one for name in WIDE for one in plain(name))])


@pytest.mark.parametrize("shape", SHAPES[::2], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_bits_are_those_of_the_plain_product(rng, name, shape):
    m, n, _, slices = shape = fitting(name, shape)
    wide, small, exact = launched(rng, name, plain(name), shape)
    if "WithOnes" in name:
        rows = [found[0].reshape(slices, CHAINS, m + 1, n) for found in (wide, small, exact)]
        np.testing.assert_array_equal(rows[0][:, :, :m], rows[1][:, :, :m])
        np.testing.assert_array_equal(rows[0][:, :, m], rows[2][:, :, m])
        assert (rows[0][:, :, m] != rows[1][:, :, m]).any()  # the control: of rounded numbers
    else:
        for got, expected in zip(wide, small, strict=True):
            np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    assert (wide[0] != exact[0]).any()
    assert (wide[0] != 7.0).any()


def test_every_kind_of_tile_is_listed():
    from ribbit._backends.cuda.layers import products

    tiles = {(*tile_of(name), split(name)[1][3]) for name in WIDE}
    assert tiles == {(*tile, across) for tile, (across, *_) in products._TENSOR_TILES.items()}
