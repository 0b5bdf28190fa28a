"""Native code takes subnormal numbers for 0, which costs no time; the caller's code does not."""

import ctypes
import signal

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

RNG = np.random.default_rng(0)
NETWORKS = {
    "dense": rb.mlp(3, (8,), 1),
    "convolution": rb.Model([rb.Conv1D(4, 3), rb.Flatten(), rb.Dense(1)], input_shape=(6, 2)),
    "recurrent": rb.Model([rb.LSTM(4), rb.Dense(1)], input_shape=(6, 2)),
    "norm": rb.Model([rb.Dense(4), rb.LayerNorm(), rb.Dense(1)], input_shape=(3,)),
}
TINY = {"float32": 1e-42, "float64": 1e-312}


def keeps_subnormals() -> bool:
    """Whether this thread computes with them: by NumPy, on arrays, so that nothing is folded."""
    return all(bool((np.full(9, v, t) * np.ones(9, t)).all()) for t, v in TINY.items())


def posterior(network, x, dtype):
    return rb.Posterior(
        NETWORKS[network],
        x,
        np.linspace(-1.0, 1.0, len(x)),
        prior={"*": rb.Normal(1.0)},  # under one prior for all, tiny inputs are warned of
        likelihood=rb.Gaussian(0.3),
        dtype=dtype,
    )


@pytest.fixture
def threads():
    before = _core.num_threads()
    yield rb.set_num_threads
    rb.set_num_threads(before)


@pytest.mark.parametrize("dtype", TINY)
@pytest.mark.parametrize("network", NETWORKS)
def test_subnormal_inputs_count_as_zeros(network, dtype, threads):
    x = RNG.normal(size=(600, *NETWORKS[network].input_shape))
    tiny = posterior(network, (x * TINY[dtype]).astype(dtype), dtype)
    zero = posterior(network, np.zeros_like(x), dtype)
    theta = zero.init(0, chains=3)
    for count in (1, 3):
        threads(count)
        for a, b in zip(tiny.value_and_grad(theta), zero.value_and_grad(theta), strict=True):
            np.testing.assert_array_equal(a, b)
        raw = NETWORKS[network].apply(theta, (x * TINY[dtype]).astype(dtype))
        np.testing.assert_array_equal(raw, NETWORKS[network].apply(theta, np.zeros_like(x)))


@pytest.mark.parametrize("count", [1, 2])
def test_the_caller_keeps_subnormals(count, threads):
    threads(count)
    target = posterior("dense", RNG.normal(size=(600, 3)), "float32")
    assert keeps_subnormals()
    rb.HMC(target, num_leapfrog_steps=2).sample(3, warmup=3, chains=2, progress=False)
    assert keeps_subnormals()
    stop = _core.InterruptFlag()
    stop.set()
    position = target.init(0, chains=2)
    with pytest.raises(_core.Interrupted):
        target.leapfrog(position, position, None, 1e-6, 10**9, interrupt=stop)
    assert keeps_subnormals()


def test_a_signal_handler_keeps_subnormals():
    class Stop(Exception):
        pass

    seen = []

    def handler(number, frame):
        seen.append(keeps_subnormals())
        raise Stop

    target = posterior("dense", RNG.normal(size=(600, 3)), "float32")
    position = target.init(0, chains=1)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop):
            target.leapfrog(position, position, None, 1e-6, 10**9)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [True]
    assert keeps_subnormals()


def test_a_function_of_the_caller_keeps_subnormals():
    pointer = ctypes.POINTER(ctypes.c_double)
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_size_t, pointer, pointer, pointer, ctypes.c_void_p
    )
    seen = []

    @kind
    def density(size, x, grad, lp, user):
        seen.append(keeps_subnormals())
        grad[0], lp[0] = -x[0], -0.5 * x[0] ** 2
        return 0

    target = rb.CallableDensity.from_pointer(density, 1)
    at = np.ones((1, 1))
    target.value_and_grad(at)
    hmc = rb.HMC(target, step_size=0.1, num_leapfrog_steps=2, randomize_length=False)
    rb.Chains(hmc, at, warmup=0).advance()
    assert seen == [True] * 4  # with the gradient at the start
