"""The oracle itself: central differences, scipy's densities, published known answers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from tests.oracle.known_answers import KNOWN_ANSWERS
from tests.oracle.reference import (
    ACTIVATIONS,
    LIKELIHOODS,
    PRIORS,
    SCALE_PRIORS,
    activation,
    hmc_transition,
    leapfrog,
    learns_noise,
    log_likelihood_terms,
    log_prior_terms,
    normal,
    philox4x32,
    uniform,
)
from tests.support.likelihoods import BY_KIND, SHAPE
from tests.support.problems import build_reference


@pytest.mark.parametrize(("rounds", "counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(rounds, counter, key, answer):
    assert tuple(philox4x32([counter], key, rounds)[0]) == answer


def test_normals_and_uniforms_by_address_do_not_depend_on_how_many_are_asked_for():
    address = {"seed": 2**40 + 17, "step": 2**33 + 5, "chain": 3, "purpose": 1}
    assert np.array_equal(normal(11, **address), normal(64, **address)[:11])
    assert np.array_equal(uniform(5, **address), uniform(64, **address)[:5])
    # both words of the seed and both of the step matter
    for change in ({"seed": 17}, {"step": 5}, {"chain": 4}, {"purpose": 2}):
        assert not np.any(normal(8, **address) == normal(8, **{**address, **change}))


@pytest.mark.parametrize("kind", range(2))
def test_normals_and_uniforms_have_their_law(kind):
    # Kolmogorov-Smirnov at p > 1e-6: false-fail rate 1e-6. The control, 3 % too wide, must fail.
    address = {"seed": 1, "step": 2, "chain": 3, "purpose": 9}
    if kind == 0:
        sample, law = normal(200_000, **address), stats.norm.cdf
    else:
        sample, law = uniform(200_000, **address) - 0.5, stats.uniform(-0.5, 1).cdf
    assert stats.kstest(sample, law).pvalue > 1e-6
    assert stats.kstest(1.03 * sample, law).pvalue < 1e-6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_their_values_and_slopes(name):
    x = np.concatenate([np.linspace(-30, 30, 2001), [-800.0, -100.0, -1e-9, 1e-9, 100.0, 800.0]])
    known = {
        "identity": x,
        "relu": np.maximum(x, 0),
        "tanh": np.tanh(x),
        "silu": x * special.expit(x),
        "sigmoid": special.expit(x),
        "gelu": x * special.ndtr(x),
        "softplus": np.logaddexp(0, x),
        "leaky_relu": np.maximum(x, 0.01 * x),
        "elu": np.where(x > 0, x, special.expm1(np.minimum(x, 0))),
    }[name]
    value = activation(name, x)[0]
    np.testing.assert_allclose(value, known, rtol=1e-12)  # erfc at 30: its condition is x^2
    x = x[np.abs(x) > 1e-3]  # away from the kink of relu
    h = 1e-5
    central = (activation(name, x + h)[0] - activation(name, x - h)[0]) / (2 * h)
    np.testing.assert_allclose(activation(name, x)[1], central, rtol=1e-7, atol=1e-7)


PRIOR_CASES = [
    (0, 0.7, 0, 0, stats.norm(0, 0.7)),
    (1, 0.7, 0, 0, stats.laplace(0, 0.7)),
    (2, 3.5, 0.7, 0, stats.t(3.5, 0, 0.7)),
    (3, 0.7, 0, 0, stats.logistic(0, 0.7)),
    (4, 0.3, 1.5, 0.02, None),
]
SCALE_CASES = [
    (5, 3.0, 0.8, stats.invgamma(3.0, scale=0.8), 2.0),  # of the variance
    (6, 0.7, 0.0, stats.halfnorm(scale=0.7), 1.0),
    (7, 0.7, 0.0, stats.halfcauchy(scale=0.7), 1.0),
]


@pytest.mark.parametrize("case", SCALE_CASES, ids=SCALE_PRIORS)
def test_priors_of_log_scales_are_the_laws_of_scales_with_their_jacobians(case):
    kind, a, b, law, power = case
    u = np.array([-4.0, -1.3, -0.2, 0.0, 0.6, 2.5])
    value, slope = log_prior_terms(kind, a, b, 0.0, u)
    known = law.logpdf(np.exp(power * u)) + power * u + math.log(power)
    np.testing.assert_allclose(value, known, rtol=1e-12)
    h = 1e-6
    central = (
        log_prior_terms(kind, a, b, 0.0, u + h)[0] - log_prior_terms(kind, a, b, 0.0, u - h)[0]
    ) / (2 * h)
    np.testing.assert_allclose(slope, central, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("case", PRIOR_CASES, ids=PRIORS)
def test_priors_are_the_normalised_densities(case):
    kind, a, b, c, law = case
    x = np.array([-30.0, -2.0, -0.31, -0.05, 0.01, 0.4, 1.7, 25.0])
    if law is None:
        known = np.logaddexp(
            math.log(a) + stats.norm.logpdf(x, 0, b), math.log(1 - a) + stats.norm.logpdf(x, 0, c)
        )
    else:
        known = law.logpdf(x)
    value, slope = log_prior_terms(kind, a, b, c, x)
    np.testing.assert_allclose(value, known, rtol=1e-12)
    h = 1e-6
    central = (
        log_prior_terms(kind, a, b, c, x + h)[0] - log_prior_terms(kind, a, b, c, x - h)[0]
    ) / (2 * h)
    np.testing.assert_allclose(slope, central, rtol=1e-7, atol=1e-7)


EACH = [k for k, name in enumerate(LIKELIHOODS) if name in ("gaussian", "studentt")]
EACH += [k for k in range(len(LIKELIHOODS)) if learns_noise(k)]


@pytest.mark.parametrize(
    ("kind", "log_noise", "sd"),
    [(kind, -0.4, 0.3) for kind in range(len(LIKELIHOODS))]
    + [(kind, np.array([-0.4, 0.1, 1.2, -2.0]), np.array([0.3, 1.0, 4.0, 0.1])) for kind in EACH],
)
def test_likelihoods_are_the_normalised_densities(kind, log_noise, sd):
    rng = np.random.default_rng(5)
    f, case = rng.normal(size=(7, 4)), BY_KIND[kind]
    y = case.labels(rng, 7, 4)
    scale = np.exp(log_noise) if learns_noise(kind) else sd
    known = case.density(f, y, scale, SHAPE).sum(axis=1)

    def terms(f, log_noise):
        return log_likelihood_terms(kind, sd, f, y, log_noise, SHAPE)

    value, slope, noise_slope = terms(f, log_noise)
    np.testing.assert_allclose(value, known, rtol=1e-12)
    h = 1e-5
    for k in range(4):
        step = h * (np.arange(4) == k)
        high = terms(f + step, log_noise)[0]
        low = terms(f - step, log_noise)[0]
        np.testing.assert_allclose(slope[:, k], (high - low) / (2 * h), rtol=1e-7, atol=1e-7)
    if np.ndim(log_noise) == 0 or not learns_noise(kind):
        high = terms(f, log_noise + h)[0]
        low = terms(f, log_noise - h)[0]
        np.testing.assert_allclose(noise_slope, (high - low) / (2 * h), rtol=1e-7, atol=1e-7)
        return
    for k in range(4):
        step = h * (np.arange(4) == k)
        high = terms(f, log_noise + step)[0]
        low = terms(f, log_noise - step)[0]
        np.testing.assert_allclose(noise_slope[:, k], (high - low) / (2 * h), rtol=1e-7, atol=1e-7)


def central_difference(function, theta, h=1e-5):
    """Gradient (P,) of a scalar function."""
    return np.array(
        [(function(theta + h * e) - function(theta - h * e)) / (2 * h) for e in np.eye(theta.size)]
    )


@pytest.mark.parametrize("kind", range(len(LIKELIHOODS)), ids=LIKELIHOODS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_of_the_log_density_matches_central_differences(name, kind):
    target, theta = build_reference(
        num_in=3, hidden=(5, 4), activation=name, likelihood=kind, prior=kind % 5, num_rows=9
    )
    target = replace(target, temperature=0.7, likelihood_temperature=1.9)
    for rows in (None, [4, 4, 0]):
        central = central_difference(lambda t, r=rows: target.value_and_grad(t, r)[0][0], theta)
        gradient = target.gradient(theta, rows)[0]
        assert np.linalg.norm(gradient - central) <= 1e-7 * np.linalg.norm(central)


def test_row_norms_are_the_norms_of_one_row_gradients():
    target, theta = build_reference(likelihood=1, num_rows=6)
    each = [np.linalg.norm(target.log_likelihood(theta, [n])[1]) / 6 for n in range(6)]
    assert target.log_likelihood(theta)[2] == pytest.approx(sum(each), rel=1e-12)


def test_rows_scale_the_likelihood_alone():
    target, theta = build_reference(num_rows=6)
    full, prior = target.terms(theta)[0]
    part, prior_of_part = target.terms(theta, [1, 5])[0]
    rows = [target.terms(theta, [n])[0, 0] / 6 for n in range(6)]
    assert full == pytest.approx(sum(rows))
    assert part == pytest.approx(3 * (rows[1] + rows[5]))
    assert prior == prior_of_part


def test_leapfrog_is_reversible_and_of_second_order():
    target, theta = build_reference(hidden=(4,), num_rows=9)

    def gradient(q):
        return target.gradient(q)[0]

    p = np.random.default_rng(2).normal(size=theta.size)
    q1, p1 = leapfrog(gradient, theta, p, 1e-2, 50)
    q0, p0 = leapfrog(gradient, q1, -p1, 1e-2, 50)
    np.testing.assert_allclose(q0, theta, atol=1e-12)
    np.testing.assert_allclose(-p0, p, atol=1e-12)

    def energy(q, p):
        return -np.sum(target.terms(q)) + 0.5 * p @ p

    errors = [
        energy(*leapfrog(gradient, theta, p, 2e-3 / k, 25 * k)) - energy(theta, p) for k in (1, 2)
    ]
    assert math.log2(abs(errors[0] / errors[1])) == pytest.approx(2, abs=0.05)


def test_transition_rejects_what_is_not_finite():
    target, theta = build_reference()
    with np.errstate(all="ignore"):
        transition = hmc_transition(
            target, theta, step_size=1e200, num_steps=3, seed=0, chain=0, step=0
        )
    assert not transition.accepted
    assert np.array_equal(transition.position, theta)
