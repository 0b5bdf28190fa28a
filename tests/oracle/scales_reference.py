"""Learned scales of weights in float64, weight by weight: w = m z, what m is, and both gradients.

Shapes: Q weights of the network, S scales; a position is z (Q,), the log noise where it is learned,
and u = log scales (S,).
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tests.oracle.reference import Target, learns_noise, log_prior_terms

NONE = -1


@dataclass(frozen=True)
class ScaledTarget:
    """`plain` says the network, the data and the temperatures; its prior table is one of positions.

    local, shared, slab: (Q,) numbers of a weight's scales, -1 for none (shared and slab need a
    local one); factor: (Q,).
    """

    plain: Target
    prior: np.ndarray  # (G, 6): offset, size, kind, a, b, c of positions
    local: np.ndarray
    shared: np.ndarray
    slab: np.ndarray
    factor: np.ndarray
    scales: int

    @property
    def inner(self):
        """The network with its noise alone: its parameters are weights."""
        return replace(self.plain, prior=np.array([[0, self.known, 0, 1.0, 0, 0]]))

    @property
    def known(self):
        return len(self.local) + (self.plain.noises if learns_noise(self.plain.kind) else 0)

    @property
    def dim(self):
        return self.known + self.scales

    def multiplier(self, i, u):
        """m of weight i, and d log m / d u as a dict over its scales."""
        if self.local[i] == NONE:
            return 1.0, {}
        of = [self.local[i]] + ([self.shared[i]] if self.shared[i] != NONE else [])
        product = math.exp(sum(u[j] for j in of))
        if self.slab[i] == NONE:
            return self.factor[i] * product, dict.fromkeys(of, 1.0)
        c = math.exp(u[self.slab[i]])
        m2 = 1 / (1 / product**2 + 1 / c**2)
        slopes = dict.fromkeys(of, m2 / product**2) | {self.slab[i]: m2 / c**2}
        return self.factor[i] * math.sqrt(m2), slopes

    def weights(self, theta):
        """What the network sees: weights, and the log noise where that is learned."""
        out, u = theta[: self.known].copy(), theta[self.known :]
        for i in range(len(self.local)):
            out[i] *= self.multiplier(i, u)[0]
        return out

    def log_prior(self, theta):
        """Of the position, and its gradient."""
        return replace(self.plain, prior=self.prior).log_prior(theta)

    def parts(self, theta, rows=None):
        """Log likelihood and log prior, untempered, and the gradient (P,) of the tempered sum."""
        w, u = self.weights(theta), theta[self.known :]
        likelihood, by_weight, _ = self.inner.log_likelihood(w, rows)
        prior, grad = self.log_prior(theta)
        through = np.zeros(self.dim)
        through[: self.known] = by_weight
        for i in range(len(self.local)):
            m, slopes = self.multiplier(i, u)
            through[i] *= m
            for scale, slope in slopes.items():
                through[self.known + scale] += by_weight[i] * w[i] * slope
        t = self.plain
        return likelihood, prior, (through / t.likelihood_temperature + grad) / t.temperature

    def log_density(self, theta):
        likelihood, prior, _ = self.parts(theta)
        t = self.plain
        return (likelihood / t.likelihood_temperature + prior) / t.temperature


__all__ = ["NONE", "ScaledTarget", "log_prior_terms"]
