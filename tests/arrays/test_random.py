"""Public random numbers and reparameterised samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ribbit as rb
from tests.oracle import reference

PUBLIC, WEIGHT_NOISE = 9, 5


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_normals_are_the_oracle_s(dtype, tolerance):
    z = rb.random.normal((7, 3), 2**63 + 5, stream=2**32 - 1, dtype=dtype)
    assert z.dtype == dtype
    expected = reference.normal(21, seed=2**63 + 5, step=0, chain=2**32 - 1, purpose=PUBLIC)
    np.testing.assert_allclose(z.reshape(-1), expected, rtol=tolerance, atol=tolerance)


@given(n=st.integers(0, 50), more=st.integers(0, 50), seed=st.integers(0, 2**64 - 1))
def test_a_shorter_array_is_the_beginning_of_a_longer_one(n, more, seed):
    longer = rb.random.normal(n + more, seed)
    np.testing.assert_array_equal(rb.random.normal((n,), seed), longer[:n])


def test_shapes():
    assert rb.random.normal((), 0).shape == ()
    assert rb.random.normal((3, 0), 0).shape == (3, 0)
    assert rb.random.normal([2, 3], 0).shape == (2, 3)
    assert rb.random.normal(4, 0).dtype == np.float32


def test_streams_and_seeds_are_independent():
    """|correlation| * sqrt(n) is N(0, 1): above 6 with probability 2e-9 for each of 3 pairs."""
    n = 100_000
    first = rb.random.normal(n, 1)
    for other in (
        rb.random.normal(n, 1, stream=1),
        rb.random.normal(n, 2),
        rb.random.normal(n, 1 << 32),
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) * math.sqrt(n) < 6
    shifted = 0.97 * other + math.sqrt(1 - 0.97**2) * first  # the control must be caught
    assert abs(np.corrcoef(first, shifted)[0, 1]) * math.sqrt(n) > 6


def test_reparameterize_is_its_formula(rng):
    mean, rho = rng.normal(size=(2, 11))
    samples = rb.reparameterize(mean, rho, 5, 77, step=2**39)
    assert samples.shape == (5, 11)
    eps = [
        reference.normal(11, seed=77, step=2**39, chain=s, purpose=WEIGHT_NOISE) for s in range(5)
    ]
    np.testing.assert_allclose(samples, mean + reference.softplus(rho) * eps, rtol=1e-11)
    np.testing.assert_array_equal(rb.reparameterize(mean, rho, 2, 77, step=2**39), samples[:2])
    single = rb.reparameterize(mean.astype(np.float32), rho.astype(np.float32), 5, 77, step=2**39)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, samples, atol=5e-6)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: rb.random.normal(-1, 0), ValueError),
        (lambda: rb.random.normal(2.0, 0), TypeError),
        (lambda: rb.random.normal(True, 0), TypeError),
        (lambda: rb.random.normal((2**33, 4), 0), ValueError),
        (lambda: rb.random.normal(3, -1), ValueError),
        (lambda: rb.random.normal(3, 2**64), ValueError),
        (lambda: rb.random.normal(3, 0.5), TypeError),
        (lambda: rb.random.normal(3, 0, stream=2**32), ValueError),
        (lambda: rb.random.normal(3, 0, dtype=np.float16), TypeError),
        (lambda: rb.reparameterize([0.0], [0.0], 1, 0), TypeError),
        (lambda: rb.reparameterize(np.zeros(2), np.zeros(3), 1, 0), ValueError),
        (lambda: rb.reparameterize(np.zeros(2), np.zeros(2, np.float32), 1, 0), TypeError),
        (lambda: rb.reparameterize(np.zeros((1, 2)), np.zeros((1, 2)), 1, 0), ValueError),
        (lambda: rb.reparameterize(np.zeros(0), np.zeros(0), 1, 0), ValueError),
        (lambda: rb.reparameterize(np.zeros(2), np.zeros(2), 0, 0), ValueError),
        (lambda: rb.reparameterize(np.zeros(2), np.zeros(2), 1, 0, step=2**40), ValueError),
    ],
)
def test_refuses(call, error):
    with pytest.raises(error, match=r"^\[.+\] expected .+, got "):
        call()
