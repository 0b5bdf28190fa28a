"""Bit-identity where the parameters are more than one chunk of the core (2,048).

200 rows, 5,977 parameters and one chain, so that two threads share every step: its rows, its layers
and its chunks; local and flipout have work for more. Two chains would have a thread each. Teams
whose threads come late go on with half of them: here after so many barriers, whatever the load.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

ROWS = 200
NEVER = 2**30
MAKES = {
    "reparam": lambda d, b: rb.BBB(d, batch_size=b, estimator="reparam"),
    "local": lambda d, b: rb.BBB(d, batch_size=b, estimator="local"),
    "flipout": lambda d, b: rb.BBB(d, batch_size=b, estimator="flipout"),
    "sampled kl": lambda d, b: rb.BBB(d, batch_size=b, kl="sampled", num_samples=2),
    "sgld": lambda d, b: rb.SGLD(d, batch_size=b, step_size=1e-5),
    "preconditioned": lambda d, b: rb.SGLD(
        d, batch_size=b, step_size=1e-6, preconditioner="rmsprop"
    ),
    "sghmc": lambda d, b: rb.SGHMC(d, batch_size=b, step_size=1e-6),
    "nuts": lambda d, b: rb.NUTS(d, step_size=1e-3, max_tree_depth=4),
    "hmc": lambda d, b: rb.HMC(d, step_size=1e-3, num_leapfrog_steps=20),
    "mclmc": lambda d, b: rb.MCLMC(d, step_size=1e-2, decoherence_length=1.0),
    "integrated": lambda d, b: rb.HMC(d, step_size=1e-3, num_leapfrog_steps=20),
    "scales": lambda d, b: rb.HMC(d, step_size=1e-4, num_leapfrog_steps=20),
    "dropout": lambda d, b: rb.MCDropout(d, batch_size=b),
    "concrete": lambda d, b: rb.MCDropout(d, batch_size=b, rate="concrete"),
    "ensemble": lambda d, b: rb.DeepEnsemble(d, batch_size=b, members=1),
}
WHOLE = {"nuts", "hmc", "mclmc", "integrated", "scales"}  # take all rows


@pytest.fixture(autouse=True)
def threads():
    before = _core.num_threads()
    yield
    rb.set_num_threads(before)
    _core.halve_teams(0)


def target(name):
    rows = 3 * ROWS if name == "integrated" else ROWS  # shared out by shards alone
    x = np.random.default_rng(0).normal(size=(rows, 8))
    drops = [rb.Dropout(0.2)] if name in ("dropout", "concrete") else []
    layers = [rb.Dense(72), rb.Activation("silu"), rb.Dense(72), rb.Activation("relu")]
    model = rb.Model([*layers, *drops, rb.Dense(1)], input_shape=(8,))
    y = np.sin(x.sum(axis=1))
    return rb.Posterior(
        model,
        x,
        y,
        prior=rb.Normal(rb.HalfNormal(0.5) if name == "scales" else 0.5),
        likelihood=rb.Gaussian(),
        marginalize="last_layer" if name == "integrated" else None,
    )


def result(sampler):
    """Arrays that a short run ends with, whose first is (members, P)."""
    if hasattr(sampler, "sample"):
        draws = sampler.sample(2, warmup=2, chains=1, seed=4, progress=False)
        return [draws.positions[:, 1], draws.positions[:, 0]]
    fit = sampler.fit(2, seed=4, progress=False)
    if hasattr(fit, "elbo"):
        return [fit.mean[None], fit.scale, fit.elbo]
    return [np.atleast_2d(fit.theta)]


def runs_of(sampler, teams):
    """What each (threads, barriers until a team halves) gives, and how many teams halved."""
    runs, halved = [], []
    for threads, barriers in teams:
        rb.set_num_threads(threads)
        _core.halve_teams(barriers)
        runs.append(result(sampler))
        halved.append(_core.halve_teams(0))
    return runs, halved


@pytest.mark.parametrize(
    ("name", "batch"), [(n, b) for n in MAKES for b in (128, ROWS) if b == ROWS or n not in WHOLE]
)
def test_bits_do_not_depend_on_threads(name, batch):
    density = target(name)
    assert density.dim > 2 * 2048
    teams = [(1, NEVER), (2, NEVER), (3, NEVER), (2, 1), (2, 6), (4, 3)]
    runs, halved = runs_of(MAKES[name](density, batch), teams)
    for run in runs[1:]:
        for a, b in zip(runs[0], run, strict=True):
            assert a.tobytes() == b.tobytes()
    start = density.init(seed=4, chains=len(runs[0][0]))  # the control: everything has moved
    assert (runs[0][0][:, : density.dim] != start).mean() > 0.99
    assert halved[:3] == [0, 0, 0]
    assert halved[3] > 0
