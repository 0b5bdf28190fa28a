"""Targets of few values: the warning, and noise sds that have vanished."""

import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NoiseWarning
from ribbit.targets.stepped import step_of

NET = rb.mlp(2, (4,), 2)


def posterior(y, likelihood=None, **options):
    x = np.random.default_rng(1).normal(size=(len(y), 2))
    likelihood = likelihood or rb.HeteroscedasticGaussian()
    return rb.Posterior(NET, x, y, prior=rb.Normal(1.0), likelihood=likelihood, **options)


def grades(rng, rows=200):
    """Whole numbers from 3 to 8, most of them 5 and 6."""
    return np.round(np.clip(rng.normal(5.6, 0.8, size=rows), 3, 8))


def test_the_step_of_a_column(rng):
    y = np.repeat([1.0, 1.5, 4.0], [30, 50, 20])
    assert step_of(y) == (0.5, 3, 1.0)
    assert step_of(y + 1e9 * 0)[0] == 0.5
    zeros = np.concatenate([np.zeros(60), 2.0 + rng.uniform(size=40)])
    step, count, share = step_of(zeros)
    assert (count, share) == (1, 0.6)
    assert 2.0 < step < 2.2
    step, count, share = step_of(rng.normal(size=300))
    assert (count, share) == (0, 0.0)
    assert 0.0 < step < 1e-2
    assert np.isnan(step_of(np.ones(50))[0])


def test_few_values_warn_and_the_advice_does_not(rng):
    y = (grades(rng) - 5.6) / 0.8
    with pytest.warns(NoiseWarning, match=r"min_sd=0.36\), the sd of rounding to steps of 1.25$"):
        posterior(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior(y, rb.HeteroscedasticGaussian(min_sd=0.36))
        posterior(rng.normal(size=200))  # the control: as many values as rows
        posterior(np.round(10 * rng.normal(size=400)) / 30)  # rounded, but to many values


def test_advice_is_in_the_units_of_the_target(rng):
    y = 10.0 * grades(rng)
    advised = f"{10.0 / y.std() / np.sqrt(12.0):.2g}"
    with pytest.warns(NoiseWarning, match=rf"min_sd={advised}\).*standardised y"):
        posterior(y, standardize=True)


def test_a_floor_is_in_the_units_of_the_target(rng):
    y = 10.0 * grades(rng)
    floored = rb.HeteroscedasticGaussian(min_sd=0.2)
    target = posterior(y, floored, standardize=True)
    theta = target.init(chains=3)
    theta[:, -1] = -200.0  # the bias of the raw sd
    noise = target.predictive(theta, np.zeros((4, 2))).noise_sd
    np.testing.assert_allclose(noise, 0.2 * y.std(), rtol=1e-12)


def test_collapsed_noise_is_a_line_of_the_verdict(rng):
    y = (grades(rng) - 5.6) / 0.8
    with pytest.warns(NoiseWarning):
        target = posterior(y)
    draws = sampled(target, raw=-30.0)
    summary = draws.summary()
    assert "min_sd=0.36" in summary.message
    row = next(row for row in summary.rows if "noise sd" in row.name)
    assert (row.value, row.good) == ("100.0%", False)
    # controls: a network that has not collapsed, and one that cannot
    assert "min_sd" not in sampled(target, raw=0.0).summary().message
    floored = posterior(y, rb.HeteroscedasticGaussian(min_sd=0.36))
    assert "min_sd" not in sampled(floored, raw=-30.0).summary().message


def sampled(target, raw):
    """Draws of weights whose raw sds are about `raw`."""
    theta = 0.1 * target.init(chains=2)
    theta[:, -1] = raw
    hmc = rb.HMC(target, step_size=1e-7, num_leapfrog_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return hmc.sample(12, warmup=0, init=theta, progress=False)


@pytest.mark.parametrize("min_sd", [-0.1, 1e-16, 1e16, np.nan, np.inf])
def test_floors_out_of_range(min_sd):
    with pytest.raises(ValueError, match="min_sd"):
        rb.HeteroscedasticGaussian(min_sd=min_sd)


def test_no_floor_has_the_bits_and_the_description_of_before(rng):
    y = rng.normal(size=50)
    plain, zero = posterior(y), posterior(y, rb.HeteroscedasticGaussian(min_sd=0.0))
    assert plain.fingerprint == zero.fingerprint
    assert plain.likelihood.describe() == {"likelihood": "HeteroscedasticGaussian"}
    floored = posterior(y, rb.HeteroscedasticGaussian(min_sd=0.1))
    assert floored.fingerprint["likelihood"] != plain.fingerprint["likelihood"]
    again = rb.likelihoods.from_description(floored.likelihood.describe())
    assert again == floored.likelihood
    theta = plain.init(chains=3)
    value, grad = plain.value_and_grad(theta)
    tiny, slope = posterior(y, rb.HeteroscedasticGaussian(min_sd=1e-15)).value_and_grad(theta)
    np.testing.assert_allclose(tiny, value, rtol=1e-6)
    np.testing.assert_allclose(slope, grad, rtol=1e-4, atol=1e-4)


def test_subset_is_the_posterior_of_these_rows(rng):
    y = rng.normal(size=30)
    target = posterior(y, dtype=np.float64)
    rows = [3, 17, 17, 29]
    some = target.subset(rows)
    x = np.random.default_rng(1).normal(size=(30, 2))
    again = rb.Posterior(
        NET, x[rows], y[rows], prior=target.prior, likelihood=target.likelihood, dtype=np.float64
    )
    theta = target.init(chains=2)
    for one, other in zip(some.value_and_grad(theta), again.value_and_grad(theta), strict=True):
        np.testing.assert_array_equal(one, other)
    for bad in ([], [30], [0.5], [[1]]):
        with pytest.raises((TypeError, ValueError), match="rows"):
            target.subset(bad)
