"""How an epoch is cut into batches, and what a short last batch would do to SGLD.

The exact posterior of a linear model, N = 1,000 and 1,001 rows in batches of 100: with a last batch
of one row the variance of SGLD would be 1.6 to 6 times as large.
"""

import functools

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.batches import Batches

CHAINS, DIM, NOISE, BATCH = 24, 4, 1.0, 100
# Step sizes, steps and number of the draws. The steps share no factor with the 10 or 11 batches of
# an epoch: noise without replacement cancels at its end.
RUNS = {2e-5: (49, 1200), 5e-5: (21, 1200), 2e-4: (7, 2500)}


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (7, 3), (10, 3), (12, 4), (1001, 100), (1001, 1000), (5, None)]
)
def test_batches_differ_by_one_row_at_most_and_share_the_epoch(rows, size):
    batches = Batches(rows, size)
    count = 1 if size is None else -(-rows // size)
    assert batches.count == count
    taken, places = [], []
    for step in range(count, 2 * count):
        place = batches.places(step)
        taken.append(batches.rows(step))
        if place is not None:
            assert place[0] == 1
            assert place[2] == taken[-1]
            places += range(place[1], place[1] + place[2])
    assert sum(taken) == rows
    assert max(taken) - min(taken) <= 1
    assert max(taken) <= (size or rows)
    assert tuple(dict.fromkeys(taken)) == batches.sizes
    assert not places or places == list(range(rows))


def rows_of(number):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1001, DIM))
    y = x @ np.linspace(-1, 1, DIM) + NOISE * rng.normal(size=1001)
    return x[:number], y[:number]


@functools.cache
def variance(number, step_size):
    """Variance of rb.SGLD's draws over the exact one, averaged over the parameters."""
    x, y = rows_of(number)
    target = rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(DIM,)),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(NOISE),
    )
    exact = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(DIM))
    mean = exact @ x.T @ y / NOISE**2
    thin, count = RUNS[step_size]  # 0.5 to 0.7 relaxation times, 2 / (step_size N)
    draws = rb.SGLD(target, step_size=step_size, batch_size=BATCH).sample(
        count,
        warmup=20 * thin,
        thin=thin,
        chains=CHAINS,
        seed=11,
        init=mean.astype(np.float32),
        progress=False,
    )
    spread = np.asarray(draws.positions, np.float64) - mean
    return float(np.mean((spread**2).mean(axis=(0, 1)) / np.diag(exact)))


@pytest.mark.parametrize("step_size", RUNS)
def test_one_row_more_does_not_widen_the_posterior(step_size):
    # 60,000 effective squares or 140,000: standard errors of 0.8 % and 0.5 %, false-fail rates
    # below 1e-7. At the largest step 91 rows at a time for 100 are worth 2 % (steps by hand).
    ratio = variance(1001, step_size) / variance(1000, step_size)
    assert ratio == pytest.approx(1.0, abs=0.05)


def test_a_last_batch_of_one_row_would_widen_it():
    """The control: the steps of SGLD by hand, with the batches cut at 100, 200, .., 1,000."""
    x, y = rows_of(1001)
    exact = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(DIM))
    mean = exact @ x.T @ y / NOISE**2
    rng = np.random.default_rng(6)
    eps, theta, seen = 2e-4, np.tile(mean, (CHAINS, 1)), []
    for _ in range(400):
        order = rng.permutation(1001)
        for begin in range(0, 1001, BATCH):
            rows = order[begin : begin + BATCH]
            residual = y[rows] - theta @ x[rows].T
            grad = 1001 / len(rows) * residual @ x[rows] / NOISE**2 - theta
            theta = theta + 0.5 * eps * grad + np.sqrt(eps) * rng.normal(size=theta.shape)
            seen.append((theta - mean) ** 2)
    ratio = np.mean(np.mean(seen, axis=(0, 1)) / np.diag(exact))
    assert ratio > 2.0
