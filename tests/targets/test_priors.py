"""Priors: tables, scales, patterns."""

import json
import math
import warnings

import numpy as np
import pytest
from scipy import integrate, stats

import ribbit as rb
from ribbit.errors import PriorWarning
from ribbit.targets import prior_table, priors

MODEL = rb.mlp(4, (3,), 1)  # sizes 12, 3, 3, 1 with fan-in 4, 1, 3, 1

# prior, its density in scipy, marginal sd
CASES = [
    (rb.Normal(0.7), stats.norm(scale=0.7), 0.7),
    (rb.Normal(0.7, mean=-0.4), stats.norm(loc=-0.4, scale=0.7), 0.7),
    (rb.Laplace(0.7), stats.laplace(scale=0.7), 0.7 * math.sqrt(2)),
    (rb.StudentT(5, 0.7), stats.t(5, scale=0.7), 0.7 * math.sqrt(5 / 3)),
    (rb.Logistic(0.7), stats.logistic(scale=0.7), 0.7 * math.pi / math.sqrt(3)),
    (rb.ScaleMixture(0.3, 0.7, 0.1), None, math.sqrt(0.3 * 0.49 + 0.7 * 0.01)),
]


def density(prior, frozen, w):
    if frozen is not None:
        return frozen.logpdf(w)
    first, second = (stats.norm(scale=s).logpdf(w) for s in (prior.scale1, prior.scale2))
    return np.logaddexp(math.log(prior.weight) + first, math.log1p(-prior.weight) + second)


def target(prior, **options):
    options = {"likelihood": rb.Gaussian(0.1), "dtype": np.float64, **options}
    return rb.Posterior(MODEL, np.ones((2, 4)), np.ones(2), prior=prior, **options)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: rb.Normal(0.0), "scale > 0, got float 0.0: the first argument is the standard d"),
        (lambda: rb.Normal(0.0, scale=1.0), "scale once, .*: the first argument is the standard"),
        (lambda: rb.Logistic(0), "scale > 0, got int 0: the first argument is the scale; the p"),
        (lambda: rb.StudentT(0.0, 1.0), "df > 0, got float 0.0: the arguments are df and scale"),
        (lambda: rb.ScaleMixture(0.5, 0.0, 1.0), "scale1 > 0, got float 0.0$"),
    ],
)
def test_an_error_says_which_argument_comes_first(wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        wrong()


@pytest.mark.parametrize(("prior", "frozen", "sd"), CASES)
def test_log_prior_is_the_normalised_density(prior, frozen, sd, rng):
    theta = rng.normal(size=(3, MODEL.dim))
    expected = density(prior, frozen, theta).sum(axis=1)
    np.testing.assert_allclose(target(prior).log_prior(theta), expected, rtol=1e-12)


@pytest.mark.parametrize(("prior", "frozen", "sd"), CASES)
def test_sd(prior, frozen, sd):
    assert prior.sd == pytest.approx(sd, rel=1e-12)
    mean = getattr(prior, "mean", 0.0)
    second_moment = integrate.quad(
        lambda w: (w - mean) ** 2 * np.exp(density(prior, frozen, w)),
        -np.inf,
        np.inf,
        epsabs=1e-12,
    )[0]
    assert prior.sd == pytest.approx(math.sqrt(second_moment), rel=1e-6)


@pytest.mark.parametrize(("prior", "frozen", "sd"), CASES)
def test_fan_in_divides_the_scales_of_weights_alone(prior, frozen, sd, rng):
    scaled = type(prior)(**{**vars(prior), "fan_in": True})
    assert scaled.sd == prior.sd
    fan_in = np.repeat([4.0, 1.0, 3.0, 1.0], [12, 3, 3, 1])
    t = target(scaled)
    np.testing.assert_allclose(t.prior_sd, sd / np.sqrt(fan_in), rtol=1e-12)
    assert t.shared_prior_sd is None
    # w with scale s / sqrt(f) has the density of w sqrt(f) with scale s, times sqrt(f); of w less
    # its mean, which stays
    mean = getattr(prior, "mean", 0.0)
    theta = rng.normal(size=MODEL.dim)
    far = mean + (theta - mean) * np.sqrt(fan_in)
    expected = density(prior, frozen, far) + 0.5 * np.log(fan_in)
    assert t.log_prior(theta) == pytest.approx(expected.sum(), rel=1e-12)


def test_sd_of_a_student_without_variance_is_infinite_and_its_scale_stands_in():
    assert rb.StudentT(2.0, 0.5).sd == math.inf
    assert rb.StudentT(2.0, 0.5)._spread() == 0.5
    assert target(rb.StudentT(1.0, 0.5)).shared_prior_sd == 0.5


def test_first_matching_pattern_wins():
    prior = {"0.weight": rb.Normal(1), "*.weight": rb.Laplace(2), "*": rb.Normal(3)}
    rows = prior_table.resolve("f", prior, MODEL.parameters).rows
    np.testing.assert_array_equal(
        rows,
        [
            [0, 12, 0, 1, 0, 0],
            [12, 3, 0, 3, 0, 0],
            [15, 3, 1, 2, 0, 0],
            [18, 1, 0, 3, 0, 0],
        ],
    )
    assert target({"*.bias": rb.Normal(0.5), "*": rb.Normal(0.5)}).shared_prior_sd == 0.5


@pytest.mark.parametrize(
    ("prior", "error", "text"),
    [
        ({"*.weight": rb.Normal(1)}, ValueError, "a prior for '0.bias'"),
        ({"*": rb.Normal(1), "7.weight": rb.Normal(1)}, ValueError, "'7.weight'"),
        ({}, TypeError, "dict of priors"),
        ({"*": 1.0}, TypeError, "pattern: prior"),
        ({3: rb.Normal(1)}, TypeError, "pattern: prior"),
        (0.5, TypeError, "prior or a dict of priors, got float 0.5"),
        (rb.Normal, TypeError, "prior or a dict of priors, got type Normal"),
    ],
)
def test_refuses_priors_that_do_not_resolve(prior, error, text):
    with pytest.raises(error, match=rf"^\[Posterior\] expected .*{text}"):
        target(prior)


def test_prior_of_a_learned_noise():
    def row(prior, likelihood):
        t = target(prior, likelihood=likelihood)
        theta = np.zeros(t.dim)
        base = t.log_prior(theta)
        theta[-1] = 0.8
        return t.prior_sd[-1], t.log_prior(theta) - base

    def expected(sd):
        return pytest.approx((sd, -0.5 * 0.64 / sd**2), rel=1e-9)

    assert row(rb.Normal(0.5), rb.Gaussian()) == expected(1.0)
    assert row(rb.Normal(0.5), rb.Gaussian(log_noise_prior=rb.Normal(2.0))) == expected(2.0)
    # a pattern does not reach it, its own name does
    both = {"*": rb.Normal(0.5), "log_noise": rb.Normal(3.0)}
    assert row({"*": rb.Normal(0.5)}, rb.Gaussian()) == expected(1.0)
    assert row(both, rb.Gaussian()) == expected(3.0)
    assert target(both, likelihood=rb.Gaussian()).shared_prior_sd == 0.5
    # and is let through where no noise is learned
    assert target(both).dim == MODEL.dim


@pytest.mark.parametrize("prior", [case[0] for case in CASES])
def test_description_survives_json(prior):
    for value in (prior, {"*.bias": prior, "*": rb.Normal(1.0, fan_in=True)}):
        text = json.dumps(priors.describe(value))
        assert priors.from_description(json.loads(text)) == value


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, -math.inf, 10**400])
def test_scales_must_be_positive_and_finite(value):
    for make in (
        rb.Normal,
        rb.Laplace,
        rb.Logistic,
        lambda v: rb.StudentT(v, 1),
        lambda v: rb.StudentT(3, v),
        lambda v: rb.ScaleMixture(v, 1, 1),
        lambda v: rb.ScaleMixture(0.5, v, 1),
        lambda v: rb.ScaleMixture(0.5, 1, v),
        rb.Gaussian,
    ):
        with pytest.raises(ValueError, match=r"^\[\w+\] expected \w+ .*, got"):
            make(value)


@pytest.mark.parametrize("value", [None, True, "1", [1.0], np.ones(1), 1j, np.array(1.0)])
def test_scales_must_be_numbers(value):
    with pytest.raises(TypeError, match=r"^\[Normal\] expected scale as a number"):
        rb.Normal(value)


def test_numpy_scalars_are_numbers():
    assert rb.Normal(np.float32(0.5)) == rb.Normal(0.5)
    assert type(rb.Normal(np.int64(2)).scale) is float


def of_patterns(*patterns, model=MODEL):
    """A posterior under a prior for each pattern, and the warnings of it."""
    prior = {pattern: rb.Normal(1.0 + k) for k, pattern in enumerate(patterns)}
    x = np.zeros((30, 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rb.Posterior(model, x, x[:, 0], prior=prior, likelihood=rb.Gaussian(0.1))
    return [w for w in caught if issubclass(w.category, PriorWarning)]


@pytest.mark.parametrize(
    ("patterns", "hidden", "wider"),
    [
        (("*", "0.weight"), "0.weight", "*"),
        (("*.weight", "0.weight", "*"), "0.weight", "*.weight"),
        (("0.*", "*", "2.bias"), "2.bias", "*"),
    ],
)
def test_a_pattern_that_changes_nothing_is_named(patterns, hidden, wider):
    (warning,) = of_patterns(*patterns)
    assert f"got '{hidden}' behind '{wider}', which" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("patterns", "model"),
    [
        (("0.weight", "*"), MODEL),
        (("*.weight", "0.*", "*.bias"), MODEL),
        # for the rest, of which there is none: behind several, or behind one that has the same
        (("*.weight", "*.bias", "*"), MODEL),
        (("*.weight", "*"), rb.Model([rb.Dense(1, bias=False)], input_shape=(4,))),
    ],
)
def test_patterns_in_order_are_not_warned_of(patterns, model):
    assert not of_patterns(*patterns, model=model)


OUTSIDE = {
    "float32": [1e-40, 1e-30, 1e-20, 1e30, 1e38],
    "float64": [1e-200, 1e-160, 1e160, 1e300],
}
SCALED = {
    "Normal": rb.Normal,
    "Laplace": rb.Laplace,
    "StudentT": lambda scale: rb.StudentT(3.0, scale),
    "Logistic": rb.Logistic,
    "ScaleMixture": lambda scale: rb.ScaleMixture(0.5, 1.0, scale),
    "per fan-in": lambda scale: rb.Normal(scale, fan_in=True),
    "of a scale": lambda scale: rb.Normal(rb.HalfNormal(scale)),
}


@pytest.mark.parametrize("dtype", OUTSIDE)
@pytest.mark.parametrize("kind", SCALED)
def test_a_scale_beyond_the_dtype_is_named(kind, dtype):
    for scale in OUTSIDE[dtype]:
        if kind == "of a scale" and scale > 1.0:
            continue  # of a logarithm: nothing overflows
        prior = {"*.bias": SCALED[kind](scale), "*": rb.Normal(1.0)}
        with pytest.raises(
            ValueError, match=r"expected a prior of '.*0\.bias' whose squared scale"
        ):
            target(prior, dtype=dtype)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-18), ("float32", 1e18)])
def test_a_scale_at_the_edge_of_the_dtype_is_sampled(dtype, scale):
    one = target({"*.bias": rb.Normal(scale), "*": rb.Normal(1.0)}, dtype=dtype)
    run = {"warmup": 0, "chains": 2, "seed": 0, "progress": False}
    for sampler in (
        rb.HMC(one, step_size=1e-3, num_leapfrog_steps=2),
        rb.SGLD(one, step_size=1e-45 if scale < 1 else 1e-6, batch_size=2),
    ):
        assert np.isfinite(sampler.sample(3, **run).positions).all()
