"""Laplace's approximation on linear models, where it has a closed form or is found by Newton.

With the shipped defaults but for the epochs, of which a few suffice: Newton steps do the rest.
"""

import numpy as np
import pytest

import ribbit as rb
from tests.oracle import laplace_reference
from tests.support.linear_posterior import DESIGN, DIM, NOISE, PRIOR, X, Y, optimum, target

# A few epochs of Adam, whose objective rises: Newton steps find the mode.
RUN = {"num_epochs": 3, "progress": False}
NEW = np.random.default_rng(8).normal(size=(6, DIM - 1))
NEW_DESIGN = np.c_[NEW, np.ones(len(NEW))]
CLOSE = {"rtol": 1e-8, "atol": 1e-10}


def fitted(density, **options):
    return rb.LaplaceApproximation(density, batch_size=None, **options).fit(**RUN)


@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.3, 1.7)])
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_a_linear_regression_is_its_posterior(temperatures, subset):
    temperature, likelihood = temperatures
    fit = fitted(target(temperature=temperature, likelihood_temperature=likelihood), subset=subset)
    mean, _ = optimum(temperature, likelihood)
    precision = DESIGN.T @ DESIGN / NOISE**2 / likelihood + np.eye(DIM) / PRIOR**2
    np.testing.assert_allclose(fit.mean, mean, **CLOSE)
    np.testing.assert_allclose(fit.covariance, temperature * np.linalg.inv(precision), **CLOSE)
    assert fit.newton_decrement < 1e-18
    determined = DIM - np.trace(np.linalg.inv(precision)) / PRIOR**2
    np.testing.assert_allclose(fit.effective_parameters, determined, **CLOSE)
    if temperatures == (1.0, 1.0):
        evidence = laplace_reference.evidence_of_regression(DESIGN, Y, PRIOR * np.ones(DIM), NOISE)
        np.testing.assert_allclose(fit.log_evidence, evidence, **CLOSE)
    # the control: the gates see a noise that is wrong by a hundred thousandth
    other = np.linalg.inv(DESIGN.T @ DESIGN / (NOISE * 1.00001) ** 2 + np.eye(DIM) / PRIOR**2)
    assert not np.allclose(fit.covariance, temperature * other, **CLOSE)


def test_predictions_of_a_linear_regression():
    p = fitted(target()).predict(NEW)
    mean, sd = laplace_reference.predictive_of_regression(DESIGN, Y, NEW_DESIGN, PRIOR, NOISE)
    np.testing.assert_allclose(p.mean, mean, **CLOSE)
    np.testing.assert_allclose(p.epistemic_std, sd, **CLOSE)
    np.testing.assert_allclose(p.aleatoric_std, NOISE)
    np.testing.assert_allclose(p.std, np.hypot(sd, NOISE), **CLOSE)
    np.testing.assert_allclose(p.credible_quantile(0.975), mean + 1.959963984540054 * sd, **CLOSE)
    lower, upper = p.interval(0.9)
    half = 1.6448536269514722 * np.hypot(sd, NOISE)
    np.testing.assert_allclose([lower, upper], [mean - half, mean + half], rtol=1e-7)
    y = mean + 0.1
    z = 0.1 / np.hypot(sd, NOISE)
    expected = np.mean(-0.5 * z**2 - np.log(np.hypot(sd, NOISE)) - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(p.log_likelihood(y), expected, **CLOSE)


@pytest.mark.parametrize("standardize", [False, True])
def test_predictions_of_two_outputs_by_draws(standardize):
    """Of weights at random the same to 6 standard errors: 24 numbers, 5e-8 by chance.

    Their mean and sd, in the units of the data; the log likelihood of two outputs at once.
    """
    rng = np.random.default_rng(5)
    y = np.c_[Y, 3.0 + 2.0 * DESIGN @ [1.0, 0.2, 0.1]] + 0.1 * rng.normal(size=(len(Y), 2))
    density = rb.Posterior(
        rb.mlp(DIM - 1, (), 2),
        X,
        y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(NOISE),
        dtype=np.float64,
        standardize=standardize,
    )
    fit, count = fitted(density), 20_000
    exact, drawn = fit.predict(NEW), fit.predict(NEW, count, linearized=False)
    assert exact.mean.shape == (len(NEW), 2)
    error = exact.epistemic_std / np.sqrt(count)
    assert (np.abs(drawn.mean - exact.mean) < 6.0 * error).all()
    variances = drawn.epistemic_std**2 / exact.epistemic_std**2
    assert (np.abs(variances - 1.0) < 6.0 * np.sqrt(2.0 / count)).all()
    np.testing.assert_allclose(drawn.aleatoric_std, exact.aleatoric_std, rtol=1e-12)
    new = exact.mean + exact.std * rng.normal(size=(len(NEW), 2))
    assert abs(drawn.log_likelihood(new) - exact.log_likelihood(new)) < 0.01
    # the control
    assert (np.abs(variances * 1.1 - 1.0) > 6.0 * np.sqrt(2.0 / count)).all()


GENERALISED = {
    "categorical": (rb.Categorical(), 3),
    "bernoulli": (rb.Bernoulli(), 2),
    "poisson": (rb.Poisson(), 2),
}


@pytest.mark.parametrize("family", GENERALISED)
def test_generalised_linear_models_are_those_of_newton(family):
    likelihood, outputs = GENERALISED[family]
    rng = np.random.default_rng(3)
    f = DESIGN @ rng.normal(size=(DIM, outputs))
    if family == "categorical":
        y = np.argmax(f + rng.gumbel(size=f.shape), axis=1)
    elif family == "bernoulli":
        y = (f + rng.logistic(size=f.shape) > 0).astype(float)
    else:
        y = rng.poisson(np.exp(f))
    model = rb.mlp(DIM - 1, (), outputs)
    density = rb.Posterior(
        model, X, y, prior=rb.Normal(PRIOR), likelihood=likelihood, dtype=np.float64
    )
    fit = fitted(density)
    mode, covariance = laplace_reference.mode_of_linear_model(DESIGN, y, outputs, family, PRIOR)
    np.testing.assert_allclose(fit.mean, mode.ravel(), **CLOSE)
    np.testing.assert_allclose(fit.covariance, covariance, **CLOSE)
    value = density.value_and_grad(fit.mean)[0]
    _, volume = np.linalg.slogdet(2.0 * np.pi * covariance)
    np.testing.assert_allclose(fit.log_evidence, value + 0.5 * volume, **CLOSE)


def test_evidence_is_the_integral():
    """Of a Poisson rate with few counts: near the integral, and as far off as theory says.

    The next term of Laplace's series is of order 1 / counts.
    """
    counts = np.array([9.0, 14.0, 11.0])
    model = rb.Model([rb.Dense(1, bias=False)], input_shape=(1,))
    density = rb.Posterior(
        model,
        np.ones((3, 1)),
        counts,
        prior=rb.Normal(2.0),
        likelihood=rb.Poisson(),
        dtype=np.float64,
    )
    fit = fitted(density)
    grid = np.linspace(1.0, 4.0, 20_001)
    values, _ = density.value_and_grad(grid[:, None])
    exact = np.log(np.sum(np.exp(values)) * (grid[1] - grid[0]))
    assert 1e-4 < abs(fit.log_evidence - exact) < 1.0 / counts.sum()


# --- scales --------------------------------------------------------------------------------------


def evidence_of(log_scales, groups):
    prior = np.repeat(np.exp(log_scales[:-1]), groups)
    return laplace_reference.evidence_of_regression(DESIGN, Y, prior, np.exp(log_scales[-1]))


@pytest.mark.parametrize(
    ("how", "groups"), [("shared", [DIM]), ("layers", [DIM - 1, 1])], ids=["shared", "layers"]
)
def test_scales_are_those_of_most_evidence(how, groups):
    """On a linear regression: no step of a percent in any direction has more, and none is left."""
    fit = fitted(target(), tune_prior=how, tune_noise=True)
    sds = [fit.tuning[name][-1] for name in ("0.weight", "0.bias")[: len(groups)]]
    found = np.log([*sds, fit.tuning["noise_sd"][-1]])
    best = evidence_of(found, groups)
    np.testing.assert_allclose(fit.log_evidence, best, **CLOSE)
    np.testing.assert_allclose(fit.tuning["log_evidence"][-1], best, **CLOSE)
    h = 1e-4
    for direction in h * np.eye(len(found)):
        up, down = evidence_of(found + direction, groups), evidence_of(found - direction, groups)
        assert abs(up - down) / (2 * h) < 1e-4
        assert up + down < 2 * best
    assert best > evidence_of(np.log([*[PRIOR] * len(groups), NOISE]), groups)
    # the posterior with those scales is what predicts
    assert fit.predictive.noise_scale == fit.tuning["noise_sd"][-1]
    np.testing.assert_allclose(fit.predictive.prior_sd, np.repeat(sds, groups))
    assert evidence_of(found + 0.01, groups) < best - 1e-6  # the control


# --- draws ---------------------------------------------------------------------------------------


def test_the_law_of_draws():
    """Mean and covariance: 9 numbers within 5.5 standard errors, 4e-7 by chance."""
    fit, count = fitted(target()), 100_000
    draws = fit.draws(count, seed=2).positions[0]

    def worst(mean, covariance):
        sd = np.sqrt(np.diag(covariance))
        away = (draws - mean) / sd
        firsts = np.abs(away.mean(axis=0)) * np.sqrt(count)
        wanted = covariance / np.outer(sd, sd)
        products = away.T @ away / count
        error = np.sqrt((1.0 + wanted**2) / count)
        seconds = (np.abs(products - wanted) / error)[np.triu_indices(DIM)]
        return max(firsts.max(), seconds.max())

    mean, _ = optimum()
    precision = DESIGN.T @ DESIGN / NOISE**2 + np.eye(DIM) / PRIOR**2
    exact = np.linalg.inv(precision)
    assert worst(mean, exact) < 5.5
    # the controls
    assert worst(mean + 0.05 * np.sqrt(np.diag(exact)), exact) > 5.5
    assert worst(mean, np.diag(np.diag(exact))) > 5.5
    assert worst(mean, 1.05 * exact) > 5.5
