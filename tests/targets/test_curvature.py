"""Gauss-Newton matrices: Jacobians of every layer, information of every likelihood, priors."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.targets.information import known_likelihoods, noise_information, roots
from ribbit.targets.linearized import first_of, jacobian
from tests.oracle import laplace_reference
from tests.oracle.reference import LIKELIHOODS, learns_noise, log_prior_terms
from tests.support.layer_problems import SMOOTH, problem
from tests.support.likelihoods import BY_KIND
from tests.support.problems import NOISE, PRIOR_PARAMETERS, build_native, build_reference

KINDS = dict(zip(LIKELIHOODS, range(len(LIKELIHOODS)), strict=True))
# Outputs of the information by quadrature: a regression has one column of y there.
OUTPUTS = {
    "heteroscedastic": 2,
    "heteroscedastic-floored": 2,
    "categorical": 4,
    "bernoulli": 3,
    "poisson": 2,
}


def matrix(target, theta, subset="all"):
    return sum(a.T @ a for a in target.gauss_newton(theta, subset))


# --- Jacobians -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_jacobians_are_those_of_the_oracle(name):
    made = problem(SMOOTH[name], num_rows=3)
    model, x = made.model, made.reference.x.reshape(-1, *made.model.input_shape)
    f, found = jacobian("test", model, made.theta, x, 0)
    expected = laplace_reference.jacobian(model.table, made.theta, made.reference.x)
    np.testing.assert_allclose(f, model.apply(made.theta, x), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
    if isinstance(model.layers[-1], rb.Dense):
        first = first_of("test", model, "last_layer")
        f, last = jacobian("test", model, made.theta, x, first)
        np.testing.assert_allclose(f, model.apply(made.theta, x), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(last, found[:, :, first:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("hidden", [(), (7, 5), (40,)])
@pytest.mark.parametrize("rows", [1, 31, 70])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_has_its_own_bits_whatever_the_threads_and_the_others(hidden, rows, dtype):
    rng = np.random.default_rng(rows)
    model, x = rb.mlp(3, hidden, 2, activation="silu"), rng.normal(size=(rows, 3)).astype(dtype)
    theta = model.init(1, dtype=dtype)
    found = []
    for threads in (1, 2, 3):
        rb.set_num_threads(threads)
        found.append(_core.jacobian(model.table, model.rates, theta, x)[1])
    rb.set_num_threads(2)
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    alone = _core.jacobian(model.table, model.rates, theta, x[rows // 2 :])[1]
    np.testing.assert_array_equal(alone, found[0][rows // 2 :])


def test_images_of_bytes_are_read_as_they_are():
    model = rb.lenet5((16, 16, 1), num_classes=3)
    x = np.random.default_rng(0).integers(0, 256, size=(2, 16, 16, 1)).astype(np.uint8)
    theta = model.init(0, dtype=np.float64)
    first = first_of("test", model, "last_layer")
    found = jacobian("test", model, theta, x, first)[1]
    np.testing.assert_allclose(found, jacobian("test", model, theta, x / 255.0, first)[1], 1e-12)


def test_a_last_layer_that_is_not_dense_is_refused():
    model = rb.Model([rb.Dense(3), rb.Activation("tanh")], input_shape=(2,))
    with pytest.raises(ValueError, match=r"\[test\] expected a model that ends with a Dense"):
        first_of("test", model, "last_layer")
    plain = rb.Model([rb.Activation("tanh"), rb.Dense(3, bias=False)], input_shape=(2,))
    assert first_of("test", plain, "last_layer") == 0


# --- information ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_information_is_the_expectation_of_squared_scores(name):
    kind, outputs = KINDS[name], OUTPUTS.get(name, 1)
    likelihood = BY_KIND[kind].make(NOISE, 4.0)
    rng = np.random.default_rng(1)
    for log_noise in (-1.0, 0.4):
        f = rng.normal(size=outputs)
        expected = laplace_reference.information(
            kind, f, scale=NOISE, log_noise=log_noise, shape=4.0
        )
        learned = np.array([log_noise]) if likelihood.learns_noise else None
        root = roots(likelihood, f[None], learned)[0]
        found = np.diag(root**2) if root.ndim == 1 else root.T @ root
        np.testing.assert_allclose(found, expected[:outputs, :outputs], rtol=1e-6, atol=1e-9)
        if learns_noise(kind):
            np.testing.assert_allclose(noise_information(likelihood), expected[-1, -1], rtol=1e-6)
            np.testing.assert_allclose(expected[-1, :-1], 0.0, atol=1e-8)


def test_every_likelihood_has_an_information():
    assert known_likelihoods() == {type(case.likelihood) for case in BY_KIND}


def test_information_stays_finite_far_out():
    far = np.array([[-800.0, 800.0]])
    for likelihood in (rb.Categorical(), rb.Bernoulli(), rb.HeteroscedasticGaussian()):
        for f in (far, far[:, ::-1]):
            assert np.isfinite(roots(likelihood, f, None)).all()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_matrices_are_those_of_the_oracle(name):
    tempered = {"temperature": 0.7, "likelihood_temperature": 1.3}
    reference, theta = build_reference(
        likelihood=KINDS[name], num_out=OUTPUTS.get(name, 1), num_rows=4, **tempered
    )
    found = matrix(build_native(reference), theta)
    expected = laplace_reference.gauss_newton(reference, theta)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())
    # the last layer's is a block of it; a learned noise is none of its weights
    target = build_native(reference)
    first, size = target.subset_size("test", "last_layer")
    assert first + size == target.model.dim
    own = slice(first, first + size)
    np.testing.assert_allclose(
        matrix(target, theta, "last_layer"), found[own, own], rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", ["gaussian", "categorical", "bernoulli", "poisson"])
def test_matrices_are_hessians_where_outputs_are_linear(name):
    """By central differences of the target's own gradient: no row but these is wrong by 1e-6."""
    reference, theta = build_reference(
        likelihood=KINDS[name], num_out=OUTPUTS.get(name, 1), num_rows=6, hidden=()
    )
    target, h = build_native(reference), 1e-5
    found = matrix(target, theta) + np.diag(target.prior_curvature(theta, "all"))
    away = h * np.eye(target.dim)
    _, up = target.value_and_grad(theta + away)
    _, down = target.value_and_grad(theta - away)
    np.testing.assert_allclose(found, (down - up) / (2 * h), rtol=1e-6, atol=1e-7)


def test_blocks_of_rows_add_up(monkeypatch):
    reference, theta = build_reference(likelihood=KINDS["learned"], num_out=2, num_rows=50)
    target = build_native(reference)
    whole = matrix(target, theta)
    monkeypatch.setattr("ribbit.targets.linearized._NUMBERS", 7 * 2 * target.dim)
    assert len(list(target.gauss_newton(theta, "all"))) == 8
    np.testing.assert_allclose(matrix(target, theta), whole, rtol=1e-12, atol=1e-12)
    # of each log noise; they share nothing
    np.testing.assert_allclose(whole[-2:, -2:], 2.0 * 50 * np.eye(2), rtol=1e-9)
    target = build_native(reference, likelihood=rb.Gaussian(per_output=False))
    assert matrix(target, theta[:-1])[-1, -1] == pytest.approx(2.0 * 50 * 2)


def test_float32_targets_have_matrices_of_float64():
    reference, theta = build_reference(num_rows=20)
    single = build_native(reference.rounded(np.float32), np.float32)
    double = build_native(reference.rounded(np.float32))
    start = theta.astype(np.float32)
    a, b = matrix(single, start), matrix(double, start.astype(np.float64))
    np.testing.assert_array_equal(a, b)


# --- priors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PRIOR_PARAMETERS)
def test_curvature_of_priors(kind):
    reference, _ = build_reference(prior=kind, temperature=0.5)
    target = build_native(reference)
    theta = np.linspace(-2.0, 2.2, target.dim)
    h = 1e-5
    _, up = log_prior_terms(kind, *PRIOR_PARAMETERS[kind], theta + h)
    _, down = log_prior_terms(kind, *PRIOR_PARAMETERS[kind], theta - h)
    expected = np.maximum((down - up) / (2 * h), 0.0) / 0.5
    found = target.prior_curvature(theta, "all")
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    if kind in (2, 4):  # the clip is at work
        assert (found == 0.0).any()
        assert (found > 0.0).any()


@pytest.mark.parametrize(
    "prior",
    [
        rb.GammaPrecision(2.0, 0.5),
        rb.HalfNormal(0.4),
        rb.HalfCauchy(0.3),
        rb.InverseGamma(2.0, 0.5),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_curvature_of_priors_of_the_noise(prior):
    reference, theta = build_reference(likelihood=KINDS["learned"], num_out=1)
    target = build_native(reference, likelihood=rb.Gaussian(log_noise_prior=prior))
    h = 1e-4
    for noise in (-1.5, -0.2, 0.6):
        theta[-1] = noise
        away = h * np.eye(target.dim)[-1]
        values = [target.log_prior(theta + s * away) for s in (-1.0, 0.0, 1.0)]
        expected = -(values[0] - 2.0 * values[1] + values[2]) / h**2
        found = target.prior_curvature(theta, "all")[-1]
        np.testing.assert_allclose(found, max(expected, 0.0), rtol=1e-5, atol=1e-5)


def test_scales_that_are_learned_and_layers_integrated_out_are_refused():
    reference, _ = build_reference(num_out=1)
    for density, text in (
        (build_native(reference, prior=rb.Normal(rb.HalfNormal(1.0), per="layer")), "weights"),
        (build_native(reference, marginalize="last_layer"), "weights|integrated out"),
    ):
        with pytest.raises(TypeError, match=rf"\[LaplaceApproximation\] expected .*({text})"):
            rb.LaplaceApproximation(density, batch_size=None)
        with pytest.raises(TypeError, match=r"\[Posterior.rescaled\] .* the network's weights"):
            density.rescaled({})


def test_priors_of_other_means_bend_around_them():
    reference, theta = build_reference(prior=2)
    mean = {0: 0.3}
    target = build_native(reference, prior=rb.Normal(0.5, mean=mean[0]))
    np.testing.assert_allclose(target.prior_curvature(theta, "all"), 4.0)


# --- the same posterior with other scales --------------------------------------------------------


def test_rescaled():
    reference, theta = build_reference(num_rows=8)
    target = build_native(
        reference,
        prior={"*.bias": rb.Normal(0.9, mean=0.2), "*": rb.Normal(0.5, fan_in=True)},
    )
    groups = target.prior_groups("test", "all")
    assert list(groups) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert groups["0.weight"] == (slice(0, 6), 0.5 / np.sqrt(2))
    assert list(target.prior_groups("test", "last_layer")) == ["2.weight", "2.bias"]
    other = target.rescaled({"0.weight": 0.1, "2.bias": 0.3}, 0.8)
    assert other.noise_scale == 0.8
    expected = np.concatenate(
        [np.full(6, 0.1), np.full(3, 0.9), np.full(6, 0.5 / np.sqrt(3)), np.full(2, 0.3)]
    )
    np.testing.assert_allclose(other.prior_sd, expected)
    np.testing.assert_array_equal(other.prior_mean, target.prior_mean)
    by_hand = build_native(
        reference,
        prior={
            "0.weight": rb.Normal(0.1),
            "2.bias": rb.Normal(0.3, mean=0.2),
            "*.bias": rb.Normal(0.9, mean=0.2),
            "*": rb.Normal(0.5, fan_in=True),
        },
        likelihood=rb.Gaussian(0.8),
    )
    assert by_hand.value_and_grad(theta)[0] == other.value_and_grad(theta)[0]
    assert other.fingerprint == by_hand.fingerprint
    same = target.rescaled({})
    assert same.fingerprint == target.fingerprint
    sum_of_squares, count = target.residuals(theta)
    misses = (target.y - target.outputs(theta, target.x)) / NOISE
    assert (sum_of_squares, count) == (pytest.approx(np.sum(misses**2)), 16)


def test_what_cannot_be_rescaled():
    reference, _ = build_reference(likelihood=KINDS["learned"], num_out=1)
    target = build_native(reference)
    with pytest.raises(TypeError, match="Gaussian noise that is known"):
        target.rescaled({}, 0.5)
    with pytest.raises(TypeError, match="Gaussian noise that is known"):
        target.residuals(np.zeros(target.dim))
    with pytest.raises(ValueError, match="prior_sd"):
        target.rescaled({"1.weight": 0.5})
    with pytest.raises(ValueError, match="prior_sd"):
        target.rescaled({"0.weight": -0.5})
    laplace = build_native(reference, prior=rb.Laplace(0.5))
    for call in (
        lambda: laplace.rescaled({"0.weight": 0.5}),
        lambda: laplace.prior_groups("test", "all"),
    ):
        with pytest.raises(ValueError, match="expected normal priors"):
            call()
