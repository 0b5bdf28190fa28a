"""Likelihoods: checks of y, predictive terms, pointwise log densities."""

import json
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

import ribbit as rb
from ribbit._backends import codes
from ribbit.targets import likelihoods
from tests.oracle import reference
from tests.support.likelihoods import CASES, EVERY, SCALE, SHAPE

F64 = np.dtype(np.float64)


def targets(likelihood, y, outputs, dtype=F64):
    return likelihood._targets("f", y, len(y), (outputs,), np.dtype(dtype))


@pytest.fixture
def outputs(rng):
    return 2 * rng.normal(size=(4, 9, 2))


def test_gaussian_terms_and_density(outputs, rng):
    y = rng.normal(size=(9, 2))
    expected = stats.norm(outputs, 0.3).logpdf(y).sum(axis=-1)
    known = rb.Gaussian(0.3)
    np.testing.assert_allclose(known._log_likelihood(outputs, y, None), expected, rtol=1e-12)
    terms = known._terms(outputs, None)
    np.testing.assert_array_equal(terms.mean, outputs)
    assert np.all(terms.noise_sd == 0.3)
    each = rb.Gaussian([0.3, 2.0])
    expected = stats.norm(outputs, [0.3, 2.0]).logpdf(y).sum(axis=-1)
    np.testing.assert_allclose(each._log_likelihood(outputs, y, None), expected, rtol=1e-12)
    np.testing.assert_array_equal(each._terms(outputs, None).noise_sd, [[[0.3, 2.0]]] * 4)
    for count, learned in ((1, rb.Gaussian(per_output=False)), (2, rb.Gaussian())):
        assert learned.noises((2,)) == count
        log_noise = rng.normal(size=(4, count))
        sd = np.exp(log_noise)[:, None, :]
        expected = stats.norm(outputs, sd).logpdf(y).sum(axis=-1)
        found = learned._log_likelihood(outputs, y, log_noise)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(learned._terms(outputs, log_noise).noise_sd, sd, rtol=1e-15)


@pytest.mark.parametrize("df", [0.3, 1.0, 2.0, 2.5, 49.0, 51.0, 1e4])
def test_student_terms_and_density(outputs, rng, df):
    y, log_noise = 5 * rng.standard_cauchy(size=(9, 2)), rng.normal(size=(4, 2))
    known, learned = rb.StudentTNoise(df, 0.3), rb.StudentTNoise(df)
    shared = rb.StudentTNoise(df, per_output=False)
    wider = math.sqrt(df / (df - 2)) if df > 2 else math.inf
    for likelihood, scale, given in (
        (known, np.full((4, 1, 1), 0.3), None),
        (rb.StudentTNoise(df, [0.3, 4.0]), np.tile([[[0.3, 4.0]]], (4, 1, 1)), None),
        (learned, np.exp(log_noise)[:, None, :], log_noise),
        (shared, np.exp(log_noise)[:, None, :1], log_noise[:, :1]),
    ):
        terms = likelihood._terms(outputs, given)
        np.testing.assert_array_equal(terms.mean, outputs)
        np.testing.assert_allclose(terms.noise_sd, wider * scale, rtol=1e-14)
        np.testing.assert_allclose(terms.noise_scale, scale, rtol=1e-15)
        expected = stats.t(df, outputs, scale).logpdf(y).sum(axis=-1)
        found = likelihood._log_likelihood(outputs, y, given)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("df", [0.5, 1.0, 3.0, 60.0, 1e8])
def test_student_density_integrates_to_one(df):
    likelihood = rb.StudentTNoise(df, 0.7)

    def density(s):  # of asinh(y): tails are exponential there
        y = np.array([[math.sinh(s)]])
        log_density = likelihood._log_likelihood(np.zeros((1, 1, 1)), y, None)[0, 0]
        return math.exp(log_density) * math.cosh(s)

    mass = 2 * integrate.quad(density, 0, 100, epsabs=1e-12, limit=500, points=(1, 3, 10))[0]
    assert mass == pytest.approx(1, abs=1e-10)


def test_student_of_many_degrees_of_freedom_is_gaussian(outputs, rng):
    y = rng.normal(size=(9, 2))
    gaussian = rb.Gaussian(0.8)._log_likelihood(outputs, y, None)
    fourth = (1 + ((y - outputs) / 0.8) ** 4).sum(axis=-1)
    for df in (1e4, 1e6, 1e12, 1e300):
        found = rb.StudentTNoise(df, 0.8)._log_likelihood(outputs, y, None)
        difference = np.abs(found - gaussian)
        assert np.all(difference <= fourth / df + 1e-12 * np.abs(gaussian))
        assert df > 1e6 or np.all(difference >= 1e-3 * fourth / df)


def student_target(df=3.0, scale=None, dtype=np.float64, y=None, drop=False):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(30, 3))
    y = np.sin(x[:, 0]) + 0.2 * rng.standard_t(3, size=30) if y is None else y
    layers = [rb.Dense(8), rb.Activation("tanh"), *([rb.Dropout(0.2)] if drop else []), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(3,))
    noise = rb.StudentTNoise(df, scale)
    return rb.Posterior(model, x, y, prior=rb.Normal(0.7), likelihood=noise, dtype=dtype)


# residuals of 1e36 are meant
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_student_residuals_do_not_overflow(dtype, scale):
    y = np.zeros(30)
    y[[3, 17]] = 1e19, -3e36
    target, exact = student_target(y=y, scale=scale, dtype=dtype), student_target(y=y, scale=scale)
    theta = exact.init(seed=1, chains=2).astype(dtype)
    (value, grad), (known, slope) = (
        t.value_and_grad(theta.astype(t.dtype)) for t in (target, exact)
    )
    np.testing.assert_allclose(value, known, rtol=1e-5)
    np.testing.assert_allclose(grad, slope, rtol=0, atol=1e-5 * np.abs(slope).max())


METHODS = {
    "hmc": lambda t, _: rb.HMC(t, step_size=1e-3, num_leapfrog_steps=5).sample(6, warmup=4),
    "sgld": lambda t, _: rb.SGLD(t, step_size=1e-5, batch_size=8).sample(6),
    "sghmc": lambda t, _: rb.SGHMC(t, step_size=1e-6, friction=0.1, batch_size=8).sample(6),
    "ensemble": lambda t, _: rb.DeepEnsemble(t, members=2, batch_size=8).fit(3).draws(),
    "dropout": lambda _, dropping: rb.MCDropout(dropping, batch_size=8).fit(3).draws(6),
    **{
        name: lambda t, _, name=name: rb.BBB(t, estimator=name, batch_size=8).fit(3).draws(6)
        for name in ("reparam", "local", "flipout")
    },
}


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_student_noise(method, scale, tmp_path):
    target = student_target(scale=scale)
    draws = METHODS[method](target, student_target(scale=scale, drop=True))
    x, y = target.x[:7], target.y[:7]
    draws.save(tmp_path / "draws.npz")
    for one in (draws, rb.load(tmp_path / "draws.npz")):
        p = one.predict(x)
        assert np.all(np.isfinite(p.mean))
        assert np.all(p.std > p.epistemic_std)
        assert math.isfinite(p.log_likelihood(y))
        np.testing.assert_array_equal(p.mean, draws.predict(x).mean)


# fifteen draws that both sides are made of
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("df", [0.8, 2.0, 5.0])
def test_student_quantiles_with_noise_are_those_of_the_mixture(df):
    target = student_target(df)
    draws = rb.SGLD(target, step_size=1e-4, batch_size=8).sample(15, chains=2)
    p, levels = draws.predict(target.x[:5]), [0.001, 0.05, 0.5, 0.99]
    terms = target.predictive(draws.positions.reshape(-1, target.dim), target.x[:5])
    found = p.quantile(levels)
    for level, at in zip(levels, found, strict=True):
        cdf = stats.t(df, terms.mean, terms.noise_scale).cdf(at[:, None]).mean(axis=0)[:, 0]
        np.testing.assert_allclose(cdf, level, atol=1e-11)
    assert np.all(np.isinf(p.std)) == (df <= 2)
    assert np.all(np.isfinite(p.epistemic_std))


def test_heteroscedastic_terms_and_density(outputs, rng):
    y = rng.normal(size=(9, 1))
    mean, sd = outputs[..., :1], np.log1p(np.exp(outputs[..., 1:]))
    likelihood = rb.HeteroscedasticGaussian()
    expected = stats.norm(mean, sd).logpdf(y).sum(axis=-1)
    np.testing.assert_allclose(likelihood._log_likelihood(outputs, y, None), expected, rtol=1e-12)
    terms = likelihood._terms(outputs, None)
    np.testing.assert_array_equal(terms.mean, mean)
    np.testing.assert_allclose(terms.noise_sd, sd, rtol=1e-14)


def test_categorical_terms_and_density(outputs):
    y = np.array([[0], [1], [1], [0], [0], [1], [0], [1], [1]], float)
    likelihood = rb.Categorical()
    log_p = special.log_softmax(outputs, axis=-1)
    np.testing.assert_allclose(likelihood._terms(outputs, None).probs, np.exp(log_p), rtol=1e-13)
    expected = np.where(y[:, 0] == 1, log_p[..., 1], log_p[..., 0])
    np.testing.assert_allclose(likelihood._log_likelihood(outputs, y, None), expected, rtol=1e-12)


def test_bernoulli_terms_and_density(outputs, rng):
    y = rng.integers(0, 2, size=(9, 2)).astype(float)
    likelihood = rb.Bernoulli()
    p = special.expit(outputs)
    terms = likelihood._terms(outputs, None)
    assert terms.binary
    np.testing.assert_allclose(terms.probs, p, rtol=1e-13)
    expected = stats.bernoulli(p).logpmf(y).sum(axis=-1)
    np.testing.assert_allclose(likelihood._log_likelihood(outputs, y, None), expected, rtol=1e-11)


def test_poisson_terms_and_density(outputs, rng):
    y = rng.integers(0, 30, size=(9, 2)).astype(float)
    likelihood = rb.Poisson()
    terms = likelihood._terms(outputs, None)
    np.testing.assert_allclose(terms.mean, np.exp(outputs), rtol=1e-14)
    np.testing.assert_allclose(terms.noise_sd**2, np.exp(outputs), rtol=1e-13)
    expected = stats.poisson(np.exp(outputs)).logpmf(y).sum(axis=-1)
    np.testing.assert_allclose(likelihood._log_likelihood(outputs, y, None), expected, rtol=1e-11)


def test_float32_outputs_are_summed_in_float64(outputs, rng):
    y = rng.normal(size=(9, 2))
    value = rb.Gaussian(0.3)._log_likelihood(outputs.astype(np.float32), y, None)
    assert value.dtype == np.float64


def test_far_tails_are_finite_and_right():
    far = np.array([[[1e3, -1e3]]])
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    assert rb.Categorical()._log_likelihood(far, one, None) == -2e3
    assert rb.Categorical()._log_likelihood(far, zero, None) == 0.0
    np.testing.assert_array_equal(rb.Categorical()._terms(far, None).probs, [[[1, 0]]])
    assert rb.Bernoulli()._log_likelihood(far, np.array([[0.0, 1.0]]), None) == -2e3
    np.testing.assert_array_equal(rb.Bernoulli()._terms(far, None).probs, [[[1, 0]]])
    hetero = rb.HeteroscedasticGaussian()
    for raw in (-36.9, -37.1, -300.0):
        got = hetero._log_likelihood(np.array([[[0.0, raw]]]), zero, None)
        assert got == pytest.approx(-raw - 0.5 * math.log(2 * math.pi), rel=1e-13)
    assert hetero._log_likelihood(np.array([[[0.0, -1e4]]]), zero, None) == pytest.approx(
        1e4, rel=1e-3
    )
    assert hetero._log_likelihood(np.array([[[0.0, -1e4]]]), one, None) == -math.inf
    assert rb.Poisson()._log_likelihood(far[..., :1], one, None) == -math.inf


@pytest.mark.parametrize("kind", range(len(EVERY)), ids=CASES)
def test_pointwise_terms_are_those_of_the_oracle(kind, rng):
    likelihood = EVERY[kind]
    f = rng.normal(size=(1, 9, 4))
    y = rng.integers(0, 2, size=(9, likelihood._columns("f", (4,)))).astype(float)
    log_noise = np.array([[0.4]]) if likelihood.learns_noise else None
    expected, _, _ = reference.log_likelihood_terms(kind, SCALE, f[0], y, 0.4, SHAPE)
    got = likelihood._log_likelihood(f, y, log_noise)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-11)


def test_cases_are_in_the_order_of_codes():
    named = [one.code for one in EVERY]
    assert dict(zip(named, range(len(EVERY)), strict=True)) == codes.LIKELIHOODS
    assert tuple(CASES) == reference.LIKELIHOODS


@pytest.mark.parametrize("y", [[0, 1, 2], np.array([0, 1, 2], np.uint8), [0.0, 1.0, 2.0]])
def test_labels_of_any_whole_dtype(y):
    np.testing.assert_array_equal(targets(rb.Categorical(), y, 3), [[0], [1], [2]])


def test_shapes_of_y():
    flat = targets(rb.Gaussian(1), [1, 2, 3], 1, np.float32)
    assert (flat.shape, flat.dtype) == ((3, 1), np.float32)
    assert targets(rb.Gaussian(1), np.ones((3, 2)), 2).shape == (3, 2)
    assert targets(rb.HeteroscedasticGaussian(), np.ones((3, 2)), 4).shape == (3, 2)
    assert targets(rb.Bernoulli(), [True, False], 1).tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs", "error", "text"),
    [
        (rb.Gaussian(1), np.ones((3, 2)), 1, ValueError, r"\(3, 1\) or \(3,\) for Gaussian and 1"),
        (rb.Gaussian(1), np.ones(3), 2, ValueError, r"shape \(3, 2\) for Gaussian"),
        (rb.Gaussian(1), [1, math.inf], 1, ValueError, r"y\[1\] is inf"),
        (rb.Gaussian(1), [[1], [math.nan]], 1, ValueError, r"y\[1, 0\] is nan"),
        (rb.Gaussian(1), ["a", "b"], 1, TypeError, "real numbers"),
        (rb.Gaussian(1), [1j, 2j], 1, TypeError, "real numbers, got complex128"),
        (rb.Gaussian(1), [None, 1], 1, TypeError, "real numbers, got list"),
        (rb.Gaussian(1), [[1], [1, 2]], 1, TypeError, "real numbers, got list"),
        (rb.HeteroscedasticGaussian(), [1, 2], 3, ValueError, "even number of outputs"),
        (rb.Categorical(), [0, 3], 3, ValueError, r"labels in \[0, 3\).* y\[1\] is 3"),
        (rb.Categorical(), [0, -1], 3, ValueError, r"y\[1\] is -1"),
        (rb.Categorical(), [0, 0.5], 3, ValueError, r"y\[1\] is 0.5"),
        (rb.Categorical(), np.eye(3), 3, ValueError, r"\(3, 1\) or|shape \(3, 1\)"),
        (rb.Categorical(), [0, 1], 1, ValueError, ">= 2 outputs"),
        (rb.Bernoulli(), [0, 2], 1, ValueError, r"y as 0 or 1.* y\[1\] is 2"),
        (rb.Poisson(), [0, -2], 1, ValueError, r"y\[1\] is -2"),
        (rb.Poisson(), [0, 2.5], 1, ValueError, r"y\[1\] is 2.5"),
    ],
)
def test_refuses_y(likelihood, y, outputs, error, text):
    with pytest.raises(error, match=rf"^\[f\] expected .*({text})"):
        targets(likelihood, y, outputs)


def test_masked_values_are_refused():
    y = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(ValueError, match="masked"):
        targets(rb.Gaussian(1), y, 1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: rb.Gaussian(0.1, log_noise_prior=rb.Normal(1)), ValueError),
        (lambda: rb.Gaussian(log_noise_prior=1.0), TypeError),
        (lambda: rb.Gaussian(log_noise_prior=rb.Normal), TypeError),
        (lambda: rb.Gaussian("0.1"), TypeError),
        (lambda: rb.Gaussian(True), TypeError),
    ],
)
def test_gaussian_refuses(make, error):
    with pytest.raises(error, match=r"^\[Gaussian\] expected .*, got"):
        make()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: rb.StudentTNoise(0.0), ValueError),
        (lambda: rb.StudentTNoise(math.inf), ValueError),
        (lambda: rb.StudentTNoise("3"), TypeError),
        (lambda: rb.StudentTNoise(3.0, -1.0), ValueError),
        (lambda: rb.StudentTNoise(3.0, 0.1, log_noise_prior=rb.Normal(1)), ValueError),
        (lambda: rb.StudentTNoise(3.0, log_noise_prior=1.0), TypeError),
    ],
)
def test_student_refuses(make, error):
    with pytest.raises(error, match=r"^\[StudentTNoise\] expected .*, got"):
        make()


def test_description_survives_json():
    for likelihood in EVERY:
        text = json.dumps(likelihood.describe())
        assert likelihoods.from_description(json.loads(text)) == likelihood


def test_one_hot_labels_are_told_so():
    with pytest.raises(ValueError, match="of labels, not one-hot rows, for Categorical"):
        rb.Posterior(
            rb.mlp(2, (), 3),
            np.zeros((4, 2)),
            np.eye(4)[:, :3],
            prior=rb.Normal(1.0),
            likelihood=rb.Categorical(),
        )
