"""MC dropout: masks by counter, and the distribution of all masks."""

import itertools

import numpy as np
import pytest

import ribbit as rb
from tests.oracle.dropout_reference import (
    PREDICTIVE_MASK,
    ROWS,
    forward,
    gradient,
    masks_of,
    model,
    target,
)
from tests.support import faults
from tests.support.dropout_fits import fitted
from tests.support.gates import Table


@pytest.mark.parametrize("hidden", [1, 4, 5, 18, 40])
def test_gradients_under_masks_are_the_oracles(hidden):
    density = target(model(hidden=hidden)).masked()
    theta = 0.5 * np.random.default_rng(1).normal(size=(2, density.dim))
    for rows in (np.arange(ROWS), np.array([7]), np.array([44, 3, 3, 20] * 11)):
        for seed, step in ((0, 0), (2**64 - 1, 2**40 - 1), (5, 77)):
            _, grad = density.masked_value_and_grad(theta, rows, seed=seed, step=step)
            for chain in range(2):
                first, second = masks_of(rows, seed=seed, step=step, sample=chain, hidden=hidden)
                expected = gradient(theta[chain], rows, first, second)
                np.testing.assert_allclose(grad[chain], expected, rtol=1e-9, atol=1e-9)
    everything = density.masked_value_and_grad(theta, seed=5, step=77)[1]
    same = density.masked_value_and_grad(theta, np.arange(ROWS), seed=5, step=77)[1]
    np.testing.assert_allclose(everything, same, rtol=1e-9)


@pytest.mark.parametrize(
    "layers",
    [
        [rb.Dropout(0.4), rb.Dense(1)],
        [rb.Dense(6), rb.Dropout(0.4), rb.Dense(1)],
        [rb.Dense(6), rb.Dropout(0.4), rb.Activation("silu"), rb.Dense(1)],
        [rb.Dense(6), rb.Activation("silu"), rb.Dropout(0.4), rb.Dropout(0.2), rb.Dense(1)],
        [rb.Dense(6), rb.Activation("silu"), rb.Activation("tanh"), rb.Dropout(0.4), rb.Dense(1)],
        [rb.Activation("silu"), rb.Dropout(0.4), rb.Dense(6), rb.Dropout(0.3), rb.Dense(1)],
        [rb.Dense(1), rb.Dropout(0.4)],
        [
            rb.Dense(33),
            rb.Activation("relu"),
            rb.Dropout(0.5),
            rb.Dense(20),
            rb.Dropout(0.1),
            rb.Activation("tanh"),
            rb.Dense(1),
            rb.Activation("softplus"),
        ],
    ],
    ids=lambda layers: "-".join(type(layer).__name__.lower() for layer in layers),
)
def test_gradients_under_masks_are_central_differences(layers):
    density = target(rb.Model(layers, input_shape=(3,))).masked()
    theta = 0.5 * np.random.default_rng(3).normal(size=density.dim)
    value, grad = density.masked_value_and_grad(theta, seed=4, step=9)
    assert np.isfinite(value)
    for i in range(density.dim):
        step = 1e-5 * np.eye(density.dim)[i]
        up, down = (
            density.masked_value_and_grad(t, seed=4, step=9)[0]
            for t in (theta + step, theta - step)
        )
        assert abs((up - down) / 2e-5 - grad[i]) < 1e-7 * max(1.0, np.abs(grad).max())


@pytest.mark.parametrize("num_rows", [1, 5, 16, 17, 70])  # up to 16: samples share a panel
@pytest.mark.parametrize("masks", ["row", "shared"])
def test_predictions_draw_the_addressed_masks(masks, num_rows):
    fit = fitted()
    x = np.random.default_rng(8).normal(size=(num_rows, 3))
    draws = fit.draws(40, seed=11, masks=masks)
    found = draws.predict(x, keep=True).samples[0, ..., 0]
    rows = np.arange(num_rows) if masks == "row" else np.zeros(num_rows, int)
    for s in range(40):
        first, second = masks_of(rows, seed=11, step=0, sample=s, purpose=PREDICTIVE_MASK)
        expected, _ = forward(fit.theta, x, first, second)
        np.testing.assert_allclose(found[s], expected[:, 0], rtol=1e-10, atol=1e-12)


def enumeration(theta, x, rates, hidden):
    """Mean and variance (n,) of the output over all masks, by their probabilities."""
    mean = np.zeros(len(x))
    square = np.zeros(len(x))
    total = 0.0
    for kept in itertools.product([0, 1], repeat=3 + hidden):
        kept = np.array(kept, float)
        rate = np.r_[np.full(3, rates[0]), np.full(hidden, rates[1])]
        p = np.prod(np.where(kept == 1, 1 - rate, rate))
        scaled = kept / (1 - rate)
        f = forward(theta, x, scaled[:3], scaled[3:])[0][:, 0]
        mean += p * f
        square += p * f**2
        total += p
    assert total == pytest.approx(1)
    return mean, square - mean**2


def errors(fit, draws, rates, hidden=5):
    """Errors of mean and variance in standard errors of S independent masks, (2, n)."""
    x = np.random.default_rng(9).normal(size=(6, 3))
    mean, variance = enumeration(fit.theta, x, rates, hidden)
    found = draws.predict(x, keep=True).samples[0, ..., 0]
    count = len(found)
    centred = (found - mean) ** 2
    return np.stack(
        [
            np.abs(found.mean(axis=0) - mean) / np.sqrt(variance / count),
            np.abs(centred.mean(axis=0) - variance) / (centred.std(axis=0) / np.sqrt(count)),
        ]
    )


SAMPLES = 20_000


@pytest.mark.parametrize("masks", ["row", "shared"])
def test_predictions_follow_the_enumeration_of_all_masks(masks):
    """12 checks at 5.5 standard errors: a false-fail rate of 5e-7."""
    fit = fitted()
    assert errors(fit, fit.draws(SAMPLES, seed=3, masks=masks), (0.3, 0.45)).max() < 5.5


@pytest.mark.parametrize(
    ("fault", "rates"),
    [("rate +10 %", (0.33, 0.495)), ("no mask on the input", (1e-9, 0.45))],
)
def test_wrong_rates_are_caught(fault, rates):
    fit = fitted()
    assert errors(fit, fit.draws(SAMPLES, seed=3), rates).max() > 5.5, fault


def errors_of_predictions():
    fit = fitted()
    return errors(fit, fit.draws(SAMPLES, seed=3), (0.3, 0.45)).max()


@faults.needed
def test_a_wrong_dropout_scale_is_caught():
    """Kept units are scaled by 1 - rate instead of 1 / (1 - rate)."""
    assert faults.with_fault("dropout scaled by 1 - rate", errors_of_predictions) > 5.5


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    fit = fitted()
    worst = [errors(fit, fit.draws(5_000, seed=s), (0.3, 0.45)).max() for s in range(100)]
    assert max(worst) < 5.5


def test_predictions_do_not_depend_on_chunks_or_on_other_rows():
    fit = fitted()
    x = np.random.default_rng(8).normal(size=(100, 3))
    draws = fit.draws(50, seed=2)
    whole = draws.predict(x)
    for threads in (1, 2, 4):
        rb.set_num_threads(threads)
        again = fit.draws(50, seed=2).predict(x)
        assert again.mean.tobytes() == whole.mean.tobytes()
    rb.set_num_threads(2)
    np.testing.assert_array_equal(draws.predict(x[:37]).mean, whole.mean[:37])
    kept = draws.predict(x, keep=True)
    np.testing.assert_array_equal(kept.mean, whole.mean)
    quantiles = draws.predict(x).credible_quantile([0.1, 0.9])  # computed in blocks of rows
    np.testing.assert_array_equal(quantiles, kept.credible_quantile([0.1, 0.9]))
    few = fit.draws(20, seed=2).predict(x, keep=True).samples
    np.testing.assert_array_equal(few, kept.samples[:, :20])
    assert draws.positions.strides[1] == 0  # one weight vector, whatever the number of masks


def results():
    table = Table(
        "MC dropout against the enumeration of all masks",
        ("masks", "code", "largest error", "gate"),
        note=f"3-5-1 tanh network with dropout rates 0.3 and 0.45, {SAMPLES:,} draws. Errors of "
        "means and variances at six inputs, in standard errors. Masks are drawn for each row, or "
        "shared by all rows.",
    )
    fit = fitted()
    for masks in ("row", "shared"):
        found = errors(fit, fit.draws(SAMPLES, seed=3, masks=masks), (0.3, 0.45)).max()
        table.add(masks, "right", f"{found:.2f}", "< 5.5", holds=found < 5.5)
    for fault, rates in (("rate +10 %", (0.33, 0.495)), ("no mask on the input", (1e-9, 0.45))):
        found = errors(fit, fit.draws(SAMPLES, seed=3), rates).max()
        table.add("row", fault, f"{found:.2f}", "> 5.5", holds=found > 5.5)
    return [table]
