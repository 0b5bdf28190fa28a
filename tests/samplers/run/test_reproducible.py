"""Bit-identity on a target that is large enough for calls to use several threads.

1,100 rows make four shards; a gradient costs 3 MFLOP, so that every native call is cut among the
threads (small calls stay on one thread whatever their number).
"""

from collections.abc import Iterator

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

SETTINGS = {
    "fixed": {"step_size": 2e-3, "num_leapfrog_steps": 8},
    "random step sizes": {"step_size": 2e-3, "trajectory_length": 0.01, "step_size_jitter": 0.3},
    "adaptive": {
        "step_size": "auto",
        "num_leapfrog_steps": 6,
        "inverse_mass_matrix": "adapt",
    },
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = _core.num_threads()
    yield
    rb.set_num_threads(before)


def target(dtype: type = np.float32) -> rb.Posterior:
    x = rb.random.normal((1100, 8), seed=3).astype(dtype)
    y = np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * x[:, :1]
    model = rb.mlp(8, (50,), 1, activation="silu")
    return rb.Posterior(model, x, y, prior=rb.Normal(0.5), likelihood=rb.Gaussian(0.3), dtype=dtype)


def same(a: rb.Draws, b: rb.Draws, chains: slice = slice(None)) -> None:
    assert a.positions[chains].tobytes() == b.positions.tobytes()
    for name, values in a.stats.items():
        np.testing.assert_array_equal(values[chains], b.stats[name], err_msg=name)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads(name: str, dtype: type) -> None:
    hmc = rb.HMC(target(dtype), **SETTINGS[name])
    runs = []
    for count in (1, 2, 4, 3):
        rb.set_num_threads(count)
        runs.append(hmc.sample(5, warmup=40, chains=3, seed=4, progress=False))
    for run in runs[1:]:
        same(runs[0], run)
    moved = runs[0].stats["accepted"].any(axis=1)
    assert moved.all(), "the control: draws that never move are always equal"


@pytest.mark.parametrize("name", SETTINGS)
def test_chains_alone_and_together(name: str) -> None:
    hmc = rb.HMC(target(), **SETTINGS[name])
    rb.set_num_threads(2)
    together = hmc.sample(4, warmup=40, chains=3, seed=4, progress=False)
    for chain in range(3):
        alone = hmc.sample(4, warmup=40, chains=[chain], seed=4, progress=False)
        same(together, alone, slice(chain, chain + 1))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("first", [1, 3])
def test_split_by_resume(name: str, first: int) -> None:
    hmc = rb.HMC(target(), **SETTINGS[name])
    rb.set_num_threads(2)
    whole = hmc.sample(5, warmup=40, chains=2, seed=4, progress=False)
    start = hmc.sample(first, warmup=40, chains=2, seed=4, progress=False)
    rb.set_num_threads(1)
    rest = hmc.sample(5 - first, resume=start, progress=False)
    joined = np.concatenate([start.positions, rest.positions], axis=1)
    assert joined.tobytes() == whole.positions.tobytes()


def test_gradient_and_forward_do_not_depend_on_threads() -> None:
    density = target()
    theta = density.init(seed=1, chains=5)
    x = rb.random.normal((700, 8), seed=8)
    results = []
    for count in (1, 2, 4):
        rb.set_num_threads(count)
        lp, grad = density.value_and_grad(theta)
        rows = np.arange(1099, 100, -1)
        minibatch = density.value_and_grad(theta, rows=rows)
        outputs = density.model.apply(theta, x)
        results.append((lp, grad, *minibatch, outputs))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()
