"""Gate "stationary distribution": full-batch SGLD and SGHMC keep it exactly at that step size.

On a linear model with Gaussian noise the log density is quadratic with precision L and mean mu, so
a step is a linear map with Gaussian noise and its stationary covariance S solves S = A S A' + Q
(for SGLD in closed form: S = L^-1 (1 - eps L / 4)^-1). Replicates start from that distribution,
make K steps, and must have it again: every mean, every variance and the whitened squares. The
smallest p of these, times their number, must exceed 1e-6, the false-fail rate. Faults planted in
the native core (tests/support/faults.py) must raise an alarm.
"""

import dataclasses

import numpy as np
import pytest
from scipy import linalg, stats

import ribbit as rb
from tests.oracle.stochastic_reference import first_velocity
from tests.support import faults
from tests.support.gates import Table
from tests.support.stepwise import started, stepped
from tests.support.targets import Foreign

ROWS, DIM, PRIOR, NOISE = 20, 3, 0.7, 0.4
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, DIM - 1))
DESIGN = np.c_[X, np.ones(ROWS)]
Y = DESIGN @ [0.5, -1.0, 0.3] + NOISE * RNG.normal(size=ROWS)
REPLICATES, STEPS = 20_000, 40
FRICTION = 0.3


def density(temperature=1.0, **options):
    return rb.Posterior(
        rb.mlp(DIM - 1, (), 1),
        X,
        Y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(NOISE),
        temperature=temperature,
        dtype=np.float64,
        **options,
    )


def moments(temperature=1.0):
    precision = DESIGN.T @ DESIGN / NOISE**2 + np.eye(DIM) / PRIOR**2
    mean = np.linalg.solve(precision, DESIGN.T @ Y / NOISE**2)
    return mean, precision / temperature


def law(name, precision, metric=None):
    """Mean is mu; returns step size, map A, noise Q and S of (theta) or (theta, velocity)."""
    largest = np.linalg.eigvalsh(precision)[-1]
    if name == "SGHMC":
        eps = 0.3 / largest
        one = np.eye(DIM)
        keep = (1 - FRICTION) * one
        a = np.block([[one - eps * precision, keep], [-eps * precision, keep]])
        b = np.vstack([one, one])
        q = 2 * FRICTION * eps * b @ b.T
    else:
        g = np.ones(DIM) if metric is None else metric
        eps = 1.0 / np.max(np.linalg.eigvals(g[:, None] * precision).real)
        a = np.eye(DIM) - eps / 2 * g[:, None] * precision
        q = eps * np.diag(g)
    return eps, linalg.solve_discrete_lyapunov(a, q)


def p_value(theta, mean, covariance):
    """Smallest p of the means, variances and whitened squares, times their number."""
    count = len(theta)
    z = (theta - mean) / np.sqrt(np.diag(covariance))
    squares = np.sum(np.linalg.solve(np.linalg.cholesky(covariance), (theta - mean).T) ** 2, axis=0)
    p = [
        *(2 * stats.norm.sf(np.abs(z.mean(axis=0)) * np.sqrt(count))),
        *(
            2
            * np.minimum(*(f(np.sum(z**2, axis=0), count) for f in (stats.chi2.sf, stats.chi2.cdf)))
        ),
        stats.kstest(squares, stats.chi2(DIM).cdf).pvalue,
    ]
    return min(1.0, min(p) * len(p))


def run(name, target=None, temperature=1.0, seed=0, replicates=REPLICATES):
    target = density() if target is None else target
    mean, precision = moments(temperature)
    rng = np.random.default_rng((77, seed))
    if name == "preconditioned":
        warm = rb.SGLD(target, step_size=1e-4, batch_size=None, preconditioner="rmsprop")
        state = started(warm, np.tile(mean + 0.1, (1, 1)), seed=seed, warmup=300)
        state, _ = stepped(warm, state, num_steps=300)
        second = state.second_moment
        eps, covariance = law(name, precision, 1 / (1e-5 + np.sqrt(second[0])))
        sampler = rb.SGLD(target, step_size=eps, batch_size=None, preconditioner="rmsprop")
        start = rng.multivariate_normal(mean, covariance, size=replicates)
        state = started(sampler, start, seed=seed, warmup=1)
        state = dataclasses.replace(state, second_moment=np.tile(second, (replicates, 1)), step=1)
    else:
        eps, covariance = law(name, precision)
        make = rb.SGLD if name == "SGLD" else rb.SGHMC
        extra = {"friction": FRICTION} if name == "SGHMC" else {}
        sampler = make(target, step_size=eps, batch_size=None, **extra)
        full = np.concatenate([mean, np.zeros(len(covariance) - DIM)])
        start = rng.multivariate_normal(full, covariance, size=replicates)
        state = started(sampler, start[:, :DIM].copy(), seed=seed)
        if name == "SGHMC":
            state = dataclasses.replace(state, first_moment=start[:, DIM:].copy())
    end, _ = stepped(sampler, state, num_steps=STEPS)
    assert np.mean(np.abs(end.position - start[:, :DIM])) > 0.01  # movement
    return p_value(end.position, mean, covariance[:DIM, :DIM])


class WithoutPrior(Foreign):
    """A density of the user whose gradient has no prior."""

    def value_and_grad(self, theta, rows=None):
        value, grad = super().value_and_grad(theta, rows)
        return value, grad + theta / PRIOR**2


FAULTS = ("noise scale +10 %", "missing sqrt 2", "half the gradient", "no noise")
NAMES = ("SGLD", "preconditioned", "SGHMC")


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_the_exact_law_is_kept(name, temperature):
    assert run(name, density(temperature), temperature) > 1e-6


def test_the_law_of_sgld_in_closed_form():
    _, precision = moments()
    eps, covariance = law("SGLD", precision)
    value, vectors = np.linalg.eigh(precision)
    closed = vectors @ np.diag(1 / (value * (1 - eps * value / 4))) @ vectors.T
    np.testing.assert_allclose(covariance, closed, rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_python_loop_keeps_the_exact_law(name):
    assert run(name, Foreign(density()), replicates=4_000) > 1e-6


@faults.needed
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_fault_of_the_native_steps_is_caught(name, fault):
    assert faults.with_fault(fault, run, name) < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_faults_of_the_gradient_are_caught(name):
    """A missing prior; a missing N/n is a full batch whose likelihood counts half."""
    assert run(name, WithoutPrior(density()), replicates=4_000) < 1e-6
    assert run(name, density(likelihood_temperature=2.0)) < 1e-6


def distance(name):
    """Largest error of a mean by minibatches, less 1 % of a sd, in standard errors."""
    mean, precision = moments()
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    largest = np.linalg.eigvalsh(precision)[-1]
    make, eps = (rb.SGLD, 0.05) if name == "SGLD" else (rb.SGHMC, 0.005)
    sampler = make(density(), step_size=eps / largest, batch_size=5)
    start = np.random.default_rng(5).multivariate_normal(mean, np.linalg.inv(precision), size=2_000)
    end, _ = stepped(sampler, started(sampler, start, seed=6), num_steps=500)
    error = end.position.std(axis=0) / np.sqrt(len(start))
    return np.max((np.abs(end.position.mean(axis=0) - mean) - 0.01 * sd) / error)


@pytest.mark.parametrize("name", ["SGLD", "SGHMC"])
def test_minibatches_sample_the_posterior(name):
    """With small steps the mean is the posterior's.

    The bias of the mean is linear in the step size and zero to first order; the gate is 5.5
    standard errors of 2,000 chains and 1 % of a sd, a false-fail rate below 3e-7. 500 steps are
    six relaxation times of SGLD's slowest direction (1.2 % of the way each) and more of SGHMC's. A
    fault has 99.7 % of its effect on the mean by then.
    """
    assert distance(name) < 5.5


@faults.needed
@pytest.mark.parametrize("name", ["SGLD", "SGHMC"])
def test_a_missing_scale_of_minibatches_is_caught(name):
    """Unscaled batches pull the mean to the prior."""
    assert faults.with_fault("missing N/n", distance, name) > 5.5


# --- SGHMC under a schedule ----------------------------------------------------------------------

COSINE = 60  # steps


def run_of_cosine(native=True):
    """p of theta behind a cosine from 0.3 / L to a twentieth of it, whose law is a recursion."""
    target = density() if native else Foreign(density())
    mean, precision = moments()
    eps, covariance = law("SGHMC", precision)
    start = np.random.default_rng(78).multivariate_normal(
        np.concatenate([mean, np.zeros(DIM)]), covariance, size=REPLICATES
    )
    schedule = rb.schedules.cosine(COSINE, final=0.05)
    one, before = np.eye(DIM), eps
    for e in eps * schedule.factors(0, COSINE):
        keep = (1 - FRICTION) * np.sqrt(e / before) * one
        a = np.block([[one - e * precision, keep], [-e * precision, keep]])
        b = np.vstack([one, one])
        covariance = a @ covariance @ a.T + 2 * FRICTION * e * b @ b.T
        before = e
    sampler = rb.SGHMC(target, step_size=eps, friction=FRICTION, batch_size=None, schedule=schedule)
    state = started(sampler, start[:, :DIM].copy(), seed=3)
    state = dataclasses.replace(state, first_moment=start[:, DIM:].copy())
    for steps in (7, COSINE - 7):  # cut anywhere
        state, _ = stepped(sampler, state, num_steps=steps)
    return p_value(state.position, mean, covariance[:DIM, :DIM]), covariance, precision


@pytest.mark.parametrize("native", [True, False])
def test_a_falling_step_size_keeps_the_law(native):
    p, covariance, precision = run_of_cosine(native)
    assert p > 1e-6
    # ... which is the posterior's, where the fixed step is 10 % off.
    exact = np.diag(np.linalg.inv(precision))
    assert np.max(np.abs(np.diag(covariance)[:DIM] / exact - 1)) < 0.05


@faults.needed
def test_a_velocity_that_keeps_its_width_is_caught():
    assert faults.with_fault("velocity not rescaled", run_of_cosine)[0] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_alarm_in_a_hundred_seeds(name):
    found = [run(name, density(), seed=seed, replicates=5_000) for seed in range(100)]
    assert min(found) > 1e-6


@pytest.mark.parametrize("step_size", [1e-6, 4e-4])
def test_the_first_velocity_has_the_step_size_as_variance(step_size):
    """The law of a velocity without gradients, from the addressed normals."""
    sampler = rb.SGHMC(density(), step_size=step_size, friction=FRICTION, batch_size=None)
    seed = 2**63 + 11
    found = started(sampler, np.zeros((2, DIM)), seed=seed, chains=[0, 9]).first_moment
    expected = [first_velocity(DIM, step_size, seed=seed, chain=c) for c in (0, 9)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def results():
    table = Table(
        "Stationary distribution of SGLD and SGHMC",
        ("sampler", "code", "p", "gate"),
        note=f"Linear model, full batch. {REPLICATES:,} replicates start at exact draws of the "
        f"sampler's stationary distribution and make {STEPS} steps. They must have the same "
        "distribution again. The step size is large enough that the discretisation error is easy "
        "to see.",
    )
    for name in NAMES:
        p = run(name, density())
        table.add(name, "right", f"{p:.1e}", "> 1e-6", holds=p > 1e-6)
        for fault in FAULTS:
            p = faults.with_fault(fault, run, name)
            table.add(name, fault, f"{p:.1e}", "< 1e-6", holds=p < 1e-6)
    seeds = [
        sum(run(name, density(), seed=s, replicates=5_000) <= 1e-6 for s in range(100))
        for name in NAMES
    ]
    table.add("all", "right, 100 seeds", f"{sum(seeds)} of 300 alarms", "0", holds=not sum(seeds))
    return [table]
