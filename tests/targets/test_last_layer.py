"""A last layer that is integrated out: density, gradient and redraws against the oracle."""

import dataclasses
import pickle

import numpy as np
import pytest

import ribbit as rb
from tests.oracle import reference
from tests.support.integrated import CASES, made, positions

LAST_LAYER = 19  # purpose
cases = pytest.mark.parametrize("name", CASES)


def errors(target, oracle):
    """Largest relative errors of value and gradient (by its norm) over three positions."""
    theta = positions(target)
    values, grads = target.value_and_grad(theta)
    found = []
    for t, value, grad in zip(theta.astype(float), values, grads, strict=True):
        known, slope = oracle.value_and_grad(t)
        found.append((abs(value / known - 1), np.linalg.norm(grad - slope) / np.linalg.norm(slope)))
    return np.max(found, axis=0)


@cases
def test_density_and_gradient(name):
    assert max(errors(*made(**CASES[name]))) < 1e-9


@cases
def test_float32_features(name):
    value, grad = errors(*made(**CASES[name], dtype=np.float32))
    assert value < 1e-6
    assert grad < 2e-5


@pytest.mark.parametrize("units", [1, 4, 6, 7, 8])
@pytest.mark.parametrize("rows", [1, 8, 9, 31, 64, 97, 161])
def test_few_columns(units, rows):
    """Up to 8 columns (units, bias and target) have sums by rows; parts of panels, and panels."""
    target, oracle = made(hidden=(units,), rows=rows)
    assert max(errors(target, oracle)) < 1e-9
    short = dataclasses.replace(oracle, x=oracle.x[:-1], y=oracle.y[:-1])
    assert rows == 1 or max(errors(target, short)) > 1e-6  # control: its last row counts


@pytest.mark.parametrize("units", [3, 6, 7])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_few_columns_of_weighted_rows(units, dtype):
    """A row of weight 3 is three rows."""
    rng = np.random.default_rng(3)
    x, y, times = rng.normal(size=(75, 3)), rng.normal(size=75), rng.integers(1, 5, 75)

    def posterior(x, y, weights):
        return rb.Posterior(
            rb.mlp(3, (units,), 1, activation="tanh"),
            x,
            y,
            prior=rb.Normal(0.7),
            likelihood=rb.Gaussian(),
            sample_weight=weights,
            marginalize="last_layer",
            dtype=dtype,
        )

    weighted = posterior(x, y, times.astype(float))
    repeated = posterior(np.repeat(x, times, axis=0), np.repeat(y, times), None)
    theta = positions(weighted)
    (value, grad), (other, slope) = weighted.value_and_grad(theta), repeated.value_and_grad(theta)
    near = 1e-12 if dtype is np.float64 else 2e-6
    assert np.allclose(value, other, rtol=near)
    assert np.linalg.norm(grad - slope) < 20 * near * np.linalg.norm(slope)
    plain = posterior(x, y, None).value_and_grad(theta)[1]
    assert np.linalg.norm(plain - slope) > 1e-3 * np.linalg.norm(slope)  # control


FAULTS = {
    "sd of the last layer": lambda o: dataclasses.replace(o, sd=o.sd * 1.01),
    "prior mean": lambda o: dataclasses.replace(o, mean=o.mean + 0.01),
    "temperature of the prior": lambda o: dataclasses.replace(
        o, temperature=1.0, likelihood_temperature=o.tau
    ),
    "no bias": lambda o: dataclasses.replace(o, bias=False, sd=o.sd[:-1], mean=o.mean[:-1]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_noticed(fault):
    target, oracle = made(temperature=0.5, likelihood_temperature=2.0, outputs=2)
    assert max(errors(target, oracle)) < 1e-9
    assert min(errors(target, FAULTS[fault](oracle))) > 1e-5


def test_missing_log_determinant_is_noticed():
    """Control of the gate: the quadratic part alone is another density."""
    target, oracle = made(noise=0.4)

    class Faulty(type(oracle)):
        def integral(self, phi, sigma):
            value, by_phi, by_noise = super().integral(phi, sigma)
            wide = (phi * self.sd**2) @ phi.T + sigma**2 * np.eye(len(phi))
            return value + 0.5 * np.linalg.slogdet(wide)[1], by_phi, by_noise

    faulty = Faulty(**{f.name: getattr(oracle, f.name) for f in dataclasses.fields(oracle)})
    assert errors(target, faulty)[0] > 1e-3


@cases
def test_redraws_have_the_conditional_law(name):
    """The whitened weights are the normals of their address: mean and covariance are exact."""
    target, oracle = made(**CASES[name])
    theta, ids = positions(target, 2), np.array([4, 9], np.uint32)
    whole = target.complete(theta, seed=3, step=11, chains=ids)
    below = target.dim - (CASES[name].get("noise") is None)
    assert whole.shape == (2, target.full_dim)
    assert np.array_equal(np.delete(whole, np.s_[below : below + oracle.mean.size], 1), theta)
    assert np.array_equal(target.reduce("test", whole), theta)
    for t, one, chain in zip(theta, whole, ids, strict=True):
        mean, covariance = oracle.conditional(t)
        factor = np.linalg.cholesky(np.linalg.inv(covariance))
        away = one[below : below + mean.size].reshape(mean.shape) - mean
        z = reference.normal(mean.size, seed=3, step=11, chain=int(chain), purpose=LAST_LAYER)
        np.testing.assert_allclose(factor.T @ away, z.reshape(mean.shape), atol=1e-6)
        # control: a variance that is a tenth too large
        assert np.max(np.abs(np.sqrt(1.1) * factor.T @ away - z.reshape(mean.shape))) > 1e-3


def test_oracle_against_differences():
    _, oracle = made(outputs=2, temperature=0.5, likelihood_temperature=2.0, centred=True)
    theta = np.random.default_rng(2).normal(size=21) * 0.5
    grad = oracle.value_and_grad(theta)[1]
    for i, step in enumerate(np.eye(len(theta)) * 1e-5):
        up, down = (oracle.value_and_grad(theta + s * step)[0] for s in (1, -1))
        assert abs((up - down) / 2e-5 - grad[i]) < 1e-6 * np.linalg.norm(grad)


def test_joint_density_is_marginal_times_conditional():
    """Against the ordinary posterior: log p(all) = log p(rest) + log p(last layer | rest)."""
    options = {"outputs": 2, "temperature": 0.7, "likelihood_temperature": 1.5, "centred": True}
    target, oracle = made(**options)
    theta = positions(target, 4)
    whole = target.complete(theta, seed=1, step=1, chains=np.arange(4, dtype=np.uint32))
    joint = target.joint.value_and_grad(whole)[0]
    marginal = target.value_and_grad(theta)[0]
    for c in range(4):
        mean, covariance = oracle.conditional(theta[c])
        away = whole[c, 20 : 20 + mean.size].reshape(mean.shape) - mean
        log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
        squares = np.sum(away * np.linalg.solve(covariance, away))
        conditional = -0.5 * squares - 0.5 * mean.shape[1] * log_det
        assert abs(joint[c] - marginal[c] - conditional) < 1e-8 * abs(joint[c])


def test_networks_of_other_layers():
    """A convolution below: value and gradient against differences of the marginal density."""
    model = rb.Model(
        [rb.Conv2D(2, 3), rb.Activation("tanh"), rb.Flatten(), rb.Dense(2)],
        input_shape=(5, 5, 1),
    )
    rng = np.random.default_rng(1)
    target = rb.Posterior(
        model,
        rng.normal(size=(40, 5, 5, 1)),
        rng.normal(size=(40, 2)),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(per_output=False),
        dtype=np.float64,
        marginalize="last_layer",
    )
    theta = target.init(1)
    grad = target.value_and_grad(theta)[1]
    for i, step in enumerate(np.eye(target.dim) * 1e-5):
        up, down = (target.value_and_grad(theta + s * step)[0] for s in (1, -1))
        assert abs((up - down) / 2e-5 - grad[i]) < 1e-6 * np.linalg.norm(grad)


def test_more_rows_than_are_kept():
    """29 MB of values go forwards twice: r copies of rows at noise sd s are one at s / sqrt(r)."""
    rng, copies, noise = np.random.default_rng(0), 30, 0.7
    x = rng.standard_normal((300, 8))
    y = np.sin(2.0 * x[:, 0]) + 0.1 * rng.standard_normal(300)

    def posterior(count, sd):
        rows = np.tile(x, (count, 1)), np.tile(y, count)
        return rb.Posterior(
            rb.mlp(8, (64, 64), 1, activation="tanh"),
            *rows,
            prior=rb.Normal(0.3),
            likelihood=rb.Gaussian(sd),
            marginalize="last_layer",
            dtype=np.float64,
        )

    few, many = posterior(1, noise / copies**0.5), posterior(copies, noise)
    theta = few.init(seed=1, chains=2)
    (value, grad), (twice, other) = few.value_and_grad(theta), many.value_and_grad(theta)
    spare = (copies - 1) * len(y) * (np.log(noise) + 0.5 * np.log(2.0 * np.pi))
    spare += len(y) * 0.5 * np.log(copies)
    assert np.allclose(value - spare, twice, rtol=1e-11)
    assert np.linalg.norm(grad - other) < 1e-9 * np.linalg.norm(grad)
    wrong = posterior(copies, 1.01 * noise).value_and_grad(theta)[1]
    assert np.linalg.norm(grad - wrong) > 1e-4 * np.linalg.norm(grad)  # control


def test_whole_posterior_is_what_predicts():
    target, _ = made(outputs=2)
    plain = target.joint
    assert plain.integrated is None
    assert plain.joint is plain
    assert target.integrated == "last layer"
    assert target.full_dim == plain.dim == plain.full_dim
    whole = plain.init(3, 2)
    x = np.zeros((2, 3))
    assert np.array_equal(target.outputs(whole, x), plain.outputs(whole, x))
    assert np.array_equal(target.log_likelihood(whole), plain.log_likelihood(whole))
    assert np.array_equal(target.log_prior(whole), plain.log_prior(whole))
    assert target.unravel(whole).keys() == plain.unravel(whole).keys()
    assert np.array_equal(target.init(3, 2), target.reduce("test", whole))
    assert plain.complete is None
    assert plain.reduce is None


def test_subset_integrates_over_its_own_rows():
    target, oracle = made()
    rows = np.arange(5, 40)
    some = target.subset(rows)
    known = dataclasses.replace(oracle, x=oracle.x[rows], y=oracle.y[rows])
    assert max(errors(some, known)) < 1e-9
    assert some.joint.num_rows == 35


def test_pickled_and_fingerprint():
    target, _ = made()
    again = pickle.loads(pickle.dumps(target))
    theta = positions(target)
    assert np.array_equal(again.value_and_grad(theta)[0], target.value_and_grad(theta)[0])
    assert again.fingerprint == target.fingerprint != target.joint.fingerprint
    assert "marginalize='last_layer'" in repr(target)
    other = made(temperature=0.5)[0]
    assert other.fingerprint != target.fingerprint


def test_prior_of_the_last_layer_counts_in_the_fingerprint():
    x, y = np.zeros((5, 3)), np.arange(5.0)
    found = [
        rb.Posterior(
            rb.mlp(3, (2,), 1),
            x,
            y,
            prior={"2.*": rb.Normal(sd), "*": rb.Normal(1)},
            likelihood=rb.Gaussian(),
            marginalize="last_layer",
        ).fingerprint
        for sd in (0.5, 0.6)
    ]
    assert found[0] != found[1]


REFUSED = {
    "likelihood": ({"likelihood": rb.StudentTNoise(4.0)}, TypeError, "a Gaussian likelihood"),
    "prior": ({"prior": rb.Laplace(1)}, ValueError, "a Normal prior of the last layer"),
    "word": ({"marginalize": "first_layer"}, ValueError, "marginalize"),
    "number": ({"marginalize": 1}, TypeError, "marginalize"),
    "activation": (
        {"model": rb.Model([rb.Dense(1), rb.Activation("tanh")], input_shape=(3,))},
        ValueError,
        "ends in a Dense layer",
    ),
    "nothing left": (
        {"model": rb.mlp(3, (), 1), "likelihood": rb.Gaussian(0.1)},
        ValueError,
        "something left to sample",
    ),
    "no parameters below": (
        {"model": rb.Model([rb.Activation("tanh"), rb.Dense(1)], input_shape=(3,))},
        ValueError,
        "parameters below the last layer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_integrated_is_refused(name):
    changes, error, text = REFUSED[name]
    options = {
        "model": rb.mlp(3, (4,), 1),
        "prior": rb.Normal(1.0),
        "likelihood": rb.Gaussian(),
        "marginalize": "last_layer",
    } | changes
    with pytest.raises(error, match=text):
        rb.Posterior(options.pop("model"), np.eye(3), np.arange(3.0), **options)


@pytest.mark.parametrize("likelihood", [rb.Gaussian(), rb.Gaussian([0.1, 2.0])], ids=repr)
def test_outputs_with_noise_of_their_own_are_not_integrated(likelihood):
    data = rb.mlp(3, (4,), 2), np.eye(3), np.arange(6.0).reshape(3, 2)
    given = {"prior": rb.Normal(1.0), "likelihood": likelihood}
    with pytest.raises(TypeError, match=r"one noise sd for all outputs, .*per_output=False"):
        rb.Posterior(*data, **given, marginalize="last_layer")
    assert rb.Posterior(*data, **given).marginal is None
    shared = given | {"likelihood": rb.Gaussian(per_output=False)}
    assert rb.Posterior(*data, **shared).marginal is not None


ROWS = {
    "value_and_grad": lambda t: t.value_and_grad(t.init(), np.arange(3)),
    "masked": lambda t: t.masked(),
}
FITS = {
    "SGLD": rb.SGLD,
    "SGHMC": rb.SGHMC,
    "BBB": rb.BBB,
    "DeepEnsemble": rb.DeepEnsemble,
    "SWAG": rb.SWAG,
    "LaplaceApproximation": rb.LaplaceApproximation,
    "MCDropout": rb.MCDropout,
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_refused(name):
    with pytest.raises(ValueError, match="a sum over rows"):
        ROWS[name](made()[0])


@pytest.mark.parametrize("name", FITS)
def test_samplers_of_rows_refuse(name):
    with pytest.raises(TypeError, match=rf"\[{name}\] expected a density that is a sum over rows"):
        FITS[name](made()[0])


def test_what_is_not_finite_is_nan_and_no_crash():
    target, _ = made()
    theta = positions(target)
    theta[0, -1] = -1000.0  # the precision of the noise overflows
    theta[1, 0] = np.nan
    values, grads = target.value_and_grad(theta)
    assert not np.isfinite(values[:2]).any()
    assert np.isfinite(values[2])
    assert np.isfinite(grads[2]).all()
    with pytest.raises(ValueError, match="log density at the initial positions must be finite"):
        rb.Chains(rb.HMC(target, step_size=0.1, num_leapfrog_steps=2), theta[0], warmup=0)


def test_float32_is_as_good_as_its_features():
    """Collinear features, many rows and little noise: errors stay far below HMC's own."""
    options = {"hidden": (20,), "rows": 4000, "noise": 0.03}
    fine, coarse = (made(**options, dtype=d)[0] for d in (np.float64, np.float32))
    theta = positions(coarse, 4)
    exact = fine.value_and_grad(theta.astype(np.float64))[0]
    # That of the ordinary posterior, from outputs in float32, is 0.1 here.
    assert np.all(np.abs(coarse.value_and_grad(theta)[0] - exact) < 0.03)


def test_wrong_sizes_are_named():
    target, _ = made()
    with pytest.raises(ValueError, match=r"expected a position \(\.\.\., 21\), or \(\.\.\., 27\)"):
        target.reduce("test", np.zeros(5))
    with pytest.raises(ValueError, match=r"init \(27,\)"):
        rb.HMC(target).sample(2, warmup=2, init=np.zeros(5), progress=False)


def posterior(hidden=(5,), likelihood=None, outputs=1, inputs=8, **options):
    rng = np.random.default_rng(0)
    model = rb.mlp(inputs, hidden, outputs, activation="tanh")
    likelihood = likelihood or rb.Gaussian()
    x, y = rng.normal(size=(600, inputs)), rng.normal(size=600)
    options = {"prior": rb.Normal(1.0), **options}
    return rb.Posterior(model, x, y, likelihood=likelihood, **options)


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, True),
        ({"hidden": (30,)}, True),  # 3.8 plain gradients by count
        ({"hidden": (50,)}, False),  # 5.4
        ({"hidden": (50, 50)}, True),  # 1.8
        ({"hidden": ()}, False),
        ({"marginalize": None}, False),
        ({"marginalize": "last_layer"}, False),  # it is one
        ({"prior": rb.Laplace(1.0)}, False),
        ({"prior": rb.Normal(rb.HalfNormal(1.0))}, False),
        ({"likelihood": rb.StudentTNoise(4.0)}, False),
        ({"likelihood": rb.HeteroscedasticGaussian(), "outputs": 2}, False),
    ],
)
def test_what_is_integrated_out_where_nobody_asks(options, taken):
    target = posterior(**options)
    assert (target.marginal is not None) == taken
    again = pickle.loads(pickle.dumps(target))
    assert (again.marginal is not None) == taken
    if taken:
        assert target.marginal.integrated == "last layer"
        assert target.marginal is target.marginal
        assert target.marginal.dim == target.dim - options.get("hidden", (5,))[-1] - 1
