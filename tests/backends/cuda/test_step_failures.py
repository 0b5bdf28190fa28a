"""Stochastic-gradient steps on arrays of a device that go wrong, and calls that are refused."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit._arrays.threads import Interrupted
from ribbit.errors import NonFiniteError
from tests.backends.cuda.steps_problem import ROWS, RULES, X, bits, pair, steps


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
        chains = rb.Chains(sampler, target.init(seed=1, chains=2), warmup=0)
        with pytest.raises(NonFiniteError, match="got others in chain") as caught:
            chains.advance(2000)
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


# inputs of 1e200 are meant
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
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


def test_wrong_calls(device):
    target = pair(device)[1]
    theta = target.init(chains=3).get()
    with pytest.raises(ValueError, match="1 <= batch_size <= N"):
        steps(target, theta, "langevin", ROWS + 1)
    with pytest.raises(ValueError, match="expected second as an array for rule='adam', got None"):
        steps(target, theta, "adam", 10, moments=(theta, None))
    with pytest.raises(ValueError, match=r"expected position \(2, 77\), got \(3, 77\)"):
        steps(target, theta, "langevin", 10, chains=[0, 1])
    stop = _core.InterruptFlag()
    stop.set()
    with pytest.raises(Interrupted):
        steps(target, theta, "langevin", 10, interrupt=stop)
