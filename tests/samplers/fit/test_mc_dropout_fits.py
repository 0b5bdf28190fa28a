"""MC dropout and deep ensembles: training, what decides a fit, what it gives, bad input."""

import pickle

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NonFiniteError
from ribbit.results.fits import EnsembleFit
from ribbit.targets.dropout import check_addresses
from tests.oracle.dropout_reference import ROWS, X, Y, gradient, masks_of, model, target
from tests.oracle.stochastic_reference import batch_of
from tests.support.dropout_fits import fitted


@pytest.mark.parametrize("batch", [None, 20])
def test_training_steps_are_those_of_the_oracle(batch):
    density = target()
    start = 0.3 * np.random.default_rng(4).normal(size=density.dim)
    fit = rb.MCDropout(density, learning_rate=0.02, batch_size=batch).fit(
        6, seed=9, init=start, progress=False
    )
    theta, first, second = start.copy(), np.zeros(density.dim), np.zeros(density.dim)
    for step in range(6 * (1 if batch is None else 3)):
        rows = batch_of(step, ROWS, batch, seed=9, chain=0)
        g = gradient(theta, rows, *masks_of(rows, seed=9, step=step, sample=0))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        move = first / (1 - 0.9 ** (step + 1))
        theta = theta + 0.02 * move / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
    np.testing.assert_allclose(fit.theta, theta, rtol=1e-9, atol=1e-11)


def test_length_scale_rate_and_precision():
    """Gal and Ghahramani's prior: precision l^2 / (1 - rate) behind dropout, l^2 for biases."""
    density = target()
    mcd = rb.MCDropout(density, rate=0.2, length_scale=0.7, precision=4.0, batch_size=None)
    masked = mcd._masked
    np.testing.assert_array_equal(masked.rates, 0.2)
    theta = np.random.default_rng(4).normal(size=density.dim)
    plain = target(
        model(rates=(0.2, 0.2)),
        prior={"*.weight": rb.Normal(0.8**0.5 / 0.7), "*.bias": rb.Normal(1 / 0.7)},
        likelihood=rb.Gaussian(0.5),
    ).masked()
    for found, expected in zip(
        masked.masked_value_and_grad(theta, seed=1, step=2),
        plain.masked_value_and_grad(theta, seed=1, step=2),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    fit = mcd.fit(1, progress=False)
    assert fit.settings["rates"] == [0.2, 0.2]
    p = fit.draws(10).predict(X)
    np.testing.assert_allclose(p.aleatoric_std, 0.5)


def test_a_fit_learns_and_its_spread_is_wider_off_the_data():
    x = np.linspace(-1, 1, 200)[:, None]
    y = np.sin(4 * x) + 0.1 * np.random.default_rng(0).normal(size=x.shape)
    net = rb.Model(
        [rb.Dense(50), rb.Activation("relu"), rb.Dropout(0.05), rb.Dense(1)], input_shape=(1,)
    )
    density = rb.Posterior(net, x, y, prior=rb.Normal(3.0), likelihood=rb.Gaussian(0.1))
    fit = rb.MCDropout(density, batch_size=50, learning_rate=1e-2).fit(600, seed=1, progress=False)
    p = fit.draws(400).predict(x)
    assert rb.metrics.rmse(y, p.mean) < 0.2
    far = fit.draws(400).predict(np.array([[3.0]]))
    assert far.epistemic_std[0, 0] > 2 * np.median(p.epistemic_std)


@pytest.mark.parametrize("make", ["dropout", "ensemble"])
@pytest.mark.parametrize("batch", [48, 300, None])
def test_bits_do_not_depend_on_threads_or_restarts(make, batch):
    x = np.random.default_rng(0).normal(size=(700, 6))
    layers = [rb.Dense(40), rb.Activation("silu"), rb.Dense(30), rb.Activation("relu"), rb.Dense(1)]
    if make == "dropout":
        layers[2:2] = [rb.Dropout(0.2)]
    density = rb.Posterior(
        rb.Model(layers, input_shape=(6,)),
        x,
        np.sin(x[:, 0]),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(),
    )
    kind = rb.MCDropout if make == "dropout" else rb.DeepEnsemble
    trainer = kind(density, batch_size=batch)
    rb.set_num_threads(2)
    whole = trainer.fit(5, seed=3, progress=False)
    for threads in (1, 3, 4):
        rb.set_num_threads(threads)
        again = trainer.fit(5, seed=3, progress=False)
        assert again.theta.tobytes() == whole.theta.tobytes()
    rb.set_num_threads(2)
    rest = trainer.fit(3, resume=trainer.fit(2, seed=3, progress=False), progress=False)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    if make == "ensemble":
        alone = rb.DeepEnsemble(density, members=2, batch_size=batch).fit(5, seed=3, progress=False)
        assert alone.theta.tobytes() == whole.theta[:2].tobytes()
        assert np.unique(whole.theta, axis=0).shape == whole.theta.shape


def test_draws_of_fits_are_saved_and_start_others(tmp_path):
    fit = fitted()
    draws = fit.draws(30, seed=5, masks="shared")
    draws.save(tmp_path / "run")
    back = rb.load(tmp_path / "run")
    np.testing.assert_array_equal(back.predict(X).mean, draws.predict(X).mean)
    np.testing.assert_array_equal(back.positions, draws.positions)
    many = fit.draws(100_000)  # one position, and not one for each draw
    many.save(tmp_path / "many")
    assert (tmp_path / "many").stat().st_size < 20_000
    assert rb.load(tmp_path / "many").positions.shape == many.positions.shape
    plain = rb.Posterior(
        rb.mlp(3, (5,), 1), X, Y, prior=rb.Normal(0.8), likelihood=rb.Gaussian(0.3)
    )
    ensemble = rb.DeepEnsemble(plain, members=3, batch_size=20).fit(3, seed=1, progress=False)
    assert "3 members" in repr(ensemble)
    assert "DropoutFit" in repr(fit)
    draws = ensemble.draws()
    assert draws.positions.shape == (1, 3, plain.dim)
    mixed = ensemble.draws(3_000, seed=1).positions[0]
    counts = [np.sum((mixed == member).all(axis=1)) for member in ensemble.theta]
    assert sum(counts) == 3_000
    assert min(counts) > 800  # 7 standard deviations below 1,000
    sgld = rb.SGLD(plain, step_size=1e-12, batch_size=20)
    for init, count, expected in (
        (ensemble.theta, None, ensemble.theta),
        (ensemble, None, ensemble.theta),
        (ensemble, [4, 0], ensemble.theta[[1, 0]]),
        (fit, 2, np.stack([fit.theta, fit.theta])),
    ):
        run = sgld.sample(1, warmup=0, chains=count, init=init, progress=False)
        np.testing.assert_allclose(run.positions[:, 0], expected, atol=1e-4)
    field = rb.MeanField(fit.theta, np.full_like(fit.theta, 0.1))
    run = sgld.sample(1, warmup=0, chains=[3, 1], seed=6, init=field, progress=False)
    np.testing.assert_allclose(run.positions[:, 0], field.sample(4, seed=6)[[3, 1]], atol=1e-4)
    assert sgld.sample(1, warmup=0, init=field, progress=False).positions.shape[0] == 4


def test_objectives_of_an_ensemble():
    """Linear model: MAP and least squares, by an Adam that has settled (deterministic)."""
    design = np.c_[X, np.ones(ROWS)]
    plain = rb.Posterior(
        rb.mlp(3, (), 1), X, Y, prior=rb.Normal(0.1), likelihood=rb.Gaussian(0.3), dtype=np.float64
    )
    options = {
        "members": 2,
        "batch_size": None,
        "learning_rate": 0.02,
        "schedule": rb.schedules.cosine(4_000),
    }
    shrunk = np.linalg.solve(design.T @ design / 0.09 + np.eye(4) / 0.01, design.T @ Y[:, 0] / 0.09)
    least = np.linalg.lstsq(design, Y[:, 0])[0]
    for objective, expected in (("map", shrunk), ("likelihood", least)):
        fit = rb.DeepEnsemble(plain, objective=objective, **options).fit(4_000, progress=False)
        np.testing.assert_allclose(fit.theta, np.tile(expected, (2, 1)), atol=1e-5)
    assert np.abs(shrunk - least).max() > 0.01


# --- bad input -----------------------------------------------------------------------------------


def test_bad_input():
    plain = rb.Posterior(rb.mlp(3, (5,), 1), X, Y, prior=rb.Normal(1), likelihood=rb.Gaussian(0.3))
    with pytest.raises(TypeError, match=r"a model with Dropout layers, got Model.* without"):
        rb.MCDropout(plain)
    with pytest.raises(TypeError, match="a target with masks"):
        rb.MCDropout(rb.CallableDensity(lambda t: (0.0, 0 * t), 2))
    for rate in (0.0, 1.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="rate"):
            rb.MCDropout(target(), rate=rate)
    for name in ("length_scale", "precision", "learning_rate"):
        with pytest.raises(ValueError, match=name):
            rb.MCDropout(target(), **{"batch_size": 20, name: 0.0})
    with pytest.raises(ValueError, match=f"batch_size <= {ROWS}"):
        rb.MCDropout(target(), batch_size=ROWS + 1)
    with pytest.raises(TypeError, match="Gaussian likelihood of known scale for precision"):
        rb.MCDropout(target(likelihood=rb.Gaussian()), precision=1.0)
    mcd = rb.MCDropout(target(), batch_size=20)
    with pytest.raises(ValueError, match="num_epochs"):
        mcd.fit(0)
    with pytest.raises(ValueError, match="expected init"):
        mcd.fit(1, init=np.zeros(3))
    with pytest.raises(TypeError, match="resume as a DropoutFit"):
        mcd.fit(1, resume=3)
    fit = fitted()
    with pytest.raises(ValueError, match="masks"):
        fit.draws(3, masks="column")
    with pytest.raises(ValueError, match="num_draws"):
        fit.draws(0)
    with pytest.raises(TypeError, match="without Dropout layers"):
        rb.DeepEnsemble(target(), batch_size=20)
    with pytest.raises(ValueError, match="objective"):
        rb.DeepEnsemble(plain, batch_size=20, objective="mle")
    with pytest.raises(ValueError, match="members"):
        rb.DeepEnsemble(plain, batch_size=20, members=0)
    line = rb.CallableDensity(lambda t: (0.0, 0 * t), 2)
    with pytest.raises(TypeError, match="prior can be left out"):
        rb.DeepEnsemble(line, batch_size=None, objective="likelihood")
    done = rb.DeepEnsemble(plain, members=2, batch_size=20).fit(1, progress=False)
    for other in ({"members": 3}, {"batch_size": 10}, {"learning_rate": 0.5}):
        sampler = rb.DeepEnsemble(plain, **{"members": 2, "batch_size": 20} | other)
        with pytest.raises(
            ValueError, match=f"resume of the same settings, got {next(iter(other))}"
        ):
            sampler.fit(1, resume=done)
    with pytest.raises(ValueError, match="one of init and resume"):
        rb.DeepEnsemble(plain, members=2, batch_size=20).fit(1, init=done, resume=done)
    with pytest.raises(TypeError, match=r"\[DeepEnsemble.fit\] expected init as an array"):
        rb.DeepEnsemble(plain, members=2, batch_size=20).fit(1, init="abc")
    before = done.state.position.copy()
    done.theta[:] = 0
    np.testing.assert_array_equal(done.state.position, before)
    started = rb.DeepEnsemble(plain, members=3, batch_size=20).fit(1, init=done, progress=False)
    assert started.theta.shape[0] == 3
    mcd = rb.MCDropout(target(), rate=0.2, batch_size=20)
    with pytest.raises(ValueError, match=r"same settings, got rate=0\.3 where it was 0\.2"):
        rb.MCDropout(target(), rate=0.3, batch_size=20).fit(1, resume=mcd.fit(1, progress=False))
    with pytest.raises(TypeError, match="resume as an EnsembleFit"):
        rb.DeepEnsemble(plain, batch_size=20).fit(
            1, resume=EnsembleFit(np.zeros((5, plain.dim)), True, {})
        )


def test_training_that_explodes_says_where():
    mcd = rb.MCDropout(target(dtype=np.float32), batch_size=20, learning_rate=1e38)
    with pytest.raises(NonFiniteError, match="MCDropout") as caught:
        mcd.fit(50, seed=1, progress=False)
    fit = caught.value.state
    assert not fit.complete
    assert np.isfinite(fit.theta).all()
    with pytest.raises(NonFiniteError):
        mcd.fit(50, resume=fit, progress=False)


def test_fits_predict_and_pickle():
    mcd = rb.MCDropout(target(), rate=0.25, batch_size=20)
    fit = mcd.fit(3, seed=1, progress=False)
    x = X[:7]
    p = fit.predict(x, 50, seed=4, masks="shared")
    np.testing.assert_array_equal(p.mean, fit.draws(50, seed=4, masks="shared").predict(x).mean)
    back = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(back.predict(x, 50).mean, fit.predict(x, 50).mean)
    assert mcd.fit(2, resume=back, progress=False).theta.tobytes() == (
        mcd.fit(2, resume=fit, progress=False).theta.tobytes()
    )
    plain = rb.Posterior(
        rb.mlp(3, (5,), 1), X, Y, prior=rb.Normal(0.8), likelihood=rb.Gaussian(0.3)
    )
    members = rb.DeepEnsemble(plain, members=3, batch_size=20).fit(1, progress=False)
    assert members.predict(x).num_draws == 3


def test_rows_have_addresses_for_their_masks():
    class Many:
        table = np.array([[0, 3, 512, 0, 0, 0, 0, 0]])

    check_addresses("predict", Many, 2**25 - 1)
    with pytest.raises(ValueError, match=r"\[predict\] expected rows times widest layer < 2\^34"):
        check_addresses("predict", Many, 2**25)
    # Of all rows that are asked for, not of the first one: two blocks of four units here.
    draws = rb.MCDropout(target(), batch_size=20).fit(1, progress=False).draws(2)
    ask = draws.predictive.predictive
    ask(draws.positions[0], X[:7], row=2**31 - 8)
    with pytest.raises(ValueError, match="rows times widest layer"):
        ask(draws.positions[0], X[:8], row=2**31 - 8)


def test_row_noise_of_bbb_has_addresses(monkeypatch):
    plain = rb.Posterior(
        rb.mlp(3, (5,), 1), X, Y, prior=rb.Normal(0.8), likelihood=rb.Gaussian(0.3)
    )
    monkeypatch.setattr(type(plain), "num_rows", 2**31)
    for estimator in ("local", "flipout"):
        with pytest.raises(ValueError, match=r"\[BBB\] expected rows times widest layer"):
            rb.BBB(plain, estimator=estimator, batch_size=2**20).fit(1, progress=False)
