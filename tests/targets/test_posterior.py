"""Posterior against the oracle, and its conversions."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

import ribbit as rb
from ribbit.targets.predictive import predictive_from_description
from tests.oracle import reference
from tests.support.likelihoods import EVERY

N = 37


def build(likelihood, *, hidden=(6,), outputs=2, dtype=np.float64, seed=3, **options):
    """A posterior and the oracle's target of the same tables and data."""
    rng = np.random.default_rng(seed)
    model = rb.mlp(3, hidden, outputs, activation="silu")
    x = rng.normal(size=(N, 3))
    columns = likelihood._columns("test", (outputs,))
    y = rng.integers(0, 2, size=(N, columns)).astype(float)
    if isinstance(likelihood, rb.HeteroscedasticGaussian):  # many values, or a NoiseWarning
        y += rng.normal(size=y.shape)
    options = {"prior": rb.Normal(0.5), **options}
    target = rb.Posterior(model, x, y, likelihood=likelihood, dtype=dtype, **options)
    noises = likelihood.noises((outputs,))
    prior = [[0, model.dim, 0, 0.5, 0, 0], [model.dim, noises, 0, 1.0, 0, 0]][: 1 + bool(noises)]
    oracle = reference.Target(
        model.table,
        np.array(prior),
        likelihood._table("test", (outputs,)).kind,
        target.x.astype(float),
        target.y.astype(float),
        np.array(likelihood.scales((outputs,))),
        likelihood.constant,
        temperature=options.get("temperature", 1.0),
        likelihood_temperature=options.get("likelihood_temperature", 1.0),
        noises=max(1, noises),
    )
    return target, oracle


@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.5, 3.0)])
def test_every_term_is_the_oracle_s(likelihood, temperatures):
    target, oracle = build(
        likelihood, temperature=temperatures[0], likelihood_temperature=temperatures[1]
    )
    theta = target.init(seed=1, chains=3)
    assert theta.shape == (3, target.dim) == (3, oracle.dim)
    terms, grad = target.terms_and_grad(theta)
    np.testing.assert_allclose(terms, oracle.terms(theta), rtol=1e-11)
    np.testing.assert_allclose(grad, oracle.gradient(theta), rtol=1e-9, atol=1e-9)
    lp, same = target.value_and_grad(theta)
    assert lp.dtype == np.float64
    np.testing.assert_array_equal(lp, terms[:, 0] + terms[:, 1])
    np.testing.assert_array_equal(same, grad)
    np.testing.assert_allclose(
        target.log_likelihood(theta), [oracle.log_likelihood(t)[0] for t in theta], rtol=1e-11
    )
    np.testing.assert_allclose(
        target.log_prior(theta), [oracle.log_prior(t)[0] for t in theta], rtol=1e-11
    )


def test_minibatch_scales_the_likelihood():
    target, oracle = build(rb.Gaussian())
    theta = target.init(seed=1, chains=2)
    for rows in (np.array([4, 0, 4]), [36], np.arange(10, dtype=np.uint8)[::2], np.arange(N)):
        lp, grad = target.value_and_grad(theta, rows)
        expected, slope = oracle.value_and_grad(theta, rows)
        np.testing.assert_allclose(lp, expected, rtol=1e-11)
        np.testing.assert_allclose(grad, slope, rtol=1e-9, atol=1e-9)
    assert not np.allclose(target.value_and_grad(theta, [0])[0], target.value_and_grad(theta)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_position_is_a_batch_of_one(dtype):
    target, _ = build(rb.Gaussian(), dtype=dtype)
    theta = target.init(seed=2)
    lp, grad = target.value_and_grad(theta)
    assert np.shape(lp) == ()
    assert (lp.dtype, grad.dtype, grad.shape) == (np.float64, dtype, (target.dim,))
    pair = np.stack([theta, theta[::-1]])
    lps, grads = target.value_and_grad(pair)
    assert lps[0] == lp
    np.testing.assert_array_equal(grads[0], grad)
    terms, _ = target.terms_and_grad(theta)
    assert terms.shape == (2,)
    assert target.log_likelihood(theta) == target.log_likelihood(pair)[0]
    assert target.log_prior(theta) == target.log_prior(pair)[0]


def test_strided_positions_are_copied_and_left_alone():
    target, _ = build(rb.Gaussian(0.3))
    theta = target.init(seed=2, chains=4)
    expected, grad = target.value_and_grad(theta)
    wide = np.full((8, 2 * target.dim), np.nan)
    wide[::2, ::2] = theta
    unaligned = np.empty(theta.nbytes + 1, np.uint8)[1:].view(np.float64).reshape(theta.shape)
    unaligned[...] = theta
    for same in (wide[::2, ::2], np.asfortranarray(theta), unaligned):
        before = same.copy()
        lp, slope = target.value_and_grad(same)
        np.testing.assert_array_equal(lp, expected)
        np.testing.assert_array_equal(slope, grad)
        np.testing.assert_array_equal(same, before)


def test_data_are_converted_once_from_anything():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, size=(8, 3)), rng.integers(0, 2, size=8)
    model = rb.mlp(3, (4,), 1)

    def value(x, y):
        target = rb.Posterior(model, x, y, prior=rb.Normal(1), likelihood=rb.Bernoulli())
        return target.value_and_grad(target.init(seed=0))[0]

    expected = value(x.astype(np.float32), y.astype(np.float32)[:, None])
    for a, b in [
        (x, y),
        (x.tolist(), y.tolist()),
        (x.astype(bool), y.astype(bool)),
        (x.astype(">f8"), y.astype(">i2")),
        (np.asfortranarray(x), np.repeat(y, 3)[::3]),
        (x.astype(np.float16), y.astype(np.uint64)),
    ]:
        assert value(a, b) == expected


def test_later_changes_of_the_data_do_not_reach_the_target():
    x, y = np.ones((5, 3), np.float32), np.ones((5, 1), np.float32)
    target = rb.Posterior(rb.mlp(3, (), 1), x, y, prior=rb.Normal(1), likelihood=rb.Gaussian(1.0))
    assert not np.shares_memory(target.x, x)
    assert not np.shares_memory(target.y, y)
    theta = target.init()
    before = target.value_and_grad(theta)[0]
    x[...], y[...] = 7, 7
    assert target.value_and_grad(theta)[0] == before
    with pytest.raises(ValueError, match="read-only"):
        target.x[0] = 3


def test_settings_cannot_be_changed_behind_the_native_code():
    target, _ = build(rb.Gaussian(0.3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.temperature = 2.0


def test_init_starts_the_noise_at_one():
    target, _ = build(rb.Gaussian(), dtype=np.float32)
    start = target.init(5, 3)
    assert start.dtype == np.float32
    np.testing.assert_array_equal(start[:, :-2], target.model.init(5, 3))
    np.testing.assert_array_equal(start[:, -2:], 0)
    np.testing.assert_array_equal(target.init(5), start[0])
    np.testing.assert_array_equal(target.init(5, [2]), start[2:])
    assert np.abs(target.init(5, scheme="small")).max() < 0.005 * 6.77


@pytest.mark.parametrize(("outputs", "own"), [(1, ()), (2, (2,))])
def test_unravel_includes_the_noise_as_a_view(outputs, own):
    target, _ = build(rb.Gaussian(), outputs=outputs)
    for theta, lead in ((target.init(), ()), (target.init(chains=3), (3,))):
        views = target.unravel(theta)
        assert list(views) == ["0.weight", "0.bias", "2.weight", "2.bias", "log_noise"]
        assert views["log_noise"].shape == lead + own
        views["log_noise"][...] = 9.0
        assert np.all(theta[..., -outputs:] == 9.0)
    with pytest.raises(ValueError, match=r"\[Posterior.unravel\] expected shape"):
        target.unravel(np.zeros(target.dim - 1))


@pytest.mark.parametrize("mass", ["none", "shared", "per chain"])
def test_leapfrog_is_the_oracle_s(mass):
    target, oracle = build(rb.Gaussian(), temperature=0.7)
    rng = np.random.default_rng(1)
    q, p = target.init(seed=1, chains=3), rng.normal(size=(3, target.dim))
    inverse = {
        "none": None,
        "shared": rng.uniform(0.5, 2, size=target.dim),
        "per chain": rng.uniform(0.5, 2, size=(3, target.dim)),
    }[mass]
    kept = q.copy(), p.copy()
    grad = target.value_and_grad(q)[1]
    sizes, steps = np.array([1e-3, 2e-3, 5e-4]), np.array([1, 7, 20])
    q1, p1, terms, grad1 = target.leapfrog(q, p, grad, sizes, steps, inverse_mass=inverse)
    for c in range(3):
        m = 1.0 if inverse is None else np.broadcast_to(inverse, q.shape)[c]
        end = reference.leapfrog(lambda z: oracle.gradient(z)[0], q[c], p[c], sizes[c], steps[c], m)
        np.testing.assert_allclose(q1[c], end[0], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(p1[c], end[1], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(terms, oracle.terms(q1), rtol=1e-10)
    np.testing.assert_allclose(grad1, oracle.gradient(q1), rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(q, kept[0])
    np.testing.assert_array_equal(p, kept[1])


@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
def test_pointwise_terms_add_up_to_the_likelihood(likelihood):
    target, _ = build(likelihood)
    theta = target.init(seed=1, chains=3)
    pointwise = target.log_likelihood(theta, target.x, target.y)
    assert pointwise.shape == (3, N)
    np.testing.assert_allclose(pointwise.sum(axis=1), target.log_likelihood(theta), rtol=1e-10)


@pytest.mark.parametrize("likelihood", EVERY, ids=lambda v: type(v).__name__)
def test_predictions_survive_a_description(likelihood):
    target, _ = build(likelihood, prior={"*.bias": rb.Laplace(1), "*": rb.Normal(0.5)})
    predictive = predictive_from_description(json.loads(json.dumps(target.describe())))
    assert predictive.describe() == target.describe()
    assert (predictive.kind, predictive.dim) == (target.kind, target.dim)
    theta, x = target.init(seed=1, chains=3), target.x[:5]
    np.testing.assert_array_equal(predictive.outputs(theta, x), target.outputs(theta, x))
    for name in ("mean", "noise_sd", "probs"):
        got, expected = (getattr(t.predictive(theta, x), name) for t in (predictive, target))
        assert (got is None) == (expected is None)
        if got is not None:
            np.testing.assert_array_equal(got, expected)


def test_learned_noise_of_each_draw_is_its_own():
    target, _ = build(rb.Gaussian())
    theta = target.init(seed=1, chains=2)
    theta[:, -2:] = np.log([[0.5, 3.0], [2.0, 0.1]])
    terms = target.predictive(theta, target.x)
    np.testing.assert_allclose(
        np.broadcast_to(terms.noise_sd, terms.mean.shape)[:, 0],
        [[0.5, 3.0], [2.0, 0.1]],
        rtol=1e-14,
    )


def test_facts_for_samplers():
    target, _ = build(rb.Gaussian())
    assert target.shared_prior_sd == 0.5
    np.testing.assert_array_equal(target.prior_sd, [0.5] * target.model.dim + [1.0] * 2)
    assert target.dropout_layers == ()
    assert target.array_namespace is np
    model = rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,))
    dropped = rb.Posterior(
        model, np.ones((4, 2)), np.ones(4), prior=rb.Normal(1), likelihood=rb.Gaussian(1)
    )
    assert dropped.dropout_layers == ("1: Dropout(0.1)",)


def test_pickle_rebuilds_the_target():
    target, _ = build(rb.Gaussian(), temperature=0.3, dtype=np.float32)
    again = pickle.loads(pickle.dumps(target))
    theta = target.init(seed=1)
    assert again.describe() == target.describe()
    assert again.value_and_grad(theta)[0] == target.value_and_grad(theta)[0]


def test_repr_names_the_settings():
    target, _ = build(rb.Gaussian(0.3), temperature=0.25)
    assert "temperature=0.25" in repr(target)
    assert "37 rows" in repr(target)


TARGET, _ = build(rb.Gaussian(0.3))
THETA = TARGET.init(chains=2)


def leapfrog(**changes):
    right = {"position": THETA, "momentum": THETA, "grad": THETA, "step_size": 1e-3}
    return TARGET.leapfrog(**{**right, "num_steps": 1, **changes})


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: TARGET.value_and_grad(THETA, [37]), ValueError, r"rows\[0\] is 37"),
        (lambda: TARGET.value_and_grad(THETA, [0, -1]), ValueError, r"rows\[1\] is -1"),
        (lambda: TARGET.value_and_grad(THETA, [2**64 - 1]), ValueError, r"rows\[0\] is 1844"),
        (lambda: TARGET.value_and_grad(THETA, []), ValueError, "non-empty 1-D"),
        (lambda: TARGET.value_and_grad(THETA, [[1]]), ValueError, "non-empty 1-D"),
        (lambda: TARGET.value_and_grad(THETA, [1.0]), TypeError, "rows as integers"),
        (lambda: TARGET.value_and_grad(THETA, [True]), TypeError, "rows as integers, got bool"),
        (lambda: TARGET.value_and_grad(THETA.astype("f4")), TypeError, "float64, got float32"),
        (lambda: TARGET.value_and_grad(THETA.astype(">f8")), TypeError, "float64, got >f8"),
        (lambda: TARGET.value_and_grad(THETA.tolist()), TypeError, "float64, got list"),
        (lambda: TARGET.value_and_grad(THETA[:, 1:]), ValueError, r"\(38,\) or \(C, 38\)"),
        (lambda: TARGET.value_and_grad(THETA[:0]), ValueError, "C >= 1"),
        (lambda: TARGET.value_and_grad(THETA[None]), ValueError, r"shape \(1, 2, 38\)"),
        (lambda: TARGET.predictive(THETA[0], TARGET.x), ValueError, r"theta of shape \(S, 38\)"),
        (lambda: TARGET.log_likelihood(THETA, TARGET.x), TypeError, "both x and y"),
        (lambda: leapfrog(momentum=THETA[:1]), ValueError, r"momentum of shape \(2, 38\)"),
        (lambda: leapfrog(position=THETA[0]), ValueError, r"position of shape \(C, 38\)"),
        (lambda: leapfrog(step_size=[1.0, 2.0, 3.0]), ValueError, r"step_size of shape"),
        (lambda: leapfrog(step_size="1"), TypeError, "step_size"),
        (lambda: leapfrog(num_steps=0), ValueError, r"num_steps in \[1, "),
        (lambda: leapfrog(num_steps=1.0), TypeError, "num_steps as integers"),
        (lambda: leapfrog(inverse_mass=THETA[0, 1:]), ValueError, "inverse_mass"),
        (lambda: leapfrog(inverse_mass=np.ones((3, 38))), ValueError, "inverse_mass of 2 chains"),
        (lambda: build(rb.Gaussian(1), temperature=0), ValueError, "temperature > 0"),
        (lambda: build(rb.Gaussian(1), likelihood_temperature="1"), TypeError, "temperature"),
        (lambda: build(rb.Gaussian(1), dtype=np.float16), TypeError, "float32 or float64"),
        (lambda: predictive_from_description({"model": 1}), ValueError, "model and likelihood"),
    ],
)
def test_refuses(call, error, text):
    with pytest.raises(error, match=rf"^\[.+\] expected .*{text}"):
        call()


@pytest.mark.parametrize("hidden", [(7,), (210, 180)])
@pytest.mark.parametrize("mass", [False, True])
def test_a_trajectory_evaluates_its_start(hidden, mass):
    x = np.random.default_rng(0).normal(size=(200, 3))
    target = rb.Posterior(
        rb.mlp(3, hidden, 1), x, x[:, :1], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )
    q = target.init(seed=1, chains=2)
    p = np.random.default_rng(1).normal(size=q.shape).astype(q.dtype)
    inverse_mass = np.linspace(0.5, 2.0, target.dim).astype(q.dtype) if mass else None
    arguments = {"step_size": 1e-3, "num_steps": [5, 3], "inverse_mass": inverse_mass}
    given = target.leapfrog(q, p, target.value_and_grad(q)[1], **arguments)
    for a, b in zip(target.leapfrog(q, p, None, **arguments), given, strict=True):
        assert a.tobytes() == b.tobytes()
    assert not np.array_equal(given[0], q)
