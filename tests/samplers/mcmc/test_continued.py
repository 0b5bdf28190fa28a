"""Chains of HMC and NUTS that continue on a target without a fingerprint, or in threads."""

import ctypes
import threading

import numpy as np
import pytest

import ribbit as rb

STEPS = {"step_size": 0.3, "num_leapfrog_steps": 3}
CALL = {"warmup": 0, "init": np.zeros(2), "progress": False}
POINTER = ctypes.POINTER(ctypes.c_double)
FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_size_t, POINTER, POINTER, POINTER, ctypes.c_void_p
)


class Normal:
    """A standard normal density plus a constant, in Python."""

    def __init__(self, constant, fingerprint=None):
        self.dim, self.constant = 2, constant
        if fingerprint is not None:
            self.fingerprint = fingerprint

    def value_and_grad(self, theta, rows=None):
        return self.constant - 0.5 * (theta**2).sum(axis=1), -theta


def in_c(constant):
    """Return the density as a C function, which has no fingerprint."""

    def evaluate(dim, theta, grad, lp, user):
        lp[0] = constant - 0.5 * sum(theta[i] ** 2 for i in range(dim))
        for i in range(dim):
            grad[i] = -theta[i]
        return 0

    return rb.CallableDensity.from_pointer(FUNCTION(evaluate), 2)


@pytest.mark.parametrize("first", [Normal, in_c])
@pytest.mark.parametrize("second", [Normal, in_c])
def test_a_state_is_evaluated_where_it_continues(first, second):
    """Control: with the log density of the first function no proposal would be accepted."""
    before = rb.HMC(first(1000.0), **STEPS).sample(5, **CALL)
    after = rb.HMC(second(0.0), **STEPS).sample(400, resume=before, progress=False)
    assert np.exp(0.0 - 1000.0) < 1e-300
    assert after.stats["accepted"].mean() > 0.9
    assert np.abs(after.stats["lp"]).max() < 100


@pytest.mark.parametrize("parts", [{"code": "line 1\nline 2"}, {"a=b": "c"}, {"version": 1}])
def test_any_fingerprint_comes_back(parts, tmp_path):
    hmc = rb.HMC(Normal(0.0, parts), **STEPS)
    draws = hmc.sample(5, **CALL)
    draws.save(tmp_path / "draws.npz")
    state = rb.load(tmp_path / "draws.npz").state
    assert hmc.sample(3, resume=state, progress=False).positions.shape == (4, 3, 2)
    other = rb.HMC(Normal(0.0, dict.fromkeys(parts, "another")), **STEPS)
    with pytest.raises(ValueError, match="another"):
        other.sample(3, resume=state, progress=False)


def test_options_are_copied():
    mass, steps = np.ones(2), [0.3, 0.3]
    hmc = rb.HMC(Normal(0.0), step_size=steps, num_leapfrog_steps=3, inverse_mass_matrix=mass)
    before = hmc.sample(5, chains=2, **CALL)
    mass[:], steps[:] = 4.0, [0.1, 0.1]
    assert hmc.settings["inverse_mass_matrix"] == [1.0, 1.0]
    assert np.array_equal(hmc.sample(5, chains=2, **CALL).positions, before.positions)


def test_threads_may_look_at_chains_that_move():
    """Without a lock this ends the process. Control: the chains move while the thread looks."""
    x = np.linspace(-1, 1, 20)[:, None]
    model = rb.mlp(1, (200, 200), 1)
    likelihood = rb.Gaussian(0.3)
    target = rb.Posterior(model, x, 2 * x, prior=rb.Normal(1.0), likelihood=likelihood)
    chains = rb.Chains(rb.HMC(target, step_size=1e-4, num_leapfrog_steps=1), chains=2, warmup=0)
    seen, over = set(), threading.Event()

    def look():
        while not over.is_set():
            seen.add(rb.Chains.load(chains._sampler, chains.save()).step)
            assert np.isfinite(chains.position).all()

    thread = threading.Thread(target=look)
    thread.start()
    while chains.step < 40 or (len(seen) <= 3 and chains.step < 4_000):
        chains.advance(1)
    over.set()
    thread.join()
    assert len(seen) > 3


@pytest.mark.parametrize("kind", [Normal, in_c])
def test_a_step_size_is_not_used_with_another_mass(kind):
    target, run = kind(0.0), {"chains": 2, "progress": False}
    adapted = rb.NUTS(target).sample(5, warmup=40, init=np.zeros(2), **run)
    fixed = rb.NUTS(target, inverse_mass_matrix=None)
    with pytest.raises(
        ValueError, match=r"another inverse mass matrix\. Give inverse_mass_matrix='adapt' to keep"
    ):
        fixed.sample(5, resume=adapted, progress=False)
    given = rb.NUTS(target, inverse_mass_matrix=None, step_size=0.3)
    more = given.sample(5, resume=adapted, progress=False)
    assert (more.stats["step_size"] == 0.3).all()
    assert more.state.inverse_mass_matrix is None
    same = rb.NUTS(target, inverse_mass_matrix="adapt", target_accept=0.9)
    kept = same.sample(5, resume=adapted, progress=False).state
    assert np.array_equal(kept.inverse_mass_matrix, adapted.state.inverse_mass_matrix)
    # Without a mass before, "adapt" finds none after warmup either.
    plain = fixed.sample(5, warmup=40, init=np.zeros(2), **run)
    assert same.sample(5, resume=plain, progress=False).state.inverse_mass_matrix is None


@pytest.mark.parametrize("kind", [Normal, in_c])
def test_the_same_mass_is_accepted(kind):
    """Ones, numbers and what warmup found; and any mass while warmup still moves the step."""
    target, run = kind(0.0), {"chains": 1, "init": np.zeros(2), "progress": False}
    for mass, same in [(None, np.ones(2)), ([1.0, 2.0], [1.0, 2.0 + 1e-9])]:
        draws = rb.NUTS(target, inverse_mass_matrix=mass).sample(3, warmup=30, **run)
        rb.NUTS(target, inverse_mass_matrix=same).sample(2, resume=draws, progress=False)
        other = rb.NUTS(target, inverse_mass_matrix=[1.0, 2.1])
        with pytest.raises(ValueError, match=r"another inverse mass matrix\. Give that one"):
            other.sample(2, resume=draws, progress=False)
    found = rb.NUTS(target).sample(3, warmup=30, **run)
    own = rb.NUTS(target, inverse_mass_matrix=found.state.inverse_mass_matrix[0])
    own.sample(2, resume=found, progress=False)
    chains = rb.Chains(rb.NUTS(target, inverse_mass_matrix=None), np.zeros(2), warmup=30)
    chains.advance(5)
    rb.Chains.load(other, chains.save()).advance(30)


def test_a_copy_of_loaded_chains_has_the_density_of_their_target():
    first, second = Normal(1000.0), Normal(0.0, {"version": "2"})
    before = rb.Chains(rb.HMC(first, **STEPS), np.zeros((2, 2)), warmup=0)
    before.advance(3)
    copied = rb.Chains.load(rb.HMC(second, **STEPS), before.save()).copy()
    stats = copied.advance(100)[1]
    assert stats["accepted"].mean() > 0.9
    assert np.abs(stats["lp"]).max() < 100


def test_a_state_with_another_fingerprint_is_compared_by_value():
    states = (
        Normal(1000.0, {"code": "1"}),
        Normal(0.0, {"version": "2"}),
        Normal(0.0, {"file": "3"}),
    )
    first, second, third = (rb.HMC(one, **STEPS) for one in states)
    with pytest.raises(ValueError, match=r"had the log density 9[0-9.]+, here it is -[0-9.]+"):
        second.sample(3, resume=first.sample(5, **CALL), progress=False)
    third.sample(3, resume=second.sample(5, **CALL), progress=False)
