"""The float64 NumPy answer that every entry is held to.

Layers, prior and likelihood are those of the oracle that judges Ribbit's tests; the algorithms
around them are written for clarity, one chain and one full batch at a time. It shares no code with
the entries it judges. Parameters are flat, per layer weight (in, out) in C order and bias (out,).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracle.activation_reference import activation as activate
from tests.oracle.activation_reference import sigmoid, softplus
from tests.oracle.op_reference import Row, dense, dense_back
from tests.oracle.reference import (
    LIKELIHOODS,
    PRIORS,
    log_likelihood_terms,
    log_prior_terms,
    mlp_table,
)

Array = NDArray[np.float64]


@functools.cache
def dense_rows(sizes: tuple[int, ...]) -> list[Any]:
    """Rows of the layer table of an MLP's dense layers."""
    table, _ = mlp_table(sizes[0], sizes[1:-1], sizes[-1], "identity")
    return [Row(*map(int, entries)) for entries in table[::2]]


def log_prior(theta: Array, scale: float) -> tuple[float, Array]:
    """Log density () of iid normals at theta (P,), and its gradient (P,)."""
    terms, gradient = log_prior_terms(PRIORS.index("normal"), scale, 0.0, 0.0, theta)
    return float(np.sum(terms)), gradient


@dataclass(frozen=True)
class Density:
    """Log density of an MLP under an iid normal prior, with its gradient.

    Parameters
    ----------
    sizes : tuple of int
        Layer widths, input and output included.
    activation : {"silu", "relu"}
        Between layers; none after the last.
    likelihood : {"gaussian", "categorical"}
        Normalised; gaussian takes `y` (N, 1), categorical takes `y` (N,) of labels.
    prior_scale, noise_scale : float
        Standard deviations of the prior and of the observation noise (gaussian only).
    x, y : ndarray
        Inputs (N, D) and targets.
    """

    sizes: tuple[int, ...]
    activation: str
    likelihood: str
    prior_scale: float
    noise_scale: float
    x: Array
    y: NDArray[Any]

    def forward(self, theta: Array) -> tuple[Array, list[Array], list[Array]]:
        """Output (N, K), the input of each layer, the activation's slope after each hidden one."""
        inputs, slopes = [self.x], []
        *hidden, last = dense_rows(self.sizes)
        for row in hidden:
            value, slope = activate(self.activation, dense(row, theta, inputs[-1]))
            inputs.append(value)
            slopes.append(slope)
        return dense(last, theta, inputs[-1]), inputs, slopes

    def log_likelihood(self, output: Array) -> tuple[float, Array]:
        """Log likelihood () and its gradient (N, K) with respect to the output."""
        kind, y = LIKELIHOODS.index(self.likelihood), self.y.reshape(len(self.y), -1)
        terms, delta, _ = log_likelihood_terms(kind, self.noise_scale, output, y)
        return float(np.sum(terms)), delta

    def value_and_grad(self, theta: Array) -> tuple[float, Array]:
        """Log density () and gradient (P,) at one parameter vector."""
        output, inputs, slopes = self.forward(theta)
        loglik, delta = self.log_likelihood(output)
        logprior, gradient = log_prior(theta, self.prior_scale)
        for k, row in reversed(list(enumerate(dense_rows(self.sizes)))):
            delta, found = dense_back(row, theta, inputs[k], delta)
            for offset, total, _ in found:
                gradient[offset : offset + total.size] += total
            if k > 0:
                delta *= slopes[k - 1]
        return loglik + logprior, gradient


def unravel(theta: Array, sizes: tuple[int, ...]) -> list[tuple[Array, Array]]:
    """Split theta (P,) into views [(weight (in, out), bias (out,))]."""
    layers, at = [], 0
    for fan_in, fan_out in pairwise(sizes):
        end = at + fan_in * fan_out
        layers.append((theta[at:end].reshape(fan_in, fan_out), theta[end : end + fan_out]))
        at = end + fan_out
    return layers


@dataclass(frozen=True)
class Trajectory:
    """End of a leapfrog trajectory: position (P,), momentum (P,), log density.

    `before` is the position one step earlier: the control that a check must reject.
    """

    position: Array
    momentum: Array
    logdensity: float
    before: Array
    start_logdensity: float


def leapfrog(
    density: Density, position: Array, momentum: Array, step_size: float, num_steps: int
) -> Trajectory:
    """Run `num_steps` leapfrog steps with unit mass: half kick, drift, half kick."""
    start, grad = density.value_and_grad(position)
    value = start
    before = position
    for _ in range(num_steps):
        before = position
        momentum = momentum + 0.5 * step_size * grad
        position = position + step_size * momentum
        value, grad = density.value_and_grad(position)
        momentum = momentum + 0.5 * step_size * grad
    return Trajectory(position, momentum, value, before, start)


def hmc(
    density: Density,
    position: Array,
    step_size: float,
    num_steps: int,
    num_draws: int,
    rng: np.random.Generator,
) -> tuple[Array, Array, float]:
    """Metropolis-corrected HMC with unit mass.

    Returns positions (draws, P), log densities (draws,) and the mean acceptance probability.
    """
    value, _ = density.value_and_grad(position)
    positions, values, rates = [], [], []
    for _ in range(num_draws):
        momentum = rng.standard_normal(position.size)
        end = leapfrog(density, position, momentum, step_size, num_steps)
        kinetic = 0.5 * (end.momentum @ end.momentum - momentum @ momentum)
        rates.append(float(np.exp(min(0.0, float(end.logdensity - value - kinetic)))))
        if rng.random() < rates[-1]:
            position, value = end.position, end.logdensity
        positions.append(position)
        values.append(value)
    return np.array(positions), np.array(values), float(np.mean(rates))


def outputs(theta: Array, sizes: tuple[int, ...], activation: str, x: Array) -> Array:
    """Compute the outputs (N, K) of one weight vector (P,) at inputs x (N, D)."""
    *hidden, last = dense_rows(sizes)
    for row in hidden:
        x = activate(activation, dense(row, theta, x))[0]
    return np.asarray(dense(last, theta, x))


def softmax(logits: Array) -> Array:
    """Probabilities over the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def negative_elbo(
    density: Density, mean: Array, rho: Array, noise: Array
) -> tuple[float, Array, Array]:
    """KL(q | prior) - log likelihood at mean + softplus(rho) noise; its gradients in mean, rho.

    The KL of the independent normals is in closed form and summed over the parameters.
    """
    scale, prior = softplus(rho), density.prior_scale
    weights = mean + scale * noise
    value, grad = density.value_and_grad(weights)
    # the density's prior is taken out again: here it enters through the KL
    logprior, by_prior = log_prior(weights, prior)
    value, grad = value - logprior, grad - by_prior
    kl = np.sum(np.log(prior / scale) + 0.5 * (scale**2 + mean**2) / prior**2 - 0.5)
    by_scale = -grad * noise + scale / prior**2 - 1.0 / scale
    return float(kl) - value, -grad + mean / prior**2, by_scale * sigmoid(rho)


def adam(
    parameters: Array, moments: tuple[Array, Array], grad: Array, step: int, rate: float
) -> None:
    """One step downhill in place (Kingma and Ba 2015); `step` counts from 1."""
    first, second = moments
    first += 0.1 * (grad - first)
    second += 0.001 * (grad**2 - second)
    corrected = np.sqrt(second / (1.0 - 0.999**step)) + 1e-8
    parameters -= rate * first / (1.0 - 0.9**step) / corrected
