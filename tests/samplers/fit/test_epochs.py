"""How many epochs a fit makes: by default, and none where weights are given."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers.fit.training import default_epochs

FITS = (rb.LaplaceApproximation, rb.BBB, rb.MCDropout, rb.DeepEnsemble, rb.SWAG)


def posterior(dtype=np.float32, dropout=True):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    layers = [rb.Dense(3), rb.Activation("tanh"), *[rb.Dropout(0.1)] * dropout, rb.Dense(1)]
    model = rb.Model(layers, input_shape=(2,))
    likelihood = rb.Gaussian(0.3)
    return rb.Posterior(model, x, x[:, 0], prior=rb.Normal(1.0), likelihood=likelihood, dtype=dtype)


def fitter(method, **options):
    members = {"members": 1} if method in (rb.DeepEnsemble, rb.SWAG) else {}
    return method(posterior(dropout=method is rb.MCDropout), **members, **options)


@pytest.mark.parametrize(
    ("batches", "rows", "epochs"),
    [
        (1, 60, 10_000),
        (1, 2_048, 5_000),
        (1, 10**6, 2_000),
        (3, 128, 3_334),
        (7_813, 128, 2),
        (10**5, 128, 1),
    ],
)
def test_default_makes_ten_thousand_steps_or_fewer_large_ones(batches, rows, epochs):
    assert default_epochs(batches, rows) == epochs


@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("method", FITS)
def test_every_fit_has_a_default(method):
    fit = fitter(method, schedule=rb.schedules.cosine(40)).fit(progress=False)
    more = 40 if method is rb.SWAG else 0
    assert fit.settings["num_epochs"] == 40 + more  # the steps of its schedule
    assert fit.complete
    whole = fitter(method).fit(progress=False)
    assert whole.settings["num_epochs"] == 10_000 + more
    error = np.ravel(whole.predict(posterior().x).mean) - posterior().x[:, 0]
    assert np.sqrt(np.mean(error**2)) < 0.5


@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
def test_swag_collects_more_by_default():
    swag = fitter(rb.SWAG)
    fit = swag.fit(20, swag_epochs=2, progress=False)
    assert swag.fit(swag_epochs=3, resume=fit, progress=False).count == 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_epochs_keep_the_weights(dtype):
    target = posterior(dtype)
    theta = np.random.default_rng(1).normal(size=target.dim).astype(dtype)
    other = rb.DeepEnsemble(posterior(dtype, dropout=False), members=2)
    members = np.stack([theta, 2 * theta])
    ensemble = other.fit(0, init=members, progress=False)
    np.testing.assert_array_equal(ensemble.theta, members)
    for options in ({}, {"rate": "concrete"}):
        dropout = rb.MCDropout(target, **options)
        for init in (theta, theta[None], theta.tolist(), ensemble):
            fit = dropout.fit(0, init=init, progress=False)
            np.testing.assert_array_equal(fit.theta, theta)
            assert fit.complete
            assert fit.settings["num_epochs"] == 0
        np.testing.assert_array_equal(dropout.fit(0, resume=fit, progress=False).theta, theta)
        # a fit without epochs goes on as one that starts there
        more = dropout.fit(3, resume=fit, progress=False)
        same = dropout.fit(3, init=theta, progress=False)
        np.testing.assert_array_equal(more.theta, same.theta)


@pytest.mark.parametrize("method", FITS)
def test_no_epochs_need_weights(method):
    with pytest.raises(ValueError, match=r"num_epochs.*>= 1.*got (int )?0"):
        fitter(method).fit(0, progress=False, **{"swag_epochs": 0} if method is rb.SWAG else {})


def test_no_epochs_of_members_of_one_start():
    target = posterior(dropout=False)
    with pytest.raises(ValueError, match=r"a start for each of the 5 members.*without epochs"):
        rb.DeepEnsemble(target, batch_size=10).fit(0, init=np.zeros(target.dim), progress=False)


@pytest.mark.parametrize("method", FITS)
def test_draws_and_states_are_no_start(method):
    target = posterior(dropout=False)
    draws = rb.HMC(target, step_size=0.01).sample(3, warmup=0, chains=1, progress=False)
    for init in (draws, draws.state):
        with pytest.raises(TypeError, match=rf"{type(init).__name__}: its \.position"):
            fitter(method).fit(2, init=init, progress=False)
