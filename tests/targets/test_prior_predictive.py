"""Predictions of the prior, against closed forms of linear models and SciPy's distributions.

The false-fail rate of a random check is below 1e-6: five standard errors, or a p-value above 1e-6.
"""

import math

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit.targets import prior_draws, prior_table

S = 20_000
X = np.random.default_rng(0).normal(size=(6, 2))
Y = X @ [1.0, -2.0]
PRIORS = {
    "normal": (rb.Normal(0.7, mean=-0.4), stats.norm(-0.4, 0.7)),
    "laplace": (rb.Laplace(0.7), stats.laplace(scale=0.7)),
    "t": (rb.StudentT(3.0, 0.7), stats.t(3.0, scale=0.7)),
    "logistic": (rb.Logistic(0.7), stats.logistic(scale=0.7)),
}
SCALES = {
    "gamma": (rb.GammaPrecision(3.0, 2.0), stats.invgamma(3.0, scale=2.0), 2.0),
    "small gamma": (rb.InverseGamma(0.05, 2.0), stats.invgamma(0.05, scale=2.0), 2.0),
    "half normal": (rb.HalfNormal(0.7), stats.halfnorm(scale=0.7), 1.0),
    "half Cauchy": (rb.HalfCauchy(0.7), stats.halfcauchy(scale=0.7), 1.0),
}


def linear(prior, likelihood, **options):
    return rb.Posterior(rb.mlp(2, (), 1), X, Y, prior=prior, likelihood=likelihood, **options)


def agrees(found, expected, relative):
    """Within five standard errors of S draws, of the mean (`relative` to sds) or the sd."""
    np.testing.assert_array_less(abs(found - expected), 5 * relative / math.sqrt(S))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_linear_model_against_its_closed_form(dtype):
    prior = {"*.weight": rb.Normal(0.7, mean=0.3), "*.bias": rb.Normal(0.5)}
    target = linear(prior, rb.Gaussian(0.2), dtype=dtype)
    found = target.prior_predictive(X, S, seed=1)
    function = np.sqrt(0.7**2 * (X**2).sum(1) + 0.5**2)
    agrees(found.mean, 0.3 * X.sum(1), function)
    agrees(found.epistemic_std, function, function)
    sd = np.hypot(function, 0.2)
    agrees(found.std, sd, sd)
    lower, upper = found.interval(0.9)
    half = stats.norm.ppf(0.95) * sd  # of whose error the density at the ends decides
    agrees(0.5 * (upper - lower), half, 2 * sd)
    assert found.mean.shape == Y.shape


def test_learned_scales_and_noise_in_units_of_y():
    prior = {"*.weight": rb.Normal(rb.HalfNormal(0.7), per="input"), "*.bias": rb.Normal(0.5)}
    noise = rb.Gaussian(log_noise_prior=rb.InverseGamma(6.0, 5.0))
    x, y = 3 + 2 * X, 100 + 40 * Y
    target = rb.Posterior(rb.mlp(2, (), 1), x, y, prior=prior, likelihood=noise, standardize=True)
    found = target.prior_predictive(x, S, seed=1)
    z = (x - x.mean(0)) / x.std(0)
    function = y.std() * np.sqrt(0.7**2 * (z**2).sum(1) + 0.5**2)
    agrees(found.mean, y.mean(), function)
    agrees(found.epistemic_std, function, 2 * function)  # products have heavier tails
    sd = np.hypot(function, y.std())  # the mean of the variance is 5 / (6 - 1)
    agrees(found.std, sd, 2 * sd)


@pytest.mark.parametrize("name", PRIORS)
def test_draws_of_a_prior_have_its_distribution(name):
    prior, known = PRIORS[name]
    positions = drawn(linear(prior, rb.Gaussian(0.1)), 5_000)
    assert positions.shape == (5_000, 3)
    assert stats.kstest(positions.ravel(), known.cdf).pvalue > 1e-6
    assert stats.kstest(1.3 * positions.ravel(), known.cdf).pvalue < 1e-6  # the control


@pytest.mark.parametrize("name", SCALES)
def test_draws_of_a_scale_have_its_distribution(name):
    prior, known, power = SCALES[name]
    target = linear(rb.Normal(1.0), rb.Gaussian(log_noise_prior=prior), dtype="float64")
    logs = power * drawn(target, 20_000)[:, -1]
    assert stats.kstest(known.cdf(np.exp(logs)), "uniform").pvalue > 1e-6
    assert stats.kstest(known.cdf(np.exp(1.2 * logs)), "uniform").pvalue < 1e-6  # the control


def test_draws_of_a_mixture():
    positions = drawn(linear(rb.ScaleMixture(0.3, 2.0, 0.1), rb.Gaussian(0.1)), 20_000)

    def cdf(w):
        return 0.3 * stats.norm(0, 2.0).cdf(w) + 0.7 * stats.norm(0, 0.1).cdf(w)

    assert stats.kstest(positions[:, 0], cdf).pvalue > 1e-6


def drawn(target, count, seed=1):
    return prior_draws.drawn(target._spec.table, count, seed, target.dtype)


def test_scales_by_fan_in_and_horseshoe():
    table = prior_table.resolve("f", rb.Normal(3.0, fan_in=True), rb.mlp(9, (), 1).parameters)
    positions = prior_draws.drawn(table, S, 0, np.dtype("f8"))
    agrees(positions[:, :9].std(0), 1.0, 1.0)
    agrees(positions[:, 9].std(), 3.0, 3.0)
    found = linear(rb.Horseshoe(0.1), rb.Gaussian(0.1)).prior_predictive(X, 200)
    assert np.isfinite(found.quantile(0.5)).all()


def test_a_draw_depends_on_its_seed_and_number_alone():
    target = linear(rb.ScaleMixture(0.3, 2.0, 0.1), rb.Gaussian())
    some, more = (target.prior_predictive(X, n, seed=4, keep=True).samples for n in (5, 9))
    np.testing.assert_array_equal(some, more[:, :5])
    again = target.prior_predictive(X, 5, seed=np.random.default_rng(1), keep=True).samples
    assert not np.array_equal(again, some)


def test_a_target_with_its_last_layer_integrated_out_has_the_whole_prior():
    options = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(), "dtype": "float64"}
    found = [
        rb.Posterior(rb.mlp(2, 3, 1), X, Y, marginalize=how, **options)
        .prior_predictive(X, 50, seed=2)
        .mean
        for how in (None, "last_layer")
    ]
    np.testing.assert_array_equal(*found)


def test_classes_and_counts():
    target = rb.Posterior(
        rb.mlp(2, (), 3), X, np.arange(6) % 3, prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )
    np.testing.assert_allclose(target.prior_predictive(X, 500).probs.sum(1), 1.0)
    counts = linear(rb.Normal(0.1), rb.Gaussian()).subset([0])
    assert (
        rb.Posterior(counts.model, X, np.arange(6), prior=rb.Normal(0.1), likelihood=rb.Poisson())
        .prior_predictive(X, 50)
        .kind
        == "count"
    )


def test_a_module_that_torch_runs():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    net = torch.nn.Linear(2, 1)
    target = rb.torch.posterior(
        net, rb.Gaussian(0.2), (X, Y), prior=rb.Normal(0.7), native=False, dtype="float64"
    )
    found = target.prior_predictive(X, S, seed=1)
    sd = np.sqrt(0.7**2 * ((X**2).sum(1) + 1) + 0.2**2)
    agrees(found.std, sd, sd)


def test_wrong_arguments():
    target = linear(rb.Normal(1.0), rb.Gaussian())
    for wrong in ({"num_draws": 0}, {"num_draws": 1.5}, {"seed": "1"}, {"x": X[:, :1]}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            target.prior_predictive(**{"x": X, **wrong})
