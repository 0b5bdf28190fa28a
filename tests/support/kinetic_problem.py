"""A linear model of six rows, all of whose orders of batches can be gone through."""

import itertools

import numpy as np

import ribbit as rb

ROWS, BATCH, DIM, PRIOR, NOISE, FRICTION = 6, 2, 2, 0.7, 0.4, 8.0
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, DIM - 1))
DESIGN = np.c_[X, np.ones(ROWS)]
Y = DESIGN @ [0.5, -1.0] + NOISE * RNG.normal(size=ROWS)


def target():
    return rb.Posterior(
        rb.mlp(DIM - 1, (), 1),
        X,
        Y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(NOISE),
        dtype=np.float64,
    )


def quadratic(rows):
    """Hessian and force of the energy estimated on a batch."""
    some, weight = DESIGN[list(rows)], ROWS / len(rows) / NOISE**2
    return weight * some.T @ some + np.eye(DIM) / PRIOR**2, weight * some.T @ Y[list(rows)]


def batches(order):
    """Every sweep of an order of using batches, as lists of rows: equally likely."""
    if order == "all":
        return [[range(ROWS)]]
    if order == "afresh":
        return [[rows] for rows in itertools.combinations(range(ROWS), BATCH)]
    found = {
        tuple(tuple(sorted(p[i : i + BATCH])) for i in range(0, ROWS, BATCH))
        for p in itertools.permutations(range(ROWS))
    }
    return [[*p, *p[::-1]] if order == "there and back" else [*p, *p] for p in sorted(found)]


def sweeps(order):
    """Hessians (B, n, P, P) and forces (B, n, P) of the B sweeps of an order."""
    found = [[quadratic(rows) for rows in sweep] for sweep in batches(order)]
    return tuple([[one[i] for one in sweep] for sweep in found] for i in (0, 1))
