"""Predictions of fits cut into chunks of draws and blocks of rows; what a seed decides."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.results import lazy, prediction
from ribbit.results.fits import EnsembleFit
from tests.oracle.dropout_reference import X, Y, target
from tests.support.dropout_fits import fitted

DRAWS = 50


def predictions(kind, **options):
    """A new prediction each time: statistics are computed once."""
    if kind == "dropout":
        return fitted().draws(DRAWS, seed=2, masks="row").predict(X, **options)
    density = plain()
    rng = np.random.default_rng(7)
    fit = rb.MeanField(
        rng.normal(size=density.dim), rng.uniform(0.1, 0.5, density.dim), predictive=density
    )
    return fit.predict(X, DRAWS, seed=2)


def plain():
    return rb.Posterior(
        rb.mlp(3, (5,), 1, activation="tanh"),
        X,
        Y,
        prior=rb.Normal(0.8),
        likelihood=rb.Gaussian(0.3),
        dtype=np.float64,
    )


@pytest.fixture(params=["dropout", "meanfield"])
def kind(request):
    return request.param


@pytest.mark.parametrize("size", [1, 150, 500])  # 1, 3 and 11 draws of 45 rows
def test_the_log_likelihood_does_not_depend_on_chunks(kind, size, monkeypatch):
    whole = predictions(kind).log_likelihood(Y)
    monkeypatch.setattr(lazy, "CHUNK", size)
    assert predictions(kind).log_likelihood(Y) == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("size", [1, 90, 500])  # blocks of 1, 7 and 40 rows; 1, 3 and 12 draws
def test_quantiles_do_not_depend_on_chunks_and_blocks(kind, size, monkeypatch):
    levels = [0.1, 0.5, 0.9]
    whole = predictions(kind)
    expected, mixture = whole.credible_quantile(levels), whole.quantile(levels)
    monkeypatch.setattr(lazy, "CHUNK", size)
    monkeypatch.setattr(prediction, "_HELD", 32 * size)
    p = predictions(kind)
    np.testing.assert_array_equal(p.credible_quantile(levels), expected)
    np.testing.assert_allclose(p.quantile(levels), mixture, rtol=1e-12, atol=1e-12)


def test_kept_samples_do_not_depend_on_chunks(monkeypatch):
    whole = predictions("dropout", keep=True)
    monkeypatch.setattr(lazy, "CHUNK", 150)
    cut = predictions("dropout", keep=True)
    np.testing.assert_array_equal(cut.samples, whole.samples)
    np.testing.assert_array_equal(cut.credible_quantile(0.3), whole.credible_quantile(0.3))


# --- what a seed decides -------------------------------------------------------------------------


def test_the_seed_decides_which_members_an_ensemble_draws():
    fit = EnsembleFit(theta=np.arange(4.0)[:, None], complete=True, settings={})
    picks = {seed: fit.draws(200, seed=seed).positions[0, :, 0] for seed in (1, 2, 2**63 + 5)}
    for seed, found in picks.items():
        np.testing.assert_array_equal(found, fit.draws(200, seed=seed).positions[0, :, 0])
        assert set(found) == {0.0, 1.0, 2.0, 3.0}
    assert (picks[1] != picks[2]).any()
    assert (picks[2] != picks[2**63 + 5]).any()


@pytest.mark.parametrize("make", ["ensemble", "dropout"])
def test_the_seed_decides_where_training_starts(make):
    options = {"batch_size": None, "learning_rate": 1e-12}
    starts = []
    for seed in (0, 1, 2**63 + 5):
        if make == "ensemble":
            density = plain()
            fit = rb.DeepEnsemble(density, members=3, **options).fit(1, seed=seed, progress=False)
            start = density.init(seed=seed, chains=3)
        else:
            density = target()
            fit = rb.MCDropout(density, **options).fit(1, seed=seed, progress=False)
            start = density.init(seed=seed, chains=1)[0]
        np.testing.assert_allclose(fit.theta, start, atol=1e-10)
        starts.append(fit.theta)
    assert np.abs(starts[0] - starts[1]).max() > 0.1
    assert np.abs(starts[1] - starts[2]).max() > 0.1
