"""What the entries built on JAX share: the network, its log density, one way to wait."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Layers = list[tuple[Any, Any]]


def versions() -> dict[str, str]:
    """Versions of JAX and of its compiler."""
    return {"jax": jax.__version__, "jaxlib": jax.lib.__version__}


def unravel(flat: Any, sizes: tuple[int, ...]) -> Layers:
    """Split (C, P) or (P,) into [(weight, bias)] with the same leading axes."""
    layers, at = [], 0
    for a, b in pairwise(sizes):
        weight = flat[..., at : at + a * b].reshape(*flat.shape[:-1], a, b)
        layers.append((jnp.asarray(weight), jnp.asarray(flat[..., at + a * b : at + (a + 1) * b])))
        at += (a + 1) * b
    return layers


def ravel(layers: Layers) -> np.ndarray[Any, Any]:
    """Join [(weight (..., in, out), bias (..., out))] to (C, P), C = all leading axes."""
    lead = layers[0][1].shape[:-1]
    blocks = [np.asarray(a).reshape(math.prod(lead), -1) for layer in layers for a in layer]
    return np.concatenate(blocks, axis=1)


def forward(layers: Layers, x: Any, activation: str, columns: bool = False) -> Any:
    """Compute the outputs of one chain: (N, K), or with `columns` (K, N) from x (D, N)."""
    act = {"silu": jax.nn.silu, "relu": jax.nn.relu}[activation]
    for k, (weight, bias) in enumerate(layers):
        x = weight.T @ x + bias[:, None] if columns else x @ weight + bias
        x = act(x) if k < len(layers) - 1 else x
    return x


def loglikelihood(workload: Any, columns: bool = False) -> Callable[[Layers, Any, Any], Any]:
    """Return the normalised log likelihood of one chain: f(layers, x, y)."""
    noise_constant = math.log(workload.noise_scale) + 0.5 * math.log(2 * math.pi)
    outputs = 0 if columns else 1  # the axis of K

    def value(layers: Layers, x: Any, y: Any) -> Any:
        output = forward(layers, x, workload.activation, columns)
        if workload.likelihood == "gaussian":
            residual = (y - output) / workload.noise_scale
            return -0.5 * jnp.sum(residual**2) - y.size * noise_constant
        logprobs = jax.nn.log_softmax(output, axis=outputs)
        labels = jnp.expand_dims(y, outputs)
        return jnp.sum(jnp.take_along_axis(logprobs, labels, axis=outputs))

    return value


def logprior(workload: Any) -> Callable[[Layers], Any]:
    """Return the normalised log prior of one chain."""
    constant = workload.dim * (math.log(workload.prior_scale) + 0.5 * math.log(2 * math.pi))

    def value(layers: Layers) -> Any:
        squares = sum(jnp.sum(a**2) for a in jax.tree.leaves(layers))
        return -0.5 * squares / workload.prior_scale**2 - constant

    return value


def logdensity(workload: Any, columns: bool = False) -> Callable[[Layers, Any, Any], Any]:
    """Return the normalised log density of one chain: f(layers, x, y)."""
    likelihood, prior = loglikelihood(workload, columns), logprior(workload)
    return lambda layers, x, y: likelihood(layers, x, y) + prior(layers)


def ready(compiled: Any, *arguments: Any) -> Callable[[], Any]:
    """Call and wait for the result."""
    return lambda: jax.block_until_ready(compiled(*arguments))
