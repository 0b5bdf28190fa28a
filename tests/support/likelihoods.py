"""Every likelihood in the order of the codes, and what tests need of it: a new one adds its line.

Shapes: N rows, K outputs, J columns of y.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

import ribbit as rb

SCALE, SHAPE = 0.3, 4.0  # of those that have one


@dataclass(frozen=True)
class Case:
    """A likelihood.

    Attributes
    ----------
    make : callable of scale and shape
        The likelihood; it takes of them what it has.
    outputs : int
        K of small problems.
    density : callable of outputs (N, K), y (N, J), scale and shape
        Normalised log densities, to be summed over the last axis; a learned scale is given.
    draw : callable of a generator, (N, J) and K
        A y that can occur.
    """

    make: Callable[[float, float], rb.likelihoods.Likelihood]
    outputs: int
    density: Callable[[Any, Any, float, float], Any]
    draw: Callable[[Any, tuple[int, int], int], Any] = lambda rng, shape, _: rng.normal(size=shape)

    @property
    def likelihood(self) -> rb.likelihoods.Likelihood:
        """That of `SCALE` and `SHAPE`."""
        return self.make(SCALE, SHAPE)

    def labels(self, rng, rows, outputs):
        """A y (N, J) of a network with `outputs`, as float64."""
        columns = self.likelihood._columns("labels", (outputs,))
        return self.draw(rng, (rows, columns), outputs).astype(float)


def hetero(f, y, scale, shape, *, floor=0.0):
    mean, raw = np.split(f, 2, axis=-1)
    return stats.norm.logpdf(y, mean, np.hypot(floor, np.log1p(np.exp(raw))))


def floored(f, y, scale, shape):
    return hetero(f, y, scale, shape, floor=shape)


def categorical(f, y, scale, shape):
    return np.take_along_axis(special.log_softmax(f, axis=-1), y.astype(int), axis=-1)


CASES = {
    "gaussian": Case(
        lambda scale, _: rb.Gaussian(scale),
        2,
        lambda f, y, scale, _: stats.norm.logpdf(y, f, scale),
    ),
    "learned": Case(
        lambda *_: rb.Gaussian(),
        1,
        lambda f, y, scale, _: stats.norm.logpdf(y, f, scale),
    ),
    "heteroscedastic": Case(lambda *_: rb.HeteroscedasticGaussian(), 4, hetero),
    "categorical": Case(
        lambda *_: rb.Categorical(),
        5,
        categorical,
        lambda rng, shape, outputs: rng.integers(0, outputs, size=shape),
    ),
    "bernoulli": Case(
        lambda *_: rb.Bernoulli(),
        3,
        lambda f, y, *_: stats.bernoulli.logpmf(y, special.expit(f)),
        lambda rng, shape, _: rng.integers(0, 2, size=shape),
    ),
    "poisson": Case(
        lambda *_: rb.Poisson(),
        2,
        lambda f, y, *_: stats.poisson.logpmf(y, np.exp(f)),
        lambda rng, shape, _: rng.poisson(1.5, size=shape),
    ),
    "studentt": Case(
        lambda scale, shape: rb.StudentTNoise(shape, scale),
        2,
        lambda f, y, scale, shape: stats.t.logpdf(y, shape, f, scale),
    ),
    "studentt-learned": Case(
        lambda _, shape: rb.StudentTNoise(shape),
        1,
        lambda f, y, scale, shape: stats.t.logpdf(y, shape, f, scale),
    ),
    "heteroscedastic-floored": Case(
        lambda _, shape: rb.HeteroscedasticGaussian(min_sd=shape), 4, floored
    ),
}
EVERY = [case.likelihood for case in CASES.values()]
BY_KIND = list(CASES.values())
