"""Products of few rows, whose terms eight warps share out: against NumPy, in every order.

A sum of K products of normals in float32 errs by at most 4e-6 sqrt(K) here.
"""

import numpy as np
import pytest

from ribbit._arrays.device import pack
from ribbit._backends.cuda.layers import few_rows, products
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.kernel_list import FEW_ROWS_PRODUCTS
from tests.support.cuda.problems import check, evaluate, problem, program_of, starts
from tests.support.cuda.thread_orders import compile_all, in_every_order

pytestmark = pytest.mark.kernels

SHAPES = [(1, 17, 64), (32, 16, 128), (33, 20, 100), (70, 36, 129), (128, 64, 784)]
CHAINS = 2


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all(FEW_ROWS_PRODUCTS)


def slow(a, b):
    """Sums of every eighth sixteen terms, in float64; then these."""
    k = a.shape[-1]
    turns = np.arange(k) // 16 % 8
    return sum(
        a[..., turns == warp].astype(float) @ b[:, turns == warp].astype(float) for warp in range(8)
    )


def launched(a, b, *, transposed, four):
    """The product of a (C, m, k) and b (C, k, n) in memory, through the sink of deltas."""
    (_, m, k), n = a.shape, b.shape[-1]
    stored = np.ascontiguousarray(b.transpose(0, 2, 1)) if transposed else b

    def run(device):
        spare = 0 if four else 1  # numbers before each array

        def upload(array):
            flat = np.concatenate([np.zeros(spare), array.ravel()]).astype(np.float32)
            held = xp.asarray(flat)
            return held, device.pointer(held) + 4 * spare

        (_a, at_a), (_b, at_b) = upload(a), upload(stored)  # alive until the end
        out = xp.empty((CHAINS * m * n + 4,), np.float32)
        left = products.matrix("float", at_a, m * k, k)
        right = products.matrix("float", at_b, k * n, k if transposed else n, transposed=transposed)
        name, sink = "DeltaSink<float>", (device.pointer(out), None, m * n, n, None, 0, 0)
        fits = four and n % 4 == 0
        into = products.Operand(name, sink, plain=True, aligned=fits)
        launch = few_rows.product(left, right, into, m=m, n=n, k=k)
        assert launch.name in FEW_ROWS_PRODUCTS
        device.kernels([launch.name])[launch.name](
            launch.grid_of(CHAINS), pack(device, launch.fields), launch.shared
        )
        return [out.get()[: CHAINS * m * n].reshape(CHAINS, m, n)]

    return in_every_order(run)[0]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product(rng, shape, transposed):
    """Whatever the alignment, the same bits."""
    m, n, k = shape
    a = rng.normal(size=(CHAINS, m, k)).astype(np.float32)
    b = rng.normal(size=(CHAINS, k, n)).astype(np.float32)
    found = [launched(a, b, transposed=transposed, four=four) for four in (True, False)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], slow(a, b), rtol=0, atol=4e-6 * k**0.5)
    b[0, k - 1, 0] += 1.0  # the control
    other = launched(a, b, transposed=transposed, four=True)
    assert (other[0, :, 0] != found[0][0, :, 0]).all()
    np.testing.assert_array_equal(other[:, :, 1:], found[0][:, :, 1:])


def test_pairs_of_lanes_read_the_same_sixteen_bytes():
    """Lanes n and n ^ 2 have one row, n and n ^ 1 one column: as FewRowsProduct has them."""
    lane = np.arange(32)
    row, column = lane % 2 + lane // 8 * 2, lane // 2 % 4
    assert len(set(zip(row.tolist(), column.tolist(), strict=True))) == 32
    np.testing.assert_array_equal(row, row[lane ^ 2])
    np.testing.assert_array_equal(column, column[lane ^ 1])


def test_who_takes_them():
    """By the rows of a run, not of a panel; never where tensor cores multiply."""
    assert few_rows.takes("float", 128, 256, 784, 0)
    for other in (
        ("double", 128, 256, 784, 0),
        ("float", 513, 256, 784, 0),
        ("float", 128, 16, 784, 0),
        ("float", 128, 256, 63, 0),
        ("float", 128, 256, 784, 3),
    ):
        assert not few_rows.takes(*other)


@pytest.mark.parametrize("name", ["categorical", "learned"])
def test_a_posterior(rng, name):
    """Against the core; one chain has the bits that it has among seven."""
    target = problem(rng, name, rows=70, hidden=(72, 68), dtype="float32")
    theta = starts(rng, target, chains=7)
    program = program_of(target, 7)
    names = [one.name for one in program._gradient]
    assert sum(one.startswith("FewRowsProduct<") for one in names) == 2
    check(target, theta[:3])
    terms, grad = evaluate(program, theta)
    alone = evaluate(program_of(target, 1, device=CpuDevice()), theta[3:4])
    np.testing.assert_array_equal(alone[0], terms[3:4])
    np.testing.assert_array_equal(alone[1], grad[3:4])
