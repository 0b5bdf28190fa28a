"""`jax_log_density`: the native density as an operation of JAX."""

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DTypeError, ShapeError
from tests.support.five_networks import NETWORKS
from tests.support.layer_problems import problem

jax = pytest.importorskip("jax", reason="needs JAX")
jnp = jax.numpy

from ribbit.jax import jax_log_density  # noqa: E402


@pytest.fixture
def x64():
    """JAX with 64-bit numbers."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def small(dtype=np.float32, rows: int = 40, **options):
    x, y = rb.datasets.toy_regression(rows, seed=0)
    given = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.2), "dtype": dtype, **options}
    return rb.Posterior(rb.mlp(1, (6,), 1, activation="tanh"), x, y, **given)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_of_five_networks(name: str) -> None:
    """Forward and reverse, against differences."""
    from jax.test_util import check_grads

    made = problem(NETWORKS[name], likelihood=0, num_rows=5)
    log_density = jax_log_density(made.native())
    check_grads(log_density, (made.theta,), order=1)
    wrong = jax.custom_jvp(log_density)  # the control
    wrong.defjvp(lambda p, t: (log_density(p[0]), 1.01 * jax.jvp(log_density, p, t)[1]))
    with pytest.raises(AssertionError):
        check_grads(wrong, (made.theta,), order=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_same_bits_as_the_native_call(dtype, request) -> None:
    if dtype == np.float64:
        request.getfixturevalue("x64")
    target = small(dtype, temperature=0.5, likelihood_temperature=0.7)
    log_density = jax_log_density(target)
    theta = target.init(seed=1, chains=6)
    lp, grad = target.value_and_grad(theta)
    both = jax.value_and_grad(log_density)
    for each, batch in ((both, jax.vmap(both)), (jax.jit(both), jax.jit(jax.vmap(both)))):
        value, slope = each(theta[2])
        assert value.dtype == slope.dtype == dtype
        assert value == lp[2].astype(dtype)
        np.testing.assert_array_equal(slope, grad[2])
        values, slopes = batch(theta)
        np.testing.assert_array_equal(values, lp.astype(dtype))
        np.testing.assert_array_equal(slopes, grad)
    values, slopes = jax.vmap(jax.vmap(both))(theta.reshape(2, 3, -1))
    np.testing.assert_array_equal(slopes.reshape(6, -1), grad)
    np.testing.assert_array_equal(jax.jit(log_density)(theta), lp.astype(dtype))
    values = jax.vmap(log_density, in_axes=1)(theta.T)
    np.testing.assert_array_equal(values, lp.astype(dtype))
    assert log_density(theta[:0]).shape == (0,)


def test_one_evaluation_per_gradient_and_one_call_for_all_chains() -> None:
    target = small()
    both = jax.value_and_grad(jax_log_density(target))
    for made in (
        jax.make_jaxpr(both)(target.init()),
        jax.make_jaxpr(jax.vmap(both))(target.init(chains=4)),
    ):
        names = [one.primitive.name for one in made.jaxpr.eqns]
        assert names.count("ribbit_log_density") == 1
        assert not {"scan", "while", "pure_callback"} & set(names)


def test_inside_scan_and_with_other_terms() -> None:
    target = small()
    log_density = jax_log_density(target)

    @jax.jit
    def ascend(theta):
        def step(q, _):
            value, grad = jax.value_and_grad(lambda p: 2 * log_density(p) - jnp.sum(p**2))(q)
            return q + 1e-4 * grad, value

        return jax.lax.scan(step, theta, None, length=20)

    q, values = ascend(target.init(seed=1))
    own = target.init(seed=1)
    for value in np.asarray(values):
        lp, grad = target.value_and_grad(own)
        np.testing.assert_allclose(value, 2 * lp - np.sum(own**2), rtol=1e-4)
        own = (own + np.float32(1e-4) * (2 * grad - 2 * own)).astype(np.float32)
    np.testing.assert_allclose(q, own, rtol=1e-4, atol=1e-5)


def test_the_likelihood_alone() -> None:
    target = small(temperature=0.5)
    alone = jax_log_density(target, prior=False)
    theta = target.init(seed=1)
    value, grad = jax.jit(jax.value_and_grad(alone))(theta)
    np.testing.assert_allclose(value, target.log_likelihood(theta) / 0.5, rtol=1e-6)
    whole = target.value_and_grad(theta)[1]
    np.testing.assert_allclose(grad, whole + theta / 0.5, rtol=1e-4, atol=1e-4)


def test_second_derivatives_are_refused_and_not_zero() -> None:
    target = small()
    f = jax_log_density(target)
    theta = target.init()
    for second in (
        lambda: jax.hessian(f)(theta),
        lambda: jax.jit(jax.hessian(f))(theta),
        lambda: jax.grad(lambda q: jnp.sum(jax.grad(f)(q)))(theta),
        lambda: jax.jvp(jax.grad(f), (theta,), (theta,)),
        lambda: jax.jvp(lambda q: jax.jvp(f, (q,), (theta,))[1], (theta,), (theta,)),
        lambda: jax.linearize(jax.grad(f), theta),
    ):
        with pytest.raises(TypeError, match=r"\[jax_log_density\].*first order.*second order"):
            second()
    # Derivatives of the gradient by something else are none of those.
    slope = jax.grad(lambda a: jnp.sum(jax.grad(lambda q: a * f(q))(theta)))(2.0)
    np.testing.assert_allclose(slope, target.value_and_grad(theta)[1].sum(), rtol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    target = small()
    f = jax_log_density(target)
    theta = target.init()
    with pytest.raises(ShapeError, match=r"shape \(\.\.\., 19\), got \(18,\)"):
        f(theta[1:])
    with pytest.raises(ShapeError):
        jax.jit(f)(1.0)
    with pytest.raises(DTypeError, match="float32, got int32"):
        f(np.arange(target.dim))
    with pytest.raises(DTypeError, match="jax_enable_x64"):
        jax_log_density(small(np.float64))(theta.astype(np.float64))
    for wrong in (3, None, rb.CallableDensity(lambda q: (0.0, q), 2)):
        with pytest.raises(TypeError, match=r"\[jax_log_density\] expected target as a Posterior"):
            jax_log_density(wrong)
    with pytest.raises(TypeError, match="prior"):
        jax_log_density(target, prior=1)
    for wrong in ("abc", None, np.array([None] * 19), [[1.0], [1.0, 2.0]]):
        with pytest.raises(
            TypeError, match=r"\[jax_log_density\] expected theta as an array of fl"
        ):
            f(wrong)
    exported = pytest.importorskip("jax.export").export(jax.jit(f))
    with pytest.raises(ValueError, match="expected a program for this process"):
        exported(theta)


def test_programs_keep_the_target_alive_and_nothing_else_does() -> None:
    target = small()
    theta, seen = target.init(), weakref.ref(target)
    expected = target.value_and_grad(theta)[0]
    f = jax.jit(jax_log_density(target))
    compiled = f.lower(theta).compile()
    del f, target
    gc.collect()
    assert seen() is not None
    np.testing.assert_allclose(compiled(theta), expected, rtol=1e-6)
    del compiled
    jax.clear_caches()
    gc.collect()
    assert seen() is None


def test_the_function_is_pickled_with_its_target() -> None:
    f = jax_log_density(small(), prior=False)
    again = pickle.loads(pickle.dumps(f))
    theta = small().init(seed=1)
    assert jax.jit(again)(theta) == f(theta)
    assert repr(again) == "jax_log_density(Posterior(dim=19, float32), prior=False)"


def test_outside_of_programs_with_options_that_look_for_faults() -> None:
    target = small()
    f, theta = jax_log_density(target), target.init(seed=1)
    expected = target.value_and_grad(theta)[1]
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.grad(f)(theta), expected)
    for option, bad in ((jax.debug_nans, np.nan), (jax.debug_infs, 3e38)):
        with option(True):
            np.testing.assert_array_equal(jax.jit(jax.grad(f))(theta), expected)
            for call in (f, jax.jit(f)):
                with pytest.raises(FloatingPointError):
                    call(np.full_like(theta, bad))
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="expected finite results"):
        f(np.full_like(theta, 1e30))


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_donated_arrays_and_threads_change_no_bit() -> None:
    target = small()
    f = jax_log_density(target)

    def move(q):
        return q + 1e-5 * jax.vmap(jax.grad(f))(q)

    kept, donated = jax.jit(move), jax.jit(move, donate_argnums=0)
    start = target.init(seed=1, chains=4)

    def walk(step, found):
        q = jax.numpy.array(start)
        for _ in range(50):
            q = step(q)
        found.append(np.asarray(q))

    found: list = []
    walk(kept, found)
    walk(donated, found)
    threads = [threading.Thread(target=walk, args=(one, found)) for one in (kept, donated) * 2]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):  # others come and go beside them
        jax_log_density(small(rows=4))
        gc.collect(0)
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert np.isfinite(found[0]).all()
    for one in found:
        np.testing.assert_array_equal(one, found[0])


def test_a_program_without_its_target_is_an_error_and_no_crash() -> None:
    from ribbit._backends import cpu

    target = small()
    jax_log_density(target)  # registers the handler
    shape = jax.ShapeDtypeStruct((), np.float32)
    call = jax.ffi.ffi_call("ribbit_log_density", shape)
    number, theta = np.int64(cpu.xla_number("test", target)), target.init()
    f = jax.jit(lambda q: call(q, density=number, prior=np.int64(1)))
    assert np.isfinite(f(theta))
    with pytest.raises(Exception, match=r"expected theta \(\.\.\., dim\)"):
        f(theta[1:])
    with pytest.raises(Exception, match="expected an int64 attribute prior"):
        jax.jit(lambda q: call(q, density=number))(theta)
    del target
    gc.collect()
    with pytest.raises(Exception, match="a target that is alive in this process"):
        f(theta)


SHARDED = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import ribbit as rb
from ribbit.jax import jax_log_density
x, y = rb.datasets.toy_regression(20, seed=0)
target = rb.Posterior(rb.mlp(1, (3,), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))
f = jax.vmap(jax_log_density(target))
mesh = jax.make_mesh((2,), ("chains",))
theta = jax.device_put(target.init(chains=4), NamedSharding(mesh, P("chains")))
calls = [lambda: f(theta), lambda: jax.jit(f)(theta), lambda: jax.jit(jax.grad(
    lambda q: f(q).sum()))(theta)]
if hasattr(jax, "shard_map"):
    inside = jax.shard_map(f, mesh=mesh, in_specs=P("chains"), out_specs=P("chains"))
    calls.append(lambda: jax.jit(inside)(theta))
for call in calls:
    try:
        call()
    except ValueError as error:
        assert "expected arrays on one device, got a program for 2" in str(error)
    else:
        raise AssertionError("not refused")
other = jax.device_put(target.init(chains=4), jax.devices()[1])
np.testing.assert_allclose(jax.jit(f)(other), target.value_and_grad(np.asarray(other))[0], 1e-6)
print("refused", len(calls))
"""


def test_sharded_calls_are_refused() -> None:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused")


def test_a_call_costs_less_than_3_us_over_the_native_one() -> None:
    """Inside `lax.scan`, on one thread; the least of nine rounds of each, taken in turns."""
    target = small(rows=10)
    both = jax.value_and_grad(jax_log_density(target))
    length = 1_000

    @jax.jit
    def run(theta):
        def step(q, _):
            value, grad = both(q)
            return q + 1e-9 * grad, value

        return jax.lax.scan(step, theta, None, length=length)

    theta = target.init()
    jax.block_until_ready(run(theta))
    inside, outside = [], []
    for _ in range(9):
        begin = time.perf_counter()
        jax.block_until_ready(run(theta))
        inside.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(length):
            target.value_and_grad(theta)
        outside.append(time.perf_counter() - begin)
    assert min(inside) / length < min(outside) / length + 3e-6
