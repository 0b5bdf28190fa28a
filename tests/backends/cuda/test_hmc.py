"""HMC on arrays of a device (made of the CPU, or CuPy's) against the same run on NumPy.

Short stable trajectories in float64: rounding of sums alone, 1e-12.
"""

import gc
import weakref

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import random_numbers
from ribbit._arrays.namespace import device_of
from ribbit._backends.cuda import density as cuda_density
from ribbit._backends.cuda.programs import persistent
from tests.support.cuda.waits import no_waits

MODEL = rb.mlp(5, (12, 7), 1)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 5)), RNG.normal(size=(60, 1))
OPTIONS = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(1.0), "dtype": "float64"}


def pair(device, **options):
    """The same posterior on NumPy and on the device."""
    given = {**OPTIONS, **options}
    on_device = rb.Posterior(MODEL, device.asarray(X), device.asarray(Y), **given)
    return rb.Posterior(MODEL, X, Y, **given), on_device


def close(a, b, **tolerance):
    assert not isinstance(a, np.ndarray)
    np.testing.assert_allclose(a.get(), b, **tolerance)


# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 0.02, "num_leapfrog_steps": 9},
        {"step_size": [0.02, 0.03, 0.01], "trajectory_length": 0.2},
        {"step_size": 0.02, "num_leapfrog_steps": 5, "step_size_jitter": 0.3},
        {"step_size": 0.03, "num_leapfrog_steps": 5, "inverse_mass_matrix": "prior"},
    ],
)
def test_draws_are_those_of_numpy(device, options):
    host, on_device = pair(device, temperature=0.8, likelihood_temperature=1.2)
    runs = [rb.HMC(t, **options).sample(12, warmup=3, chains=3, seed=4) for t in (host, on_device)]
    close(runs[1].positions, runs[0].positions, rtol=0, atol=1e-12)
    for name, values in runs[0].stats.items():
        close(runs[1].stats[name], values, rtol=1e-9, atol=1e-9)
    assert runs[0].stats["accepted"].mean() > 0.5
    other = rb.HMC(on_device, **options).sample(12, warmup=3, chains=3, seed=5)
    assert np.abs(other.positions.get() - runs[0].positions).max() > 0.1  # the control


def test_adaptation(device):
    """The same first transitions; later ones differ as chaotic trajectories do."""
    options = {"step_size": "auto", "inverse_mass_matrix": "adapt", "trajectory_length": 0.5}
    runs = [
        rb.HMC(t, **options).sample(5, warmup=40, chains=2, seed=1, save_warmup=True)
        for t in pair(device)
    ]
    close(runs[1].warmup_positions[:, :4, :], runs[0].warmup_positions[:, :4], rtol=0, atol=1e-9)
    assert np.isfinite(runs[1].positions.get()).all()


def test_no_draw_waits_for_the_device(device):
    sampler = rb.HMC(pair(device)[1], step_size=0.02, num_leapfrog_steps=3, step_size_jitter=0.1)
    chains = rb.Chains(sampler, chains=3, warmup=0)
    chains.advance()
    with no_waits(device):
        _, info = chains.advance(4)
    with pytest.raises(AssertionError, match="waited"), no_waits(device):  # the control
        info["lp"].get()


def test_groups_of_chains_change_nothing(device, monkeypatch):
    """Groups that memory asks for, launch by launch: chains keep their own steps and masses."""
    monkeypatch.setattr(persistent, "fits", lambda *_: False)
    start, momentum = pair(device)[0].init(chains=5, seed=3), RNG.normal(size=(5, 171))
    mass = RNG.uniform(0.5, 2.0, size=momentum.shape)
    arrays = [device.asarray(a) for a in (start, momentum)]
    found, ends = [], []
    for most in (1024, 2, 1):
        monkeypatch.setattr(cuda_density, "MOST_CHAINS", most)
        target = pair(device)[1]
        assert target._native._persistent is None
        sampler = rb.HMC(target, step_size=[0.01, 0.02, 0.005, 0.03, 0.02], trajectory_length=0.1)
        draws = sampler.sample(4, warmup=0, init=arrays[0], seed=2)
        found.append(draws.positions.get())
        options = {"inverse_mass": device.asarray(mass)}
        end = target.leapfrog(*arrays, None, 0.01, [4, 2, 9, 3, 4], **options)
        ends.append(np.column_stack([a.get() for a in end]))
    for some in (found, ends):
        np.testing.assert_array_equal(some[0], some[1])
        np.testing.assert_array_equal(some[0], some[2])


def test_memory_of_fewer_chains_goes_back(device, monkeypatch):
    """Before more is asked for, and without the garbage collector."""
    monkeypatch.setattr(persistent, "fits", lambda *_: False)
    target = pair(device)[1]
    theta = target.init(0, chains=3)
    target.leapfrog(theta[:2, :], theta[1:, :], None, 1e-3, 2)
    program = weakref.ref(target._native._programs[0])
    gc.disable()
    try:
        target.value_and_grad(theta)
        assert program() is None
    finally:
        gc.enable()


def test_ids_of_chains_lie_on_the_current_device(device, monkeypatch):
    """Default streams of all devices have one handle."""
    monkeypatch.setattr(random_numbers, "_chain_ids", {})
    own, chains = device_of(device), np.arange(3, dtype=np.uint32)
    ids = random_numbers.ids_on(own, chains)
    assert random_numbers.ids_on(own, chains) is ids
    monkeypatch.setattr(type(own), "number", own.number + 1)
    assert random_numbers.ids_on(own, chains) is not ids


def test_counts_on_some_rows(device):
    """Constants of the rows are scaled to N rows as the rest is."""
    y = RNG.integers(0, 9, size=(60, 1)).astype(float)
    options = {"prior": rb.Normal(0.7), "likelihood": rb.Poisson(), "dtype": "float64"}
    host = rb.Posterior(MODEL, X, y, **options)
    on_device = rb.Posterior(MODEL, device.asarray(X), device.asarray(y), **options)
    theta, rows = host.init(chains=2, seed=1), [3, 59, 3, 11]
    value, _ = on_device.value_and_grad(device.asarray(theta), rows)
    close(value, host.value_and_grad(theta, rows)[0], rtol=1e-12)


@pytest.mark.parametrize("one_launch", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_resume_and_chains_alone(device, monkeypatch, dtype, one_launch):
    if not one_launch:
        monkeypatch.setattr(persistent, "fits", lambda *_: False)
    target = pair(device, dtype=dtype)[1]

    def sampler():
        return rb.HMC(target, step_size=0.02, num_leapfrog_steps=4)

    whole = sampler().sample(6, warmup=2, chains=3, seed=4)
    positions = whole.positions.get()
    first = sampler().sample(3, warmup=2, chains=3, seed=4)
    rest = sampler().sample(3, resume=first)  # knows nothing of the state: evaluates it again
    parts = np.concatenate([first.positions.get(), rest.positions.get()], axis=1)
    np.testing.assert_array_equal(parts, positions)
    energies = [d.stats["energy_error"].get() for d in (first, rest, whole)]
    np.testing.assert_array_equal(np.concatenate(energies[:2], axis=1), energies[2])
    assert (np.diff(positions, axis=1) != 0).any()  # something was accepted
    alone = sampler().sample(6, warmup=2, chains=[1], seed=4).positions.get()
    np.testing.assert_array_equal(alone[0], positions[1])
    terms, _ = target.terms_and_grad(whole.positions[:, -1, :])
    np.testing.assert_array_equal(terms.get().sum(axis=1), whole.stats["lp"].get()[:, -1])


def test_values_and_terms(device):
    host, on_device = pair(device, temperature=1.4)
    theta = host.init(chains=3, seed=1)
    given = device.asarray(theta)
    for name in ("log_prior", "log_likelihood"):
        close(getattr(on_device, name)(given), getattr(host, name)(theta), rtol=1e-12)
        close(getattr(on_device, name)(given[0]), getattr(host, name)(theta[0]), rtol=1e-12)
    rows = [3, 59, 3]
    close(on_device.value_and_grad(given, rows)[1], host.value_and_grad(theta, rows)[1], rtol=1e-9)
    close(on_device.terms_and_grad(given)[0], host.terms_and_grad(theta)[0], rtol=1e-12)
    ends = [
        t.leapfrog(q, p, None, 0.01, [4, 2, 9], inverse_mass=m)
        for t, q, p, m in (
            (host, theta, theta[::-1].copy(), np.full(host.dim, 0.5)),
            (on_device, given, given[::-1], device.asarray(np.full(host.dim, 0.5))),
        )
    ]
    for a, b in zip(*ends, strict=True):
        close(b, a, rtol=1e-10, atol=1e-12)


def test_libraries_are_not_mixed(device):
    target = pair(device)[1]
    theta = target.init(chains=2)
    with pytest.raises(TypeError, match="x and y both in device memory"):
        rb.Posterior(MODEL, device.asarray(X), Y, **OPTIONS)
    with pytest.raises(TypeError, match=f"theta as a {device.__name__} array of dtype float64"):
        target.value_and_grad(theta.get())
    with pytest.raises(TypeError, match="dtype float64"):
        target.value_and_grad(device.astype(theta, device.float32))
    with pytest.raises(ValueError, match="expected theta of shape"):
        target.value_and_grad(theta[:, :-1])
    with pytest.raises(TypeError, match=f"init as {device.__name__} array"):
        rb.Chains(rb.HMC(target, num_leapfrog_steps=2), theta.get())


@pytest.mark.parametrize("place", [(0, 0), (59, 4)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_bad_rows_are_named(device, bad, place):
    x = X.copy()
    x[place] = bad
    with pytest.raises(ValueError, match=rf"finite float32 values in x, got .* at \({place[0]}, "):
        rb.Posterior(MODEL, device.asarray(x), device.asarray(Y), **{**OPTIONS, "dtype": "float32"})
    with pytest.raises(ValueError, match="expected x of shape"):
        rb.Posterior(MODEL, device.asarray(x[:, :4]), device.asarray(Y), **OPTIONS)


def test_lost_chains_are_rejected(device):
    draws = rb.HMC(pair(device)[1], step_size=50.0, num_leapfrog_steps=40).sample(
        3, warmup=0, chains=2, progress=False
    )
    assert draws.stats["diverging"].get().all()
    assert not draws.stats["accepted"].get().any()
