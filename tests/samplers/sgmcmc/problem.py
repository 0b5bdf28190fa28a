"""A linear model for SGLD, SGHMC and BAOAB, its gradient by hand, and the rules of their steps."""

import numpy as np

import ribbit as rb

ROWS, DIM = 75, 3
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, DIM - 1))
Y = X @ [0.5, -1.0] + 0.3 + 0.4 * RNG.normal(size=ROWS)
DESIGN = np.c_[X, np.ones(ROWS)]


def target(dtype=np.float64, hidden=()):
    return rb.Posterior(
        rb.mlp(DIM - 1, hidden, 1),
        X,
        Y,
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.4),
        dtype=dtype,
    )


def gradient(theta, rows):
    """Of the linear model's log density on a batch, scaled by N/n."""
    residual = Y[rows] - DESIGN[rows] @ theta
    return ROWS / len(rows) * DESIGN[rows].T @ residual / 0.4**2 - theta / 0.7**2


CASES = {
    "sgld": (rb.SGLD, {"step_size": 1e-3}, {"kind": "sgld"}),
    "preconditioned": (
        rb.SGLD,
        {"step_size": 1e-4, "preconditioner": "rmsprop"},
        {"kind": "sgld", "decay": 0.99, "epsilon": 1e-5, "adapt_until": 30},
    ),
    "sghmc": (
        rb.SGHMC,
        {"step_size": 1e-4, "friction": 0.15},
        {"kind": "sghmc", "friction": 0.15},
    ),
    "baoab": (
        rb.BAOAB,
        {"step_size": 0.02, "friction": 1.5},
        {"kind": "kinetic", "friction": 1.5, "scale": 0.7, "cooling": 15.0},
    ),
}
