"""A posterior under masks: its priors, its temperatures, and what its options do to predictions."""

import numpy as np
import pytest

import ribbit as rb
from tests.oracle.dropout_reference import (
    PREDICTIVE_MASK,
    ROWS,
    X,
    Y,
    forward,
    mask,
    masks_of,
    target,
)
from tests.support.targets import same_density


def trained(**options):
    """A fit that stays at its start, a draw of the prior."""
    density = target()
    mcd = rb.MCDropout(density, batch_size=None, learning_rate=1e-12, **options)
    start = 0.5 * np.random.default_rng(6).normal(size=density.dim)
    return mcd.fit(1, seed=1, init=start, progress=False)


@pytest.mark.parametrize("masks", ["row", "shared"])
def test_predictions_drop_with_the_rate_that_was_given(masks):
    fit = trained(rate=0.2)  # the layers' own are 0.3 and 0.45
    np.testing.assert_array_equal(fit.rates, [0.2, 0.2])
    draws = fit.draws(20, seed=11, masks=masks)
    found = draws.predict(X, keep=True).samples[0, ..., 0]
    rows = np.arange(ROWS) if masks == "row" else np.zeros(ROWS, int)
    for s in range(20):
        where = {"seed": 11, "step": 0, "sample": s, "purpose": PREDICTIVE_MASK}
        first = mask(rows, 3, 0.2, layer=0, **where)
        second = mask(rows, 5, 0.2, layer=3, **where)
        expected = forward(fit.theta, X, first, second)[0][:, 0]
        np.testing.assert_allclose(found[s], expected, rtol=1e-10, atol=1e-12)


def test_loaded_draws_keep_the_rate_and_the_precision_that_were_given(tmp_path):
    draws = trained(rate=0.2, precision=4.0).draws(20, seed=3)
    draws.save(tmp_path / "run")
    before, after = draws.predict(X), rb.load(tmp_path / "run").predict(X)
    np.testing.assert_allclose(before.aleatoric_std, 4.0**-0.5, rtol=1e-15)
    for name in ("mean", "epistemic_std", "aleatoric_std"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name), err_msg=name)
    assert after.log_likelihood(Y) == before.log_likelihood(Y)


def test_a_length_scale_leaves_the_prior_of_the_noise():
    """Another kind and another scale than those of the weights."""
    likelihood = rb.Gaussian(log_noise_prior=rb.Laplace(0.4))
    prior = {
        "1.weight": rb.Normal(0.7**0.5 / 0.7),
        "4.weight": rb.Normal(0.55**0.5 / 0.7),
        "*.bias": rb.Normal(1 / 0.7),
    }
    found = target(likelihood=likelihood).masked(length_scale=0.7)
    same_density(found, target(likelihood=likelihood, prior=prior).masked())


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_a_length_scale_means_the_same_for_given_and_for_learned_rates(rate):
    """With next to no likelihood the gradient is the prior's: -theta l^2 / (1 - rate)."""
    layers = [rb.Dense(4), rb.Activation("tanh"), rb.Dropout(rate), rb.Dense(1)]
    flat = target(rb.Model(layers, input_shape=(3,)), likelihood_temperature=1e14)
    start = np.random.default_rng(3).normal(size=flat.dim)
    weights = slice(16, 20)  # of layer 3
    expected = -start[weights] * 2.0**2 / (1.0 - rate)
    for how in (None, "concrete"):
        masked = flat.masked(length_scale=2.0, rate=how)
        _, grad = masked.masked_value_and_grad(masked.with_rates(start), seed=1, step=0)
        np.testing.assert_allclose(grad[weights], expected, rtol=1e-9)
        np.testing.assert_allclose(grad[:16], -start[:16] * 2.0**2, rtol=1e-9)


def test_dropout_layers_in_a_row_multiply_their_keep_probabilities():
    layers = [
        *(rb.Dropout(0.1), rb.Dense(6), rb.Activation("tanh")),
        *(rb.Dropout(0.4), rb.Dropout(0.2), rb.Dense(4), rb.Dense(1)),
    ]
    net = rb.Model(layers, input_shape=(3,))
    prior = {
        "1.weight": rb.Normal(0.9**0.5 / 0.7),
        "5.weight": rb.Normal((0.6 * 0.8) ** 0.5 / 0.7),
        "6.weight": rb.Normal(1 / 0.7),
        "*.bias": rb.Normal(1 / 0.7),
    }
    same_density(target(net).masked(length_scale=0.7), target(net, prior=prior).masked())


@pytest.mark.parametrize("rows", [None, np.array([7, 0, 31])])
def test_the_masked_log_density_is_tempered(rows):
    """Likelihood over both temperatures, prior over one; the gradient is its derivative."""
    density = target(temperature=0.6, likelihood_temperature=1.7).masked()
    theta = 0.5 * np.random.default_rng(1).normal(size=density.dim)
    where = {"seed": 5, "step": 77}
    found, grad = density.masked_value_and_grad(theta, rows, **where)
    batch = np.arange(ROWS) if rows is None else rows

    def oracle(theta):
        f, _ = forward(theta, X[batch], *masks_of(batch, sample=0, **where))
        terms = -0.5 * ((Y[batch] - f) / 0.3) ** 2 - np.log(0.3 * np.sqrt(2 * np.pi))
        prior = -0.5 * (theta / 0.8) ** 2 - np.log(0.8 * np.sqrt(2 * np.pi))
        return ROWS / len(batch) * terms.sum() / (1.7 * 0.6) + prior.sum() / 0.6

    assert found == pytest.approx(oracle(theta), rel=1e-12)
    for i, step in enumerate(1e-5 * np.eye(theta.size)):
        slope = (oracle(theta + step) - oracle(theta - step)) / 2e-5
        assert abs(slope - grad[i]) < 1e-7 * max(1.0, np.abs(grad).max())
