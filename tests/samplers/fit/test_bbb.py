"""Bayes by Backprop on ``linear_posterior.py``: the exact optimum, the steps, the bound."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.results.fits import MeanField
from tests.oracle.reference import WEIGHT_NOISE, normal
from tests.oracle.stochastic_reference import batch_of
from tests.support import faults
from tests.support.gates import Table
from tests.support.linear_posterior import (
    DESIGN,
    DIM,
    NOISE,
    PRIOR,
    ROWS,
    Y,
    log_likelihood,
    optimum,
    target,
)

# --- the optimum ---------------------------------------------------------------------------------


def distance(
    density,
    temperature=1.0,
    likelihood_temperature=1.0,
    *,
    kl="closed",
    batch=None,
    prior=PRIOR,
    centre=0.0,
    seed=1,
    steps=30_000,
):
    """Largest error of a mean in sds, and of a sd relative, after a decaying learning rate.

    With 128 samples a step it is 0.3 % at the end; over 100 seeds it stays below the gate of 1 %
    (test_no_alarm_in_a_hundred_seeds). Fixed seeds make these runs repeatable to the bit.
    """
    epochs = steps // (1 if batch is None else -(-ROWS // batch))
    fit = rb.BBB(
        density,
        learning_rate=0.002,
        num_samples=128,
        kl=kl,
        batch_size=batch,
        schedule=rb.schedules.cosine(steps),
    ).fit(epochs, seed=seed, progress=False)
    mean, scale = optimum(temperature, likelihood_temperature, prior)
    precision = DESIGN.T @ DESIGN / NOISE**2 / likelihood_temperature + np.eye(DIM) / prior**2
    mean = mean + np.linalg.solve(precision, np.full(DIM, centre) / prior**2)
    return max(np.max(np.abs(fit.mean - mean) / scale), np.max(np.abs(fit.scale / scale - 1)))


TEMPERATURES = [(1.0, 1.0), (0.3, 1.0), (1.0, 2.0), (0.5, 3.0)]


@pytest.mark.full
@pytest.mark.parametrize("kl", ["closed", "sampled"])
@pytest.mark.parametrize(("temperature", "likelihood_temperature"), TEMPERATURES)
def test_the_exact_optimum_is_reached(temperature, likelihood_temperature, kl):
    density = target(temperature=temperature, likelihood_temperature=likelihood_temperature)
    assert distance(density, temperature, likelihood_temperature, kl=kl) < 0.01


def test_the_optimum_is_reached_with_minibatches():
    """A fixed seed repeats the run to the bit, of as many steps as on all rows.

    It and three others end below 0.3 %; the gate is 1 %.
    """
    assert distance(target(), batch=5) < 0.01


FEW = 10_000  # steps; the error ends below 0.9 % (eight seeds), with a fault at 4.9 % or more


def distance_after_few_steps(batch=None):
    return distance(target(), batch=batch, steps=FEW)


@faults.needed
@pytest.mark.parametrize(
    ("fault", "batch"),
    [("mean instead of sum KL", None), ("KL +10 %", None), ("KL counted once per batch", 5)],
)
def test_every_fault_of_the_steps_misses_the_optimum(fault, batch):
    assert faults.with_fault(fault, distance_after_few_steps, batch) > 0.01


def test_a_missing_scale_misses_the_optimum():
    """A batch of 5 of 20 rows without its N/n."""
    assert distance(target(likelihood_temperature=4.0), steps=FEW) > 0.01


def test_no_fault_no_alarm_after_few_steps():
    """The control of the tests around it, with their number of steps."""
    assert distance(target(), steps=FEW) < 0.01
    assert distance(target(rb.Normal(0.15)), prior=0.15, steps=FEW) < 0.01


def test_a_wrong_prior_misses_the_optimum():
    """Prior precision +5 %, where the prior matters."""
    assert distance(target(rb.Normal(0.15)), prior=0.15) < 0.01
    wrong = target(rb.Normal(0.15 / np.sqrt(1.05)))
    assert distance(wrong, prior=0.15, steps=FEW) > 0.01


@pytest.mark.full
@pytest.mark.parametrize("kl", ["closed", "sampled"])
def test_the_optimum_of_a_centred_prior_is_reached(kl):
    """The centre moves the optimum by far more than the gate; its wrong sign does too."""
    centre, given = np.array([2.0, -1.0, 3.0]), (0.5, 3.0)
    density = target(
        rb.Normal(0.3, mean=centre), temperature=given[0], likelihood_temperature=given[1]
    )
    assert distance(density, *given, kl=kl, prior=0.3, centre=centre) < 0.01
    wrong = target(
        rb.Normal(0.3, mean=-centre), temperature=given[0], likelihood_temperature=given[1]
    )
    assert distance(wrong, *given, kl=kl, prior=0.3, centre=centre) > 0.01


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    assert max(distance(target(), seed=seed) for seed in range(100)) < 0.01


# --- every step against the oracle ---------------------------------------------------------------


def oracle(
    num_steps,
    *,
    batch,
    samples,
    closed,
    rate,
    seed,
    weights,
    init,
    init_scale,
    temperatures,
    centre=0.0,
):
    """Records (3, steps), mean and rho (P,) of Adam on the bound, from the formulas."""
    temperature, likelihood_temperature = temperatures
    mean = np.array(init, np.float64)
    rho = np.full(DIM, np.log(np.expm1(init_scale)))
    first, second = np.zeros((2, DIM)), np.zeros((2, DIM))
    records = []
    for step in range(num_steps):
        rows = batch_of(step, ROWS, batch, seed=seed, chain=0)
        weight = weights(step)
        scale, slope = np.log1p(np.exp(rho)), 1 / (1 + np.exp(-rho))
        ll, log_prior, g_mean, g_scale = 0.0, 0.0, np.zeros(DIM), np.zeros(DIM)
        for s in range(samples):
            z = normal(DIM, seed=seed, step=step, chain=s, purpose=WEIGHT_NOISE)
            theta = mean + scale * z
            ll += log_likelihood(theta, rows) / samples
            g = DESIGN[rows].T @ (Y[rows] - DESIGN[rows] @ theta) / NOISE**2
            g = g / (temperature * likelihood_temperature)
            if not closed:
                g = g - weight * (theta - centre) / PRIOR**2 / temperature
                log_prior += np.sum(-0.5 * ((theta - centre) / PRIOR) ** 2) / samples
            g_mean += g / samples
            g_scale += g * z / samples
        if closed:
            g_mean -= weight * (mean - centre) / PRIOR**2 / temperature
            g_scale -= weight * scale / PRIOR**2 / temperature
            log_prior = -0.5 * np.sum((mean - centre) ** 2 + scale**2) / PRIOR**2
        log_prior -= DIM * (np.log(PRIOR) + 0.5 * np.log(2 * np.pi))
        g_scale += weight / scale
        log_q = -np.sum(np.log(scale)) - DIM * 0.5 * np.log(2 * np.pi * np.e)
        records.append([ll, log_q, log_prior])
        g = np.stack([g_mean, g_scale * slope])
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        move = first / (1 - 0.9 ** (step + 1))
        move = rate(step) * move / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        mean, rho = mean + move[0], rho + move[1]
    return np.array(records).T, mean, rho


@pytest.mark.parametrize("kl", ["closed", "sampled"])
@pytest.mark.parametrize("centre", [0.0, 1.5], ids=["", "centred"])
@pytest.mark.parametrize(("batch", "samples"), [(None, 1), (None, 3), (8, 1), (8, 2)])
def test_steps_are_those_of_the_oracle(batch, samples, centre, kl):
    temperatures = (0.6, 1.7)
    prior = rb.Normal(PRIOR, mean=centre)
    density = target(prior, temperature=0.6, likelihood_temperature=1.7)
    epochs, batches = 9, 1 if batch is None else 3
    for weighting in ("uniform", "blundell"):
        fit = rb.BBB(
            density,
            learning_rate=0.03,
            num_samples=samples,
            batch_size=batch,
            kl=kl,
            init_scale=0.2,
            kl_weighting=weighting,
        ).fit(epochs, seed=2**63 + 5, init=[0.1, -0.2, 0.3], progress=False)

        def weights(step, weighting=weighting):
            i = step % batches
            if weighting == "blundell":
                return 2.0 ** (batches - i - 1) / (2**batches - 1)
            return np.array_split(range(ROWS), batches)[i].size / ROWS

        records, mean, rho = oracle(
            epochs * batches,
            batch=batch,
            samples=samples,
            closed=kl == "closed",
            rate=lambda step: 0.03,
            seed=2**63 + 5,
            weights=weights,
            init=[0.1, -0.2, 0.3],
            init_scale=0.2,
            temperatures=temperatures,
            centre=centre,
        )
        np.testing.assert_allclose(fit.mean, mean, rtol=1e-9)
        np.testing.assert_allclose(fit.scale, np.log1p(np.exp(rho)), rtol=1e-9)
        by_epoch = records.reshape(3, epochs, batches)
        shares = np.array([weights(i) for i in range(batches)])
        assert shares.sum() == pytest.approx(1)
        likelihood = by_epoch[0].sum(axis=1)
        divergence = ((by_epoch[1] - by_epoch[2] / 0.6) * shares).sum(axis=1)
        np.testing.assert_allclose(fit.expected_log_likelihood, likelihood, rtol=1e-9)
        np.testing.assert_allclose(fit.kl, divergence, rtol=1e-9)
        np.testing.assert_allclose(fit.elbo, likelihood / (0.6 * 1.7) - divergence, rtol=1e-9)


def test_a_schedule_goes_on_where_a_fit_was():
    """7 epochs of 3 steps along a cosine that ends within them: whole, resumed, and the oracle."""
    schedule = rb.schedules.cosine(16, final=0.1)
    bbb = rb.BBB(target(), learning_rate=0.03, batch_size=8, init_scale=0.2, schedule=schedule)
    init = [0.1, -0.2, 0.3]
    whole = bbb.fit(7, seed=5, init=init, progress=False)
    part = bbb.fit(3, seed=5, init=init, progress=False)
    rest = bbb.fit(4, resume=part, progress=False)
    for name in ("mean", "scale", "elbo", "expected_log_likelihood", "kl"):
        assert getattr(rest, name).tobytes() == getattr(whole, name).tobytes(), name
    _, mean, rho = oracle(
        21,
        batch=8,
        samples=1,
        closed=True,
        rate=lambda step: 0.03 * (0.1 + 0.45 * (1 + np.cos(np.pi * min(step / 16, 1)))),
        seed=5,
        weights=lambda step: (7, 7, 6)[step % 3] / ROWS,
        init=init,
        init_scale=0.2,
        temperatures=(1.0, 1.0),
    )
    np.testing.assert_allclose(whole.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(whole.scale, np.log1p(np.exp(rho)), rtol=1e-9)


@pytest.mark.parametrize("centre", [0.0, -0.8], ids=["", "centred"])
def test_sampled_and_closed_kl_agree_in_expectation(centre):
    """Over 20,000 weight samples, within 5.5 standard errors (false-fail rate 4e-8)."""
    start = MeanField(np.array([0.2, -0.5, 0.9]), np.array([0.3, 0.1, 0.6]))
    density = target(rb.Normal(PRIOR, mean=centre))
    fits = [
        rb.BBB(density, learning_rate=1e-12, num_samples=20_000, kl=kl).fit(
            1, seed=4, init=start, progress=False
        )
        for kl in ("closed", "sampled")
    ]
    theta = start.sample(20_000, seed=4) - centre
    error = (0.5 * np.sum((theta / PRIOR) ** 2, axis=1)).std() / np.sqrt(20_000)
    assert abs(fits[0].kl[0] - fits[1].kl[0]) < 5.5 * error
    assert error < 0.01 * abs(fits[0].kl[0])
    exact = np.sum(
        -np.log(start.scale / PRIOR)
        - 0.5
        + ((start.mean - centre) ** 2 + start.scale**2) / (2 * PRIOR**2)
    )
    assert fits[0].kl[0] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    "prior",
    [
        rb.Laplace(0.5),
        rb.StudentT(4.0, 0.7),
        rb.Logistic(0.4),
        rb.ScaleMixture(0.3, 1.2, 0.2),
        {"*.bias": rb.Normal(0.5), "*": rb.Laplace(0.3)},
    ],
)
def test_other_priors_are_sampled(prior):
    """The bound rises with the fit, and its KL is that of independent weight samples.

    5.5 standard errors of a difference whose parts have at most `error` each: a false-fail rate
    below 4e-8 for a new seed. The seeds are fixed: a run repeats to the bit.
    """
    density = target(prior)
    with pytest.raises(ValueError, match=r"normal priors for kl='closed'.* use kl='sampled'"):
        rb.BBB(density)
    fit = rb.BBB(density, kl="sampled", num_samples=8, learning_rate=0.02).fit(
        1_500, seed=2, progress=False
    )
    assert fit.elbo[-100:].mean() > fit.elbo[:10].mean() + 10
    theta = fit.sample(4_000, seed=9)
    log_prior = density.log_prior(theta)
    log_q = np.sum(
        -0.5 * ((theta - fit.mean) / fit.scale) ** 2 - np.log(fit.scale) - 0.5 * np.log(2 * np.pi),
        axis=1,
    )
    error = (log_q - log_prior).std() / np.sqrt(4_000)
    still = rb.BBB(density, kl="sampled", num_samples=4_000, learning_rate=1e-12)
    found = still.fit(1, init=fit, seed=3, progress=False).kl[0]
    assert abs(np.mean(log_q - log_prior) - found) < 5.5 * np.sqrt(2) * error


def results():
    table = Table(
        "Bayes by Backprop, conjugate regression",
        ("temperatures", "KL", "largest error", "gate"),
        note="Fits of a linear model, compared with the exact mean-field optimum. Errors of means "
        "are in sds, errors of sds are relative. The two temperatures are `temperature` and "
        "`likelihood_temperature`.",
    )
    for pair in TEMPERATURES:
        for kl in ("closed", "sampled"):
            found = distance(
                target(temperature=pair[0], likelihood_temperature=pair[1]), *pair, kl=kl
            )
            table.add(f"{pair[0]:g}, {pair[1]:g}", kl, f"{found:.2%}", "1 %", holds=found < 0.01)
    for fault in ("mean instead of sum KL", "KL +10 %"):
        found = faults.with_fault(fault, distance_after_few_steps)
        table.add("fault", fault, f"{found:.2%}", "> 1 %", holds=found > 0.01)
    return [table]
