"""step_size="auto": what pilot runs find, against laws in closed form; bits, files, refusals."""

import dataclasses
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import linalg

import ribbit as rb
from ribbit.samplers.sgmcmc import step_pilot
from tests.oracle.stochastic_reference import kinetic_law
from tests.samplers.sgmcmc.problem import DESIGN, DIM, target
from tests.support import kinetic_problem as kinetic
from tests.support.targets import Foreign

MAKERS = (rb.BAOAB, rb.SGHMC, rb.SGLD)
# The pilot allows 2 % of P/2; 128 chains know the excess of three parameters to a few times that:
# its ladder, in factors of 2, may stop a step too early or go on for a few.
ALLOWED, SLACK = 0.02, 5.0


def found(make, density, seed=0, **options):
    sampler = make(density, step_size="auto", **options)
    _, stats = rb.Chains(sampler, np.zeros(density.dim), seed=seed, warmup=0).advance()
    return float(stats["step_size"][0, 0])


def excess(precision, covariance, mean=0.0):
    """Mean energy above that of the target over P/2, which it has above its minimum."""
    dim = len(precision)
    second = covariance[:dim, :dim] + np.outer(mean, mean)
    return np.trace(precision @ second) / dim - 1.0


def excess_of_all_rows(name, step_size):
    precision, one = DESIGN.T @ DESIGN / 0.4**2 + np.eye(DIM) / 0.7**2, np.eye(DIM)
    if name == "SGLD":
        a, q = one - step_size / 2 * precision, step_size * one
    else:
        keep, b = 0.9 * one, np.vstack([one, one])
        a = np.block([[one - step_size * precision, keep], [-step_size * precision, keep]])
        q = 0.2 * step_size * b @ b.T
    if np.abs(np.linalg.eigvals(a)).max() >= 1.0:
        return np.inf
    return excess(precision, linalg.solve_discrete_lyapunov(a, q))


def test_steep_densities_give_one_step_to_all_seeds():
    """Some of the pilot's chains are thousands of nats up when the descent ends."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    y = x @ [1, -1, 0.5] + 0.1 * rng.normal(size=200)
    density = rb.Posterior(
        rb.mlp(3, (), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    step = found(rb.BAOAB, density, 3, batch_size=16)
    assert 2e-5 < step < 2e-4  # 6.1e-5 for each of the seeds 0 to 7


@pytest.mark.parametrize("make", [rb.SGLD, rb.SGHMC])
def test_the_excess_of_energy_is_as_small_as_asked_for(make):
    """With all rows, where only the discretisation is wrong; 32 times the step is too large."""
    step = found(make, target(), batch_size=None)
    assert excess_of_all_rows(make.__name__, step) < SLACK * ALLOWED
    assert excess_of_all_rows(make.__name__, 32.0 * step) > ALLOWED


def excess_of_sweeps(step_size):
    precision, force = kinetic.quadratic(range(kinetic.ROWS))
    mean, covariance = kinetic_law(
        *kinetic.sweeps("there and back"),
        step_size,
        friction=kinetic.FRICTION,
        scale=kinetic.PRIOR,
    )
    value = excess(precision, covariance, mean[: kinetic.DIM] - np.linalg.solve(precision, force))
    return value if np.linalg.eigvalsh(covariance)[0] > 0 else np.inf


def test_the_heat_of_minibatches_is_as_small_as_asked_for():
    step = found(rb.BAOAB, kinetic.target(), batch_size=kinetic.BATCH, friction=kinetic.FRICTION)
    assert excess_of_sweeps(step) < SLACK * ALLOWED
    assert not excess_of_sweeps(16.0 * step) < ALLOWED


@pytest.mark.parametrize("make", MAKERS)
def test_the_seed_alone_decides_and_runs_go_on(make, tmp_path, monkeypatch):
    monkeypatch.setattr(step_pilot, "_MOST_CHAINS", 8)  # what they find does not matter here
    sampler = make(target(), batch_size=25, step_size="auto")
    rb.set_num_threads(2)
    run = {"warmup": 5, "thin": 2, "progress": False}
    whole = sampler.sample(6, chains=3, seed=4, **run)
    assert "pilot chains" in whole.settings["pilot"]
    assert sampler.settings["step_size"] == "auto"
    assert "pilot" not in sampler.settings  # a sampler is not changed by its runs
    assert whole.settings["pilot"] in str(whole.summary())
    rb.set_num_threads(1)
    again = make(target(), batch_size=25, step_size="auto")
    alone = again.sample(6, chains=[1], seed=4, **run)
    rb.set_num_threads(2)
    assert alone.positions.tobytes() == whole.positions[1:2].tobytes()
    first = sampler.sample(2, chains=3, seed=4, **run)
    first.save(tmp_path / "run")
    for state in (first, rb.load(tmp_path / "run")):
        rest = make(target(), batch_size=25, step_size="auto").sample(
            4, thin=2, resume=state, progress=False
        )
        assert rest.positions.tobytes() == whole.positions[:, 2:].tobytes()
        assert rest.settings["pilot"] == whole.settings["pilot"]
    number = make(target(), batch_size=25, step_size=float(whole.state.step_size[0]))
    assert (
        number.sample(6, chains=3, seed=4, **run).positions.tobytes() == whole.positions.tobytes()
    )
    taken = number.sample(4, thin=2, resume=first, progress=False)
    assert taken.positions.tobytes() == whole.positions[:, 2:].tobytes()
    assert taken.state.step_size is None
    assert "pilot" not in taken.settings


def test_two_threads_share_a_sampler(monkeypatch):
    """Each run has the report of its own seed, whichever pilot ends last."""
    make = rb.BAOAB  # what is shared is the same for all
    monkeypatch.setattr(step_pilot, "_MOST_CHAINS", 8)
    options = {"warmup": 5, "thin": 2, "chains": 2, "progress": False}
    # Seeds whose pilots find different energies, and so reports.
    alone = [make(target(), batch_size=25, step_size="auto") for _ in range(2)]
    expected = [one.sample(3, seed=seed, **options) for seed, one in enumerate(alone)]
    assert expected[0].settings["pilot"] != expected[1].settings["pilot"]
    sampler = make(target(), batch_size=25, step_size="auto")
    both = threading.Barrier(2)
    running = sampler._stepper.pilot

    class Together:  # both pilots have ended before either run goes on
        report = staticmethod(running.report)

        def __call__(self, seed, guard):
            found = running(seed, guard)
            both.wait(timeout=60)
            return found

    monkeypatch.setattr(sampler._stepper, "pilot", Together())
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda seed: sampler.sample(3, seed=seed, **options), range(2)))
    for one, other in zip(expected, runs, strict=True):
        assert one.settings == other.settings
        assert one.positions.tobytes() == other.positions.tobytes()


def test_a_target_without_native_steps():
    """The Python loop is judged alike; its steps are those of native code but for rounding."""
    options = {"batch_size": None, "inverse_mass_matrix": np.full(DIM, 0.49)}
    foreign = Foreign(target())
    foreign.init = target().init
    assert found(rb.BAOAB, foreign, **options) == found(rb.BAOAB, target(), **options)


def test_refusals():
    with pytest.raises(ValueError, match=r"\[SGLD\] expected a number as step_size with a precond"):
        rb.SGLD(target(), step_size="auto", preconditioner="rmsprop", batch_size=25)
    run = {"chains": 2, "warmup": 0, "thin": 1, "progress": False}
    for make in MAKERS:
        with pytest.raises(ValueError, match="step_size"):
            make(target(), step_size="adapt", batch_size=25)
        sampler = make(target(), step_size="auto", batch_size=25)
        given = make(target(), step_size=1e-4, batch_size=25).sample(1, **run).state
        with pytest.raises(ValueError, match="step size that pilot runs found, got none"):
            sampler.sample(1, resume=given)
        two = dataclasses.replace(given, step_size=np.array([1e-4, 2e-4]))
        with pytest.raises(ValueError, match="got several"):
            sampler.sample(1, resume=two)
        bare = make(Foreign(target()), step_size="auto", batch_size=25)
        with pytest.raises(ValueError, match=r"target without init\(seed, chains\)"):
            rb.Chains(bare, np.zeros(DIM))


class Wild:
    """Gradients that have nothing to do with the log density."""

    dim, dtype = 3, np.float64

    def init(self, seed=0, chains=None):
        return np.zeros((len(chains), 3))

    def value_and_grad(self, theta, rows=None):
        return -1e30 * np.sum(theta**2, axis=1), -theta


def test_a_density_that_nothing_keeps_is_an_error(monkeypatch):
    monkeypatch.setattr(step_pilot, "_SMALLEST", 1e-3)
    for make in (rb.SGLD, rb.BAOAB):
        with pytest.raises(ValueError, match="energy some step size keeps"):
            rb.Chains(make(Wild(), step_size="auto", batch_size=None), np.zeros(3))


@pytest.mark.full
@pytest.mark.parametrize(("unit", "short"), [(0.1, True), (1.0, False)])
def test_a_warmup_that_goes_nowhere_is_warned_of(unit, short):
    """Targets in units of which the noise is 0.04: sds came out too wide, without a word."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(150, 3))
    y = unit * (x[:, 0] + 0.4 * rng.normal(size=150))
    density = rb.Posterior(
        rb.Model([rb.Dense(1)], input_shape=(3,)),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.4 * unit),
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rb.BAOAB(density).sample(2, warmup=1000, thin=1, progress=False)
    said = [str(w.message) for w in seen if "cross the prior's sd" in str(w.message)]
    assert bool(said) is short
    if said:
        assert "got 1,000" in said[0]
        assert "init=fit" in said[0]
