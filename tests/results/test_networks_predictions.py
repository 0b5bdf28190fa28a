"""Predictions of networks of every layer, mask by mask and draw by draw."""

import itertools
import math

import numpy as np
import pytest

import ribbit as rb
from tests.oracle.dropout_reference import PREDICTIVE_MASK
from tests.oracle.op_reference import OPS
from tests.oracle.reference import network
from tests.support.layer_problems import mask_factors
from tests.support.sampled_networks import DROPPING, NAMES, SEED, fitted, inputs, made_of


@pytest.mark.parametrize("masks", ["row", "shared"])
@pytest.mark.parametrize("name", DROPPING)
def test_predictions_mask_by_mask(name, masks):
    """Few rows share panels (up to 16), many do not; layers below the first mask are shared."""
    made, samples = made_of(name), 20
    fit = fitted(made)
    for num_rows in (1, 3, 16, 17, 70):
        x, flat = inputs(made, num_rows)
        found = fit.draws(samples, seed=SEED, masks=masks).predict(x, keep=True).samples[0]
        rows = np.arange(num_rows) if masks == "row" else np.zeros(num_rows, int)
        for s in (0, 1, samples - 1):
            where = {"seed": SEED, "step": 0, "sample": s, "purpose": PREDICTIVE_MASK}
            factors = mask_factors(made.model, rows, **where)
            known = network(made.model.table, fit.theta, flat, factors)[0]
            np.testing.assert_allclose(found[s], known, rtol=1e-10, atol=1e-12)
    other = mask_factors(made.model, rows, **{**where, "sample": 0})  # control
    wrong = network(made.model.table, fit.theta, flat, other)[0]
    assert np.abs(found[-1] - wrong).max() > 1e-6


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", DROPPING)
def test_a_row_is_predicted_the_same_in_any_company(name):
    made = made_of(name)
    fit = fitted(made, np.float32)
    x, _ = inputs(made, 100)
    draws = fit.draws(33, seed=2)
    whole = draws.predict(x, keep=True)
    moments = draws.predict(x)
    for threads in (1, 2, 4):
        rb.set_num_threads(threads)
        assert fit.draws(33, seed=2).predict(x).mean.tobytes() == moments.mean.tobytes()
    np.testing.assert_array_equal(draws.predict(x[:37]).mean, moments.mean[:37])
    for few in (1, 5, 16, 17):
        found = draws.predict(x[:few], keep=True).samples
        np.testing.assert_allclose(found, whole.samples[:, :, :few], rtol=1e-4, atol=1e-5)
    # masks belong to rows by their place, so that equal rows differ; shared masks do not
    equal = np.repeat(x[:1], 40, axis=0)
    for masks in ("row", "shared"):
        found = fit.draws(33, seed=2, masks=masks).predict(equal, keep=True).samples[0]
        spread = np.ptp(found, axis=1).max()
        assert (spread > 1e-3) == (masks == "row")
    levels = whole.credible_quantile([0.1, 0.9])
    np.testing.assert_array_equal(draws.predict(x).credible_quantile([0.1, 0.9]), levels)


def enumerated(made, theta, flat, rate):
    """Mean and variance (n,) of the first output over all masks of the only Dropout layer."""
    (row,) = (r for r, entries in enumerate(made.model.table) if OPS[entries[0]] == "dropout")
    channels = int(made.model.table[row, rb.layers.COLUMNS.index("channels")])
    size = int(made.model.table[row, 2])
    first = second = 0.0
    for kept in itertools.product([0.0, 1.0], repeat=channels):
        p = math.prod(1 - rate if k else rate for k in kept)
        factors = np.tile(np.array(kept) / (1 - rate), (len(flat), size // channels))
        f = network(made.model.table, theta, flat, {row: factors})[0][:, 0]
        first, second = first + p * f, second + p * f**2
    return first, second - first**2


@pytest.mark.parametrize("masks", ["row", "shared"])
def test_spatial_masks_follow_their_enumeration(masks):
    """20,000 masks of 5 channels, means and variances of 6 rows at 5.5 standard errors:
    false-fail rate 5e-7. Control: a rate 10 % larger."""
    made = made_of("spatial")
    fit = fitted(made)
    x, flat = inputs(made, 6)
    count = 20_000
    found = fit.draws(count, seed=3, masks=masks).predict(x, keep=True).samples[0, ..., 0]
    errors = {}
    for rate in (0.4, 0.44):
        mean, variance = enumerated(made, fit.theta, flat, rate)
        squares = (found - mean) ** 2
        errors[rate] = max(
            np.max(np.abs(found.mean(axis=0) - mean) / np.sqrt(variance / count)),
            np.max(np.abs(squares.mean(axis=0) - variance) / squares.std(axis=0) * count**0.5),
        )
    assert errors[0.4] < 5.5 < errors[0.44]


# --- predictive moments --------------------------------------------------------------------------


def entropy(p):
    return -np.sum(p * np.log(p), axis=-1)


def check_moments(prediction, samples, likelihood):
    """Streamed moments are those of the samples (S, N, K)."""
    close = {"rtol": 1e-6, "atol": 1e-7}
    np.testing.assert_allclose(prediction.epistemic_std, samples.std(axis=0), **close)
    if likelihood == 3:
        mean = samples.mean(axis=0)
        np.testing.assert_allclose(prediction.probs, mean, **close)
        np.testing.assert_allclose(prediction.entropy, entropy(mean), **close)
        known = entropy(mean) - entropy(samples).mean(axis=0)
        np.testing.assert_allclose(prediction.mutual_information, known, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_allclose(prediction.mean, samples.mean(axis=0), **close)


def outputs_of(made, thetas, flat, likelihood):
    """Predictions (S, N, K) of plain draws, by the oracle."""
    f = np.stack([network(made.model.table, t[: made.model.dim], flat)[0] for t in thetas])
    if likelihood == 3:
        f = np.exp(f - f.max(axis=-1, keepdims=True))
        f /= f.sum(axis=-1, keepdims=True)
    return f


@NAMES
@pytest.mark.parametrize("likelihood", [1, 3])
def test_moments_are_those_of_plain_draws(likelihood, name):
    made = made_of(name, likelihood)
    target = made.native()
    spread = made.theta + 0.3 * np.random.default_rng(1).normal(size=(2, 7, made.theta.size))
    for num_rows in (1, 5, 40):
        x, flat = inputs(made, num_rows)
        for positions in (spread, spread[:1, :1], np.ascontiguousarray(spread[:1])):
            draws = rb.Draws(positions, {}, True, None, {}, predictive=target)
            known = outputs_of(made, positions.reshape(-1, made.theta.size), flat, likelihood)
            check_moments(draws.predict(x), known, likelihood)
            if likelihood == 1:
                noise = np.exp(positions[..., target.model.dim :]).reshape(-1, target.noises)
                found = draws.predict(x).aleatoric_std
                sds = np.broadcast_to(np.sqrt(np.mean(noise**2, axis=0)), found.shape)
                np.testing.assert_allclose(found, sds, rtol=1e-9)
    with pytest.raises(AssertionError):  # control: one draw less
        check_moments(draws.predict(x), known[1:], likelihood)


@NAMES
def test_drawn_weights_predict_as_their_draws_do(name):
    made = made_of(name, likelihood=3)
    fit = rb.BBB(made.native(), init_scale=0.2, learning_rate=1e-12).fit(
        1, init=made.theta, progress=False
    )
    for num_rows in (1, 40):
        x, flat = inputs(made, num_rows)
        streamed, plain = fit.predict(x, 30, seed=4), fit.draws(30, seed=4).predict(x)
        np.testing.assert_array_equal(streamed.probs, plain.probs)
        check_moments(streamed, outputs_of(made, fit.sample(30, seed=4), flat, 3), 3)


@pytest.mark.parametrize("name", DROPPING)
def test_moments_under_masks(name):
    for likelihood in (0, 3):
        made = made_of(name, likelihood)
        fit = fitted(made)
        for num_rows in (3, 40):
            x, flat = inputs(made, num_rows)
            samples = []
            for s in range(12):
                where = {"seed": 6, "step": 0, "sample": s, "purpose": PREDICTIVE_MASK}
                factors = mask_factors(made.model, np.arange(num_rows), **where)
                samples.append(network(made.model.table, fit.theta, flat, factors)[0])
            f = np.stack(samples)
            if likelihood == 3:
                f = np.exp(f) / np.exp(f).sum(axis=-1, keepdims=True)
            check_moments(fit.predict(x, 12, seed=6), f, likelihood)
