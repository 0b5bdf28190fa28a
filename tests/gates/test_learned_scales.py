"""Learned scales in a linear model, sampled with the shipped defaults, against quadrature.

Given the log scale u and the log noise s, the weights are Gaussian; the two are summed on a grid.
Each moment lies within 5.5 of its Monte Carlo standard errors: 2 (1 - Phi(5.5)) = 3.8e-8 each, 12
moments for each of four cases below 2e-6 with one draw of the seeds in 0.9 of 1.8e-6 (bound of Bonferroni); the seeds are
fixed. What would be noticed: a prior without its Jacobian, and one whose scale is 5 % too wide.
"""

import math

import numpy as np
import pytest

import ribbit as rb
from tests.oracle.reference import log_scale_prior_terms

RNG = np.random.default_rng(5)
N, D = 25, 3
X = RNG.normal(size=(N, D))
Y = X @ [0.9, -0.4, 0.1] + 0.3 + 0.5 * RNG.normal(size=N)
HYPER = {
    "half-normal": (lambda scale: rb.HalfNormal(scale), ("halfnormal", 1.0, 0.0)),
    "half-Cauchy": (lambda scale: rb.HalfCauchy(scale), ("halfcauchy", 1.0, 0.0)),
    "inverse gamma": (lambda scale: rb.InverseGamma(3.0, scale**2), ("gammaprecision", 3.0, 1.0)),
}
NOISE = rb.GammaPrecision(3.0, 1.0)
LIMIT = 5.5


def exact(kind, a, b, *, jacobian=True):
    """Means of log scale, log noise, their squares, and of weights, bias and their squares."""
    u, s = np.linspace(-5.0, 4.0, 451), np.linspace(-1.9, 0.8, 271)
    log_prior = log_scale_prior_terms(kind, a, b, u)[0] - (0.0 if jacobian else u)
    noise = log_scale_prior_terms("gammaprecision", 3.0, 1.0, s)[0]
    design = np.column_stack([X, np.ones(N)])
    gram, right, square = design.T @ design, design.T @ Y, Y @ Y
    precision = np.exp(-2 * s)[None, :, None, None] * gram
    prior = np.broadcast_to(np.eye(D + 1), (len(u), D + 1, D + 1)).copy()
    prior[:, range(D), range(D)] = np.exp(-2 * u)[:, None]
    precision = precision + prior[:, None]
    covariance = np.linalg.inv(precision)
    mean = np.exp(-2 * s)[None, :, None] * (covariance @ right)
    log_evidence = (
        -N * s
        - 0.5 * np.linalg.slogdet(precision)[1]
        - D * u[:, None]
        - 0.5 * np.exp(-2 * s) * (square - mean @ right)
    )
    weight = np.exp(log_evidence + log_prior[:, None] + noise - log_evidence.max())
    weight /= weight.sum()
    edge = weight[[0, -1]].sum() + weight[:, [0, -1]].sum()
    # half-Cauchy tails are long: what lies outside is less than 1e-3 of a standard error
    assert edge < 1e-6
    squares = mean**2 + np.diagonal(covariance, axis1=2, axis2=3)
    grid_u, grid_s = np.meshgrid(u, s, indexing="ij")
    values = [grid_u, grid_s, grid_u**2, grid_s**2]
    values += [mean[..., i] for i in range(D + 1)] + [squares[..., i] for i in range(D + 1)]
    return np.array([np.sum(weight * value) for value in values])


def quantities(t, draws):
    """The same of draws, (C, D, 4 + 2 (D + 1))."""
    views = t.unravel(draws.positions)
    noise, scale = views["log_noise"], views["log_scale.0.weight"]
    weights = np.concatenate([views["0.weight"][..., 0], views["0.bias"]], axis=2)
    two = np.stack([scale, noise], axis=2)
    return np.concatenate([two, two**2, weights, weights**2], axis=2).astype(np.float64)


def errors(name, found, factor=1.0, **options):
    kind, a, b = HYPER[name][1]
    wider = (kind, a, factor**2) if kind == "gammaprecision" else (kind, factor * a, b)
    away = found.mean(axis=(0, 1)) - exact(*wider, **options)
    return np.abs(away) / rb.diagnostics.mcse(found)


def target(name):
    prior = {"*.weight": rb.Normal(HYPER[name][0](1.0)), "*.bias": rb.Normal(1.0)}
    noise = rb.Gaussian(log_noise_prior=NOISE)
    return rb.Posterior(rb.mlp(D, (), 1), X, Y, prior=prior, likelihood=noise)


@pytest.mark.parametrize("name", HYPER)
def test_hmc_by_default(name):
    t = target(name)
    draws = rb.HMC(t).sample(8_000, chains=4, seed=11, progress=False)
    found = quantities(t, draws)
    worst = errors(name, found)
    assert worst.max() < LIMIT, worst
    assert errors(name, found, jacobian=False).max() > LIMIT
    assert errors(name, found, factor=1.05).max() > LIMIT


@pytest.mark.parametrize("sampler", [rb.NUTS, lambda t: rb.MCLMC(t, adjusted=True)])
def test_other_exact_samplers_by_default(sampler):
    t = target("half-normal")
    draws = sampler(t).sample(4_000, chains=4, seed=12, progress=False)
    found = quantities(t, draws)
    worst = errors("half-normal", found)
    assert worst.max() < LIMIT, worst
    assert errors("half-normal", found, jacobian=False).max() > LIMIT


def test_the_grid_is_fine_enough():
    assert math.isclose(exact("halfnormal", 1.0, 0.0)[1], exact("halfnormal", 1.0, 0.0)[1])
