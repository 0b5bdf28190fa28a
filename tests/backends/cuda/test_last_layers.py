"""The last two layers of predictions in TF32 as one kernel: bit for bit what their definition says.

`expected` is that definition in NumPy. Factors are rounded to TF32, ties to even; 8 terms at a time
are added to a sum, which is truncated (test_tensor_cores.py). What follows is in float32, fused
multiply-adds one after the other: lane t of the four warps side by side has columns 8 j + 2 t and
8 j + 2 t + 1 of its warp's, lanes are added by twos, warps one after the other.
"""

from functools import partial

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.device import STATIC_SHARED, pack
from ribbit._arrays.namespace import device_of
from ribbit._backends.cuda.layers import last_layers, products
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.cpu_device import CpuDevice
from tests.support.cuda.kernel_list import LAST_LAYERS
from tests.support.cuda.precision_problem import build
from tests.support.cuda.tf32 import nearest
from tests.support.cuda.thread_orders import compile_all, in_every_order

SMALL = 99 << 10
CHAINS = 2
SHAPES = [(1, 20, 1), (7, 33, 2), (129, 48, 10), (300, 16, 16)]  # rows, terms, outputs
SAMPLES = 3


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    compile_all(LAST_LAYERS)


def truncated(sums):
    near = sums.astype(np.float32)
    bits = near.view(np.uint32)
    further = (np.abs(near.astype(np.float64)) > np.abs(sums)) & np.isfinite(near)
    return np.where(further, bits - 1, bits).astype(np.uint32).view(np.float32)


def fused(a, b, c):
    """a b + c, rounded once but where float64 rounds it to half of float32's last place."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def expected(a, b, bias, last, last_bias, columns):
    """Of one chain; columns: of a block."""
    (m, k), n = a.shape, b.shape[1]
    left, right = nearest(a, ties_away=False), nearest(b, ties_away=False)
    sums = np.zeros((m, n), np.float32)
    for begin in range(0, k, 8):
        total = sums.astype(np.float64)
        for term in range(begin, min(begin + 8, k)):
            total += left[:, term, None].astype(np.float64) * right[term]
        sums = truncated(total)
    hidden, weights = np.zeros((m, columns), np.float32), np.zeros((columns, last.shape[1]))
    hidden[:, :n], weights[:n] = np.maximum(sums + bias, 0), last
    result = None
    for warp in np.split(np.arange(columns), 4):
        lanes = []
        for t in range(4):
            part = np.zeros((m, last.shape[1]), np.float32)
            for u in warp.reshape(-1, 8)[:, 2 * t : 2 * t + 2].ravel():
                part = fused(hidden[:, u, None], weights[u], part)
            lanes.append(part)
        of_warp = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
        result = of_warp if result is None else result + of_warp
    return result + last_bias


def arrays(rng, m, n, k, outputs):
    shapes = (m, k), (k, n), (n,), (n, outputs), (outputs,)
    return [rng.standard_normal((CHAINS, *shape)).astype(np.float32) for shape in shapes]


def made(given, rows, vectors):
    """What tiles of some rows make of (a, b, bias, last, its bias), unaligned without vectors."""
    (_, m, k), (_, _, n), outputs = given[0].shape, given[1].shape, given[4].shape[1]
    columns, off = last_layers._columns(n), 0 if vectors == 4 else 1
    held = []
    for array in given:
        held.append(np.full((CHAINS, -(-array[0].size // 4) * 4 + off), np.nan, np.float32))
        held[-1][:, off : off + array[0].size] = array.reshape(CHAINS, -1)
    name = f"LastLayers<1, ActivationSink<float, 0>, {rows}, {columns}, {vectors}, {vectors}>"
    size = last_layers._shared(rows, columns)

    def run(device):
        out = xp.asarray(np.full((CHAINS, m * outputs + 3), 7.0, np.float32))
        own = [xp.asarray(array) for array in held]
        a, b, bias, last, last_bias = (device.pointer(array) + 4 * off for array in own)
        strides = [array.shape[1] for array in held]
        fields = [a, strides[0], k, b, strides[1], n, bias, strides[2], last, strides[3], outputs]
        fields += [last_bias, strides[4], out, None, m * outputs + 3, outputs, m, n, k, outputs]
        kernel = device.kernels([name])[name]
        grid = -(-m // rows), 1, CHAINS
        kernel(grid, pack(device, fields), size if size > STATIC_SHARED else 0)
        return [out.get()]

    (found,) = in_every_order(run)
    assert (found[:, m * outputs :] == 7.0).all()
    return found[:, : m * outputs].reshape(CHAINS, m, outputs)


TILES = [(32, 128), (64, 192), (128, 256), (256, 128), (128, 320), (128, 416)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("vectors", [4, 1])
def test_bits(rng, tile, shape, vectors):
    rows, columns = tile
    m, k, outputs = shape
    n = columns - 3 if vectors == 1 else columns - 12
    k = -(-k // vectors) * vectors
    given = arrays(rng, m, n, k, outputs)
    found = made(given, rows, vectors)
    wanted = np.stack([expected(*(array[c] for array in given), columns) for c in range(CHAINS)])
    np.testing.assert_array_equal(found, wanted)
    # the control: of the wide layer's columns in another order
    turned = [given[0], *(given[i][..., ::-1] for i in (1, 2)), given[3][:, ::-1], given[4]]
    other = np.stack([expected(*(array[c] for array in turned), columns) for c in range(CHAINS)])
    assert m * outputs < 10 or (found != other).any()


def test_bits_do_not_depend_on_the_tile(rng):
    """Nor on the other rows: 64 rows of a block where shared memory is small."""
    given = arrays(rng, 130, 400, 20, 10)
    found = made(given, 128, 4)
    np.testing.assert_array_equal(made(given, 64, 4), found)
    np.testing.assert_array_equal(made([given[0][:, 77:80], *given[1:]], 64, 4), found[:, 77:80])


def test_infinity_stays_one(rng):
    """Columns beyond the last, whose factors are 0, do not make it NaN; NaN stays in its row."""
    given = [np.abs(array) for array in arrays(rng, 9, 400, 20, 2)]
    given[0][:, 3, 5], given[0][:, 6, 19] = np.inf, np.nan
    found = made(given, 64, 4)
    assert np.isinf(found[:, 3]).all()
    assert np.isnan(found[:, 6]).all()
    assert np.isfinite(np.delete(found, (3, 6), axis=1)).all()


def names_of(monkeypatch, run):
    """Kernels without their arguments that a call launches."""
    found = []
    inner = CpuDevice.kernels

    def kernels(self, names):
        found.extend(name.partition("<")[0] for name in names)
        return inner(self, names)

    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "kernels", kernels)
        return run(), found


def outputs(device, model, precision="tf32", rows=300):
    """Of weights around those of `init`, whose biases are zero."""
    target = build(device, model, precision, rows=rows)
    theta = target.init(1, chains=SAMPLES).get()
    theta += np.random.default_rng(2).normal(0, 0.2, theta.shape).astype(theta.dtype)
    return target.outputs(device.asarray(theta), target.x).get()


def test_predictions(device, monkeypatch):
    """Close to float32; the same bits in panels, passes and with small shared memory."""
    model = rb.mlp(20, (30, 90), 2, activation="silu")
    exact, (found, names) = (
        outputs(device, model, "float32"),
        names_of(monkeypatch, lambda: outputs(device, model)),
    )
    if isinstance(device_of(device, "test"), CpuDevice):
        assert "LastLayers" in names
    size = np.abs(exact).max()
    assert 1e-5 * size < np.abs(found - exact).max() < 2.0**-8 * size
    np.testing.assert_array_equal(outputs(device, model, rows=7), found[:, :7])
    with monkeypatch.context() as patch:
        patch.setattr("ribbit._backends.cuda.forward._PANEL_ROWS", 128)
        patch.setattr("ribbit._backends.cuda.forward._MOST_SAMPLES", 2)
        np.testing.assert_array_equal(outputs(device, model), found)
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "block_shared", SMALL)
        np.testing.assert_array_equal(outputs(device, model), found)


DENSE, RELU = rb.Dense, rb.Activation("relu")


@pytest.mark.parametrize(
    ("layers", "precision", "together"),
    [
        ([DENSE(90), RELU, DENSE(16)], "tf32", True),
        ([DENSE(90), RELU, DENSE(2), rb.Activation("tanh")], "tf32", True),
        ([DENSE(90, bias=False), DENSE(1, bias=False)], "tf32", True),
        ([DENSE(90), RELU, rb.Dropout(0.1), DENSE(2)], "tf32", True),  # nothing is dropped
        ([DENSE(90), RELU, DENSE(17)], "tf32", False),
        ([DENSE(64), RELU, DENSE(2)], "tf32", False),
        ([DENSE(417), RELU, DENSE(2)], "tf32", False),
        ([DENSE(90), rb.LayerNorm(), DENSE(2)], "tf32", False),
        ([DENSE(90), rb.Residual([DENSE(90)]), DENSE(2)], "tf32", False),
        ([DENSE(2)], "tf32", False),
        ([DENSE(90), RELU, DENSE(2)], "mixed", False),
        ([DENSE(90), RELU, DENSE(2)], "float32", False),
    ],
)
def test_which_layers(device, monkeypatch, layers, precision, together):
    if not isinstance(device_of(device, "test"), CpuDevice):
        pytest.skip("counts launches of the device made of the CPU")
    model = rb.Model(layers, input_shape=(12,))
    found, names = names_of(monkeypatch, lambda: outputs(device, model, precision, rows=9))
    assert ("LastLayers" in names) == together
    exact = outputs(device, model, "float32", rows=9)
    size = np.abs(exact).max()
    np.testing.assert_allclose(found, exact, rtol=0, atol=2.0**-7 * size)


def test_a_gradient_makes_each_layer(device, monkeypatch):
    """It needs the values between them."""
    target = build(device, rb.mlp(20, (90,), 2, activation="relu"), "tf32")
    theta = target.init(1, chains=SAMPLES)
    _, names = names_of(monkeypatch, lambda: target.value_and_grad(theta))
    assert "LastLayers" not in names


def mean_of(fit, x):
    return fit.predict(x, 5).mean.get()


BELOW = [DENSE(70), RELU, rb.Dropout(0.2), DENSE(90), RELU, DENSE(1)]
BETWEEN = [*BELOW[:-1], rb.Dropout(0.5), BELOW[-1]]


@pytest.mark.parametrize(
    ("layers", "together"), [(BELOW, True), (BETWEEN, False)], ids=("below", "between")
)
def test_masks(device, monkeypatch, layers, together):
    """Of MC dropout: two last layers of one mask, values below it made once; none is left out."""
    means, names = {}, []
    for precision in ("float32", "tf32"):
        target = build(device, rb.Model(layers, input_shape=(12,)), precision)
        theta = target.masked(precision=4.0).init(0, chains=1)
        fit = rb.MCDropout(target, precision=4.0, batch_size=8).fit(
            1, init=theta[0], progress=False
        )
        means[precision], names = names_of(monkeypatch, partial(mean_of, fit, target.x))
    if isinstance(device_of(device, "test"), CpuDevice):
        assert ("LastLayers" in names) == together
    size = np.abs(means["float32"]).max()
    assert 0 < np.abs(means["tf32"] - means["float32"]).max() < 2.0**-7 * size


def test_every_tile_fits():
    """Of all widths on devices of all sizes: the names of kernels that are listed, or like them."""

    def launch(n, m, room):
        a, b, last = (products.matrix("float", 0, 0, width) for width in (64, n, 10))
        sink = products.activation_sink("float", 0, None, 0, 0, None, 0, 10)
        sizes = {"m": m, "n": n, "k": 64, "outputs": 10, "chains": 128}
        return last_layers.launch(a, b, (None, 0), last, 1, sink, **sizes, room=room)

    tiles = set()
    for n in range(65, 417):
        for m in (1, 100, 10_000):
            for room in (227 << 10, 163 << 10, SMALL):
                one = launch(n, m, room)
                assert one is not None
                assert one.shared <= room
                tiles.add(tuple(map(int, one.name.split(", ")[3:5])))
    assert {columns for _, columns in tiles} == set(last_layers._COLUMNS)
    assert (128, 416) in tiles
    assert (64, 416) in tiles
    assert launch(400, 1 << 26, 227 << 10) is None


def test_the_rule_knows_no_rows():
    """By count: not where wide products of many terms are faster."""
    assert last_layers.takes(400, 400, 10)
    assert last_layers.takes(400, 784, 10)
    assert not last_layers.takes(400, 10_000, 10)
    for n, outputs in ((64, 10), (417, 10), (400, 17)):
        assert not last_layers.takes(n, 400, outputs)
