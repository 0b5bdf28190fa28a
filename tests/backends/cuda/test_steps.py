"""Stochastic-gradient steps on arrays of a device (made of the CPU) against the same on NumPy.

float64: differences of summation order alone, 1e-11 after ten steps; float32: 1e-5.
"""

import contextlib

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core, schedules
from ribbit._arrays.namespace import device_of, from_host, to_host
from ribbit._arrays.threads import Interrupted
from ribbit._backends.cuda import density as cuda_density
from ribbit._backends.cuda import steps as cuda_steps
from ribbit._backends.cuda.density import DeviceDensity
from ribbit._backends.cuda.programs import plan
from ribbit.errors import NonFiniteError
from ribbit.samplers.sgmcmc import stepper
from ribbit.targets.native import NativeSteps
from tests.support import layer_problems
from tests.support.cuda.problems import tables_of
from tests.support.layer_problems import SILU, TANH, net

ROWS = 23
MODEL = rb.mlp(4, (6, 5), 2, activation="tanh")
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(ROWS, 4)), RNG.normal(size=(ROWS, 2))
OPTIONS = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(1.0)}
RULES = {  # code, first moment, second moment, step size
    "langevin": (0, False, False, 1e-2),
    "preconditioned": (0, False, True, 1e-3),
    "friction": (1, True, False, 1e-3),
    "adam": (2, True, True, 1e-2),
}
BOUND = {"float64": 1e-11, "float32": 1e-5}


def pair(device, model=MODEL, x=X, y=Y, **options):
    """The same posterior on NumPy and on the device."""
    given = {**OPTIONS, "dtype": "float64", **options}
    on_device = rb.Posterior(model, device.asarray(x), device.asarray(y), **given)
    return rb.Posterior(model, x, y, **given), on_device


def steps(target, theta, rule, batch, *, count=10, chains=None, seed=5, moments=None, **options):
    """Call ``advance``; the results on the host."""
    code, first, second, size = RULES[rule]
    xp, dtype = getattr(target, "array_namespace", np), target.dtype
    ids = np.array([0, 4, 9], dtype=np.uint32) if chains is None else np.array(chains, np.uint32)
    if moments is None:
        moments = [np.full_like(theta, 0.02) if has else None for has in (first, second)]
    given = {
        "seed": seed,
        "chains": ids,
        "first_step": 2,
        "batch_size": batch,
        "step_size": size * np.linspace(1.0, 0.6, count),
        "noise": np.where(np.arange(count) == 4, 0.0, 1.0),
        "rule": code,
        "prior": 1.0,
        "friction": 0.1,
        "decay": (0.9, 0.99),
        "epsilon": 1e-5,
        "adapt_until": 7,
        **options,
    }
    given_arrays = [None if a is None else a.astype(dtype) for a in (theta, *moments)]
    start = [None if a is None else from_host(xp, a) for a in given_arrays]
    before = [None if a is None else to_host(a).copy() for a in start]
    *arrays, failed, largest = target.advance(*start, **given)
    for a, b in zip(start, before, strict=True):  # inputs are not changed
        assert a is b or to_host(a).tobytes() == b.tobytes()
    return [None if a is None else to_host(a) for a in arrays], failed, largest


def same(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, **tolerance)


def bits(found):
    return [None if a is None else a.tobytes() for a in found]


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
    exact = rule in ("langevin", "friction") or _core.isa() != "avx512"
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
    monkeypatch.setattr(plan, "_PANEL_BYTES", 4 * 8 * 3 * (6 + 6 + 5 + 5 + 2))
    assert plan.panel_rows(MODEL.table, 8) < 10
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
    monkeypatch.setattr(cuda_density, "_MOST_CHAINS", 2)
    assert bits(steps(pair(device, dtype="float32")[1], theta, rule, 10)[0]) == whole


def test_steps_of_two_calls(device):
    """A call goes on where the one before ended, whatever was recorded in it."""
    target = pair(device)[1]
    theta = target.init(seed=3, chains=3).get()
    size, noise = np.full(10, 1e-3), np.ones(10)
    whole, _, _ = steps(target, theta, "friction", 10, step_size=size, noise=noise)
    now = [theta, np.full_like(theta, 0.02), None]
    for begin, end in ((0, 1), (1, 4), (4, 10)):
        some = {"step_size": size[begin:end], "noise": noise[begin:end], "first_step": 2 + begin}
        now, _, _ = steps(target, now[0], "friction", 10, moments=now[1:], **some)
    assert bits(now) == bits(whole)


# --- failures ------------------------------------------------------------------------------------


# Adam's steps do not grow with the gradient.
@pytest.mark.parametrize(
    ("how", "rule"),
    [(how, rule) for how in ("nan", "inf", "grows") for rule in RULES if rule != "adam"]
    + [("nan", "adam"), ("inf", "adam")],
)
@pytest.mark.parametrize("batch", [10, ROWS])
def test_a_failing_chain_stops_and_no_other_one(device, rule, batch, how):
    """Chain 1 leaves the range of float32 in the second of two wild steps, or is lost at once."""
    host, on_device = pair(device, rb.mlp(4, (), 2), dtype="float32")
    theta = host.init(seed=3, chains=3)
    place, value = {"grows": (5, 3e25), "nan": (5, np.nan), "inf": (-1, np.inf)}[how]
    theta[1, place] = value
    sizes = np.full(10, 1e-7)
    sizes[:2] = {"friction": 1e6, "adam": 1e-2}.get(rule, 2e6)
    options = {"step_size": sizes, "noise": np.zeros(10), "adapt_until": 0}
    expected, failed, largest = steps(host, theta, rule, batch, **options)
    found, found_failed, found_largest = steps(on_device, theta, rule, batch, **options)
    assert failed.tolist() == [-1, 1 if how == "grows" else 0, -1]
    np.testing.assert_array_equal(found_failed, failed)
    np.testing.assert_allclose(found_largest, largest, rtol=1e-5)
    for a, b in zip(found, expected, strict=True):
        if a is not None:
            np.testing.assert_allclose(a[1], b[1], rtol=1e-5)
    good = [0, 2]
    alone, _, _ = steps(on_device, theta[good], rule, batch, chains=[0, 9], **options)
    assert bits([a if a is None else a[good] for a in found]) == bits(alone)


def test_a_failed_run_brings_its_last_finite_state(device):
    errors = []
    for target in pair(device, rb.mlp(4, (), 2)):
        sampler = rb.SGLD(target, step_size=3.0, batch_size=10)
        state = sampler.init(target.init(seed=1, chains=2))
        with pytest.raises(NonFiniteError, match="got others in chain") as caught:
            sampler.step(state, num_steps=2000)
        errors.append(caught.value)
    host, on_device = errors
    assert on_device.step == host.step > 10
    assert str(on_device)[:80] == str(host)[:80]
    np.testing.assert_allclose(on_device.largest_gradient, host.largest_gradient, rtol=1e-6)
    position = on_device.state.position.get()
    np.testing.assert_allclose(position, host.state.position, rtol=1e-6)
    assert np.isfinite(position).all()


@pytest.mark.parametrize("rule", ["adam", "preconditioned"])
def test_a_second_moment_that_is_not_finite_is_a_failure(device, rule):
    """A parameter with it would never move again."""
    target = pair(device)[1]
    theta = target.init(seed=3, chains=3).get()
    moments = [np.full_like(theta, 0.02) if has else None for has in RULES[rule][1:3]]
    assert target.dim % 4 != 0
    assert (steps(target, theta, rule, 10, moments=moments, epsilon=0.0)[1] == -1).all()
    moments[1][2, 3] = np.inf
    assert steps(target, theta, rule, 10, moments=moments)[1].tolist() == [-1, -1, 0]


def test_a_gradient_that_is_nowhere_finite(device):
    """Its size is infinite, as on the CPU."""
    x = X.copy()
    x[:, :] = 1e200
    host, on_device = pair(device, rb.mlp(4, (), 2), x)
    theta = np.full((1, host.dim), 1e200)
    for target in (host, on_device):
        _, failed, largest = steps(target, theta, "langevin", 10, chains=[0])
        assert failed[0] == 0
        assert largest[0] == np.inf


# --- samplers ------------------------------------------------------------------------------------

SAMPLERS = {
    "sgld": (rb.SGLD, {"step_size": 1e-3, "schedule": schedules.polynomial(0.4, offset=5.0)}),
    "rmsprop": (rb.SGLD, {"step_size": 1e-4, "preconditioner": "rmsprop"}),
    "sghmc": (rb.SGHMC, {"step_size": 1e-4, "track_lp": True}),
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_draws_are_those_of_numpy(device, case):
    make, options = SAMPLERS[case]
    runs = [
        make(t, batch_size=10, **options).sample(
            5, warmup=6, thin=2, chains=3, seed=2**63 + 4, keep_warmup=True, progress=False
        )
        for t in pair(device)
    ]
    host, on_device = runs
    assert not isinstance(on_device.positions, np.ndarray)
    np.testing.assert_allclose(on_device.positions.get(), host.positions, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        on_device.warmup_positions.get(), host.warmup_positions, rtol=0, atol=1e-10
    )
    for name, values in host.stats.items():
        np.testing.assert_allclose(on_device.stats[name].get(), values, rtol=1e-9)


@pytest.mark.parametrize("case", SAMPLERS)
def test_resume(device, case):
    make, options = SAMPLERS[case]
    sampler = make(pair(device, dtype="float32")[1], batch_size=10, **options)
    whole = sampler.sample(6, warmup=5, thin=3, chains=3, seed=4, progress=False).positions.get()
    first = sampler.sample(2, warmup=5, thin=3, chains=3, seed=4, progress=False)
    rest = sampler.sample(4, thin=3, resume=first, progress=False).positions.get()
    np.testing.assert_array_equal(np.concatenate([first.positions.get(), rest], axis=1), whole)
    alone = sampler.sample(6, warmup=5, thin=3, chains=[1], seed=4, progress=False)
    np.testing.assert_array_equal(alone.positions.get()[0], whole[1])


def test_a_call_waits_once(device, monkeypatch):
    asked = []

    def seen(array):
        asked.append(array.shape)
        with waiting(device, True):
            return to_host(array)

    for make, options in SAMPLERS.values():
        sampler = make(pair(device)[1], batch_size=10, **{**options, "schedule": None})
        state = sampler.init(sampler._density.target.init(chains=3), warmup=3)
        for count in (1, 40):
            state, _ = sampler.step(state, num_steps=count)  # compiles
            with monkeypatch.context() as patch, waiting(device, False):
                patch.setattr(stepper, "to_host", seen)
                before = getattr(device, "waits", None)
                state, _ = sampler.step(state, num_steps=count)
                assert asked == [(3, 2)]
                assert before is None or device.waits == before + 1
            asked.clear()


def waiting(device, allowed):
    """Whether CuPy may wait inside; a device made of the CPU counts."""
    if device.__name__ != "cupy":
        return contextlib.nullcontext()
    from cupyx import allow_synchronize

    return allow_synchronize(allowed)


def test_ensembles(device):
    targets = pair(device)
    seen = []
    fits = [
        rb.DeepEnsemble(t, members=3, learning_rate=1e-2, batch_size=10, objective=objective).fit(
            4, seed=7, progress=seen.append
        )
        for objective in ("map", "likelihood")
        for t in targets
    ]
    assert seen
    for host, on_device in (fits[:2], fits[2:]):
        np.testing.assert_allclose(on_device.theta.get(), host.theta, rtol=0, atol=1e-10)
    host, fit = fits[:2]
    assert np.abs(fits[2].theta - host.theta).max() > 1e-4
    ensemble = rb.DeepEnsemble(targets[1], members=3, learning_rate=1e-2, batch_size=10)
    begun = ensemble.fit(1, seed=7, progress=False)
    rest = ensemble.fit(3, resume=begun, progress=False)
    assert rest.theta.get().tobytes() == fit.theta.get().tobytes()
    again = ensemble.fit(1, init=fit, progress=False)
    warm = ensemble.fit(1, init=fit.theta, progress=False)
    one = ensemble.fit(1, init=fit.theta[0, :].get().tolist(), progress=False)
    assert again.theta.get().tobytes() == warm.theta.get().tobytes()
    assert one.theta.shape == fit.theta.shape
    with pytest.raises(TypeError, match=f"init as {device.__name__} array"):
        ensemble.fit(1, init=host.theta, progress=False)
    assert not isinstance(fit.draws().positions, np.ndarray)
    np.testing.assert_allclose(
        fit.draws(9, seed=2).positions.get(), host.draws(9, seed=2).positions, atol=1e-10
    )
    ids = np.array([7, 0], np.uint32)
    np.testing.assert_allclose(fit.starts(ids, 0).get(), host.starts(ids, 0), atol=1e-10)
    draws = rb.SGLD(targets[1], step_size=1e-4, batch_size=10).sample(
        2, warmup=0, chains=4, init=fit, progress=False
    )
    assert draws.positions.shape == (4, 2, targets[1].dim)


# --- wrong calls ---------------------------------------------------------------------------------


def test_wrong_calls(device):
    target = pair(device)[1]
    theta = target.init(chains=3).get()
    with pytest.raises(ValueError, match="1 <= batch_rows <= N"):
        steps(target, theta, "langevin", ROWS + 1)
    with pytest.raises(ValueError, match="expected the moments of the rule, got None"):
        steps(target, theta, "adam", 10, moments=(theta, None))
    with pytest.raises(ValueError, match=r"expected position \(2, 77\), got \(3, 77\)"):
        steps(target, theta, "langevin", 10, chains=[0, 1])
    stop = _core.InterruptFlag()
    stop.set()
    with pytest.raises(Interrupted):
        steps(target, theta, "langevin", 10, interrupt=stop)
