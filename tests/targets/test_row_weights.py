"""Weights of rows: the density against the oracle and against copies of rows, and what refuses."""

import pickle

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from tests.oracle import reference

LIKELIHOODS = {
    "known": rb.Gaussian(0.4),
    "known each": rb.Gaussian([0.4, 1.5]),
    "learned": rb.Gaussian(),
    "shared": rb.Gaussian(per_output=False),
    "student": rb.StudentTNoise(5.0),
    "varying": rb.HeteroscedasticGaussian(),
    "floored": rb.HeteroscedasticGaussian(min_sd=0.2),
    "classes": rb.Categorical(),
    "yes or no": rb.Bernoulli(),
    "counts": rb.Poisson(),
}
ROWS = 75  # two panels of 32 and a bit


def data(likelihood, rows=ROWS):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 3))
    if likelihood == "classes":
        return x, rng.integers(0, 4, size=rows), 4
    if likelihood == "yes or no":
        return x, rng.integers(0, 2, size=(rows, 2)), 2
    if likelihood == "counts":
        return x, rng.poisson(2.0, size=(rows, 2)), 2
    return x, rng.normal(size=(rows, 2)), 4 if likelihood in ("varying", "floored") else 2


def made(name, x, y, outputs, graph=False, **more):
    layers = (rb.Dense(6), rb.Activation("tanh"), *((rb.LayerNorm(),) if graph else ()))
    model = rb.Model((*layers, rb.Dense(outputs)), input_shape=(3,))
    how = {"dtype": np.float64, "temperature": 0.7, "likelihood_temperature": 1.6} | more
    return rb.Posterior(model, x, y, prior=rb.Normal(0.8), likelihood=LIKELIHOODS[name], **how)


def weights_of(rows=ROWS):
    weights = np.random.default_rng(4).uniform(0.0, 3.0, size=rows)
    weights[::7] = 0.0
    return weights


def known(target, x, y, theta, weights, rows=None):
    """Tempered log density (C,) and gradient: the oracle's, one row after the other."""
    every = np.arange(len(x)) if rows is None else np.asarray(rows)
    table = target.likelihood._table("test", target.model.output_shape)
    kind, scale, shape = table.kind, np.array(table.scales), table.constant
    oracle = reference.Target(
        target.model.table, target._spec.table.rows, kind, x, np.asarray(y).reshape(len(x), -1),
        scale, shape, target.temperature, target.likelihood_temperature,
        noises=max(1, table.noises),
    )  # fmt: skip
    values, grads = [], []
    for t in theta:
        value, grad = oracle.log_prior(t)
        factor = len(x) / len(every) / target.likelihood_temperature
        for n in every:
            term, slope, _ = oracle.log_likelihood(t, [n])
            value += factor * weights[n] * term / len(x)
            grad = grad + factor * weights[n] * slope / len(x)
        values.append(value / target.temperature)
        grads.append(grad / target.temperature)
    return np.array(values), np.array(grads)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_density_is_that_of_the_oracle(name: str, graph: bool) -> None:
    x, y, outputs = data(name)
    weights = weights_of()
    target = made(name, x, y, outputs, graph, sample_weight=weights)
    theta = 0.5 * np.random.default_rng(1).normal(size=(2, target.dim))
    for rows in (None, [3, 70, 3, 14, 41]):
        value, grad = target.value_and_grad(theta, rows)
        right, slope = known(target, x, y, theta, weights, rows)
        np.testing.assert_allclose(value, right, rtol=1e-10)
        np.testing.assert_allclose(grad, slope, atol=1e-10 * np.abs(slope).max())
    # control: one weight that is a tenth larger
    more = weights.copy()
    more[5] *= 1.1
    assert abs(known(target, x, y, theta, more)[0][0] / right[0] - 1) > 1e-6


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_float32(name: str) -> None:
    x, y, outputs = data(name)
    weights = weights_of()
    target = made(name, x, y, outputs, sample_weight=weights, dtype=np.float32)
    theta = (0.5 * np.random.default_rng(1).normal(size=(2, target.dim))).astype(np.float32)
    value, grad = target.value_and_grad(theta)
    right, slope = known(target, x, y, theta.astype(float), weights)
    np.testing.assert_allclose(value, right, rtol=2e-6)
    np.testing.assert_allclose(grad, slope, atol=2e-5 * np.abs(slope).max())


def test_weights_of_one_are_none() -> None:
    x, y, outputs = data("learned")
    plain = made("learned", x, y, outputs)
    ones = made("learned", x, y, outputs, sample_weight=np.ones(ROWS))
    assert ones.sample_weight is None
    assert ones.fingerprint == plain.fingerprint


@pytest.mark.parametrize("name", ["known", "shared"])
@pytest.mark.parametrize("rows", [ROWS, 530])
def test_last_layer_integrated_out(name: str, rows: int) -> None:
    """Whole weights are copies of rows, in the marginal density and in the redraws."""
    x, y, outputs = data(name, rows)
    counts = np.random.default_rng(6).integers(0, 4, size=rows)
    how = {"marginalize": "last_layer"}
    weighted = made(name, x, y, outputs, sample_weight=counts, **how)
    copied = made(name, np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0), outputs, **how)
    theta = 0.5 * np.random.default_rng(1).normal(size=(2, weighted.dim))
    for found, right in zip(
        weighted.value_and_grad(theta), copied.value_and_grad(theta), strict=True
    ):
        np.testing.assert_allclose(found, right, rtol=1e-8, atol=1e-9)
    ids = np.arange(2, dtype=np.uint32)
    draws = [one.complete(theta, seed=1, step=2, chains=ids) for one in (weighted, copied)]
    np.testing.assert_allclose(*draws, rtol=1e-8, atol=1e-9)
    plain = made(name, x, y, outputs, **how)  # control
    assert abs(plain.value_and_grad(theta)[0][0] / copied.value_and_grad(theta)[0][0] - 1) > 1e-3


def test_fractional_weights_of_an_integrated_layer() -> None:
    """Half a weight and half the temperature: the same tempered likelihood."""
    x, y, outputs = data("known")
    how = {"marginalize": "last_layer", "temperature": 1.0}
    half = made("known", x, y, outputs, sample_weight=np.full(ROWS, 0.5), **how,
                likelihood_temperature=1.0)  # fmt: skip
    warm = made("known", x, y, outputs, **how, likelihood_temperature=2.0)
    theta = 0.5 * np.random.default_rng(1).normal(size=half.dim)
    for found, right in zip(half.value_and_grad(theta), warm.value_and_grad(theta), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-10)


def test_units_count_rows_as_often() -> None:
    x, y, outputs = data("learned")
    x, y = 40.0 + 7.0 * x, 300.0 * y
    counts = np.random.default_rng(6).integers(0, 4, size=ROWS)
    weighted = made("learned", x, y, outputs, standardize=True, sample_weight=counts)
    copied = made("learned", np.repeat(x, counts, axis=0), np.repeat(y, counts, axis=0), outputs,
                  standardize=True)  # fmt: skip
    theta = 0.3 * np.random.default_rng(1).normal(size=weighted.dim)
    assert weighted.value_and_grad(theta)[0] == pytest.approx(copied.value_and_grad(theta)[0])
    assert weighted.log_likelihood(theta) == pytest.approx(copied.log_likelihood(theta))
    found, right = (
        sum(a.T @ a for a in one.gauss_newton(theta, "all")) for one in (weighted, copied)
    )
    np.testing.assert_allclose(found, right, rtol=1e-8, atol=1e-8)


# Twenty draws of short steps are judged by nothing but their bits.
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_minibatches_are_unbiased_and_threads_change_nothing() -> None:
    """The mean over the batches of an epoch is the gradient of all rows."""
    x, y, outputs = data("learned", 600)
    weights = weights_of(600)
    target = made("learned", x, y, outputs, sample_weight=weights)
    theta = 0.5 * np.random.default_rng(1).normal(size=target.dim)
    batches = np.random.default_rng(2).permutation(600).reshape(10, 60)
    mean = np.mean([target.value_and_grad(theta, rows)[1] for rows in batches], axis=0)
    np.testing.assert_allclose(mean, target.value_and_grad(theta)[1], rtol=1e-9, atol=1e-9)
    how = {"num_draws": 20, "warmup": 5, "chains": 2, "seed": 3, "progress": False}
    sgld = rb.SGLD(target, step_size=1e-6, batch_size=50)
    found = sgld.sample(**how).positions
    threads = _core.num_threads()
    rb.set_num_threads(1)
    try:
        assert np.array_equal(found, sgld.sample(**how).positions)
    finally:
        rb.set_num_threads(threads)
    other = made("learned", x, y, outputs)
    assert not np.array_equal(
        found, rb.SGLD(other, step_size=1e-6, batch_size=50).sample(**how).positions
    )


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # four draws
def test_pickle_subset_and_fingerprint() -> None:
    x, y, outputs = data("counts")
    weights = weights_of()
    target = made("counts", x, y, outputs, sample_weight=weights)
    theta = 0.3 * np.random.default_rng(1).normal(size=target.dim)
    again = pickle.loads(pickle.dumps(target))
    assert again.value_and_grad(theta)[0] == target.value_and_grad(theta)[0]
    assert again.fingerprint == target.fingerprint
    assert made("counts", x, y, outputs).fingerprint["data"] != target.fingerprint["data"]
    rows = np.arange(10, 30)
    part = target.subset(rows)
    assert np.array_equal(part.sample_weight, weights[rows])
    own = made("counts", x[rows], y[rows], outputs, sample_weight=weights[rows])
    assert part.value_and_grad(theta)[0] == own.value_and_grad(theta)[0]
    # a run is resumed on the rows with the weights that it was started on
    hmc = rb.HMC(target, step_size=1e-3, num_leapfrog_steps=3)
    draws = hmc.sample(4, warmup=0, chains=2, seed=1, progress=False)
    other = rb.HMC(made("counts", x, y, outputs), step_size=1e-3, num_leapfrog_steps=3)
    with pytest.raises(ValueError, match="data"):
        other.sample(2, resume=draws, progress=False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (np.ones(3), r"sample_weight of shape \(75,\), got \(3,\)"),
        (np.ones((ROWS, 1)), r"sample_weight of shape \(N,\)"),
        (-np.arange(ROWS), "sample_weight >= 0"),
        (np.zeros(ROWS), "a sample_weight above 0"),
        (np.full(ROWS, 1e-60), "a sample_weight above 0 in float32"),
        (np.full(ROWS, np.nan), "finite"),
        ("heavy", "sample_weight"),
    ],
)
def test_what_are_no_weights_is_refused(given, text: str) -> None:
    x, y, outputs = data("known")
    with pytest.raises((TypeError, ValueError), match=rf"^\[Posterior\] expected .*{text}"):
        made("known", x, y, outputs, sample_weight=np.asarray(given) * 2.0
             if not isinstance(given, str) else given, dtype=np.float32)  # fmt: skip


@pytest.mark.parametrize("count", [1, 3, ROWS + 1])
@pytest.mark.parametrize("value", [1.0, 2.0])
def test_as_many_weights_as_rows(count: int, value: float) -> None:
    """Weights of 1 are none, but not of other rows."""
    x, y, outputs = data("learned")
    with pytest.raises(ValueError, match=rf"sample_weight of shape \({ROWS},\), got \({count},\)"):
        made("learned", x, y, outputs, sample_weight=np.full(count, value))
    target = made("learned", x, y, outputs)
    prediction = rb.MeanField(np.zeros(target.dim), np.ones(target.dim), predictive=target)
    found = prediction.predict(x, 4)
    with pytest.raises(ValueError, match=rf"expected sample_weight with {ROWS} rows"):
        found.log_likelihood(y, sample_weight=np.full(count, value))
    ones = found.log_likelihood(y, sample_weight=np.ones(ROWS))
    assert ones == found.log_likelihood(y)
