"""One posterior used by several threads and streams, and by more chains than a grid has blocks."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.device import MOST_ALONG_Y
from ribbit._backends.cuda.density import DeviceDensity
from tests.support.cuda.cpu_device import NAMESPACE, CpuDevice
from tests.support.cuda.problems import tables_of

pytestmark = pytest.mark.kernels

RNG = np.random.default_rng(5)


def density(hidden, device=None, *, rows=9):
    """A regression of 3 features on the CPU's device."""
    x, y = (RNG.normal(size=(rows, n)).astype("f") for n in (3, 1))
    target = rb.Posterior(
        rb.mlp(3, hidden, 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian()
    )
    given = [NAMESPACE.asarray(np.asarray(a)) for a in (target.x, target.y)]
    return target, DeviceDensity(device or CpuDevice(), tables_of(target), *given, None)


def test_a_call_on_another_stream_waits_for_the_one_before():
    device = CpuDevice()
    target, there = density((100, 100), device)
    theta = NAMESPACE.asarray(target.init(1, chains=2))
    for device.current in (1, 1, 2, 2, 1):
        there.value_and_grad(theta)
    assert device.orders == [(2, 1), (1, 2)]


@pytest.mark.parametrize("locked", [True, False])
def test_threads_take_turns(monkeypatch, locked):
    """Two threads that call one posterior; without the lock, the control, both are in its midst."""
    target, there = density((100, 100))
    thetas = [NAMESPACE.asarray(target.init(seed, chains=2)) for seed in (1, 2)]
    alone = [there.value_and_grad(theta)[2].get() for theta in thetas]
    evaluate = DeviceDensity.value_and_grad if locked else DeviceDensity.value_and_grad.__wrapped__
    inside, most = [0], [0]
    real = DeviceDensity._groups

    def slow(self, *arguments):
        inside[0] += 1
        time.sleep(0.5)  # in which the other one comes in, if it can
        most[0] = max(most[0], inside[0])
        inside[0] -= 1
        return real(self, *arguments)

    monkeypatch.setattr(DeviceDensity, "_groups", slow)
    with ThreadPoolExecutor(2) as pool:
        found = [part.result() for part in [pool.submit(evaluate, there, t) for t in thetas]]
    assert most == [1 if locked else 2]
    for parts, expected in zip(found, alone, strict=True):
        if locked:
            np.testing.assert_array_equal(parts[2].get(), expected)


def test_more_chains_than_blocks_of_a_grid():
    """Small networks, one chain per block: the chains of a second launch have the first's bits."""
    target, there = density((2,), rows=2)
    assert there._persistent is not None
    few = target.init(1, chains=3)
    repeats = MOST_ALONG_Y // 3 + 2
    many = NAMESPACE.asarray(np.tile(few, (repeats, 1)))
    parts = there.value_and_grad(many)
    for part, expected in zip(parts, there.value_and_grad(NAMESPACE.asarray(few)), strict=True):
        got, wanted = part.get(), expected.get()
        np.testing.assert_array_equal(got, np.tile(wanted, (repeats, *[1] * (wanted.ndim - 1))))
