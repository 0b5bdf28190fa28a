"""Statistics over draws that the core streams, against an oracle that holds every output."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.results.fits import DropoutFit
from ribbit.results.prediction import Prediction
from tests.oracle.reference import normal
from tests.support.likelihoods import CASES

FIT_DRAW = 13
LIKELIHOODS = {name: (case.likelihood, case.outputs) for name, case in CASES.items()}


def posterior(name, dtype, dropout=False):
    likelihood, outputs = LIKELIHOODS[name]
    rng = np.random.default_rng(3)
    y = {
        "categorical": rng.integers(0, 5, 20),
        "bernoulli": rng.integers(0, 2, (20, 3)),
        "poisson": rng.poisson(2.0, (20, outputs)),
    }.get(name, rng.normal(size=(20, outputs // (2 if name.startswith("hetero") else 1))))
    drop = [rb.Dropout(0.4)] if dropout else []
    layers = [rb.Dense(7), rb.Activation("tanh"), *drop, rb.Dense(outputs)]
    model = rb.Model(layers, input_shape=(3,))
    x = rng.normal(size=(20, 3))
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood, dtype=dtype)


def oracle(terms):
    """What a prediction says, from the terms of all draws (S, N, K) in float64."""
    values = terms.values.astype(np.float64)
    mean = values.mean(axis=0)
    if terms.probs is None:
        noise = np.broadcast_to(np.asarray(terms.noise_sd, np.float64) ** 2, values.shape)
        variances = (values.var(axis=0), noise.mean(axis=0))
        return {
            "mean": mean,
            "epistemic_std": variances[0] ** 0.5,
            "aleatoric_std": variances[1] ** 0.5,
            "std": (variances[0] + variances[1]) ** 0.5,
        }

    def entropy(p):
        parts = [p, 1 - p] if terms.binary else [p]
        return -sum(q * np.log(np.maximum(q, 1e-300)) for q in parts).sum(axis=-1)

    return {
        "probs": mean,
        "epistemic_std": values.std(axis=0),
        "entropy": entropy(mean),
        "mutual_information": entropy(mean) - entropy(values).mean(axis=0),
    }


def compare(prediction, terms, dtype):
    tolerance = 1e-11 if dtype == np.float64 else 3e-6
    for name, expected in oracle(terms).items():
        found = getattr(prediction, name)
        assert found.shape == expected.shape, name
        bound = tolerance * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=bound, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_stored_draws(name, rows, dtype):
    target = posterior(name, dtype)
    rng = np.random.default_rng(4)
    positions = (0.7 * rng.normal(size=(3, 13, target.dim))).astype(dtype)
    x = rng.normal(size=(rows, 3))
    flat = positions.transpose(1, 0, 2).reshape(39, -1)
    compare(Prediction(target, x, positions=positions), target.predictive(flat, x), dtype)


@pytest.mark.parametrize("name", ["learned", "categorical"])
@pytest.mark.parametrize("rows", [1, 33, 2100])  # the last: several pieces of work per draw
def test_drawn_weights_are_those_of_sample(name, rows):
    target = posterior(name, np.float32)
    rng = np.random.default_rng(5)
    mean = rng.normal(size=target.dim).astype(np.float32)
    scale = rng.uniform(0.1, 0.6, target.dim).astype(np.float32)  # each weight its own
    fit = rb.MeanField(mean, scale, predictive=target)
    x = rng.normal(size=(rows, 3))
    z = np.stack([normal(target.dim, seed=6, step=0, chain=s, purpose=FIT_DRAW) for s in range(21)])
    np.testing.assert_allclose(fit.sample(21, seed=6), mean + scale * z, rtol=1e-5, atol=1e-6)
    streamed, stored = fit.predict(x, 21, seed=6), fit.draws(21, seed=6).predict(x)
    assert streamed.num_draws == 21
    for attribute in ("mean", "std") if name == "learned" else ("probs", "mutual_information"):
        np.testing.assert_array_equal(getattr(streamed, attribute), getattr(stored, attribute))
    level = [0.1, 0.9]
    np.testing.assert_array_equal(
        streamed.credible_quantile(level), stored.credible_quantile(level)
    )
    y = np.zeros(rows, int)
    assert streamed.log_likelihood(y) == stored.log_likelihood(y)
    compare(streamed, target.predictive(fit.sample(21, seed=6), x), np.float32)
    assert (
        streamed.credible_quantile(0.5) != fit.predict(x, 21, seed=7).credible_quantile(0.5)
    ).any()


@pytest.mark.parametrize("masks", ["row", "shared"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 200])
def test_masks(rows, masks):
    target = posterior("categorical", np.float64, dropout=True)
    rng = np.random.default_rng(6)
    fit = DropoutFit(
        theta=rng.normal(size=target.dim),
        rates=np.array([0.4]),
        complete=True,
        settings={},
        target=target.masked(),
    )
    draws = fit.draws(37, seed=2, masks=masks)
    x = rng.normal(size=(rows, 3))
    terms = draws.predictive.predictive(draws.positions[0], x)
    compare(draws.predict(x), terms, np.float64)
    if masks == "row" and rows > 1:
        same = draws.predictive.predictive(draws.positions[0], np.repeat(x[:1], rows, axis=0))
        assert (same.probs[:, 0] != same.probs[:, 1]).any()
    # A row's masks go by its number, not by which other rows are asked for, or how many draws.
    part = draws.predictive.predictive(
        draws.positions[0, :5], x[rows // 2 :], first=9, row=rows // 2
    )
    np.testing.assert_allclose(part.probs, terms.probs[9:14, rows // 2 :], rtol=1e-12)


def test_threads_and_blocks_change_no_bit():
    """A run large enough for several threads; the block of rows that waits is 4 M outputs."""
    target = posterior("gaussian", np.float32)
    rng = np.random.default_rng(7)
    mean = rng.normal(size=target.dim).astype(np.float32)
    fit = rb.MeanField(mean, np.full_like(mean, 0.3), predictive=target)
    x = rng.normal(size=(60_000, 3))
    threads = _core.num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            rb.set_num_threads(count)
            p = fit.predict(x, 90, seed=1)
            found.append(np.stack([p.mean, p.epistemic_std]).tobytes())
    finally:
        rb.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
    # 35 draws wait at once above, all of them here
    p = fit.predict(x[:320], 90, seed=1)
    part = np.frombuffer(found[0]).reshape(2, 60_000, 2)[:, :320]
    np.testing.assert_array_equal(np.stack([p.mean, p.epistemic_std]), part)


def test_a_fit_from_arrays_needs_a_network_to_predict():
    fit = rb.MeanField(np.zeros(3), np.ones(3))
    with pytest.raises(TypeError, match=r"\[MeanField.predict\] expected a fit of a Posterior"):
        fit.predict(np.zeros((2, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("hidden", [(1,), (2, 3), (20, 20), (31,)])
def test_samples_in_lanes_change_no_bit(hidden, dtype):
    """Up to 6 rows, 32 samples share a panel; each sum keeps the order of the other way."""
    rng = np.random.default_rng(9)
    model = rb.mlp(5, hidden, 2, activation="silu")
    y = rng.normal(size=(3, 2))
    target = rb.Posterior(
        model, np.ones((3, 5)), y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), dtype=dtype
    )
    fit = rb.MeanField(
        rng.normal(size=target.dim).astype(dtype),
        np.full(target.dim, 0.2, dtype),
        predictive=target,
    )
    x = rng.normal(size=(40, 5))
    draws = fit.draws(45, seed=3)
    whole = draws.predict(x, keep=True).samples
    for rows in (1, 5, 6, 7):
        np.testing.assert_array_equal(
            draws.predict(x[:rows], keep=True).samples, whole[:, :, :rows]
        )
        some, many = fit.predict(x[:rows], 45, seed=3), fit.predict(x, 45, seed=3)
        for name in ("mean", "epistemic_std", "aleatoric_std"):
            np.testing.assert_array_equal(getattr(some, name), getattr(many, name)[:rows])


def test_log_likelihood_of_many_classes_is_streamed(monkeypatch):
    """A chunk of draws holds _CHUNK outputs, classes counted."""
    target = posterior("categorical", np.float64)
    fit = rb.MeanField(np.zeros(target.dim), np.ones(target.dim), predictive=target)
    sizes = []
    inner = type(fit.predict(np.zeros((1, 3)), 1)._predictive).log_likelihood

    def spy(self, theta, x, y, **number):
        sizes.append(len(theta) * len(x) * 5)
        return inner(self, theta, x, y, **number)

    p, y = fit.predict(np.ones((4, 3)), 30), np.zeros(4, int)
    whole = p.log_likelihood(y)
    monkeypatch.setattr(type(p._predictive), "log_likelihood", spy)
    monkeypatch.setattr("ribbit.results.lazy.CHUNK", 100)
    assert fit.predict(np.ones((4, 3)), 30).log_likelihood(y) == pytest.approx(whole, rel=1e-12)
    assert max(sizes) <= 100
    assert len(sizes) > 1


def test_far_components_of_a_mixture_are_no_warning():
    """Newton's quotient overflows far from 20,000 narrow peaks; warnings are errors here."""
    x = np.random.default_rng(3).normal(size=(2_000, 2))
    target = rb.Posterior(
        rb.mlp(2, (), 1),
        x[:40],
        x[:40, 0],
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.02),
        dtype=np.float64,
    )
    fit = rb.MeanField(np.zeros(3), np.ones(3), predictive=target)
    found = fit.predict(x, 5).quantile([0.05, 0.5, 0.9])
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=0) > 0).all()
