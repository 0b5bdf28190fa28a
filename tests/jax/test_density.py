"""`from_jax`: log densities written in JAX under Ribbit's samplers."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DTypeError, ShapeError

jax = pytest.importorskip("jax", reason="needs JAX")
jnp = jax.numpy

from ribbit.jax import JaxDensity, from_jax, jax_log_density  # noqa: E402

SD = np.array([0.5, 1.0, 2.0])


def normal(q):
    """Independent normals of three sds around 1."""
    return -0.5 * jnp.sum(((q - 1.0) / SD.astype(q.dtype)) ** 2)


@pytest.fixture
def x64():
    """JAX with 64-bit numbers."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def test_values_and_gradients_of_all_chains_in_one_call() -> None:
    calls = []

    def counted(q):
        calls.append(q.shape)
        return normal(q)

    target = from_jax(counted, 3)
    assert target.dtype == np.float32
    theta = target.init(seed=1, chains=5)
    lp, grad = target.value_and_grad(theta)
    assert lp.dtype == np.float64
    assert grad.dtype == np.float32
    np.testing.assert_allclose(lp, -0.5 * np.sum(((theta - 1) / SD) ** 2, axis=1), rtol=1e-5)
    np.testing.assert_allclose(grad, -(theta - 1) / SD**2, rtol=1e-5)
    traced = len(calls)
    assert set(calls) == {(3,)}
    for _ in range(5):
        target.value_and_grad(theta)
    assert len(calls) == traced  # compiled: no Python per call
    one, slope = target.value_and_grad(theta[0])
    assert np.ndim(one) == 0
    assert slope.shape == (3,)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "sampler",
    [
        lambda t: rb.HMC(t, step_size=0.3, num_leapfrog_steps=8),
        rb.NUTS,
    ],
    ids=["HMC", "NUTS"],
)
def test_samplers_find_the_normals(sampler) -> None:
    """Means and sds within 6 standard errors by ArviZ's ESS: false fails below 1e-7.

    The control is the same test of sds that are 1.5 times as large.
    """
    target = from_jax(normal, 3)
    assert target.dtype == np.float64
    draws = sampler(target).sample(500, warmup=300, seed=3, progress=False)
    q = draws.positions
    ess = rb.diagnostics.ess(q)
    off = (q.mean(axis=(0, 1)) - 1) / (SD / np.sqrt(ess))
    assert np.abs(off).max() < 6
    square = ((q - 1) / SD) ** 2
    error = np.sqrt(2 / rb.diagnostics.ess(square))
    assert (np.abs(square.mean(axis=(0, 1)) - 1) / error).max() < 6
    assert (np.abs(square.mean(axis=(0, 1)) - 1.5**2) / error).min() > 6


@pytest.mark.usefixtures("x64")
def test_mclmc_runs_on_it() -> None:
    """It has a bias of its own, so sds within a fifth; a control of half as much more fails."""
    draws = rb.MCLMC(from_jax(normal, 3)).sample(300, warmup=3_000, thin=10, seed=3, progress=False)
    ratio = draws.positions.std(axis=(0, 1)) / SD
    assert np.abs(ratio - 1).max() < 0.2
    assert np.abs(ratio - 1.5).min() > 0.2


@pytest.mark.usefixtures("x64")
def test_trajectories_in_one_program_are_those_of_the_loop() -> None:
    target = from_jax(normal, 3)
    rng = np.random.default_rng(1)
    q, p = rng.normal(size=(2, 3, 3))
    steps, sizes, mass = np.array([1, 7, 4]), np.array([0.1, 0.2, -0.1]), np.array([1.0, 2.0, 0.5])
    lp, grad = target.value_and_grad(q)
    got = target.leapfrog(q, p, grad, sizes, steps, inverse_mass=mass)
    for c in range(3):
        at, moving, slope = q[c], p[c], grad[c]
        for _ in range(steps[c]):
            moving = moving + sizes[c] / 2 * slope
            at = at + sizes[c] * mass * moving
            lp, slope = target.value_and_grad(at)
            moving = moving + sizes[c] / 2 * slope
        np.testing.assert_allclose(got[0][c], at, rtol=1e-12)
        np.testing.assert_allclose(got[1][c], moving, rtol=1e-12)
        np.testing.assert_allclose(got[2][c], [lp], rtol=1e-12)
        np.testing.assert_allclose(got[3][c], slope, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # 20 draws
@pytest.mark.usefixtures("x64")
def test_the_same_draws_as_the_target_it_calls() -> None:
    """There and back: JAX's program around our own density."""
    x, y = rb.datasets.toy_regression(30, seed=0)
    own = rb.Posterior(
        rb.mlp(1, (4,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
        dtype=np.float64,
        marginalize=None,
    )
    other = from_jax(jax_log_density(own), own.dim)
    start = own.init(seed=1, chains=3)
    options = {"warmup": 0, "init": start, "seed": 2, "progress": False}
    a, b = (
        rb.HMC(t, step_size=0.01, num_leapfrog_steps=10).sample(20, **options) for t in (own, other)
    )
    np.testing.assert_allclose(a.positions, b.positions, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # 40 draws
def test_resume_and_threads_of_runs() -> None:
    target = from_jax(normal, 3)
    nuts = rb.NUTS(target)
    options = {"warmup": 50, "seed": 1, "chains": 2, "progress": False}
    whole = nuts.sample(40, **options)
    half = nuts.sample(20, **options)
    rest = nuts.sample(20, resume=half, progress=False)
    np.testing.assert_array_equal(whole.positions[:, 20:], rest.positions)
    run = nuts.sample(40, warmup=50, seed=1, chains=2, blocking=False)
    np.testing.assert_array_equal(run.wait().positions, whole.positions)


def test_what_does_not_fit_is_refused() -> None:
    for wrong, error in (
        (lambda: from_jax(3, 2), TypeError),
        (lambda: from_jax(normal, 0), ValueError),
        (lambda: from_jax(lambda q: q, 2), ShapeError),
        (lambda: from_jax(lambda q: jnp.argmax(q), 2), ShapeError),
        (lambda: from_jax(normal, 3, "float64"), DTypeError),
        (lambda: from_jax(normal, 3, "int8"), DTypeError),
    ):
        with pytest.raises(error, match=r"\[from_jax\] expected"):
            wrong()
    target = from_jax(normal, 3)
    assert isinstance(target, JaxDensity)
    with pytest.raises(DTypeError):
        target.value_and_grad(np.zeros(3))
    with pytest.raises(ShapeError):
        target.value_and_grad(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="rows=None"):
        target.value_and_grad(np.zeros(3, np.float32), np.arange(2))


@pytest.mark.usefixtures("x64")
def test_float64_is_not_rounded_in_silence_where_jax_forgets_it() -> None:
    target = from_jax(normal, 3)
    theta = target.init(seed=1)
    jax.config.update("jax_enable_x64", False)
    for call in (
        lambda: target.value_and_grad(theta),
        lambda: target.leapfrog(theta[None], theta[None], theta[None], 0.1, 1),
        lambda: rb.HMC(target, step_size=0.1, num_leapfrog_steps=2).sample(2, progress=False),
    ):
        with pytest.raises(DTypeError, match="jax_enable_x64"):
            call()
    jax.config.update("jax_enable_x64", True)
    assert target.value_and_grad(theta)[1].dtype == np.float64


@pytest.mark.usefixtures("x64")
def test_the_function_may_compute_in_another_dtype_than_positions_have() -> None:
    target = from_jax(lambda q: normal(q.astype(np.float64)), 3, dtype="float32")
    theta = target.init(seed=1, chains=2)
    expected = -0.5 * np.sum(((theta.astype(np.float64) - 1) / SD) ** 2, axis=1)
    np.testing.assert_allclose(target.value_and_grad(theta)[0], expected, rtol=1e-12)
    grad = target.value_and_grad(theta)[1]
    q, _, terms, _ = target.leapfrog(theta, theta, grad, 0.1, 3)
    np.testing.assert_allclose(terms[:, 0], target.value_and_grad(q)[0], rtol=1e-12)


def test_under_strict_promotion() -> None:
    def moved():
        target = from_jax(normal, 3)
        q = target.init(seed=1, chains=2)
        return target.leapfrog(q, q, target.value_and_grad(q)[1], 0.1, np.array([1, 2]))[0]

    expected = moved()
    for mode in (jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict")):
        with mode:
            np.testing.assert_allclose(moved(), expected, rtol=1e-5)
