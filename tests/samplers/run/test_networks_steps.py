"""Every sampler on networks of every layer: native steps are replayed by the oracle's gradients."""

import itertools

import numpy as np
import pytest

import ribbit as rb
from tests.oracle.reference import WEIGHT_NOISE, hmc_run, normal
from tests.oracle.stochastic_reference import batch_of, first_velocity, run
from tests.support.layer_problems import SILU, TANH, mask_factors, problem, weights
from tests.support.sampled_networks import DROPPING, NAMES, ROWS, SEED, made_of
from tests.support.targets import Foreign
from tests.support.trajectories import energy_error, faulty, native_trajectory


def scaled(made):
    """Gradient on a batch."""
    return lambda theta, rows: made.reference.gradient(theta, rows)[0]


CASES = {
    "sgld": (rb.SGLD, {"step_size": 1e-5}, {"kind": "sgld"}),
    "preconditioned": (
        rb.SGLD,
        {"step_size": 1e-6, "preconditioner": "rmsprop"},
        {"kind": "sgld", "decay": 0.99, "epsilon": 1e-5, "adapt_until": 6},
    ),
    "sghmc": (
        rb.SGHMC,
        {"step_size": 1e-6, "friction": 0.15},
        {"kind": "sghmc", "friction": 0.15},
    ),
}


@pytest.mark.full
@NAMES
@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("case", CASES)
def test_stochastic_steps_are_the_oracles(case, path, name):
    make, options, rule = CASES[case]
    made = made_of(name, likelihood=1)
    density = made.native() if path == "native" else Foreign(made.native())
    start = np.stack([made.theta, 0.9 * made.theta])
    for batch in (33, None):
        sampler = make(density, batch_size=batch, **options)
        call = {"init": start, "seed": SEED, "chains": [0, 9], "warmup": 6, "thin": 1}
        draws = sampler.sample(4, save_warmup=True, progress=False, **call)
        found = np.concatenate([draws.warmup_positions, draws.positions], axis=1)
        for c, chain in enumerate((0, 9)):
            extra = {"step_size": options["step_size"]}
            if case == "sghmc":
                extra["velocity"] = first_velocity(
                    made.theta.size, options["step_size"], seed=SEED, chain=chain
                )
            where = {"rows": ROWS, "batch": batch, "seed": SEED, "chain": chain}
            rules = {**rule, **extra}
            expected = run(scaled(made), start[c], 10, **where, rule=rules)
            np.testing.assert_allclose(found[c], expected, rtol=1e-9, atol=1e-11)
            if chain:  # control: the batches and noise of another chain
                where["chain"] = 0
                other = run(scaled(made), start[c], 10, **where, rule=rules)
                assert np.abs(found[c] - other).max() > 1e-6


@pytest.mark.full
# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@NAMES
@pytest.mark.parametrize("path", ["native", "python"])
def test_hmc_is_replayed(path, name):
    made = made_of(name)
    density = made.native() if path == "native" else Foreign(made.native())
    step = {"conv": 0.015, "residual": 0.02, "lstm": 0.05, "group norm": 0.02}[name]
    # Of one length, for which the steps are chosen; samplers/mcmc/test_hmc.py replays random ones.
    hmc = rb.HMC(density, step_size=step, num_leapfrog_steps=3, randomize_length=False)
    draws = hmc.sample(8, warmup=0, chains=2, seed=SEED, init=made.theta, progress=False)
    accepted = np.asarray(draws.stats["accepted"])
    assert 0 < accepted.sum() < accepted.size  # both branches are met
    for chain in range(2):
        options = {"seed": SEED, "chain": chain, "num_steps": 3, "randomize_length": False}
        known, flags = hmc_run(made.reference, made.theta, 8, step_size=step, **options)
        np.testing.assert_array_equal(accepted[chain], flags)
        np.testing.assert_allclose(draws.positions[chain], known, rtol=0, atol=1e-8)
    wrong, _ = hmc_run(made.reference, made.theta, 8, step_size=1.001 * step, **options)
    assert np.abs(draws.positions[1] - wrong).max() > 1e-6  # control


ADAM = {"kind": "adam", "step_size": 0.01, "decay1": 0.9, "decay2": 0.999, "epsilon": 1e-8}


@NAMES
@pytest.mark.parametrize("objective", ["map", "likelihood"])
def test_deep_ensembles_are_replayed(objective, name):
    made = made_of(name, likelihood=3)
    start = np.stack([made.theta, 0.9 * made.theta])
    fit = rb.DeepEnsemble(
        made.native(), members=2, batch_size=33, learning_rate=0.01, objective=objective
    ).fit(3, seed=SEED, init=start, progress=False)

    def gradient(theta, rows):
        if objective == "map":
            return made.reference.gradient(theta, rows)[0]
        return made.reference.log_likelihood(theta, rows)[1]

    for member in range(2):
        where = {"rows": ROWS, "batch": 33, "seed": SEED, "chain": member}
        known = run(gradient, start[member], 9, **where, noises=np.zeros(9), rule=ADAM)[-1]
        np.testing.assert_allclose(fit.theta[member], known, rtol=1e-7, atol=1e-8)
    if objective == "likelihood":  # control: with the prior
        known = run(scaled(made), start[1], 9, **where, noises=np.zeros(9), rule=ADAM)[-1]
        assert np.abs(fit.theta[1] - known).max() > 1e-4


@pytest.mark.parametrize("name", DROPPING)
def test_mc_dropout_is_replayed(name):
    """Adam under the masks of the batch's rows at every step."""
    made = made_of(name)
    for batch in (33, None):
        mcd = rb.MCDropout(made.native(), batch_size=batch, learning_rate=0.01)
        fit = mcd.fit(3, seed=SEED, init=made.theta, progress=False)

        def replay(shift, batch=batch):
            steps = itertools.count(shift)

            def gradient(theta, rows):
                factors = mask_factors(made.model, rows, seed=SEED, step=next(steps))
                return made.reference.gradient(theta, rows, factors)[0]

            count = 3 * (1 if batch is None else 3)
            where = {"rows": ROWS, "batch": batch, "seed": SEED, "chain": 0}
            noises = np.zeros(count)
            return run(gradient, made.theta, count, **where, noises=noises, rule=ADAM)[-1]

        np.testing.assert_allclose(fit.theta, replay(0), rtol=1e-7, atol=1e-8)
        assert np.abs(fit.theta - replay(1)).max() > 1e-4  # control: the masks of the next step


@NAMES
def test_bbb_is_replayed(name):
    """Reparameterised gradients by the oracle, Adam, and the records of each epoch."""
    made = made_of(name, likelihood=1)
    dim, epochs, batch, rate = made.theta.size, 2, 33, 0.01
    bbb = rb.BBB(made.native(), batch_size=batch, learning_rate=rate, kl="sampled", init_scale=0.1)
    fit = bbb.fit(epochs, seed=SEED, init=made.theta, progress=False)
    mean, rho = made.theta.copy(), np.full(dim, np.log(np.expm1(0.1)))
    first, second, recorded = np.zeros((2, dim)), np.zeros((2, dim)), 0.0
    for step in range(3 * epochs):
        rows = batch_of(step, ROWS, batch, seed=SEED, chain=0)
        e = normal(dim, seed=SEED, step=step, chain=0, purpose=WEIGHT_NOISE)
        scale, share = np.logaddexp(0, rho), len(rows) / ROWS
        value, gradient, _ = made.reference.log_likelihood(mean + scale * e, rows)
        by_weight = share * (gradient + made.reference.log_prior(mean + scale * e)[1])
        by_scale = by_weight * e + share / scale
        g = np.stack([by_weight, by_scale / (1 + np.exp(-rho))])
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        corrected = first / (1 - 0.9 ** (step + 1))
        move = rate * corrected / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        mean, rho = mean + move[0], rho + move[1]
        recorded += share * value if step >= 3 else 0.0
    np.testing.assert_allclose(fit.mean, mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(fit.scale, np.logaddexp(0, rho), rtol=1e-7)
    assert fit.expected_log_likelihood[-1] == pytest.approx(recorded, rel=1e-9)
    assert np.abs(fit.mean - made.theta).max() > 0.01  # it moved


def test_order_of_the_energy_error_is_two():
    """On a smooth network with filter response normalisation. Control: a full first kick."""

    def smooth():
        return rb.FilterResponseNorm(threshold=False)

    model = rb.Model(
        [
            *(rb.Conv2D(2, 3, padding="same"), smooth(), SILU),
            rb.Residual([rb.Conv2D(2, 2, padding="same"), smooth(), TANH]),
            *(rb.GlobalAvgPool2D(), rb.Dense(1)),
        ],
        input_shape=(3, 3, 1),
    )
    made = problem(model, num_rows=12)
    target = made.native()

    def order(trajectory, starts):
        steps = [0.004, 0.002, 0.001]
        errors = np.zeros((len(steps), starts))
        for i, s in itertools.product(range(len(steps)), range(starts)):
            rng = np.random.default_rng((79, s))
            theta, momentum = weights(model, rng), rng.normal(size=model.dim)
            # an exact start would do no better: the order is that of every trajectory
            where = theta, momentum, steps[i], round(0.1 / steps[i])
            errors[i, s] = energy_error(target, trajectory, *where)[0]
        rms = np.sqrt(np.mean(errors**2, axis=1))
        return float(np.polyfit(np.log(steps), np.log(rms), 1)[0])

    assert order(native_trajectory, 20) == pytest.approx(2.0, abs=0.05)
    assert order(faulty("full first kick"), 5) < 1.5
