"""Gate "integrator": properties of the leapfrog on the posterior of a 1-16-1 network.

Reversal error <= 1e-10 (float64, L = 1,000) and <= 1e-4 (float32, L = 100), order of the energy
error 2.00 +- 0.02, |log det J| <= 1e-6, and E[exp(-dH)] = 1 within 5.5 standard errors. Starts are
exact: theta from the prior and y given theta make theta a draw of the posterior given y. The
controls are integrators with one fault each; every test must refuse one.
"""

import math

import numpy as np
import pytest

import ribbit as rb
from tests.oracle.reference import Target, hmc_run, leapfrog, mlp_table
from tests.support.gates import Table
from tests.support.trajectories import energy_error, faulty, native_trajectory

NUM_ROWS, NOISE, PRIOR = 20, 0.2, 0.3
# Both steps are accepted with probability >= 0.9. Trajectories of 1,000 fine steps (about six
# prior standard deviations at each turn) stay clear of the chaos that multiplies rounding errors.
STEP, COARSE_STEP = 0.01, 0.02
TABLE, DIM = mlp_table(1, (16,), 1, "tanh")
X = np.linspace(-2, 2, NUM_ROWS)[:, None]


def posterior(y, dtype=np.float64):
    return rb.Posterior(
        rb.mlp(1, (16,), 1, activation="tanh"),
        X,
        y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(NOISE),
        dtype=dtype,
    )


def exact_start(seed, dtype=np.float64):
    """A posterior and one exact draw of it (P,)."""
    rng = np.random.default_rng((77, seed))
    theta = (PRIOR * rng.normal(size=DIM)).astype(dtype)
    hidden = np.tanh(X * theta[:16] + theta[16:32])
    y = hidden @ theta[32:48, None] + theta[48] + NOISE * rng.normal(size=(NUM_ROWS, 1))
    return posterior(y, dtype), theta


def reversal_error(trajectory, dtype, num_steps, step_size=STEP, starts=5):
    """Largest distance after a trajectory and its way back."""
    worst = 0.0
    for seed in range(starts):
        target, theta = exact_start(seed, dtype)
        momentum = np.random.default_rng((78, seed)).normal(size=DIM).astype(dtype)
        q, p, _ = trajectory(target, theta, momentum, step_size, num_steps)
        back_q, back_p, _ = trajectory(target, q, -p, step_size, num_steps)
        worst = max(worst, np.max(np.abs(back_q - theta)), np.max(np.abs(back_p + momentum)))
    return float(worst)


def energy_order(trajectory, starts=60):
    """Slope of log rms energy error against log step size at one trajectory length."""
    steps = [STEP / 2, STEP / 4, STEP / 8]  # fine enough for the leading term to rule
    errors = np.zeros((len(steps), starts))
    for seed in range(starts):
        target, theta = exact_start(seed)
        momentum = np.random.default_rng((79, seed)).normal(size=DIM)
        for i, step in enumerate(steps):
            errors[i, seed] = energy_error(
                target, trajectory, theta, momentum, step, round(0.25 / step)
            )[0]
    rms = np.sqrt(np.mean(errors**2, axis=1))
    return float(np.polyfit(np.log(steps), np.log(rms), 1)[0])


def log_determinant(trajectory, num_steps=20, h=3e-4):
    """log |det J| of the map (q, p) -> (q', p') by sixth-order differences; chains: the stencil."""
    target, theta = exact_start(0)
    start = np.concatenate([theta, np.random.default_rng(80).normal(size=DIM)])
    weights = {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
    jacobian = np.zeros((2 * DIM, 2 * DIM))
    for k, weight in weights.items():
        shifted = np.concatenate([start + s * k * h * np.eye(2 * DIM) for s in (1, -1)])
        q, p, _ = trajectory(
            target, shifted[:, :DIM].copy(), shifted[:, DIM:].copy(), STEP, num_steps
        )
        end = np.concatenate([q, p], axis=1)
        jacobian += weight * (end[: 2 * DIM] - end[2 * DIM :]).T / h
    return float(np.linalg.slogdet(jacobian)[1])


def exponential_mean(trajectory, replicates, chains=20, num_steps=10, dtype=np.float64):
    """Mean of exp(-dH) with its standard error, and the mean acceptance; replicates independent."""
    means, acceptance = np.zeros(replicates), np.zeros(replicates)
    for seed in range(replicates):
        target, theta = exact_start(seed, dtype)
        momentum = np.random.default_rng((81, seed)).normal(size=(chains, DIM)).astype(dtype)
        start = np.repeat(theta[None], chains, axis=0)
        error = energy_error(target, trajectory, start, momentum, COARSE_STEP, num_steps)
        means[seed] = np.mean(np.exp(np.minimum(-error, 50)))
        acceptance[seed] = np.mean(np.minimum(1, np.exp(np.minimum(-error, 0))))
    return means.mean(), means.std(ddof=1) / math.sqrt(replicates), acceptance.mean()


def test_acceptance_of_the_step_is_what_the_gate_asks_for():
    # mean of 200 replicates, standard error about 0.003: false-fail rate far under 1e-6
    assert exponential_mean(native_trajectory, 200)[2] >= 0.9


def test_reversal_float64():
    assert reversal_error(native_trajectory, np.float64, 1000) <= 1e-10
    assert reversal_error(faulty("full first kick"), np.float64, 50, starts=1) > 1e-4  # control


def test_reversal_float32():
    assert reversal_error(native_trajectory, np.float32, 100) <= 1e-4
    assert reversal_error(faulty("full first kick"), np.float32, 100, starts=1) > 1e-4  # control


def test_order_of_the_energy_error_is_two():
    assert energy_order(native_trajectory) == pytest.approx(2.0, abs=0.02)
    assert energy_order(faulty("full first kick"), starts=10) < 1.5  # control


def test_volume_is_preserved():
    assert abs(log_determinant(native_trajectory)) <= 1e-6
    assert abs(log_determinant(faulty("explicit Euler"))) > 1e-3  # control


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exponential_of_the_energy_error_has_mean_one(dtype):
    # 5.5 standard errors: false-fail rate 4e-8
    mean, error, _ = exponential_mean(native_trajectory, 400, dtype=dtype)
    assert abs(mean - 1) <= 5.5 * error


def test_exponential_mean_refuses_a_map_that_changes_volume():
    mean, error, _ = exponential_mean(faulty("explicit Euler"), 100)
    assert abs(mean - 1) > 5.5 * error


@pytest.mark.slow
def test_exponential_of_the_energy_error_has_mean_one_at_length():
    mean, error, acceptance = exponential_mean(native_trajectory, 4_000)
    assert acceptance >= 0.9
    assert abs(mean - 1) <= 5.5 * error


def oracle_of(y):
    return Target(
        table=TABLE, prior=np.array([[0, DIM, 0, PRIOR, 0, 0]]), kind=0, x=X, y=y, scale=NOISE
    )


@pytest.mark.parametrize("num_steps", [1, 2, 17])
def test_trajectory_matches_the_oracle(num_steps):
    target, theta = exact_start(3)
    oracle = oracle_of(np.asarray(synthetic_y(3)))
    momentum = np.random.default_rng(4).normal(size=DIM)
    inverse_mass = np.random.default_rng(5).uniform(0.5, 2, size=DIM)
    q, p = leapfrog(lambda t: oracle.gradient(t)[0], theta, momentum, STEP, num_steps, inverse_mass)
    gradient = target.value_and_grad(theta[None])[1]
    native_q, native_p, terms, native_gradient = target.leapfrog(
        theta[None],
        momentum[None],
        gradient,
        np.array([STEP]),
        np.array([num_steps]),
        inverse_mass=inverse_mass,
    )
    np.testing.assert_allclose(native_q[0], q, rtol=0, atol=1e-11)
    np.testing.assert_allclose(native_p[0], p, rtol=0, atol=1e-11)
    np.testing.assert_allclose(terms, oracle.terms(q), rtol=1e-10)
    np.testing.assert_allclose(native_gradient, oracle.gradient(q), rtol=0, atol=1e-9)


def synthetic_y(seed):
    """The y of exact_start(seed)."""
    rng = np.random.default_rng((77, seed))
    theta = PRIOR * rng.normal(size=DIM)
    hidden = np.tanh(X * theta[:16] + theta[16:32])
    return hidden @ theta[32:48, None] + theta[48] + NOISE * rng.normal(size=(NUM_ROWS, 1))


def test_chains_have_their_own_step_size_and_length():
    target, theta = exact_start(1)
    momentum = np.random.default_rng(6).normal(size=(3, DIM))
    start = np.repeat(theta[None], 3, axis=0)
    gradient = target.value_and_grad(start)[1]
    steps, lengths = np.array([0.01, 0.02, 0.005]), np.array([3, 1, 12])
    mass = np.random.default_rng(7).uniform(0.5, 2, size=(3, DIM))
    together = target.leapfrog(start, momentum, gradient, steps, lengths, inverse_mass=mass)
    for c in range(3):
        one = slice(c, c + 1)
        alone = target.leapfrog(
            start[one],
            momentum[one],
            gradient[one],
            steps[one],
            lengths[one],
            inverse_mass=mass[one],
        )
        for a, b in zip(alone, together, strict=True):
            assert np.array_equal(a, b[one])


# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("options", [{}, {"mass": True}, {"step_size_jitter": 0.3}])
def test_a_whole_native_run_is_replayed_by_the_oracle(options):
    y = synthetic_y(5)
    target, theta = exact_start(5)
    mass = np.random.default_rng(8).uniform(0.5, 2, size=DIM) if options.get("mass") else None
    step_size_jitter = options.get("step_size_jitter", 0.0)
    step_size, num_steps, draws = 0.04, 4, 40  # a large step, so that some are rejected
    hmc = rb.HMC(
        target,
        step_size=step_size,
        num_leapfrog_steps=num_steps,
        step_size_jitter=step_size_jitter,
        inverse_mass_matrix=mass,
    )
    run = hmc.sample(draws, warmup=0, chains=2, seed=12345678901, init=theta, progress=False)
    for chain in range(2):
        positions, accepted = hmc_run(
            oracle_of(y),
            theta,
            draws,
            seed=12345678901,
            chain=chain,
            step_size=step_size,
            num_steps=num_steps,
            inverse_mass=1.0 if mass is None else mass,
            step_size_jitter=step_size_jitter,
        )
        assert 5 <= accepted.sum() <= draws - 5  # both branches are met
        assert np.array_equal(np.asarray(run.stats["accepted"])[chain], accepted)
        np.testing.assert_allclose(run.positions[chain], positions, rtol=0, atol=1e-8)


def results():
    table = Table(
        "Integrator",
        ("property", "found", "gate"),
        note="Leapfrog trajectories on the posterior of a 1-16-1 tanh network, from exact draws. "
        f"The step size is {STEP}, and {COARSE_STEP} for acceptance and E[exp(-dH)]. A gate that "
        "is a bare number is an upper bound.",
    )
    mean, error, acceptance = exponential_mean(native_trajectory, 4_000)
    found = [
        ("acceptance", acceptance, ">= 0.9", acceptance >= 0.9),
        (
            "reversal error, float64, 1,000 steps",
            reversal_error(native_trajectory, np.float64, 1000),
            1e-10,
        ),
        (
            "reversal error, float32, 100 steps",
            reversal_error(native_trajectory, np.float32, 100),
            1e-4,
        ),
        ("abs(log det J)", abs(log_determinant(native_trajectory)), 1e-6),
        ("E[exp(-dH)] - 1, in standard errors", abs(mean - 1) / error, 5.5),
    ]
    for name, value, bound, *holds in found:
        table.add(name, f"{value:.3g}", bound, holds=holds[0] if holds else value <= bound)
    order = energy_order(native_trajectory)
    table.add(
        "order of the energy error", f"{order:.4f}", "2.00 +- 0.02", holds=abs(order - 2) <= 0.02
    )
    return [table]
