"""Stochastic-gradient steps on arrays of a device (made of the CPU) against the same on NumPy.

float64: differences of summation order alone, 1e-11 after ten steps; float32: 1e-5.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit._arrays.namespace import device_of
from ribbit._backends.cuda import density as cuda_density
from ribbit._backends.cuda import steps as cuda_steps
from ribbit._backends.cuda.density import DeviceDensity
from ribbit._backends.cuda.programs import plan
from ribbit.targets.native import NativeSteps
from tests.backends.cuda.steps_problem import MODEL, RNG, ROWS, RULES, Y, bits, pair, same, steps
from tests.support import layer_problems
from tests.support.cuda.problems import tables_of
from tests.support.layer_problems import SILU, TANH, net

BOUND = {"float64": 1e-11, "float32": 1e-5}


# --- every step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("batch", [1, 10, 12, ROWS])
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_numpy(device, rule, batch, dtype):
    """Batches of 10 and 12 leave a short last one; ten steps are several epochs."""
    host, on_device = pair(device, dtype=dtype, temperature=0.8, likelihood_temperature=1.3)
    theta = 0.4 * host.init(seed=3, chains=3)
    expected, failed, largest = steps(host, theta, rule, batch)
    found, *outcome = steps(on_device, theta, rule, batch)
    # Adam's moments are sums of squared gradients: up to 1e4
    sizes = [1.0 if a is None else max(1.0, float(np.abs(a).max())) for a in expected]
    for a, b, size in zip(found, expected, sizes, strict=True):
        same([a], [b], rtol=0, atol=BOUND[dtype] * size)
    np.testing.assert_array_equal(outcome, [failed, largest])
    assert np.abs(found[0] - theta).max() > 1e-3
    other = steps(on_device, theta, rule, batch, seed=6)[0][0]
    if rule != "adam" or batch < ROWS:  # the control; nothing random otherwise
        assert np.abs(other - found[0]).max() > 1e-4


@pytest.mark.parametrize("outputs", [31, 32])  # rows of P with and without wide loads
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rule", RULES)
def test_bits_of_the_rules(device, rule, dtype, outputs):
    """One input of 1, one row: both gradients are made of the same few operations.

    Division and reciprocal are exact on the device and within 1.5 ulp under AVX-512, which leaves
    the step within 2 ulp of the larger of the parameter and what is added. RIBBIT_ISA=avx2 takes
    the exact path.
    """
    x, y = np.ones((1, 1)), RNG.normal(size=(1, outputs))
    host, on_device = pair(device, rb.mlp(1, (), outputs), x, y, dtype=dtype)
    theta = RNG.normal(size=(3, host.dim)).astype(dtype)
    assert (on_device.value_and_grad(device.asarray(theta))[1].get().tobytes()) == (
        host.value_and_grad(theta)[1].tobytes()
    )
    exact = rule in ("langevin", "friction", "kinetic") or _core.isa() != "avx512"
    for count in (1, 6):
        options = {"count": count, "noise": np.full(count, 0.7)}
        expected, found = (steps(t, theta, rule, 1, **options)[0] for t in (host, on_device))
        if exact:
            assert bits(found) == bits(expected)
        elif count == 1:
            assert bits(found[1:]) == bits(expected[1:])
            unit = np.finfo(dtype).eps
            added = np.maximum(np.abs(theta), np.abs(expected[0] - theta))
            assert (np.abs(found[0] - expected[0]) <= 2 * unit * added).all()


@pytest.mark.parametrize("name", ["learned", "categorical", "poisson"])
def test_likelihoods_with_rows_of_each_chain(device, name):
    likelihood = {
        "learned": rb.Gaussian(),
        "categorical": rb.Categorical(),
        "poisson": rb.Poisson(),
    }
    y = {
        "learned": Y,
        "categorical": RNG.integers(0, 2, ROWS),
        "poisson": RNG.poisson(2.0, Y.shape),
    }
    host, on_device = pair(device, y=y[name], likelihood=likelihood[name])
    theta = 0.3 * host.init(seed=3, chains=3)
    for prior in (1.0, 0.0):
        expected, found = (
            steps(t, theta, "langevin", 10, prior=prior)[0] for t in (host, on_device)
        )
        same(found, expected, rtol=0, atol=1e-11)


def test_panels_of_a_batch(device, monkeypatch):
    host, on_device = pair(device)
    monkeypatch.setattr(plan, "_RUN", 1)
    monkeypatch.setattr(plan, "_PANEL_BYTES", 4 * 8 * 3 * (6 + 6 + 5 + 5 + 2))
    assert plan.run_rows(MODEL.table, 8) < 10
    theta = host.init(seed=3, chains=3)
    expected, found = (steps(t, theta, "friction", 10)[0] for t in (host, on_device))
    same(found, expected, rtol=0, atol=1e-11)


def test_bytes_of_images(device):
    x = RNG.integers(0, 256, size=(ROWS, 3, 3, 1), dtype=np.uint8)
    model = rb.Model([rb.Flatten(), rb.Dense(2)], input_shape=(3, 3, 1))
    host, on_device = pair(device, model, x)
    theta = host.init(seed=3, chains=3)
    for batch in (10, ROWS):
        expected, found = (steps(t, theta, "adam", batch)[0] for t in (host, on_device))
        same(found, expected, rtol=1e-11, atol=1e-11)


LAYERS = {
    "convolution": net((5, 4, 3), rb.Conv2D(5, 2), SILU, rb.FilterResponseNorm(), rb.MaxPool2D(2)),
    "sequence": net((6,), rb.Embedding(7, 5), rb.LSTM(5)),
    "masks": net((4, 3, 2), rb.Dropout(0.3), rb.Conv2D(3, 2), rb.Dropout(0.4, spatial=True), TANH),
}


@pytest.mark.parametrize("batch", [4, 11])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_masks_with_rows_of_each_chain(device, name, batch):
    """Masks are those of the step, of the chain's id and of the row's number in the data."""
    host = layer_problems.problem(LAYERS[name], num_rows=11, chains=3).native(np.dtype("float64"))
    theta = 0.3 * np.random.default_rng(2).normal(size=(3, host.dim))
    arguments = {"chains": [5, 6, 7], "moments": (np.full_like(theta, 0.02), None)}
    plain, rates = host, None
    if name == "masks":
        rates, host = host.model.rates, host.masked()
    x, y = device.asarray(plain.x), device.asarray(plain.y)
    native = DeviceDensity(device_of(device), tables_of(plain, rates), x, y, None)
    expected = steps(host, theta, "friction", batch, **arguments)[0]
    found = steps(OnDevice(native, device), theta, "friction", batch, **arguments)[0]
    same(found, expected, rtol=0, atol=1e-11)
    if name == "masks":
        with pytest.raises(ValueError, match=r"follow each other, got \[5, 7, 6\]"):
            steps(OnDevice(native, device), theta, "friction", batch, chains=[5, 7, 6])


class OnDevice(NativeSteps):
    """Steps of a density alone."""

    dtype = np.dtype("float64")

    def __init__(self, native, xp):
        self._native, self.array_namespace = native, xp


# --- what decides a bit --------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_bits_do_not_depend_on_threads_chains_or_pieces(device, rule, monkeypatch):
    theta = pair(device)[0].init(seed=3, chains=3).astype(np.float32)
    target = pair(device, dtype="float32")[1]
    whole = bits(steps(target, theta, rule, 10)[0])
    for seed in (77, 12345):  # and every launch has an order of its own
        monkeypatch.setattr(device_of(device), "seed", seed, raising=False)
        assert bits(steps(target, theta, rule, 10)[0]) == whole
    alone = steps(target, theta[1:2], rule, 10, chains=[4])[0]
    found = [np.frombuffer(b, np.float32).reshape(3, -1)[1:2] for b in whole if b is not None]
    assert bits(found) == [b for b in bits(alone) if b is not None]
    monkeypatch.setattr(cuda_steps, "_MOST_STEPS", 3)
    assert bits(steps(pair(device, dtype="float32")[1], theta, rule, 10)[0]) == whole
    monkeypatch.setattr(cuda_density, "MOST_CHAINS", 2)
    assert bits(steps(pair(device, dtype="float32")[1], theta, rule, 10)[0]) == whole


def test_steps_of_two_calls(device):
    """A call goes on where the one before ended, whatever was recorded in it."""
    target = pair(device)[1]
    theta = target.init(seed=3, chains=3).get()
    size, noise = np.full(10, 1e-3), np.ones(10)
    options = {"previous_step_size": 1e-3}  # the same everywhere
    whole, _, _ = steps(target, theta, "friction", 10, step_size=size, noise=noise, **options)
    now = [theta, np.full_like(theta, 0.02), None]
    for begin, end in ((0, 1), (1, 4), (4, 10)):
        some = {"step_size": size[begin:end], "noise": noise[begin:end], "first_step": 2 + begin}
        now, _, _ = steps(target, now[0], "friction", 10, moments=now[1:], **some, **options)
    assert bits(now) == bits(whole)
