"""Priors of a scale, on the logarithm of the noise sd; NumPyro's example stated exactly."""

import json
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

import ribbit as rb
from ribbit.targets import priors, scale_priors

# prior, law of power * log(scale) as exp(..) in scipy
CASES = {
    "gamma of the precision": (rb.GammaPrecision(3.0, 0.8), stats.gamma(3.0, scale=1 / 0.8), -2.0),
    "little known precision": (rb.GammaPrecision(0.15, 2.0), stats.gamma(0.15, scale=0.5), -2.0),
    "well known precision": (rb.GammaPrecision(40.0, 9.0), stats.gamma(40.0, scale=1 / 9), -2.0),
    "inverse gamma": (rb.InverseGamma(3.0, 0.8), stats.invgamma(3.0, scale=0.8), 2.0),
    "half-normal": (rb.HalfNormal(0.7), stats.halfnorm(scale=0.7), 1.0),
    "half-Cauchy": (rb.HalfCauchy(0.7), stats.halfcauchy(scale=0.7), 1.0),
}
MODEL = rb.mlp(2, (3,), 1)
X = np.linspace(-1.0, 1.0, 12).reshape(6, 2)


def target(noise_prior, **options):
    noise = rb.Gaussian(log_noise_prior=noise_prior)
    options = {"prior": rb.Normal(1.0), "dtype": np.float64, **options}
    return rb.Posterior(MODEL, X, X[:, 0], likelihood=noise, **options)


def log_density(name, u):
    """Of u = log(scale): exp(power u) has the law, its derivative is |power| exp(power u)."""
    _, law, power = CASES[name]
    return law.logpdf(np.exp(power * u)) + power * u + math.log(abs(power))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_prior_of_the_noise_is_the_density_of_its_logarithm(name, dtype):
    t = target(CASES[name][0], dtype=dtype)
    u = np.array([-2.0, -0.7, 0.0, 0.3, 1.5], dtype)
    theta = np.zeros((5, t.dim), dtype)
    theta[:, -1] = u
    weights = -0.5 * math.log(2 * math.pi) * MODEL.dim
    expected = log_density(name, u.astype(np.float64))
    np.testing.assert_allclose(t.log_prior(theta) - weights, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_density_is_normalised_and_its_moments_are_those_said(name):
    prior = CASES[name][0]
    t = target(prior)
    base = -0.5 * math.log(2 * math.pi) * MODEL.dim
    grid = prior.log_mean + np.linspace(-60.0, 60.0, 60_001) * max(prior._spread(), 0.4)
    theta = np.zeros((grid.size, t.dim))
    theta[:, -1] = grid
    density = np.exp(t.log_prior(theta) - base)
    total, mean, median = (
        integrate.trapezoid(density * part, grid) for part in (1.0, grid, grid < prior.log_median)
    )
    square = integrate.trapezoid(density * (grid - mean) ** 2, grid)
    assert total == pytest.approx(1.0, rel=1e-8)
    assert (prior.log_mean, prior._spread()) == pytest.approx((mean, square**0.5), rel=1e-6)
    assert median == pytest.approx(0.5, abs=2e-3)
    assert (t.prior_mean[-1], t.prior_sd[-1]) == (prior.log_mean, prior._spread())
    assert t.shared_prior_sd == 1.0
    assert not t.normal_prior
    # twice the rate is another density
    wrong = log_density(name, grid[29_000:31_000] + 0.1)
    assert np.abs(wrong - np.log(density[29_000:31_000])).max() > 0.01


@pytest.mark.parametrize("x", [1e-3, 0.15, 0.5, 1.0, 3.0, 9.9, 10.0, 1e4])
def test_gamma_functions(x):
    assert scale_priors.digamma(x) == pytest.approx(special.digamma(x), rel=1e-13)
    assert scale_priors.trigamma(x) == pytest.approx(special.polygamma(1, x), rel=1e-13)
    median = special.gammaincinv(x, 0.5)
    if median > 0.0:
        assert scale_priors.gamma_log_median(x) == pytest.approx(math.log(median), abs=1e-6)


@pytest.mark.parametrize("x", [1e-300, 1e300])
def test_moments_of_any_concentration_are_numbers_or_infinite(x):
    prior = rb.GammaPrecision(x, 1.0)
    assert not any(math.isnan(v) for v in (prior._spread(), prior.log_mean, prior.log_median))


def test_numpyros_example_is_stated_exactly():
    """Weights N(0, 1), two hidden tanh layers of 5, prec_obs ~ Gamma(3, 1), in float64.

    (That example has no biases and a column of ones in x; here they are biases.)

    Value and gradient against the density as it is written there, constants included; a change of
    variables adds log(2 precision).
    """
    rng = np.random.default_rng(3)
    x = rng.normal(size=(100, 3))
    y = x.sum(axis=1) + 0.1 * rng.normal(size=100)
    model = rb.mlp(3, (5, 5), 1, activation="tanh")
    noise = rb.Gaussian(log_noise_prior=rb.GammaPrecision(3.0, 1.0))
    t = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=noise, dtype=np.float64)
    assert t.dim == 3 * 5 + 5 + 5 * 5 + 5 + 5 + 1 + 1

    def density(theta):
        w1, b1, w2, b2, w3, b3 = np.split(theta[:-1], [15, 20, 45, 50, 55])
        hidden = np.tanh(np.tanh(x @ w1.reshape(3, 5) + b1) @ w2.reshape(5, 5) + b2)
        precision = np.exp(-2 * theta[-1])
        sigma = 1 / np.sqrt(precision)
        parts = (
            stats.norm.logpdf(theta[:-1]).sum(),
            stats.gamma(3.0, scale=1.0).logpdf(precision) + np.log(2 * precision),
            stats.norm.logpdf(y, hidden @ w3 + b3, sigma).sum(),
        )
        return math.fsum(parts)

    theta = 0.7 * rng.normal(size=(4, t.dim))
    value, grad = t.value_and_grad(theta)
    for chain, at in enumerate(theta):
        assert value[chain] == pytest.approx(density(at), rel=1e-12)
        steps = 1e-4 * np.eye(t.dim)
        # five points: the error is of the fourth order
        central = [
            (8 * (density(at + h) - density(at - h)) - density(at + 2 * h) + density(at - 2 * h))
            / 12e-4
            for h in steps
        ]
        np.testing.assert_allclose(grad[chain], central, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_a_weight_with_a_prior_of_a_scale_is_refused_by_name(name):
    prior = CASES[name][0]
    for given in (prior, {"0.weight": prior, "*": rb.Normal(1.0)}):
        with pytest.raises(
            ValueError, match=r"^\[Posterior\] expected a prior of weights for '0\."
        ):
            target(None, prior=given)
    # its own name in a dict of priors is one of its places, no pattern is
    t = target(None, prior={"*": rb.Normal(1.0), "log_noise": prior})
    assert t.prior_sd[-1] == prior._spread()


@pytest.mark.parametrize("name", CASES)
def test_descriptions_survive_json(name):
    prior = CASES[name][0]
    for value in (prior, {"log_noise": prior, "*": rb.Normal(1.0)}):
        assert priors.from_description(json.loads(json.dumps(priors.describe(value)))) == value


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "make",
    [
        rb.HalfNormal,
        rb.HalfCauchy,
        lambda v: rb.GammaPrecision(v, 1.0),
        lambda v: rb.InverseGamma(1.0, v),
    ],
)
def test_arguments_are_positive_and_finite(make, value):
    with pytest.raises(ValueError, match=r"^\[\w+\] expected \w+ .*, got"):
        make(value)


@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")  # 30 epochs are few
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_samplers_and_fits_run_with_it():
    t = target(rb.GammaPrecision(3.0, 1.0))
    with pytest.raises(ValueError, match="use kl='sampled'"):
        rb.BBB(t)
    fit = rb.BBB(t, kl="sampled").fit(30, progress=False)
    assert np.isfinite(fit.elbo).all()
    draws = rb.HMC(t).sample(20, warmup=30, chains=2, progress=False)
    assert np.isfinite(draws.positions).all()
