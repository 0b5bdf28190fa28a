"""Networks so wide that a thread packs and differentiates the rows that it also updates.

From 32 chunks of 2,048 parameters per thread on (`Part` in cpp/cpu/layers/part.h): here for two
and three threads, and not for five. No bit of any draw may tell.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

ROWS = 250
HIDDEN = (520, 300, 70)


@pytest.fixture(autouse=True)
def threads_after():
    before = _core.num_threads()
    yield
    rb.set_num_threads(before)


def dense(rows=ROWS):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 50)).astype(np.float32)
    y = np.argmax(x[:, :3] + 0.3 * rng.normal(size=(rows, 3)), axis=1)
    model = rb.mlp(50, HIDDEN, 3, activation="relu")
    return rb.Posterior(model, x, y, likelihood=rb.Categorical(), prior=rb.Normal(0.1))


def sentences():
    rng = np.random.default_rng(6)
    x = rng.integers(0, 40, (150, 9))
    layers = [rb.Embedding(40, 60), rb.LSTM(200), rb.Dense(2)]
    return rb.Posterior(
        rb.Model(layers, input_shape=(9,)),
        x,
        x[:, 0] % 2,
        likelihood=rb.Categorical(),
        prior=rb.Normal(0.1),
    )


def sampled(sampler, **options):
    draws = sampler.sample(3, warmup=2, chains=1, seed=4, progress=False, **options)
    return draws.positions.tobytes()


def fitted(estimator):
    method = rb.BBB(dense(), batch_size=90, estimator=estimator)
    fit = method.fit(5, seed=4, progress=False)
    return fit.mean.tobytes() + fit.scale.tobytes()


RUNS = {
    "SGLD": lambda: sampled(rb.SGLD(dense(), step_size=1e-5, batch_size=90), thin=2),
    "SGHMC": lambda: sampled(rb.SGHMC(dense(), step_size=1e-5, batch_size=90), thin=2),
    "HMC": lambda: sampled(rb.HMC(dense(), step_size=1e-3, num_leapfrog_steps=3)),
    "HMC of several shards": lambda: sampled(
        rb.HMC(dense(2_100), step_size=1e-3, num_leapfrog_steps=3)
    ),
    "LSTM": lambda: sampled(rb.SGLD(sentences(), step_size=1e-5, batch_size=140), thin=2),
    "reparam": lambda: fitted("reparam"),
    "local": lambda: fitted("local"),
    "flipout": lambda: fitted("flipout"),
}


def test_the_networks_are_wide_enough():
    for target in (dense(), sentences()):
        assert 3 * 32 <= -(-target.dim // 2_048) < 5 * 32


@pytest.mark.parametrize("run", RUNS)
def test_any_number_of_threads_gives_the_same_bits(run):
    rb.set_num_threads(1)
    alone = RUNS[run]()
    for threads in (2, 3, 5):
        rb.set_num_threads(threads)
        assert RUNS[run]() == alone


@pytest.mark.parametrize("run", RUNS)
def test_a_team_that_gets_smaller_gives_the_same_bits(run):
    """Four threads cut each matrix by itself; the two and the one that they become do not."""
    rb.set_num_threads(1)
    alone = RUNS[run]()
    rb.set_num_threads(4)
    _core.halve_teams(7)
    try:
        halved = RUNS[run]()
    finally:
        count = _core.halve_teams(0)
    assert halved == alone
    assert count > 0
