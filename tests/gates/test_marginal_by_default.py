"""Gate "integrated by default": with nothing set, samplers move the marginal of a posterior.

A tanh network 1-1-1 on 24 rows, whose first layer has no bias: given its first weight and the log
noise, the last layer is normal, so that a sum over a grid of those two gives mean and sd of every
parameter, and of the function at two inputs, in NumPy. Turning the signs of both weights changes
nothing: the first is taken positive. Nothing is set but the seed and the chains.
Means within 5.5 Monte Carlo standard errors (256 batch means: false-fail rate 1e-7 per figure, six
figures, so below 1e-6), standard deviations within 5 %.

Planted faults: a density without the determinant that the integral brings, and last layers drawn at
the position of another chain.
"""

import functools

import numpy as np
import pytest

import ribbit as rb
from tests.support.gates import agreement

CHAINS, DRAWS = 64, 300
RNG = np.random.default_rng(12)
X = RNG.uniform(-2.0, 2.0, size=24)
Y = 0.8 * np.tanh(1.1 * X) - 0.2 + 0.4 * RNG.normal(size=X.size)
AT = np.array([-1.0, 3.0])
PRIOR = 1.0
TEMPERATURES = {"temperature": 0.8, "likelihood_temperature": 1.3}
TAU = TEMPERATURES["temperature"] * TEMPERATURES["likelihood_temperature"]


def posterior(**options):
    model = rb.Model(
        [rb.Dense(1, bias=False), rb.Activation("tanh"), rb.Dense(1)], input_shape=(1,)
    )
    return rb.Posterior(
        model,
        X[:, None],
        Y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(),
        dtype=np.float64,
        **TEMPERATURES,
        **options,
    )


def last_layer(weight, log_noise):
    """Precision (..., 2, 2) and mean (..., 2) of the last layer given the rest."""
    phi = np.stack([np.tanh(weight[..., None] * X), np.ones((*weight.shape, X.size))], axis=-1)
    noise = np.exp(2.0 * log_noise)[..., None]
    precision = np.einsum("...ni,...nj->...ij", phi, phi) / noise[..., None] / TAU
    precision += np.eye(2) / PRIOR**2 / TEMPERATURES["temperature"]
    force = np.einsum("...ni,n->...i", phi, Y) / noise / TAU
    return precision, np.linalg.solve(precision, force[..., None])[..., 0]


@functools.cache
def by_quadrature():
    """Mean and sd (6,) of first weight, last weight and bias, log noise, and f at two inputs."""
    weight, log_noise = np.meshgrid(
        np.linspace(0.0, 5.0, 400), np.linspace(-2.5, 1.5, 200), indexing="ij"
    )
    temperature = TEMPERATURES["temperature"]
    precision, mean = last_layer(weight, log_noise)
    features = np.tanh(weight[..., None] * X)
    residual = Y - mean[..., :1] * features - mean[..., 1:]
    value = -0.5 * np.sum(residual**2, axis=-1) / np.exp(2.0 * log_noise) / TAU
    value -= X.size * log_noise / TAU + 0.5 * np.linalg.slogdet(precision)[1]
    squares = (np.sum(mean**2, axis=-1) + weight**2) / PRIOR**2
    value -= 0.5 * (squares + log_noise**2) / temperature
    density = np.exp(value - value.max())
    density /= density.sum()

    covariance = np.linalg.inv(precision)
    f = np.stack([np.tanh(weight[..., None] * AT), np.ones((*weight.shape, AT.size))], axis=-1)
    f_mean = np.einsum("...ai,...i->...a", f, mean)
    f_variance = np.einsum("...ai,...ij,...aj->...a", f, covariance, f)
    means = np.concatenate([weight[..., None], mean, log_noise[..., None], f_mean], axis=-1)
    zero = np.zeros((*weight.shape, 1))
    spread = np.diagonal(covariance, axis1=-2, axis2=-1)
    variances = np.concatenate([zero, spread, zero, f_variance], axis=-1)
    first = np.einsum("wl,wlq->q", density, means)
    second = np.einsum("wl,wlq->q", density, variances + means**2)
    return first, np.sqrt(second - first**2)


def found(target, method="HMC", draws=DRAWS):
    """What `agreement` says of a sampler with nothing set."""
    run = getattr(rb, method)(target).sample(draws, chains=CHAINS, seed=5, progress=False)
    assert run.settings["integrated"] == "last layer"
    assert run.state.position.shape == (CHAINS, 2)
    theta = run.positions
    f = theta[..., 1:2] * np.tanh(theta[..., :1] * AT) + theta[..., 2:3]
    sign = np.sign(theta[..., :1])
    same = [sign * theta[..., :2], theta[..., 2:], f]
    return agreement(np.concatenate(same, axis=2), *by_quadrature())


# NUTS, which aims for an acceptance of 0.8, diverges in 2 % of the draws here: the law judges it.
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("method", ["HMC", "NUTS"])
def test_draws_have_the_law_in_closed_form(method):
    agreed = found(posterior(), method)
    assert agreed.holds, agreed


class Planted:
    """A marginal density without its determinant; the rest is that of the target."""

    def __init__(self, marginal):
        self._marginal = marginal

    def __getattr__(self, name):
        if name == "leapfrog":  # native, and right
            raise AttributeError(name)
        return getattr(self._marginal, name)

    @np.errstate(all="ignore")  # warmup tries steps that are too large
    def terms_and_grad(self, theta):
        terms, grad = self._marginal.terms_and_grad(theta)

        # of the precision [[t a + c, t b], [t b, t N + c]], t = exp(-2 log noise) / tau
        h = np.tanh(theta[:, :1] * X)
        t, c = np.exp(-2.0 * theta[:, 1]) / TAU, 1.0 / PRIOR**2 / TEMPERATURES["temperature"]
        a, b = np.sum(h**2, axis=1), np.sum(h, axis=1)
        root, corner = t * a + c, t * X.size + c
        value = root * corner - (t * b) ** 2
        slope_a, slope_b = (np.sum(g * (1 - h**2) * X, axis=1) for g in (2 * h, np.ones_like(h)))
        slope = t * slope_a * corner - 2 * t**2 * b * slope_b
        grad[:, 0] += 0.5 * slope / value
        slope = -2 * t * (a * corner + root * X.size - 2 * t * b**2)
        grad[:, 1] += 0.5 * slope / value
        terms = np.concatenate([terms, 0.5 * np.log(value)[:, None]], axis=1)
        return terms, grad


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_faults_are_found(monkeypatch):
    target = posterior()
    target.__dict__["marginal"] = Planted(target.marginal)
    assert not found(target, draws=40).holds

    complete = rb.Posterior._complete

    def shifted(self, position, **place):
        own, other = (complete(self, p, **place) for p in (position, np.roll(position, 1, axis=0)))
        return np.concatenate([own[:, :1], other[:, 1:3], own[:, 3:]], axis=1)

    monkeypatch.setattr(rb.Posterior, "_complete", shifted)
    assert not found(posterior(), draws=100).holds
