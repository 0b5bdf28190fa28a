"""Normal priors around means: their forms, and densities, runs and fits around them."""

import json
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit.errors import DataError, DTypeError, RibbitWarning, ShapeError
from ribbit.targets import priors
from tests.support.gradient_check import BOUNDS, native_error
from tests.support.problems import build_native, build_reference

MODEL = rb.mlp(4, (3,), 1)  # sizes 12, 3, 3, 1
FLAT = np.linspace(-1.0, 1.0, MODEL.dim)
WEIGHT = FLAT[:12].reshape(4, 3)
LATER = np.where(np.arange(MODEL.dim) < 15, 0.0, FLAT)  # of the second layer alone
MEANS = {
    "number": (rb.Normal(0.5, mean=2), np.full(MODEL.dim, 2.0)),
    "flat": (rb.Normal(0.5, mean=FLAT), FLAT),
    "list": (rb.Normal(0.5, mean=FLAT.tolist()), FLAT),
    "names": (rb.Normal(0.5, mean=MODEL.unravel(FLAT) | {"log_noise": [1.0]}), FLAT),
    "shape": (
        {"0.weight": rb.Normal(0.5, mean=WEIGHT), "*": rb.Normal(0.5)},
        np.where(np.arange(MODEL.dim) < 12, FLAT, 0.0),
    ),
    "flat shape": (
        {"0.weight": rb.Normal(0.5, mean=FLAT[:12]), "*": rb.Normal(0.5)},
        np.where(np.arange(MODEL.dim) < 12, FLAT, 0.0),
    ),
    "the rest": ({"0.*": rb.Normal(0.5), "*": rb.Normal(0.5, mean=FLAT)}, LATER),
}


def target(prior, **options):
    options = {"likelihood": rb.Gaussian(0.1), "dtype": np.float64, **options}
    return rb.Posterior(MODEL, np.ones((2, 4)), np.ones(2), prior=prior, **options)


@pytest.mark.parametrize(("prior", "mean"), MEANS.values(), ids=MEANS)
def test_every_form_of_a_mean(prior, mean, rng):
    t = target(prior, likelihood=rb.Gaussian())  # "log_noise" keeps its own
    np.testing.assert_array_equal(t.prior_mean, np.r_[mean, 0.0])
    theta = rng.normal(size=t.dim)
    expected = stats.norm(np.r_[mean, 0.0], t.prior_sd).logpdf(theta).sum()
    assert t.log_prior(theta) == pytest.approx(expected, rel=1e-12)
    assert t.shared_prior_sd == 0.5
    plain = target(rb.Normal(0.5), likelihood=rb.Gaussian())
    gradient = t.value_and_grad(theta)[1] - plain.value_and_grad(theta)[1]
    np.testing.assert_allclose(gradient, np.r_[mean, 0.0] / 0.25, atol=1e-9)


def test_a_name_that_is_no_parameters_is_refused():
    """Under a pattern the names of the model's other parameters may stay; a misspelt one not."""
    means = MODEL.unravel(FLAT)
    t = target({"0.*": rb.Normal(0.5), "*": rb.Normal(0.5, mean=means)})
    np.testing.assert_array_equal(t.prior_mean, LATER)
    text = r"^\[Posterior\] expected means of parameters of the model, got one of '0.wieght'"
    with pytest.raises(ValueError, match=text):
        target(rb.Normal(0.5, mean=means | {"0.wieght": WEIGHT}))


def test_a_mean_of_the_log_noise():
    for likelihood, prior in (
        (rb.Gaussian(log_noise_prior=rb.Normal(0.7, mean=-2.0)), rb.Normal(0.5)),
        (rb.Gaussian(), {"*": rb.Normal(0.5), "log_noise": rb.Normal(0.7, mean=[-2.0])}),
    ):
        t = target(prior, likelihood=likelihood)
        np.testing.assert_array_equal(t.prior_mean, np.r_[np.zeros(MODEL.dim), -2.0])
        theta = np.zeros(t.dim)
        at_zero = t.log_prior(theta)
        theta[-1] = -2.0
        assert t.log_prior(theta) - at_zero == pytest.approx(2.0 / 0.49, rel=1e-9)


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (math.nan, ValueError, "mean finite"),
        (10**400, ValueError, "mean finite"),
        (True, TypeError, "mean as a number"),
        ("1", DTypeError, "mean as an array of real numbers"),
        (None, DTypeError, "mean as an array of real numbers"),
        ([1.0, math.inf], DataError, r"finite float64 values in mean, .* mean\[1\] is inf"),
        ({"0.bias": [math.nan] * 3}, DataError, r"mean\['0.bias'\]"),
    ],
)
def test_refuses_means_that_are_no_numbers(mean, error, text):
    with pytest.raises(error, match=rf"^\[Normal\] expected .*{text}"):
        rb.Normal(1.0, mean=mean)


@pytest.mark.parametrize(
    ("prior", "error", "text"),
    [
        (
            rb.Normal(1.0, mean=np.zeros(20)),
            ShapeError,
            r"'0.weight' of shape \(4, 3\) or \(12,\) or \(19,\), got .*\(20,\)",
        ),
        (rb.Normal(1.0, mean=np.zeros((1, 19))), ShapeError, "'0.weight'"),
        (rb.Normal(1.0, mean=WEIGHT), ShapeError, r"'0.bias' of shape \(3,\) or \(19,\), got"),
        (rb.Normal(1.0, mean=np.zeros(())), ShapeError, r"got float64 array of shape \(\)"),
        (
            rb.Normal(1.0, mean=MODEL.unravel(FLAT) | {"2.weight": np.zeros(3)}),
            ShapeError,
            r"'2.weight' of shape \(3, 1\), got .*\(3,\)",
        ),
        (rb.Normal(1.0, mean={"0.weight": WEIGHT}), ValueError, "'0.bias', got means of 0.weight"),
        (rb.Normal(1.0, mean={}), ValueError, "'0.weight', got means of nothing"),
        ({"*": rb.Normal(1.0), "log_noise": rb.Normal(1.0, mean=FLAT)}, ShapeError, "'log_noise'"),
    ],
)
def test_refuses_means_that_do_not_fit(prior, error, text):
    with pytest.raises(error, match=rf"^\[Posterior\] expected .* mean of the prior of .*{text}"):
        target(prior, likelihood=rb.Gaussian())


def test_refuses_means_beyond_the_dtype():
    with pytest.raises(DataError, match="finite float32 values in mean of the prior"):
        target(rb.Normal(1.0, mean=1e300), dtype=np.float32)


@pytest.mark.parametrize("mean", [0.25, FLAT, MODEL.unravel(FLAT)], ids=["", "flat", "names"])
def test_means_are_values(mean, tmp_path):
    prior, other = rb.Normal(0.5, mean=mean), rb.Normal(0.5, mean=mean)
    assert prior == other
    assert hash(prior) == hash(other)
    assert len({prior, other, rb.Normal(0.5), rb.Normal(0.5, mean=0.5)}) == 3
    assert prior != rb.Normal(0.5, mean=mean, fan_in=True)
    assert pickle.loads(pickle.dumps(prior)) == replace(prior, scale=0.5) == prior
    assert priors.from_description(json.loads(json.dumps(priors.describe(prior)))) == prior
    assert len(repr(prior)) < 80
    t = target(prior)
    again = pickle.loads(pickle.dumps(t))
    np.testing.assert_array_equal(again.prior_mean, t.prior_mean)
    assert again.log_prior(FLAT) == t.log_prior(FLAT)
    draws = rb.HMC(t, step_size=0.01, num_leapfrog_steps=2).sample(2, chains=1, progress=False)
    draws.save(tmp_path / "draws.npz")
    x = np.ones((3, 4))
    loaded = rb.load(tmp_path / "draws.npz")
    np.testing.assert_array_equal(loaded.predict(x).mean, draws.predict(x).mean)


def test_a_mean_is_copied_and_zero_is_none():
    given = FLAT.copy()
    prior = rb.Normal(0.5, mean=given)
    given[:] = 7.0
    assert prior == rb.Normal(0.5, mean=FLAT)
    with pytest.raises(ValueError, match="read-only"):
        prior.mean[0] = 1.0
    assert rb.Normal(0.5, mean=-0.0) == rb.Normal(0.5)
    assert repr(rb.Normal(0.5)) == "Normal(scale=0.5, fan_in=False)"
    assert priors.describe(rb.Normal(0.5)) == {"prior": "Normal", "scale": 0.5, "fan_in": False}
    assert repr(prior) == "Normal(scale=0.5, fan_in=False, mean=float64 array of shape (19,))"


def large(likelihood, rng):
    """The oracle's target of 2433 parameters, no whole chunks, and a prior: weights centred."""
    reference, theta = build_reference(
        num_in=50,
        hidden=(45,),
        num_out=3,
        likelihood=likelihood,
        num_rows=40,
        chains=2,
        temperature=0.8,
        likelihood_temperature=1.3,
    )
    model = build_native(reference).model
    rows, centre = [], np.zeros(reference.dim)
    for p in model.parameters:
        rows.append(
            (p.offset, p.size, 0, 0.8, 0, 0) if p.is_weight else (p.offset, p.size, 1, 0.6, 0, 0)
        )
        centre[p.offset : p.offset + p.size] = p.is_weight * rng.normal(size=p.size)
    rows += [tuple(row) for row in reference.prior[1:]]
    return replace(reference, prior=np.array(rows), centre=centre), theta, centre[: model.dim]


def around(mean):
    return {"*.weight": rb.Normal(0.8, mean=mean), "*": rb.Laplace(0.6)}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("likelihood", [0, 1])
def test_densities_around_a_mean_are_the_oracles(likelihood, dtype, rng):
    reference, theta, mean = large(likelihood, rng)
    found = native_error(reference, theta, dtype, prior=around(mean))
    assert np.all(found <= np.array(BOUNDS[np.dtype(dtype)]))
    # controls: a mean of the wrong sign, and one that is left out
    for wrong in (-mean, 0.0):
        found = native_error(reference, theta, dtype, prior=around(wrong))
        assert np.all(found > 100 * np.array(BOUNDS[np.dtype(dtype)]))


def test_gradients_around_a_mean_are_central_differences(rng):
    t = target(rb.Normal(0.3, mean=3.0 * FLAT), temperature=0.7)
    theta, h = rng.normal(size=t.dim), 2e-4
    stencil = np.concatenate([theta + k * h * np.eye(t.dim) for k in (-2, -1, 1, 2)])
    v = t.value_and_grad(stencil)[0].reshape(4, t.dim)
    central = (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * h)
    gradient = t.value_and_grad(theta)[1]
    assert np.linalg.norm(gradient - central) <= 1e-7 * np.linalg.norm(central)


# A linear model around m is one around 0 of the data less what m predicts: runs from m + start are
# those from start, plus m, but for rounding.

SAMPLERS = {
    "hmc": lambda t, start: (
        rb.HMC(t, step_size=0.01, num_leapfrog_steps=5)
        .sample(3, warmup=0, chains=2, init=start, seed=4, progress=False)
        .positions
    ),
    "sghmc": lambda t, start: (
        rb.SGHMC(t, step_size=1e-4, friction=0.1, batch_size=8)
        .sample(5, warmup=0, chains=2, init=start, seed=4, progress=False)
        .positions
    ),
    "ensemble": lambda t, start: (
        rb.DeepEnsemble(t, members=2, batch_size=8)
        .fit(3, init=start, seed=4, progress=False)
        .draws()
        .positions
    ),
}
FITS = [(e, kl) for e in ("reparam", "local", "flipout") for kl in ("closed", "sampled")]


def shifted(xp, rng):
    """A target around m, one around 0 of shifted data, m (P,) and a start (2, P).

    Weights alone have a mean; 2103 parameters.
    """
    model = rb.mlp(700, (), 3)
    x, y = 0.1 * rng.normal(size=(20, 700)), rng.normal(size=(20, 3))
    m = rng.normal(size=model.dim)
    m[2100:] = 0.0
    options = {"likelihood": rb.Gaussian(0.5), "dtype": np.float64, "temperature": 0.7}
    pair = [
        rb.Posterior(model, xp.asarray(x), xp.asarray(y - away), prior=prior, **options)
        for away, prior in (
            (0.0, {"*.weight": rb.Normal(0.4, mean=m), "*": rb.Normal(0.6)}),
            (x @ m[:2100].reshape(700, 3), {"*.weight": rb.Normal(0.4), "*": rb.Normal(0.6)}),
        )
    ]
    return *pair, m, 0.1 * rng.normal(size=(2, model.dim))


def host(array):
    return array.get() if hasattr(array, "get") else array


@pytest.fixture(params=["numpy", "device"])
def library(request, device):
    return np if request.param == "numpy" else device


@pytest.mark.parametrize("name", SAMPLERS)
def test_runs_around_a_mean_are_shifted_runs(library, name, rng):
    centred, plain, m, start = shifted(library, rng)
    run = SAMPLERS[name]
    found = host(run(centred, library.asarray(start + m)))
    expected = host(run(plain, library.asarray(start)))
    np.testing.assert_allclose(found - m, expected, atol=1e-9)
    assert np.abs(expected - start[:, None]).max() > 1e-3


@pytest.mark.parametrize(("estimator", "kl"), FITS)
def test_fits_around_a_mean_are_shifted_fits(library, estimator, kl, rng):
    centred, plain, m, start = shifted(library, rng)
    found, expected = (
        rb.BBB(t, estimator=estimator, kl=kl, batch_size=8, num_samples=2, learning_rate=0.02).fit(
            3, init=library.asarray(at), seed=4, progress=False
        )
        for t, at in ((centred, start[0] + m), (plain, start[0]))
    )
    np.testing.assert_allclose(host(found.mean) - m, host(expected.mean), atol=1e-9)
    np.testing.assert_allclose(host(found.scale), host(expected.scale), rtol=1e-9)
    np.testing.assert_allclose(found.elbo, expected.elbo, rtol=1e-9)
    assert np.abs(host(expected.mean) - start[0]).max() > 1e-2


def test_masks_and_a_mean(rng):
    model = rb.Model(
        [rb.Dense(5), rb.Activation("tanh"), rb.Dropout(0.3), rb.Dense(1)], input_shape=(3,)
    )
    x, y = rng.normal(size=(9, 3)), rng.normal(size=9)
    mean, theta = rng.normal(size=(2, model.dim))

    def posterior(mean):
        prior = rb.Normal(0.5, mean=mean)
        return rb.Posterior(model, x, y, prior=prior, likelihood=rb.Gaussian(0.3), dtype=np.float64)

    (value, grad), (plain, slope) = (posterior(m).masked().value_and_grad(theta) for m in (mean, 0))
    both = stats.norm(mean, 0.5), stats.norm(0.0, 0.5)
    assert value - plain == pytest.approx(np.subtract(*(p.logpdf(theta).sum() for p in both)))
    np.testing.assert_allclose(grad - slope, mean / 0.25, atol=1e-9)
    for option in ({"length_scale": 1.0}, {"rate": "concrete"}):
        text = rf"^\[MCDropout\] expected priors of mean 0 for {next(iter(option))}.*Normal"
        with pytest.raises(ValueError, match=text):
            rb.MCDropout(posterior(mean), **option)


def test_chains_are_far_from_the_mean():
    t = target(rb.Normal(1e-3, mean=5.0), likelihood=rb.Gaussian(1e3))
    hmc = rb.HMC(t, step_size=1e-5, num_leapfrog_steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hmc.sample(2, chains=1, init=np.full((1, MODEL.dim), 5.0), progress=False)
    with pytest.warns(RibbitWarning, match="a chain is .* prior standard deviations away"):
        hmc.sample(2, chains=1, init=np.zeros((1, MODEL.dim)), progress=False)
