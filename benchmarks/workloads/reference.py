"""The float64 NumPy answer that every entry is held to.

Written for clarity, one chain and one full batch at a time; it shares no code with the entries
it judges. Parameters are flat, per layer: weight (in, out) in C order, then bias (out,).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
        layers = unravel(theta, self.sizes)
        for weight, bias in layers[:-1]:
            value, slope = activate(inputs[-1] @ weight + bias, self.activation)
            inputs.append(value)
            slopes.append(slope)
        return inputs[-1] @ layers[-1][0] + layers[-1][1], inputs, slopes

    def value_and_grad(self, theta: Array) -> tuple[float, Array]:
        """Log density () and gradient (P,) at one parameter vector."""
        output, inputs, slopes = self.forward(theta)
        loglik, delta = self._likelihood(output)
        blocks: list[Array] = []
        layers = unravel(theta, self.sizes)
        for k in range(len(layers) - 1, -1, -1):
            blocks.append(delta.sum(axis=0))
            blocks.append((inputs[k].T @ delta).ravel())
            if k > 0:
                delta = delta @ layers[k][0].T
                delta *= slopes[k - 1]
        scaled = theta / self.prior_scale
        logprior = -0.5 * scaled @ scaled - theta.size * log_normaliser(self.prior_scale)
        return float(loglik + logprior), np.concatenate(blocks[::-1]) - scaled / self.prior_scale

    def _likelihood(self, output: Array) -> tuple[float, Array]:
        """Log likelihood and its gradient (N, K) with respect to the output."""
        if self.likelihood == "gaussian":
            residual = (self.y - output) / self.noise_scale
            constant = residual.size * log_normaliser(self.noise_scale)
            return float(-0.5 * np.sum(residual**2) - constant), residual / self.noise_scale
        shifted = output - output.max(axis=1, keepdims=True)
        logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        rows = np.arange(len(output))
        delta = -np.exp(logprobs)
        delta[rows, self.y] += 1.0
        return float(logprobs[rows, self.y].sum()), delta


def log_normaliser(scale: float) -> float:
    """log(scale sqrt(2 pi))."""
    return float(np.log(scale) + 0.5 * np.log(2 * np.pi))


def unravel(theta: Array, sizes: tuple[int, ...]) -> list[tuple[Array, Array]]:
    """Split theta (..., P) into views [(weight (..., in, out), bias (..., out))]."""
    layers, at = [], 0
    for fan_in, fan_out in pairwise(sizes):
        weight = theta[..., at : at + fan_in * fan_out]
        at += fan_in * fan_out
        shape = (*theta.shape[:-1], fan_in, fan_out)
        layers.append((weight.reshape(shape), theta[..., at : at + fan_out]))
        at += fan_out
    return layers


def activate(pre: Array, activation: str) -> tuple[Array, Array]:
    """Activation and its slope; overwrites `pre` (fresh arrays of this size cost page faults)."""
    if activation == "relu":
        slope = np.heaviside(pre, 0.0)
        np.maximum(pre, 0.0, out=pre)
        return pre, slope
    gate = np.exp(-pre)
    gate += 1.0
    np.reciprocal(gate, out=gate)
    value = pre * gate
    pre -= value
    pre += 1.0
    pre *= gate  # gate (1 + pre - pre gate)
    return value, pre


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
    layers = unravel(theta, sizes)
    for weight, bias in layers[:-1]:
        x = activate(x @ weight + bias, activation)[0]
    return np.asarray(x @ layers[-1][0] + layers[-1][1])


def softmax(logits: Array) -> Array:
    """Probabilities over the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def softplus(rho: Array) -> Array:
    """log(1 + exp(rho))."""
    return np.asarray(np.logaddexp(0.0, rho))


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
    scaled = weights / prior
    value += 0.5 * float(scaled @ scaled) + weights.size * log_normaliser(prior)
    grad = grad + scaled / prior
    kl = np.sum(np.log(prior / scale) + 0.5 * (scale**2 + mean**2) / prior**2 - 0.5)
    by_scale = -grad * noise + scale / prior**2 - 1.0 / scale
    return float(kl) - value, -grad + mean / prior**2, by_scale / (1.0 + np.exp(-rho))


def adam(
    parameters: Array, moments: tuple[Array, Array], grad: Array, step: int, rate: float
) -> None:
    """One step downhill in place (Kingma and Ba 2015); `step` counts from 1."""
    first, second = moments
    first += 0.1 * (grad - first)
    second += 0.001 * (grad**2 - second)
    corrected = np.sqrt(second / (1.0 - 0.999**step)) + 1e-8
    parameters -= rate * first / (1.0 - 0.9**step) / corrected
