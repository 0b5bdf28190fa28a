"""Exact draws of a small network's posterior, and whether a transition has left their law alone.

theta from the prior and y given theta make theta a draw of the posterior given y. So over
replicates theta has the law of the prior, |theta|^2 is chi-square with P degrees of freedom, and
the squared residuals are chi-square with N: three Kolmogorov-Smirnov tests whose smallest p times
three must exceed 1e-6.

The network is 1-2-1 tanh with four rows and noise as large as the signal: the prior matters, so a
prior precision off by 5 % shows.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

HIDDEN, NUM_ROWS, NOISE = 2, 4, 1.0
DIM = 3 * HIDDEN + 1
X = np.linspace(-1.5, 1.5, NUM_ROWS)
REPLICATES = 20_000


def network(theta):
    """Hidden units (C, N, H) and output (C, N): weights in the flat order of mlp(1, (2,), 1)."""
    w, b, v = theta[:, :HIDDEN], theta[:, HIDDEN : 2 * HIDDEN], theta[:, 2 * HIDDEN : 3 * HIDDEN]
    hidden = np.tanh(X[None, :, None] * w[:, None, :] + b[:, None, :])
    return hidden, np.einsum("cnh,ch->cn", hidden, v) + theta[:, -1:]


def joint_draw(seed, replicates=REPLICATES):
    """theta (R, P) from the prior N(0, 1) and y (R, N) given theta."""
    rng = np.random.default_rng((1234, seed))
    theta = rng.normal(size=(replicates, DIM))
    return theta, network(theta)[1] + NOISE * rng.normal(size=(replicates, NUM_ROWS))


@dataclass(frozen=True)
class Outcome:
    """What a run over all replicates gave."""

    p: float  # smallest Kolmogorov-Smirnov p, times the number of tests
    acceptance: float
    movement: float  # mean absolute change of a parameter

    @property
    def alarms(self):
        found = []
        if not self.p > 1e-6:
            found.append("law")
        if not 0.5 <= self.acceptance <= 0.95:
            found.append("acceptance")
        if not self.movement >= 0.3:
            found.append("movement")
        return found


def judge(start, end, y, acceptance):
    end = np.asarray(end, np.float64)
    with np.errstate(over="ignore"):
        squares = np.sum(((y - network(end)[1]) / NOISE) ** 2, axis=1)
        tests = [
            stats.kstest(end.ravel(), stats.norm.cdf, method="asymp"),
            stats.kstest(np.sum(end**2, axis=1), stats.chi2(DIM).cdf, method="asymp"),
            stats.kstest(squares, stats.chi2(NUM_ROWS).cdf, method="asymp"),
        ]
    return Outcome(
        p=float(min(1.0, 3 * min(test.pvalue for test in tests))),
        acceptance=float(np.mean(acceptance)),
        movement=float(np.mean(np.abs(end - start))),
    )


class ManyDatasets:
    """Log density and gradient of R chains, each with its own y; ``fault`` spoils it."""

    def __init__(self, y, fault=None):
        self.y = y
        self.precision = 1.05 if fault == "prior precision +5 %" else 1.0
        self.sign = -1.0 if fault == "wrong sign of the gradient" else 1.0
        self.stale = fault == "stale energy"
        self.last = None

    def __call__(self, theta):
        hidden, f = network(theta)
        residual = (self.y - f) / NOISE**2
        value = -0.5 * NOISE**2 * np.sum(residual**2, axis=1)
        value = value - 0.5 * self.precision * np.sum(theta**2, axis=1)
        v = theta[:, None, 2 * HIDDEN : 3 * HIDDEN]
        delta = residual[:, :, None] * v * (1 - hidden**2)
        grad = np.concatenate(
            [
                np.einsum("cnh,n->ch", delta, X),
                np.sum(delta, axis=1),
                np.einsum("cnh,cn->ch", hidden, residual),
                np.sum(residual, axis=1, keepdims=True),
            ],
            axis=1,
        )
        if self.stale:  # the energy of the position before
            value, self.last = (value if self.last is None else self.last), value
        return value, self.sign * (grad - self.precision * theta)
