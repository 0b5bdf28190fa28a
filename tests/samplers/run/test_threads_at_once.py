"""Python threads that sample at once get the draws they get one after the other, bit by bit.

With the GIL the native calls alone overlap; with a free-threaded interpreter and PYTHON_GIL=0 all
of it does: warmup, adaptation, what samplers and targets remember.
"""

import sys
import sysconfig
from collections.abc import Callable

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends import cpu
from tests.support.at_once import at_once

# Chains this short have not converged, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


def target() -> rb.Posterior:
    x, y = rb.datasets.toy_regression(200, seed=0)
    model = rb.mlp(1, (8, 8), 1, activation="tanh")
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())


def draw(posterior: rb.Posterior, seed: int) -> np.ndarray:
    """Step size and lengths are found in warmup."""
    return rb.HMC(posterior).sample(20, warmup=30, chains=2, seed=seed, progress=False).positions


def same(task: Callable[[int], np.ndarray]) -> None:
    together = at_once(task)
    for i, found in enumerate(together):
        np.testing.assert_array_equal(found, task(i))
    assert not np.array_equal(together[0], together[1])  # of other seeds


def test_a_target_each() -> None:
    same(lambda seed: draw(target(), seed))


def test_one_target_for_all() -> None:
    """What it builds on its first use is built by eight threads."""
    shared = target()
    same(lambda seed: draw(shared, seed))


def test_one_sampler_for_all() -> None:
    hmc = rb.HMC(target(), step_size=0.01, num_leapfrog_steps=8)
    same(lambda seed: hmc.sample(20, chains=2, seed=seed, progress=False).positions)


def test_fits_and_predictions() -> None:
    shared = target()
    x = np.linspace(-1, 1, 50)[:, None]

    def task(seed: int) -> np.ndarray:
        fit = rb.BBB(shared, batch_size=50, learning_rate=1e-2).fit(5, seed=seed, progress=False)
        return fit.predict(x, 64, seed=seed).mean

    same(task)


def test_the_number_by_which_programs_find_a_target_is_one() -> None:
    """Made on first use, of which there are eight."""
    shared = target()
    assert len(set(at_once(lambda _: cpu.xla_number("test", shared)))) == 1


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded interpreter"
)
def test_the_gil_stays_off() -> None:
    """An extension that does not say that it needs none would have switched it on."""
    assert not sys._is_gil_enabled()
