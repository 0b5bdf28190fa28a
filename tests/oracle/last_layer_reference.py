"""The oracle of a last layer that is integrated out: a normal over all N rows, in NumPy float64.

The rows of output j are normal given all other parameters, with mean Phi mu_j and covariance
Phi S T Phi' + sigma^2 tau I: N x N matrices, where the native code has K x K ones. tau = T_l T.
Shapes: N rows, H units below the last layer, K = H + bias, J outputs.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle.layer_reference import backward, network
from tests.oracle.reference import LOG_2PI, log_prior_terms


@dataclass(frozen=True)
class Integrated:
    """What is left of a posterior.

    table: layer table of the layers below the last, None: there are none; prior: (G, 6) table of
    their parameters and of the log noise, which is the last parameter; scale: known noise, or None;
    sd: (K,) and mean: (K, J) of the last layer's prior.
    """

    table: np.ndarray | None
    prior: np.ndarray
    x: np.ndarray  # (N, D)
    y: np.ndarray  # (N, J)
    sd: np.ndarray
    mean: np.ndarray
    bias: bool = True
    scale: float | None = None
    temperature: float = 1.0
    likelihood_temperature: float = 1.0

    @property
    def tau(self):
        return self.likelihood_temperature * self.temperature

    def noise(self, theta):
        return np.exp(theta[-1]) if self.scale is None else self.scale

    def features(self, theta):
        """(N, K) of parameters (R,), and what `backward` goes back along."""
        f, tape = (self.x, None) if self.table is None else network(self.table, theta, self.x)
        return np.c_[f, np.ones(len(f))] if self.bias else f, tape

    def integral(self, phi, sigma):
        """Log of the integral over the last layer, its gradient by phi (N, K) and by log sigma."""
        count, outputs = self.y.shape
        wide = (phi * self.sd**2 * self.temperature) @ phi.T  # Phi S T Phi'
        inverse = np.linalg.inv(wide + sigma**2 * self.tau * np.eye(count))
        away = self.y - phi @ self.mean
        alpha = inverse @ away  # (N, J)
        value = 0.5 * outputs * (np.linalg.slogdet(inverse)[1] - count * LOG_2PI)
        value -= 0.5 * np.sum(away * alpha)
        # A power of a normal density is a normal density times a constant.
        value += outputs * count * 0.5 * (np.log(self.tau) + LOG_2PI + 2 * np.log(sigma))
        value -= outputs * count * 0.5 / self.tau * (LOG_2PI + 2 * np.log(sigma))
        terms = 0.5 * (LOG_2PI + 2 * np.log(self.sd))
        value += outputs * np.sum(terms - terms / self.temperature)
        value += outputs * 0.5 * self.sd.size * np.log(self.temperature)

        by_covariance = 0.5 * (alpha @ alpha.T - outputs * inverse)
        by_phi = 2 * by_covariance @ phi * (self.sd**2 * self.temperature) + alpha @ self.mean.T
        by_noise = 2 * sigma**2 * self.tau * np.trace(by_covariance)
        by_noise += outputs * count * (1 - 1 / self.tau)
        return value, by_phi, by_noise

    def value_and_grad(self, theta):
        """Log density () and gradient (R,) at theta (R,)."""
        phi, tape = self.features(theta)
        value, by_phi, by_noise = self.integral(phi, self.noise(theta))
        grad = np.zeros(len(theta))
        if tape is not None:
            delta = by_phi[:, :-1] if self.bias else by_phi
            grad = backward(self.table, theta, tape, delta)[0]
        if self.scale is None:
            grad[-1] = by_noise
        for offset, size, kind, *constants in self.prior:
            part = slice(int(offset), int(offset + size))
            terms, slope = log_prior_terms(kind, *constants, theta[part])
            value += np.sum(terms) / self.temperature
            grad[part] += slope / self.temperature
        return value, grad

    def conditional(self, theta):
        """Mean (K, J) and covariance (K, K) of the last layer's weights given theta (R,)."""
        phi = self.features(theta)[0]
        prior = np.diag(self.sd**2 * self.temperature)
        noise = self.noise(theta) ** 2 * self.tau * np.eye(len(phi))
        gain = prior @ phi.T @ np.linalg.inv(phi @ prior @ phi.T + noise)
        mean = self.mean + gain @ (self.y - phi @ self.mean)
        return mean, prior - gain @ phi @ prior
