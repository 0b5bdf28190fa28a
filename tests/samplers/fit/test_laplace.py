"""Laplace's approximation: modes, what decides a fit, predictions, bad input."""

import dataclasses
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit.interrupt import InterruptGuard
from ribbit.samplers.fit.curvature import factor_of
from tests.support.linear_posterior import DIM, X, Y, optimum, target

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(60, 3))
NOISY = np.sin(INPUTS[:, 0]) + 0.2 * RNG.normal(size=60)
NEW = RNG.normal(size=(5, 3))
# what the tests below look at does not depend on how far Adam came
ALL = {"batch_size": None}
short = pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")


def network(likelihood=None, y=None, outputs=1, dtype=np.float64, hidden=(6,), **options):
    return rb.Posterior(
        rb.mlp(3, hidden, outputs, activation="tanh"),
        INPUTS,
        NOISY if y is None else y,
        likelihood=rb.Gaussian(0.2) if likelihood is None else likelihood,
        **{"prior": rb.Normal(0.7), "dtype": dtype, **options},
    )


# What is tested does not depend on how far the layers below the last have come.
UNTRAINED = pytest.mark.filterwarnings("ignore:.*layers below the last one")


def fitted(density, epochs=200, seed=0, **options):
    options = {"learning_rate": 2e-2, "batch_size": None, **options}
    return rb.LaplaceApproximation(density, **options).fit(epochs, seed=seed, progress=False)


def same(a, b):
    assert a.mean.tobytes() == b.mean.tobytes()
    assert a.factor.tobytes() == b.factor.tobytes()
    assert a.log_evidence == b.log_evidence


# --- the mode ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 256, 257, 700])
def test_the_factor_of_a_matrix(size):
    a = np.random.default_rng(size).normal(size=(size, size + 3))
    matrix = a @ a.T + np.eye(size)
    factor = factor_of("test", matrix.copy(), InterruptGuard())
    assert not np.tril(factor, -1).any()
    assert factor.flags.c_contiguous
    np.testing.assert_allclose(factor @ factor.T @ matrix, np.eye(size), atol=1e-9)
    with pytest.raises(ValueError, match=r"\[test\] expected a positive definite curvature"):
        factor_of("test", matrix - 2 * np.trace(matrix) * np.eye(size), InterruptGuard())


@short
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_newton_steps_climb_to_the_mode(subset):
    density = network()
    start = fitted(density, epochs=100, polish=0)
    fit = fitted(density, epochs=100, subset=subset, polish=60)
    assert fit.log_density > start.log_density
    assert fit.newton_decrement < 1e-2
    _, grad = density.value_and_grad(fit.mean)
    own = slice(fit.first, fit.first + len(fit.factor))
    np.testing.assert_allclose(grad[own], 0.0, atol=1.0)
    if subset == "last_layer":  # the others stay
        np.testing.assert_array_equal(fit.mean[: fit.first], start.mean[: fit.first])


def test_weights_that_are_given_are_the_mode():
    density = network()
    weights = fitted(density).mean
    for init in (weights, weights[None], weights.tolist()):
        fit = rb.LaplaceApproximation(density, **ALL).fit(0, init=init, progress=False)
        assert fit.mean.tobytes() == weights.tobytes()
        assert fit.state is None
    ensemble = rb.DeepEnsemble(density, members=2, learning_rate=1e-3, batch_size=None)
    with pytest.warns(rb.errors.FitWarning, match="still rose"):
        members = ensemble.fit(30, progress=False)
    with pytest.warns(rb.errors.FitWarning, match=r"a Newton step gains .* polish=100"):
        fit = rb.LaplaceApproximation(density, **ALL).fit(0, init=members, progress=False)
    assert fit.mean.tobytes() == members.theta[0].tobytes()
    near = rb.LaplaceApproximation(density, polish=100, **ALL).fit(0, init=members, progress=False)
    assert near.newton_decrement < fit.newton_decrement
    again = rb.LaplaceApproximation(density, **ALL).fit(0, init=near, progress=False)
    assert again.mean.tobytes() == near.mean.tobytes()


@short
def test_training_is_that_of_an_ensemble():
    density, options = network(), {"learning_rate": 1e-2, "batch_size": 20}
    fit = rb.LaplaceApproximation(density, **options).fit(30, seed=4, progress=False)
    ensemble = rb.DeepEnsemble(density, members=1, **options).fit(30, seed=4, progress=False)
    assert fit.state.position.tobytes() == ensemble.theta.tobytes()
    np.testing.assert_array_equal(fit.history["objective"], ensemble.history["objective"])


# --- what decides a fit --------------------------------------------------------------------------


def test_resume_goes_on_bit_for_bit():
    laplace = rb.LaplaceApproximation(network(), learning_rate=1e-2, batch_size=20, polish=30)
    part = laplace.fit(20, seed=3, progress=False)
    whole = laplace.fit(50, seed=3, progress=False)
    same(laplace.fit(30, resume=part, progress=False), whole)
    same(laplace.fit(0, resume=whole, progress=False), whole)


def test_threads_change_no_bit_of_what_is_not_numpy_s():
    fits = []
    for threads in (1, 2, 3):
        rb.set_num_threads(threads)
        fits.append(fitted(network(), epochs=50))
    rb.set_num_threads(2)
    same(fits[0], fits[1])
    same(fits[0], fits[2])
    predictions = [fit.predict(NEW, 50, linearized=False).mean for fit in fits]
    assert predictions[0].tobytes() == predictions[1].tobytes() == predictions[2].tobytes()


@UNTRAINED
def test_a_draw_is_a_function_of_its_number():
    fit = fitted(network())
    few, many = fit.draws(9, seed=7).positions, fit.draws(150, seed=7).positions
    assert many[:, :9].tobytes() == few.tobytes()
    ids = np.array([140, 8, 1], np.uint32)
    assert fit._starts(ids, 7).tobytes() == many[0, ids].tobytes()
    assert fit._starts(None, 7).tobytes() == many[0, :4].tobytes()
    assert fit.draws(9, seed=8).positions.tobytes() != few.tobytes()
    last = fitted(network(), subset="last_layer")
    moved = last.draws(5).positions[0] != last.mean
    np.testing.assert_array_equal(moved.all(axis=0), np.arange(last.mean.size) >= last.first)


def test_a_fit_starts_chains():
    fit = fitted(network(dtype=np.float32))
    assert fit.mean.dtype == np.float32
    draws = rb.HMC(network(dtype=np.float32), step_size=1e-3, num_leapfrog_steps=2).sample(
        2, warmup=0, chains=3, init=fit, progress=False
    )
    assert draws.positions.shape == (3, 2, fit.mean.size)


# --- predictions ---------------------------------------------------------------------------------

OUTPUTS = {
    "gaussian": (rb.Gaussian(0.2), 1, None),
    "learned": (rb.Gaussian(), 1, None),
    "student": (rb.StudentTNoise(4.0, 0.2), 1, None),
    "heteroscedastic": (rb.HeteroscedasticGaussian(), 2, None),
    "categorical": (rb.Categorical(), 3, np.arange(60) % 3),
    "bernoulli": (rb.Bernoulli(), 1, np.arange(60) % 2),
    "poisson": (rb.Poisson(), 1, np.arange(60) % 4),
}


@UNTRAINED
@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("subset", ["all", "last_layer"])
def test_predictions_of_every_likelihood(name, subset):
    likelihood, outputs, y = OUTPUTS[name]
    density = network(likelihood, y, outputs)
    fit = fitted(density, subset=subset, polish=50)
    p, plain = fit.predict(NEW, 400), fit.predict(NEW, 400, linearized=False)
    assert p.kind == plain.kind
    shape = (5, 3) if name == "categorical" else (5,)
    assert p.epistemic_std.shape == plain.epistemic_std.shape == shape
    assert (p.epistemic_std > 0).all()
    score = np.array([p.log_likelihood(density.y[:5, 0]), plain.log_likelihood(density.y[:5, 0])])
    assert np.isfinite(score).all()
    if p.kind != "classification":
        assert p.sample(7).shape == (7, 5)
        assert (p.quantile(0.1) <= p.quantile(0.9)).all()
    if subset == "last_layer" and name not in ("gaussian", "learned"):
        # the network is linear in them: the same numbers
        values = "probs" if p.kind == "classification" else "mean"
        np.testing.assert_array_equal(getattr(p, values), getattr(plain, values))


def test_linearized_predictions_are_those_of_the_linear_function(monkeypatch):
    density = network(rb.Categorical(), np.arange(60) % 3, 3)
    fit = fitted(density)
    theta = fit.draws(20, seed=1).positions[0]
    h = 1e-6
    probs = np.zeros((5, 3))
    for draw in theta:
        step = draw - fit.mean
        slope = density.model.apply(fit.mean + h * step, NEW)
        slope = (slope - density.model.apply(fit.mean - h * step, NEW)) / (2 * h)
        f = density.model.apply(fit.mean, NEW) + slope
        e = np.exp(f - f.max(axis=1, keepdims=True))
        probs += e / e.sum(axis=1, keepdims=True) / len(theta)
    found = fit.predict(NEW, 20, seed=1).probs
    np.testing.assert_allclose(found, probs, rtol=1e-6, atol=1e-8)
    assert np.abs(fit.predict(NEW, 20, seed=1, linearized=False).probs - found).max() > 1e-3
    monkeypatch.setattr("ribbit.targets.linearized._NUMBERS", 2 * 3 * density.dim)
    monkeypatch.setattr("ribbit.targets.linearized._HELD", 0)
    monkeypatch.setattr("ribbit.results.lazy.CHUNK", 200)
    np.testing.assert_allclose(fit.predict(NEW, 20, seed=1).probs, found, rtol=1e-12)


@UNTRAINED
def test_a_learned_noise_is_a_parameter_of_known_information():
    """Its variance 1 / (2 N + 1 / prior variance), independent of the weights."""
    fit = fitted(network(rb.Gaussian()))
    np.testing.assert_allclose(fit.covariance[-1, -1], 1.0 / (2.0 * 60 + 1.0))
    np.testing.assert_allclose(fit.covariance[-1, :-1], 0.0, atol=1e-15)
    noise = np.exp(fit.mean[-1])
    mean = noise * np.exp(fit.covariance[-1, -1])  # the root of the mean variance
    np.testing.assert_allclose(fit.predict(NEW).aleatoric_std, mean, rtol=1e-12)
    sampled = fit.predict(NEW, 4000, linearized=False).aleatoric_std
    np.testing.assert_allclose(sampled, mean, rtol=0.05)
    last = fitted(network(rb.Gaussian()), subset="last_layer")
    assert len(last.factor) == 7
    assert (last.draws(3).positions[0, :, -1] == last.mean[-1]).all()
    np.testing.assert_allclose(last.predict(NEW).aleatoric_std, np.exp(last.mean[-1]))


@UNTRAINED
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_learned_noise_has_one_law_in_every_answer(outputs):
    """Four rows leave 0.35 of log noise open: its integral by quadrature is the reference.

    Samples: Kolmogorov's bound for 50,000 and a false-fail rate of 1e-7; the control keeps the
    noise at its mode.
    """
    y = np.stack([NOISY, 3.0 * NOISY[::-1]][:outputs], axis=1)[:4]
    density = rb.Posterior(
        rb.mlp(3, (4,), outputs, activation="tanh"),
        INPUTS[:4],
        100.0 + 30.0 * y,
        prior=rb.Normal(0.1),  # most of y is noise
        likelihood=rb.Gaussian(),
        standardize=True,
        dtype=np.float64,
    )
    fit = fitted(density)
    p = fit.predict(NEW, 50_000)
    spread = np.sqrt(np.diag(fit.covariance)[-outputs:])
    assert (spread > 0.3).all()
    at_mode = p.aleatoric_std[0] * np.exp(-(spread**2))
    np.testing.assert_allclose(p.std, np.hypot(p.epistemic_std, p.aleatoric_std), rtol=1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    noise = at_mode * np.exp(nodes[:, None] * spread)  # (nodes, K)
    sd = np.hypot(p.epistemic_std[0], noise)
    at = p.mean[0] + 1.5 * p.std[0]
    normal = statistics.NormalDist()

    def cdf(sd):
        return np.vectorize(normal.cdf)((at - p.mean[0]) / sd)

    found = p.cdf(np.broadcast_to(at, p.mean.shape))[0]
    exact = weights @ cdf(sd) / weights.sum()
    np.testing.assert_allclose(found, exact, atol=2e-4)
    assert (np.abs(cdf(np.hypot(p.epistemic_std[0], at_mode)) - exact) > 5e-3).all()
    np.testing.assert_allclose(p.cdf(p.quantile(0.9)), 0.9, rtol=1e-9)
    if outputs == 1:
        density = np.exp(-0.5 * ((at - p.mean[0]) / sd) ** 2) / sd / np.sqrt(2.0 * np.pi)
        score = fit.predict(NEW[:1]).log_likelihood(at[None])
        assert score == pytest.approx(float(np.log(weights @ density / weights.sum())[0]), abs=1e-3)
    samples = p.sample(50_000)[:, 0, :]
    for k in range(outputs):
        places = np.linspace(-2.0, 2.0, 41) * p.std[0, k] + p.mean[0, k]
        grid = np.repeat(places[:, None], outputs, axis=1)
        law = fit.predict(np.repeat(NEW[:1], 41, axis=0)).cdf(grid)[:, k]
        drawn = (samples[:, k, None] <= places).mean(axis=0)
        kolmogorov = 2.9 / np.sqrt(50_000)
        assert np.abs(drawn - law).max() < kolmogorov
        plain = np.vectorize(normal.cdf)(
            (places - p.mean[0, k]) / np.hypot(p.epistemic_std[0, k], at_mode[k])
        )
        assert np.abs(drawn - plain).max() > kolmogorov


@UNTRAINED
def test_noises_of_different_outputs_are_independent():
    """Of 33 outputs no two share an order of their noise; nothing is random."""
    y = np.tile(NOISY[:, None], 33)
    fit = fitted(network(rb.Gaussian(), y, 33, hidden=()))
    noise = np.log(fit.predict(NEW)._noise)
    assert noise.shape == (64, 33)
    correlation = np.corrcoef(noise.T) - np.eye(33)
    assert np.abs(correlation).max() < 0.6  # five standard errors of 64 draws
    assert np.sqrt((correlation**2).mean()) < 0.15


def test_a_posterior_of_other_units():
    x, y = 5.0 + 20.0 * INPUTS, 100.0 + 30.0 * NOISY
    options = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(0.2), "dtype": np.float64}
    density = rb.Posterior(rb.mlp(3, (6,), 1, activation="tanh"), x, y, standardize=True, **options)
    fit = fitted(density)
    p = fit.predict(x)
    assert rb.metrics.rmse(y, p.mean) < 8.0
    np.testing.assert_allclose(p.aleatoric_std, 0.2 * y.std(), rtol=1e-6)
    samples = p.sample(4000, seed=1)
    np.testing.assert_allclose(samples.std(axis=0), p.std, rtol=0.1)
    z = (y - p.mean) / p.std
    expected = np.mean(-0.5 * z**2 - np.log(p.std) - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(p.log_likelihood(y), expected)


# --- scales --------------------------------------------------------------------------------------


def test_scales_of_a_network_gain_evidence():
    density = network(rb.Gaussian(0.5), prior=rb.Normal(3.0))
    plain = fitted(density)
    fit = fitted(density, tune_prior="layers", tune_noise=True)
    assert set(fit.tuning) == {
        "log_evidence",
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
        "noise_sd",
    }
    assert fit.tuning["log_evidence"][0] == pytest.approx(plain.log_evidence)
    assert fit.log_evidence > plain.log_evidence + 10.0
    assert fit.predictive.noise_scale == fit.tuning["noise_sd"][-1] < 0.2
    assert fit.predict(NEW).aleatoric_std[0] == fit.tuning["noise_sd"][-1]
    assert "tuned noise_sd" in fit.summary().text
    last = fitted(density, subset="last_layer", tune_prior="shared")
    assert set(last.tuning) == {"log_evidence", "2.weight", "2.bias"}
    assert last.predictive.prior_sd[0] == 3.0
    assert last.predictive.prior_sd[-1] == last.tuning["2.weight"][-1]


# --- bad input -----------------------------------------------------------------------------------

REFUSED = {
    "more than 5,000": (
        lambda: rb.LaplaceApproximation(network(hidden=(70, 70))),
        ValueError,
        r"at most 5000 parameters, got 5321: subset='last_layer' takes",
    ),
    "a subset": (lambda: rb.LaplaceApproximation(target(), subset="first"), ValueError, "subset"),
    "polish": (lambda: rb.LaplaceApproximation(target(), polish=-1), ValueError, "polish"),
    "tune_prior": (lambda: rb.LaplaceApproximation(target(), tune_prior=True), TypeError, "tune"),
    "noise that is learned": (
        lambda: rb.LaplaceApproximation(network(rb.Gaussian()), tune_noise=True),
        ValueError,
        "tune_noise=False",
    ),
    "priors without a scale": (
        lambda: rb.LaplaceApproximation(target(rb.Logistic(1.0)), tune_prior="layers"),
        ValueError,
        "normal priors",
    ),
    "temperatures": (
        lambda: rb.LaplaceApproximation(target(temperature=0.5), tune_prior="shared"),
        ValueError,
        "temperatures of 1",
    ),
    "a function": (
        lambda: rb.LaplaceApproximation(rb.CallableDensity(lambda t: (0.0, t), 2)),
        TypeError,
        "gauss_newton",
    ),
    "no epochs": (
        lambda: rb.LaplaceApproximation(target(), **ALL).fit(0, progress=False),
        ValueError,
        "num_epochs >= 1",
    ),
    "another shape": (
        lambda: rb.LaplaceApproximation(target(), **ALL).fit(0, init=np.zeros(4), progress=False),
        ValueError,
        r"init \(3,\) or \(1, 3\), got shape \(4,\)",
    ),
    "not finite": (
        lambda: rb.LaplaceApproximation(target(), **ALL).fit(
            0, init=np.full(3, np.nan), progress=False
        ),
        ValueError,
        "init",
    ),
    "resume of another": (
        lambda: rb.LaplaceApproximation(target(), **ALL).fit(1, resume=3, progress=False),
        TypeError,
        "resume as a LaplaceFit",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=r"\[LaplaceApproximation.*" + text):
        call()


def test_a_device_and_parameters_that_are_no_weights_are_refused():
    density = target()
    elsewhere = dataclasses.replace(density._spec, backend=SimpleNamespace(xp=object()))
    object.__setattr__(density, "_spec", elsewhere)
    with pytest.raises(TypeError, match="a target in host memory, got one on a device"):
        rb.LaplaceApproximation(density, **ALL)
    density = target()
    object.__setattr__(density, "dim", DIM + 1)
    with pytest.raises(TypeError, match="got 4 parameters for 3 weights"):
        rb.LaplaceApproximation(density, **ALL)


def test_dropout_is_refused():
    model = rb.Model([rb.Dense(3), rb.Dropout(0.2), rb.Dense(1)], input_shape=(2,))
    density = rb.Posterior(model, X, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))
    with pytest.raises(TypeError, match="Dropout"):
        rb.LaplaceApproximation(density)


def test_a_direction_that_nothing_bends():
    """A Laplace prior has no curvature; a dead input has none from the data."""
    x = np.c_[X, np.zeros(len(X))]
    model = rb.mlp(DIM, (), 1)
    density = rb.Posterior(
        model, x, Y, prior=rb.Laplace(1.0), likelihood=rb.Gaussian(0.4), dtype=np.float64
    )
    with pytest.raises(ValueError, match="a Laplace prior has none") as caught:
        rb.LaplaceApproximation(density, batch_size=None).fit(3, progress=False)
    assert not caught.value.fit.complete
    with pytest.raises(ValueError, match="expected a fit with a covariance"):
        caught.value.fit.draws(3)
    assert "INCOMPLETE" in repr(caught.value.fit)
    assert "cut short" in caught.value.fit.summary().text


def test_adam_alone_is_told_of():
    """The control of the verdict: far from the mode it says so, at the mode it does not."""
    laplace = rb.LaplaceApproximation(target(), batch_size=None, polish=0)
    with pytest.warns(rb.errors.FitWarning, match="the mean is no mode"):
        fit = laplace.fit(2, progress=False)
    assert fit.summary().converged is False
    mean, _ = optimum()
    at = laplace.fit(0, init=mean, progress=False)
    assert at.summary().converged
    assert "at a mode" in at.summary().message


def test_the_layers_below_the_last_are_judged_by_their_training():
    """Newton's steps find a mode of the last layer after one epoch, too."""
    density = network()
    with pytest.warns(rb.errors.FitWarning, match="layers below the last one") as said:
        short = rb.LaplaceApproximation(density, subset="last_layer").fit(40, progress=False)
    assert said[0].filename == __file__
    assert "polish" not in str(said[0].message)
    found = short.summary()
    assert found.converged is False
    assert "This holds for the layers below" in found.message
    unknown = rb.LaplaceApproximation(density, subset="last_layer").fit(1, progress=False)
    assert unknown.summary().converged is None
    schedule = rb.schedules.cosine(3000)
    long = rb.LaplaceApproximation(
        density, subset="last_layer", learning_rate=0.02, schedule=schedule
    ).fit(3000, progress=False)
    assert long.summary().converged
    assert "The layers below" not in long.summary().message


@short
@pytest.mark.parametrize(("hidden", "exact"), [((15,), True), ((25,), False)])
def test_default_steps_of_many_parameters_end_near_the_mode(hidden, exact):
    """They converge slowly: the summary asks for no more. 76 and 126 parameters."""
    density = network(hidden=hidden)
    near, mode = (fitted(density, epochs=100, polish=polish) for polish in (None, 100))
    assert (near.mean.tobytes() == mode.mean.tobytes()) == exact
    assert mode.newton_decrement <= near.newton_decrement <= 0.1 * near._wanted
