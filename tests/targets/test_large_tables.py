"""Embeddings so large that a shard clears only the rows of its gradient that it touches.

The reference has the gradient of every shard from a target of its rows alone, which is one shard
and clears all of it, and adds them up in NumPy, in the order of the core's tree. The prior's mean
is where the gradient is taken, so that the prior adds nothing.
"""

import functools
import itertools

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

TOKENS, LENGTH, ROWS, PANEL = 16_400, 12, 384, 32
THREADS = (1, 2, 3, 7)
LAYERS = (
    rb.Embedding(TOKENS, 16),  # 2^18 parameters are just exceeded
    rb.Conv1D(32, 3),
    rb.Activation("silu"),
    rb.MaxPool1D(2),
    rb.LSTM(16),
    rb.Dense(3),
)
MODEL = rb.Model(LAYERS, input_shape=(LENGTH,))


@pytest.fixture(autouse=True)
def threads():
    before = _core.num_threads()
    yield
    rb.set_num_threads(before)


@functools.cache
def data():
    """Tokens, of which a few are in most rows; targets; weights."""
    rng = np.random.default_rng(1)
    rare = rng.integers(TOKENS, size=(ROWS, LENGTH))
    x = np.where(rng.random((ROWS, LENGTH)) < 0.3, rng.integers(9, size=rare.shape), rare)
    theta = rng.standard_normal(MODEL.dim) / 4
    return x, rng.integers(3, size=ROWS), theta


def target(rows, dtype, shards=None, mean=None):
    x, y, theta = data()
    return rb.Posterior(
        MODEL,
        x[rows],
        y[rows],
        prior=rb.Normal(1.0, mean=theta.astype(dtype) if mean is None else mean),
        likelihood=rb.Categorical(),
        dtype=dtype,
        shards=shards,
    )


def dense(rows, theta, shards):
    """Gradient of the log likelihood of `rows`, summed over shards."""
    panels = -(-len(rows) // PANEL)
    cuts = [PANEL * (panels * s // shards) for s in range(shards)] + [len(rows)]
    left = [
        target(rows[a:b], theta.dtype, shards=1).value_and_grad(theta)[1]
        for a, b in itertools.pairwise(cuts)
    ]
    while len(left) > 1:
        paired = [a + b for a, b in zip(left[::2], left[1::2], strict=False)]
        left = paired + left[len(left) // 2 * 2 :]
    return np.asarray(left[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shards", [1, 2, 5, 12])
def test_gradient_has_the_bits_of_dense_sums(dtype, shards):
    theta = data()[2].astype(dtype)
    both = np.stack([theta, theta])
    whole = target(slice(None), dtype, shards)
    expected = dense(np.arange(ROWS), theta, shards)
    assert 0.05 < (expected[: TOKENS * 16] != 0).mean() < 0.5
    for number in THREADS:
        rb.set_num_threads(number)
        assert np.asarray(whole.value_and_grad(theta)[1]).tobytes() == expected.tobytes()
        for grad in np.asarray(whole.value_and_grad(both)[1]):
            assert grad.tobytes() == expected.tobytes()
    # the control: sums over other shards are rounded otherwise
    assert dense(np.arange(ROWS), theta, shards % 12 + 1).tobytes() != expected.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite(bad):
    x = data()[0]
    theta = data()[2].astype(np.float32)
    theta[16 * x[40, 3] + 2] = theta[16 * x[300, 7] + 9] = bad
    finite = np.isfinite(theta)  # elsewhere the prior has a say
    expected = dense(np.arange(ROWS), theta, 5)[finite]
    assert 0.001 < np.isnan(expected).mean() < 0.9
    whole = target(slice(None), np.float32, 5)
    for number in THREADS:
        rb.set_num_threads(number)
        grad = np.asarray(whole.value_and_grad(theta)[1])
        assert grad[finite].tobytes() == expected.tobytes()
        assert not np.isfinite(grad[~finite]).any()


def test_minibatches_have_the_bits_of_dense_sums():
    """Half of the rows: the weight of each is 2, a power of two, and so are its shards 4."""
    theta = data()[2].astype(np.float32)
    rows = np.random.default_rng(2).permutation(ROWS)[: ROWS // 2]
    whole = target(slice(None), np.float32)
    expected = 2 * dense(rows, theta, 4)
    for number in THREADS:
        rb.set_num_threads(number)
        assert np.asarray(whole.value_and_grad(theta, rows)[1]).tobytes() == expected.tobytes()
    assert (2 * dense(rows, theta, 3)).tobytes() != expected.tobytes()


METHODS = {
    "hmc": lambda t: rb.HMC(t, step_size=1e-3, num_leapfrog_steps=3),
    "mclmc": lambda t: rb.MCLMC(t, step_size=1e-2, decoherence_length=1.0),
    "sgld": lambda t: rb.SGLD(t, step_size=1e-5, batch_size=192),
    "bbb": lambda t: rb.BBB(t, batch_size=192),
    "sampled kl": lambda t: rb.BBB(t, kl="sampled", num_samples=2),
}


@pytest.mark.parametrize("name", METHODS)
def test_samplers_do_not_depend_on_threads(name):
    method = METHODS[name](target(slice(None), np.float32, 5, mean=0.0))
    found = []
    for number in THREADS:
        rb.set_num_threads(number)
        if hasattr(method, "sample"):
            draws = method.sample(2, warmup=1, chains=1, seed=4, progress=False)
            found.append(draws.positions[0])
        else:
            found.append(np.stack([method.fit(n, seed=4, progress=False).mean for n in (1, 2)]))
    assert len({run.tobytes() for run in found}) == 1
    assert (found[0][0] != found[0][1]).mean() > 0.99  # the control: everything has moved
