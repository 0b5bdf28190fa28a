"""Learned scales of weights: densities, gradients, predictions, starts, files, what is refused."""

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from ribbit.targets import priors
from tests.support.scaled_targets import HYPER, NAMES, build, native

# one shard of one chunk; several shards; several chunks, an array of weights over two of them
SIZES = {
    "small": {"widths": (3, (4,), 2), "rows": 20},
    "rows": {"widths": (3, (4,), 2), "rows": 700},
    "chunks": {"widths": (5, (47, 47), 1), "rows": 90},
}
TEAMS = {"widths": (5, (47, 47), 1), "rows": 1500}


def check(case, rng, bound=1e-10):
    oracle, _, _ = case
    t = native(case)
    assert t.dim == oracle.dim
    theta = 0.4 * rng.normal(size=(2, t.dim))
    value, grad = t.value_and_grad(theta)
    for chain, at in enumerate(theta):
        likelihood, prior, expected = oracle.parts(at)
        assert t.log_likelihood(at) == pytest.approx(likelihood, rel=bound)
        assert t.log_prior(at) == pytest.approx(prior, rel=bound)
        assert value[chain] == pytest.approx(oracle.log_density(at), rel=bound)
        np.testing.assert_allclose(grad[chain], expected, rtol=bound, atol=bound * 10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_value_and_gradient_are_the_oracles(name, size, rng):
    temper = {"temperature": 0.8, "likelihood_temperature": 1.3}
    check(build(name, fan_in=True, **SIZES[size], **temper), rng)


@pytest.mark.parametrize("hyper", HYPER)
@pytest.mark.parametrize("learned", [False, True])
def test_every_prior_of_a_scale(hyper, learned, rng):
    check(build("array", hyper, learned=learned), rng)


def test_a_wrong_jacobian_or_scale_would_be_noticed(rng):
    case = build("array")
    oracle = case[0]
    wrong = native(case, prior=rb.Normal(rb.HalfNormal(0.8 * 1.0001)))
    at = 0.4 * rng.normal(size=oracle.dim)
    _, prior, grad = oracle.parts(at)
    assert abs(wrong.log_prior(at) / prior - 1) > 1e-7
    without = grad.copy()
    without[oracle.known :] -= 1.0  # d u / d u of the Jacobian
    assert np.abs(native(case).value_and_grad(at)[1] - without).max() > 0.5


@pytest.mark.parametrize("name", ["array", "unit", "horseshoe weight"])
@pytest.mark.parametrize("size", [*SIZES, "teams"])
def test_bits_do_not_depend_on_threads_or_chains(name, size, rng):
    t = native(build(name, **(SIZES | {"teams": TEAMS})[size]), np.float32)
    assert size != "teams" or 12.0 * t.dim * t.num_rows > 2 * 4e6  # worth more than a thread
    theta = (0.4 * rng.normal(size=(3, t.dim))).astype(np.float32)

    def found(threads, some):
        rb.set_num_threads(threads)
        value, grad = t.value_and_grad(some)
        return value.tobytes(), grad.tobytes()

    before = num_threads()
    try:
        alone = [found(1, theta[i : i + 1]) for i in range(3)]
        together = [found(n, theta) for n in (1, 2, 4)]
        single = [found(4, theta[i : i + 1]) for i in range(3)]
    finally:
        rb.set_num_threads(before)
    assert together[0] == together[1] == together[2]
    assert alone == single
    assert together[0][0] == b"".join(value for value, _ in alone)
    assert together[0][1] == b"".join(grad for _, grad in alone)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_see_the_weights(name, rng):
    oracle, (model, x, _), _ = case = build(name, rows=30)
    t = native(case)
    theta = 0.4 * rng.normal(size=(3, 4, t.dim))
    weights = np.array([[oracle.weights(at)[: model.dim] for at in chain] for chain in theta])
    flat, known = theta.reshape(12, -1), weights.reshape(12, -1)
    expected = model.apply(known, x)
    np.testing.assert_allclose(t.outputs(flat, x), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(t.outputs(flat[0], x[:2]), expected[0, :2], rtol=1e-12, atol=1e-12)
    terms = t.predictive(flat, x)
    logs = flat[:, model.dim : model.dim + 2]
    np.testing.assert_allclose(terms.noise_sd[:, 0, :], np.exp(logs), rtol=1e-12)
    sums, _ = t.predictive_moments(theta, x)
    np.testing.assert_allclose(sums[0] + sums[1] / 12, expected.mean(axis=0), rtol=1e-9)
    views = t.unravel(theta)
    for part in model.parameters:
        span = weights[..., part.offset : part.offset + part.size]
        np.testing.assert_allclose(views[part.name].reshape(span.shape), span, rtol=1e-12)
    assert views["log_noise"].tobytes() == theta[..., model.dim : model.dim + 2].tobytes()
    behind = [v.reshape(3, 4, -1) for k, v in views.items() if k.startswith(("log_s", "log_l"))]
    behind += [v.reshape(3, 4, -1) for k, v in views.items() if k.startswith("log_g")]
    assert sorted(np.concatenate(behind, axis=2).ravel()) == sorted(
        theta[..., oracle.known :].ravel()
    )


@pytest.mark.parametrize("name", NAMES)
def test_starts_are_the_models_and_likely_under_the_prior(name):
    _, (model, _, _), _ = case = build(name, widths=(3, (40,), 2), fan_in=True)
    t = native(case)
    start = t.init(seed=3, chains=4)
    views, expected = t.unravel(start), model.unravel(model.init(seed=3, chains=4))
    for key, values in expected.items():
        np.testing.assert_allclose(views[key], values, rtol=1e-5, atol=1e-6)
    away = np.abs(start - t.prior_mean) / t.prior_sd
    assert away[:, model.dim :].max() < 2.5
    assert np.mean(away) < 2.0
    # chain c is the same alone
    np.testing.assert_array_equal(t.init(seed=3, chains=np.array([2])), start[2:3])


def test_names_and_moments_of_the_prior():
    t = native(build("mixed"))
    names = list(t.unravel(t.init(seed=0)))
    assert names[-4:] == ["log_noise", "log_scale.0.weight", "log_scale.0.bias", "log_scale.2.bias"]
    assert t.unravel(t.init(seed=0))["log_scale.0.weight"].shape == (3,)
    assert t.shared_prior_sd is None
    assert not t.normal_prior
    hyper = rb.HalfNormal(0.8)
    np.testing.assert_array_equal(t.prior_sd[-5:-2], hyper._spread())
    np.testing.assert_array_equal(t.prior_mean[-5:-2], hyper.log_mean)
    np.testing.assert_array_equal(t.prior_sd[:12], 1.0)
    assert rb.Normal(rb.HalfCauchy(1.0)).sd == np.inf
    assert rb.Normal(rb.InverseGamma(3.0, 0.5)).sd == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_and_fingerprints(name, tmp_path, rng):
    case = build(name)
    given = case[2]["prior"]
    assert priors.from_description(priors.describe(given)) == given
    t = native(case)
    assert t.fingerprint == native(case).fingerprint
    other = native(build("unit" if name == "input" else "input", seed=0))
    assert t.fingerprint["prior"] != other.fingerprint["prior"]


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # six draws
@pytest.mark.parametrize("name", ["array", "mixed", "horseshoe input"])
def test_saved_draws_predict_the_same(name, tmp_path):
    t = native(build(name), np.float32)
    draws = rb.HMC(t, step_size=1e-2, num_leapfrog_steps=5).sample(
        6, warmup=0, chains=2, progress=False
    )
    draws.save(tmp_path / "draws")
    loaded = rb.load(tmp_path / "draws")
    x = np.ones((3, 3))
    assert loaded.predict(x).mean.tobytes() == draws.predict(x).mean.tobytes()
    assert loaded.predictive.dim == t.dim
    assert list(loaded.predictive.unravel(draws.positions)) == list(t.unravel(draws.positions))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: rb.Normal(1.0, per="input"), ValueError, "per with a prior of the scale"),
        (lambda: rb.Normal(rb.HalfNormal(1.0), per="row"), ValueError, "per"),
        (lambda: rb.Normal(rb.HalfNormal(1.0), mean=0.5), ValueError, "mean 0"),
        (lambda: rb.Normal(rb.Normal(1.0)), TypeError, "scale"),
        (lambda: rb.Laplace(rb.HalfNormal(1.0)), TypeError, "scale"),
        (lambda: rb.Horseshoe(0.0), ValueError, "global_scale"),
        (lambda: rb.Horseshoe(1.0, per="layer"), ValueError, "per"),
    ],
)
def test_refused_arguments(make, error, text):
    with pytest.raises(error, match=rf"^\[(Normal|Laplace|Horseshoe)\] expected {text}"):
        make()


def test_refused_uses():
    noise = {"log_noise": rb.Normal(rb.HalfNormal(1.0)), "*": rb.Normal(1.0)}
    case = build("array")
    with pytest.raises(ValueError, match="a prior of 'log_noise' of a known scale"):
        native(case, prior=noise)
    t = native(case)
    with pytest.raises(ValueError, match="use kl='sampled'"):
        rb.BBB(t)
    for estimator in ("local", "flipout"):
        bbb = rb.BBB(t, kl="sampled", estimator=estimator)
        with pytest.raises(ValueError, match=r"^\[BBB\] expected estimator='reparam'"):
            bbb.fit(1, progress=False)
    with pytest.raises(ValueError, match="'last_layer' with priors of known scales"):
        native(case, marginalize="last_layer", likelihood=rb.Gaussian(0.5))
    dropped = rb.Model([rb.Dense(4), rb.Dropout(0.1), rb.Dense(2)], input_shape=(3,))
    masked = rb.Posterior(dropped, *case[1][1:], **case[2])
    with pytest.raises(ValueError, match=r"^\[MCDropout\] expected priors of known scales"):
        rb.MCDropout(masked)
    images = rb.Model([rb.Conv2D(2, 3), rb.Flatten(), rb.Dense(1)], input_shape=(5, 5, 1))
    with pytest.raises(ValueError, match=r"per='array' or 'layer' for '0\.weight'"):
        rb.Posterior(
            images,
            np.ones((2, 5, 5, 1)),
            np.ones(2),
            prior=rb.Normal(rb.HalfNormal(1.0), per="unit"),
            likelihood=rb.Gaussian(1.0),
        )
