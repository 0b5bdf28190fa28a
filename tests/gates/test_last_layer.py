"""Gate "last layer integrated out": HMC's draws have the law of the whole posterior.

The sampler's shipped defaults throughout. Means within 5.5 Monte Carlo standard errors (256 batch
means: false-fail rate 1e-7 per figure, below 1e-6 in each test), standard deviations within 5 %.

A linear model: all weights are integrated out, the log noise alone is sampled; mean and sd of every
parameter by quadrature over the log noise, in NumPy from the ordinary posterior's closed form. A
small network: predictions of the ordinary posterior, from runs of its own. Controls: a redraw whose
variance is a tenth too large, and laws at a slightly different temperature.
"""

import functools

import numpy as np
import pytest

import ribbit as rb
from tests.support import linear_posterior as linear
from tests.support.gates import agreement, mean_and_error

CHAINS, DRAWS = 64, 300
TEMPERATURES = {
    "untempered": {},
    "cold": {"temperature": 0.5},
    "both": {"temperature": 0.7, "likelihood_temperature": 1.4},
}


def by_quadrature(temperature=1.0, likelihood_temperature=1.0):
    """Mean and sd (4,) of weights and log noise."""
    grid = np.linspace(-3.0, 2.0, 2001)
    tau = temperature * likelihood_temperature
    logs, means, covariances = [], [], []
    for log_noise in grid:
        precision = linear.DESIGN.T @ linear.DESIGN / np.exp(2 * log_noise) / tau
        precision += np.eye(linear.DIM) / linear.PRIOR**2 / temperature
        covariance = np.linalg.inv(precision)
        mean = covariance @ linear.DESIGN.T @ linear.Y / np.exp(2 * log_noise) / tau
        residual = linear.Y - linear.DESIGN @ mean
        value = -0.5 * np.sum(residual**2) / np.exp(2 * log_noise) / tau
        value -= 0.5 * np.sum((mean / linear.PRIOR) ** 2) / temperature
        value += 0.5 * np.linalg.slogdet(covariance)[1] - linear.ROWS * log_noise / tau
        logs.append(value - 0.5 * log_noise**2 / temperature)
        means.append(mean)
        covariances.append(covariance)
    weight = np.exp(np.array(logs) - np.max(logs))
    weight /= weight.sum()
    mean, noise = weight @ np.array(means), weight @ grid
    second = np.einsum("g,gij->ij", weight, covariances)
    second += np.einsum("g,gi,gj->ij", weight, means, means) - np.outer(mean, mean)
    spread = np.sqrt(weight @ grid**2 - noise**2)
    return np.append(mean, noise), np.append(np.sqrt(np.diag(second)), spread)


@functools.cache
def linear_draws(name):
    target = rb.Posterior(
        rb.mlp(linear.DIM - 1, (), 1),
        linear.X,
        linear.Y,
        prior=rb.Normal(linear.PRIOR),
        likelihood=rb.Gaussian(),
        dtype=np.float64,
        marginalize="last_layer",
        **TEMPERATURES[name],
    )
    assert target.dim == 1
    return rb.HMC(target).sample(DRAWS, chains=CHAINS, seed=5, progress=False).positions


@pytest.mark.parametrize("name", TEMPERATURES)
def test_linear_model_has_its_closed_form(name):
    known = by_quadrature(**TEMPERATURES[name])
    draws = linear_draws(name)
    found = agreement(draws, *known)
    assert found.holds, found
    # controls: weights that vary by a tenth too much about their mean, and another temperature
    mean = draws[..., :3].mean(axis=(0, 1))
    wide = draws.copy()
    wide[..., :3] = mean + np.sqrt(1.1) * (draws[..., :3] - mean)
    assert agreement(wide, *known).sd_error > 0.045
    other = by_quadrature(**(TEMPERATURES[name] | {"likelihood_temperature": 1.1}))
    assert not agreement(draws, *other).holds


@functools.cache
def network_predictions(marginalize):
    """Predictions at 6 inputs, their squares, the log noise and the last bias, (C, D, 14)."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, size=(40, 1))
    y = np.sin(3 * x[:, 0]) + 0.2 * rng.normal(size=40)
    target = rb.Posterior(
        rb.mlp(1, (3,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(),
        marginalize=marginalize,
    )
    draws = rb.HMC(target).sample(DRAWS, warmup=250, chains=CHAINS, seed=9, progress=False)
    f = draws.predict(np.linspace(-1.5, 1.5, 6)[:, None], keep=True).samples
    f = f.reshape(CHAINS, DRAWS, -1)
    assert f.shape[2] == 6
    return np.concatenate([f, f**2, draws.positions[..., -2:]], axis=2)


# Whether single chains have converged does not matter where 64 are averaged.
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_network_has_the_law_of_the_ordinary_posterior():
    plain, integrated = network_predictions(None), network_predictions("last_layer")
    (a, a_error), (b, b_error) = mean_and_error(plain), mean_and_error(integrated)
    assert np.max(np.abs(a - b) / np.hypot(a_error, b_error)) < 5.5
    # control: noise that is 5 % larger
    b = np.append(b[:-1], b[-1] + np.log(1.05))
    assert np.max(np.abs(a - b) / np.hypot(a_error, b_error)) > 5.5
