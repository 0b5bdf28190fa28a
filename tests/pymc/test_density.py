"""PyMC and Ribbit, each around the other."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ShapeError

pm = pytest.importorskip("pymc", reason="needs PyMC")

import pytensor  # noqa: E402
import pytensor.tensor as pt  # noqa: E402

from ribbit.pymc import from_pymc, pymc_log_density  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # short runs

X = np.linspace(-1.0, 1.0, 30)[:, None]
TARGET = rb.Posterior(
    rb.mlp(1, (4,), 1, activation="tanh"),
    X,
    np.sin(3 * X),
    prior=rb.Normal(1.0),
    likelihood=rb.Gaussian(0.3),
    dtype=np.float64,
)


def test_values_and_gradients_are_the_targets() -> None:
    theta = pt.dvector()
    value = pymc_log_density(TARGET)(theta)
    f = pytensor.function(
        [theta], [2 * value, pytensor.grad(2 * value, theta)], mode="FAST_COMPILE"
    )
    at = TARGET.init(seed=1)
    lp, grad = TARGET.value_and_grad(at)
    got = f(at)
    assert got[0] == 2 * lp
    np.testing.assert_array_equal(got[1], 2 * grad)
    with pytest.raises(ShapeError, match=r"shape \(13,\), got \(12,\)"):
        f(at[1:])


def test_second_derivatives_are_refused_and_not_zero() -> None:
    theta = pt.dvector()
    slope = pytensor.grad(pymc_log_density(TARGET)(theta), theta)
    with pytest.raises(Exception, match="expected derivatives of first order"):
        pytensor.grad(slope.sum(), theta)


def test_pymc_samples_a_network_inside_a_model() -> None:
    with pm.Model():
        weights = pm.Flat("weights", shape=TARGET.dim)
        pm.Potential("network", pymc_log_density(TARGET)(weights))
        step = pm.HamiltonianMC(path_length=0.1, step_scale=0.05)
        trace = pm.sample(
            draws=20,
            tune=20,
            chains=1,
            cores=1,
            step=step,
            progressbar=False,
            compute_convergence_checks=False,
            random_seed=1,
            initvals={"weights": TARGET.init(seed=1)},
        )
    found = trace.posterior["weights"].values
    assert found.shape == (1, 20, TARGET.dim)
    assert len(np.unique(found[0, :, 0])) > 10


def test_ribbit_samples_a_model_of_pymc() -> None:
    """A conjugate mean with a known answer: within 6 standard errors, false fails below 1e-7."""
    y = np.array([1.0, 2.0, 4.0])
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 2.0)
        pm.HalfNormal("scale", 1.0)
        pm.Deterministic("twice", 2 * mean)
        pm.Normal("y", mean, 0.5, observed=y)
    target = from_pymc(model)
    assert target.dim == 2
    draws = rb.NUTS(target).sample(400, warmup=200, seed=1, progress=False)
    found = target.samples(draws)
    assert found["mean"].shape == found["twice"].shape == found["scale"].shape == (4, 400)
    np.testing.assert_allclose(found["twice"], 2 * found["mean"])
    np.testing.assert_allclose(found["scale"], np.exp(found["scale_log__"]))
    precision = 1 / 4 + 3 / 0.25
    expected = y.sum() / 0.25 / precision
    error = 1 / np.sqrt(precision * rb.diagnostics.ess(found["mean"][..., None])[0])
    assert abs(found["mean"].mean() - expected) < 6 * error
    assert abs(found["mean"].mean() - expected - 0.1) > 6 * error  # the control
    expected = np.sqrt(2 / np.pi)  # of a half normal
    error = np.sqrt((1 - 2 / np.pi) / rb.diagnostics.ess(found["scale"][..., None])[0])
    assert abs(found["scale"].mean() - expected) < 6 * error
    with pytest.raises(ShapeError):
        target.samples(draws.positions[0])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\[from_pymc\] expected model"):
        from_pymc(3)
    with pm.Model() as model:
        pm.Poisson("n", 2.0)
    with pytest.raises(TypeError, match="discrete"):
        from_pymc(model)
    with pytest.raises(TypeError, match=r"\[pymc_log_density\]"):
        pymc_log_density(3)
