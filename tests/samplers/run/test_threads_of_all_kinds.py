"""Eight Python threads that do different things at once, with the bits of one after the other.

Run by a free-threaded interpreter with PYTHON_GIL=0 (`python -m tools.free_threaded`) all of it
overlaps; with the GIL what is native does.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from tests.support.at_once import at_once

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")
X = np.linspace(-1, 1, 40)[:, None]
BATCHES = {"batch_size": 20, "learning_rate": 1e-2}


def target() -> rb.Posterior:
    x, y = rb.datasets.toy_regression(100, seed=0)
    model = rb.mlp(1, (8, 8), 1, activation="tanh")
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())


def chains(sampler: rb.samplers.Sampler, **options: int) -> np.ndarray:
    given = {"warmup": 20, "chains": 2, "seed": 3, **options}
    return sampler.sample(20, progress=False, **given).positions


# What eight threads do with one target; none waits for another.
KINDS: list[Callable[[rb.Posterior], np.ndarray]] = [
    lambda t: chains(rb.HMC(t)),
    lambda t: chains(rb.NUTS(t, step_size=0.01, max_tree_depth=5)),
    lambda t: chains(rb.MCLMC(t), warmup=100),
    lambda t: chains(rb.SGLD(t, step_size=1e-4, batch_size=20), thin=5),
    lambda t: chains(rb.SGHMC(t, step_size=1e-4, batch_size=20), thin=5),
    lambda t: chains(rb.BAOAB(t, step_size=1e-2, batch_size=20), thin=5),
    lambda t: rb.BBB(t, **BATCHES).fit(5, seed=1, progress=False).predict(X, 32, seed=1).mean,
    lambda t: (
        rb.DeepEnsemble(t, members=2, **BATCHES).fit(5, seed=1, progress=False).predict(X).mean
    ),
]


def test_samplers_and_fits_of_one_target() -> None:
    shared = target()
    together = at_once(lambda i: KINDS[i](shared), len(KINDS))
    fresh = target()
    for i, found in enumerate(together):
        np.testing.assert_array_equal(found, KINDS[i](fresh), err_msg=str(i))


def test_one_prediction_and_its_first_use() -> None:
    """What a prediction keeps, its moments and the draws' outputs, is made by eight threads."""
    draws = rb.HMC(target(), step_size=0.01, num_leapfrog_steps=8).sample(
        30, chains=2, seed=0, progress=False
    )

    def ask(p: rb.Prediction, i: int) -> np.ndarray:
        kinds = [
            lambda: p.mean,
            lambda: p.std,
            lambda: p.interval(0.9)[0],
            lambda: p.credible_interval(0.9)[1],
            lambda: p.sample(50, seed=1),
            lambda: p.epistemic_std,
            lambda: p.cdf(np.zeros((len(X), 1))),
            lambda: np.asarray(rb.diagnostics.predictive_rhat(draws, X)),
        ]
        return kinds[i]()

    shared, alone = draws.predict(X), draws.predict(X)
    for i, found in enumerate(at_once(lambda i: ask(shared, i))):
        np.testing.assert_array_equal(found, ask(alone, i), err_msg=str(i))


def test_the_same_draws_are_saved_and_judged(tmp_path: Path) -> None:
    draws = rb.HMC(target(), step_size=0.01, num_leapfrog_steps=8).sample(
        30, chains=2, seed=0, progress=False
    )

    def task(i: int) -> str:
        path = tmp_path / f"{i}.npz"
        draws.save(path)
        again = rb.load(path)
        np.testing.assert_array_equal(again.positions, draws.positions)
        return str(again.summary(X) if i % 2 else draws.summary(X))

    assert len(set(at_once(task))) == 1


def test_stopped_runs_go_on_with_the_bits_of_whole_ones() -> None:
    """Each in its own thread, asked to stop by another while native code runs."""

    def task(i: int) -> np.ndarray:
        sampler = rb.HMC(target(), step_size=0.01, num_leapfrog_steps=8)
        run = sampler.sample(10**6, chains=2, seed=i, warmup=0, max_seconds=120.0, blocking=False)
        while run.progress["draws"] < 5:
            time.sleep(0.001)
        return run.stop().positions

    for i, found in enumerate(at_once(task)):
        assert found.shape[1] >= 5
        sampler = rb.HMC(target(), step_size=0.01, num_leapfrog_steps=8)
        whole = sampler.sample(found.shape[1], chains=2, seed=i, warmup=0, progress=False)
        np.testing.assert_array_equal(found, whole.positions)


FIRST_USE = """
import ribbit as rb
from tests.support.at_once import at_once

names = ["HMC", "Posterior", "BBB", "Draws", "load", "diagnostics", "zoo", "likelihoods"]
found = at_once(lambda i: getattr(rb, names[(i + {shift}) % 8]))
assert [getattr(rb, names[(i + {shift}) % 8]) for i in range(8)] == found
assert rb.samplers.HMC is rb.HMC
"""


@pytest.mark.parametrize("shift", range(3))
def test_names_are_imported_by_eight_threads(shift: int) -> None:
    """Rooms are read when a name of theirs is first asked for, here by threads that begin there."""
    command = [sys.executable, "-c", FIRST_USE.format(shift=shift)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
