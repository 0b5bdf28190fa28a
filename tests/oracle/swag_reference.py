"""The oracle for SWAG: moments of stored iterates, draws, and the law of iterates.

Slow, float64, from Maddox et al. 2019 (algorithm 1, section 4.2) alone.
"""

import itertools

import numpy as np

from tests.oracle.reference import normal

FIT_DRAW = 13


def moments(iterates, max_rank):
    """Mean (P,), variance (P,) and deviations (K, P) of iterates (T, P)."""
    iterates = np.asarray(iterates, np.float64)
    mean = iterates.mean(axis=0)
    variance = (iterates**2).mean(axis=0) - mean**2
    away = [row - iterates[: t + 1].mean(axis=0) for t, row in enumerate(iterates)]
    return mean, variance, np.array(away[-max_rank:])


def covariance(variance, deviations):
    """The covariance (P, P) of a draw."""
    rank = len(deviations)
    return 0.5 * np.diag(variance) + deviations.T @ deviations / (2.0 * (rank - 1))


def draw(means, variances, deviations, number, *, seed):
    """Draw (P,) of a number, from the members in turn; arrays have the members first."""
    member = number % len(means)
    away, dim = deviations[member], len(means[member])
    address = {"seed": seed, "step": 0, "chain": number, "purpose": FIT_DRAW}
    z1, z2 = normal(dim, **address), normal(len(away), **address, layer=2)
    low_rank = away.T @ z2 / np.sqrt(2.0 * (len(away) - 1))
    return means[member] + np.sqrt(variances[member] / 2.0) * z1 + low_rank


def partitions(rows, size):
    """All ways to cut an epoch of `rows` rows into batches of `size`, in order."""
    if not rows:
        yield []
        return
    for batch in itertools.combinations(rows, size):
        rest = [r for r in rows if r not in batch]
        for others in partitions(rest, size):
            yield [list(batch), *others]


def stationary_law(design, y, *, noise, prior, batch, rate, momentum):
    """Mean (P,) and covariance (P, P) of the iterates at the ends of epochs, in the long run.

    Of gradient descent with momentum on a linear model, whose batches are drawn without
    replacement: an epoch is one of finitely many affine maps of (weights, velocity), all as
    likely, so that both moments solve linear equations.
    """
    rows, dim = design.shape
    eye = np.eye(dim)
    maps, shifts = [], []
    for cut in partitions(list(range(rows)), batch):
        whole, shift = np.eye(2 * dim), np.zeros(2 * dim)
        for at in cut:
            x, scale = design[at], rows / len(at)
            # gradient of the log density: pull - curve @ weights
            curve = scale * x.T @ x / noise**2 + eye / prior**2
            pull = scale * x.T @ y[at] / noise**2
            # v = momentum v + rate / N gradient; weights += v
            slope = -rate / rows * curve
            step = np.block([[eye + slope, momentum * eye], [slope, momentum * eye]])
            push = np.tile(rate / rows * pull, 2)
            whole, shift = step @ whole, step @ shift + push
        maps.append(whole)
        shifts.append(shift)
    mean = np.linalg.solve(np.eye(2 * dim) - np.mean(maps, axis=0), np.mean(shifts, axis=0))
    kicks = [a @ mean + b - mean for a, b in zip(maps, shifts, strict=True)]
    source = np.mean([np.outer(c, c) for c in kicks], axis=0)
    carried = np.mean([np.kron(a, a) for a in maps], axis=0)
    size = 4 * dim * dim
    spread = np.linalg.solve(np.eye(size) - carried, source.reshape(-1)).reshape(2 * dim, -1)
    return mean[:dim], spread[:dim, :dim]
