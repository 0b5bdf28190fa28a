"""Weight samples and Bayes by Backprop on arrays of a device, against the CPU core.

Noise has the CPU's bits. softplus(rho) is the scalar source of core/math_hd.h, within 3.5 ulp of
the truth, against the CPU's vectors, for which the same holds: 7 ulp between them, float32 alone.
"""

import numpy as np
import pytest

import cpu_device
import ribbit as rb
from ribbit.fits import MeanField

pytest.importorskip("pybind11")  # builds the module of the kernels

SIZES = [1, 2, 3, 4, 5, 7, 255, 1023, 1025, 4099]


@pytest.fixture(scope="module")
def device():
    return cpu_device.register()


# --- weight samples ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_weights_of_a_fit_have_the_bits_of_the_cpu(device, rng, size, dtype):
    mean = rng.normal(size=size).astype(dtype)
    scale = np.exp(3 * rng.normal(size=size)).astype(dtype)
    host, there = (MeanField(a(mean), a(scale)) for a in (np.asarray, device.asarray))
    found = there.sample(5, seed=2**63 + 1)
    np.testing.assert_array_equal(found.get(), host.sample(5, seed=2**63 + 1))
    np.testing.assert_array_equal(there.sample(3, seed=2**63 + 1).get(), found.get()[:3])
    assert np.all(there.sample(5, seed=1).get() != found.get())  # the control


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_reparameterize_is_that_of_the_cpu(device, rng, size, dtype):
    mean = rng.normal(size=size).astype(dtype)
    rho = (4 * rng.normal(size=size)).astype(dtype)
    host = rb.reparameterize(mean, rho, 4, 77, step=2**39 + 1)
    found = rb.reparameterize(device.asarray(mean), device.asarray(rho), 4, 77, step=2**39 + 1)
    assert found.dtype == dtype
    eps = np.finfo(dtype).eps
    bound = 7 * eps * np.abs(host - mean) + 2 * eps * np.abs(host) + 2 * eps * np.abs(mean)
    assert np.all(np.abs(found.get() - host) <= (bound if dtype == "float32" else 0))
    # The noise itself: softplus(64) is 64, so that samples are 64 eps in any precision.
    big = np.full(size, 64, dtype)
    noise = [rb.reparameterize(a(0 * mean), a(big), 2, 5) for a in (np.asarray, device.asarray)]
    np.testing.assert_array_equal(noise[1].get(), noise[0])


def test_reparameterize_refuses(device):
    mean = device.asarray(np.zeros(3))
    for rho, error in (
        (np.zeros(3), TypeError),
        (device.asarray(np.zeros(3, np.float32)), TypeError),
        (device.asarray(np.zeros(4)), ValueError),
        (device.asarray(np.zeros((1, 3))), ValueError),
    ):
        with pytest.raises(error, match=r"^\[reparameterize\] expected .*rho.*, got "):
            rb.reparameterize(mean, rho, 2, 0)
    with pytest.raises(TypeError, match="rho as a NumPy array of dtype float64"):
        rb.reparameterize(np.zeros(3), mean, 2, 0)
