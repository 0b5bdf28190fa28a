"""Gradients of every layer from the device's kernels, run on the CPU, against the CPU core.

float64: differences of summation order alone, <= 1e-11 of the largest entry; float32: <= 1e-5 of
it. No result depends on the order of blocks and threads, or on which chains run beside.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.cuda import forward
from ribbit._backends.cuda.forward import Forward
from ribbit._backends.cuda.programs import gradient, slices
from ribbit._backends.cuda.samples import Stored
from tests.support import layer_problems as problems
from tests.support.cuda.compiler import Compiler
from tests.support.cuda.cpu_device import NAMESPACE, CpuDevice
from tests.support.cuda.problems import evaluate, program_of
from tests.support.layer_problems import SILU, TANH, net

pytestmark = pytest.mark.kernels

BOUND = {"float32": 1e-5, "float64": 1e-11}
COMPILER = Compiler()  # of all tests here: what one compiled serves the next
CONVOLUTIONS = dict(list(problems.conv_models().items())[::5])
FUSED = {"frn and tanh", "frn and sigmoid", "frn and gelu", "frn and softplus", "frn and identity"}
NETWORKS = CONVOLUTIONS | {
    name: model
    for name, model in {**problems.SMOOTH, **problems.KINKED}.items()
    if name not in FUSED
}
FAMILIES = {  # one of each, in float32 and in other orders of threads
    "convolutions": net((7, 6, 3), rb.Conv2D(9, 3, padding="same"), SILU, rb.Conv2D(17, 2), TANH),
    "strides": net((7, 6, 2), rb.Conv2D(5, 3, stride=2, padding="same"), rb.Conv2D(3, 2, stride=2)),
    "pools": net((7, 6, 3), rb.Conv2D(5, 2), rb.MaxPool2D(2), TANH, rb.AvgPool2D(2, stride=1)),
    "norms": net((5, 4, 3), rb.Conv2D(35, 2), rb.FilterResponseNorm(), SILU, rb.LayerNorm()),
    "residual": net(
        (5, 4, 3), rb.Conv2D(5, 1), rb.Residual([rb.Conv2D(5, 3, padding="same"), TANH]), SILU
    ),
    "embedding": net((11,), rb.Embedding(70, 35), rb.Conv1D(3, 3), SILU),
    "lstm": net((6,), rb.Embedding(7, 5), rb.LSTM(17, sequence=True), TANH, rb.LSTM(5)),
}
DROPS = {
    "units": net((4, 3, 2), rb.Dropout(0.3), rb.Conv2D(3, 2), rb.Dropout(0.4), TANH),
    "behind an activation": net((5,), rb.Dense(7), TANH, rb.Dropout(0.5), rb.Dense(6)),
    "channels": net(
        (4, 3, 3), rb.Conv2D(5, 2), TANH, rb.Dropout(0.4, spatial=True), rb.Conv2D(2, 2), SILU
    ),
    "sequences": net(
        (6, 3), rb.Dropout(0.3, spatial=True), rb.LSTM(5, sequence=True), rb.Dropout(0.2)
    ),
    "residual": net(
        (4, 3, 2),
        rb.Residual([rb.Conv2D(2, 3, padding="same"), TANH, rb.Dropout(0.5, spatial=True)]),
        rb.Dropout(0.25),
    ),
    "two in a row": rb.Model(
        [rb.Dense(9), rb.Residual([rb.Dropout(0.5), rb.Dropout(0.25)]), rb.Dense(2)],
        input_shape=(3,),
    ),
}


def device(seed=1):
    made = CpuDevice(COMPILER)
    made.seed = seed
    return made


def posterior(model, dtype="float64", *, rows=5, chains=2, **options):
    """A target and starts (C, P)."""
    problem = problems.problem(model, num_rows=rows, chains=chains)
    return problem.native(np.dtype(dtype), **options), problem.theta.astype(dtype)


def check(target, theta, rows=None):
    program = program_of(target, len(theta), rows=rows, device=device())
    terms, grad = evaluate(program, theta)
    bound = BOUND[str(target.dtype)]
    lp, expected = target.value_and_grad(theta, rows)
    np.testing.assert_allclose(grad, expected, rtol=0, atol=bound * np.abs(expected).max())
    np.testing.assert_allclose(terms.sum(axis=1), lp, rtol=bound * 10, atol=bound)


def masked(program, theta, *, seed, step, sample):
    """Terms and gradient under the masks of an address."""
    program.masks[...] = NAMESPACE.asarray(np.array([seed, step, sample], dtype=np.uint64))
    return evaluate(program, theta)


@pytest.fixture(scope="module")
def compiled():
    """Kernels of all small networks, compiled at once."""
    programs = [program_of(posterior(model)[0], 1, device=device()) for model in NETWORKS.values()]
    COMPILER(tuple(dict.fromkeys(name for program in programs for name in program.names)))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    check(*posterior(NETWORKS[name]))


@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("family", FAMILIES)
def test_float32(family, rows):
    check(*posterior(FAMILIES[family], "float32", rows=rows, chains=3))


@pytest.mark.parametrize("family", FAMILIES)
def test_minibatches(family):
    check(*posterior(FAMILIES[family], "float32", rows=31), rows=[3, 30, 3, 0, 17, 8])


@pytest.mark.parametrize("family", FAMILIES)
def test_panels(family, monkeypatch):
    """Several panels, the last one short, add up to one pass."""
    target, theta = posterior(FAMILIES[family], "float32", rows=23)
    monkeypatch.setattr(gradient, "run_rows", lambda *_: 10)
    check(target, theta)
    check(target, theta, rows=list(range(22, 1, -1)))


@pytest.mark.parametrize("family", FAMILIES)
def test_order_of_threads_and_chains(family, monkeypatch):
    """The same bits whatever the order of blocks and threads, alone and beside other chains."""
    monkeypatch.setattr(slices, "_SLICE", 32)  # partial sums of these small problems too
    target, theta = posterior(FAMILIES[family], "float32", rows=13, chains=3)
    found = [
        evaluate(program_of(target, chains, device=device(seed)), theta)
        for chains, seed in ((3, 1), (3, 77), (3, 12345), (5, 1))
    ]
    for terms, grad in found[1:]:
        np.testing.assert_array_equal(terms, found[0][0])
        np.testing.assert_array_equal(grad, found[0][1])
    terms, grad = evaluate(program_of(target, 1, device=device()), theta[1:2])
    np.testing.assert_array_equal(grad, found[0][1][1:2])
    np.testing.assert_array_equal(terms, found[0][0][1:2])


def test_values_alone():
    """A run without gradients gives the same terms, and leaves the gradient as it is."""
    target, theta = posterior(FAMILIES["norms"], "float32")
    program = program_of(target, 2, device=device())
    terms, grad = evaluate(program, theta)
    program.terms[...] = np.nan
    program.grad[...] = 7.0
    program.run(2, gradient=False, values=True)
    np.testing.assert_array_equal(program.terms.get(), terms)
    assert (program.grad.get() == 7.0).all()
    assert np.isfinite(grad).all()


@pytest.mark.parametrize("name", problems.ZOO)
def test_zoo(name):
    check(*posterior(problems.ZOO[name](), rows=3))


def test_images(rng):
    """Bytes of images are divided by 255; of equal numbers a max pool takes the first."""
    model = net(
        (6, 5, 1), rb.Conv2D(3, 1), SILU, rb.MaxPool2D(3, stride=1, padding="same"), outputs=3
    )
    x = 80 * rng.integers(0, 3, size=(9, 6, 5, 1)).astype(np.uint8)
    y = rng.integers(0, 3, size=9)
    target = rb.Posterior(
        model, x, y, prior=rb.Normal(0.6), likelihood=rb.Categorical(), dtype="float64"
    )
    theta = (0.4 * rng.normal(size=(2, target.dim))).astype(target.dtype)
    check(target, theta)
    check(target, theta, rows=[8, 1, 1])


def test_values_at_the_threshold(rng):
    """The norm's threshold takes the delta of values that equal it."""
    model = net((3, 4, 2), rb.FilterResponseNorm(), TANH)
    x = rng.integers(-1, 2, size=(5, 3, 4, 2)).astype(float)
    target = rb.Posterior(
        model, x, rng.normal(size=(5, 2)), prior=rb.Normal(0.6), likelihood=rb.Gaussian(0.4)
    )
    check(target, target.init(1, chains=2))  # shift and threshold 0


@pytest.mark.parametrize(
    ("below", "reaches"),
    [(rb.MaxPool2D(2), False), (TANH, False), (rb.FilterResponseNorm(), True)],
)
def test_deltas_that_nobody_needs(below, reaches):
    """No launch makes the gradient of a value that no parameter is behind."""
    target, _ = posterior(net((4, 4, 2), below, rb.Conv2D(3, 2)))
    names = program_of(target, 1, device=device()).names
    assert any("DeltaPatches" in name for name in names) is reaches
    assert not any(n.startswith(("PoolBackward", "HandDown")) for n in names)


ADDRESSES = ((0, 0, 0), (2**64 - 3, 2**40 - 1, 5), (12345, 2**32 + 7, 2**32 - 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [None, [3, 10, 3, 0, 7]])
@pytest.mark.parametrize("name", DROPS)
def test_masks(name, rows, dtype):
    """Chain c has the masks of sample + c, and a row those of its number."""
    target, theta = posterior(DROPS[name], dtype, rows=11, chains=3)
    program = program_of(target, 3, device=device(), rows=rows, rates=target.model.rates)
    batch = None if rows is None else np.array(rows)
    native = target.masked()._native
    for seed, step, sample in ADDRESSES:
        terms, grad = masked(program, theta, seed=seed, step=step, sample=sample)
        *expected, slope = native.masked_value_and_grad(theta, batch, seed, step, sample)
        bound = BOUND[dtype]
        np.testing.assert_allclose(grad, slope, rtol=0, atol=bound * np.abs(slope).max())
        np.testing.assert_allclose(terms, np.stack(expected, 1), rtol=bound * 10, atol=bound)


@pytest.mark.parametrize("name", ["channels", "two in a row"])
def test_masks_of_panels_and_threads(name, monkeypatch):
    """A row's mask does not depend on its panel, nor a bit on the order of threads or on chains."""
    target, theta = posterior(DROPS[name], rows=23, chains=3)
    rates, where = target.model.rates, {"seed": 3, "step": 9, "sample": 4}
    whole = program_of(target, 3, device=device(), rates=rates)
    expected = masked(whole, theta, **where)
    other = program_of(target, 5, device=device(99), rates=rates)
    for found, known in zip(masked(other, theta, **where), expected, strict=True):
        np.testing.assert_array_equal(found, known)
    monkeypatch.setattr(gradient, "run_rows", lambda *_: 10)
    cut = program_of(target, 3, device=device(), rates=rates)
    for found, known in zip(masked(cut, theta, **where), expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-11 * np.abs(known).max())


def test_panels_of_inputs_that_nothing_drops(monkeypatch):
    """A Dropout with nothing to do has the value of its input: the panel's, not the first one's."""
    monkeypatch.setattr(gradient, "run_rows", lambda *_: 10)
    target, theta = posterior(DROPS["units"], rows=23)
    check(target, theta)
    monkeypatch.setattr(forward, "_PANEL_ROWS", 1)
    x = NAMESPACE.asarray(target.x)
    made = Forward(device(), target.model.table, x, Stored(NAMESPACE.asarray(theta)), len(theta))
    assert made.rows == 1
    model = target.model
    expected = target.outputs(theta, target.x.reshape(-1, *model.input_shape))
    outputs = forward.numbered_outputs(made, 0, len(theta), model.output_shape[0], 0)[0].get()
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_rates_of_zero_are_no_masks():
    target, theta = posterior(DROPS["units"])
    program = program_of(target, 2, device=device(), rates=np.zeros(len(target.model.table)))
    assert program.masks is None
    for found, known in zip(
        evaluate(program, theta),
        evaluate(program_of(target, 2, device=device()), theta),
        strict=True,
    ):
        np.testing.assert_array_equal(found, known)
