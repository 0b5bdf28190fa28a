"""JAX: one compiled program per trajectory (jit, fori_loop, vmap over chains)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.random_weights import Normals, Reparam
from benchmarks.rivals import Prepared
from benchmarks.workloads import FirstDraw, Leapfrog

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
    """Join [(weight, bias)] with a chain axis to (C, P)."""
    blocks = [np.asarray(a) for layer in layers for a in layer]
    return np.concatenate([a.reshape(len(a), -1) for a in blocks], axis=1)


def forward(layers: Layers, x: Any, activation: str) -> Any:
    """Compute the outputs (N, K) of one chain."""
    act = {"silu": jax.nn.silu, "relu": jax.nn.relu}[activation]
    for weight, bias in layers[:-1]:
        x = act(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def logdensity(workload: Leapfrog) -> Callable[[Layers, Any, Any], Any]:
    """Normalised log density of one chain: f(layers, x, y)."""
    half_log_2pi = 0.5 * math.log(2 * math.pi)
    prior_constant = workload.dim * (math.log(workload.prior_scale) + half_log_2pi)
    noise_constant = math.log(workload.noise_scale) + half_log_2pi

    def value(layers: Layers, x: Any, y: Any) -> Any:
        output = forward(layers, x, workload.activation)
        if workload.likelihood == "gaussian":
            residual = (y - output) / workload.noise_scale
            loglik = -0.5 * jnp.sum(residual**2) - y.size * noise_constant
        else:
            logprobs = jax.nn.log_softmax(output)
            loglik = jnp.sum(jnp.take_along_axis(logprobs, y[:, None], axis=1))
        squares = sum(jnp.sum(a**2) for a in jax.tree.leaves(layers))
        return loglik - 0.5 * squares / workload.prior_scale**2 - prior_constant

    return value


def trajectory(workload: Leapfrog) -> Callable[[Layers, Layers, Any, Any], tuple[Layers, Any]]:
    """One chain: (position, momentum, x, y) -> (position, log density)."""
    value_and_grad = jax.value_and_grad(logdensity(workload))
    eps = workload.step_size

    def run(position: Layers, momentum: Layers, x: Any, y: Any) -> tuple[Layers, Any]:
        def axpy(scale: float, a: Layers, b: Layers) -> Any:
            return jax.tree.map(lambda u, v: v + scale * u, a, b)

        def step(_: Any, carry: Any) -> Any:
            q, p, _, grad = carry
            p = axpy(0.5 * eps, grad, p)
            q = axpy(eps, p, q)
            value, grad = value_and_grad(q, x, y)
            return q, axpy(0.5 * eps, grad, p), value, grad

        value, grad = value_and_grad(position, x, y)
        carry = (position, momentum, value, grad)
        q, _, value, _ = lax.fori_loop(0, workload.num_steps, step, carry)
        return q, value

    return run


def chains(workload: Leapfrog, one: Callable[..., tuple[Layers, Any]], form: str) -> Prepared:
    """Compile a one-chain trajectory for all chains; shared with the other JAX rivals."""
    position, momentum = (unravel(a, workload.sizes) for a in workload.start)
    x, y = (jnp.asarray(a) for a in workload.data)
    if workload.chains == 1:  # a batch axis of one would only cost

        def every(q: Layers, p: Layers, x: Any, y: Any) -> Any:
            q, p = jax.tree.map(lambda a: a[0], (q, p))
            return jax.tree.map(lambda a: a[None], one(q, p, x, y))

    else:
        every = jax.vmap(one, in_axes=(0, 0, None, None))
    compiled = jax.jit(every)

    def run() -> tuple[Layers, Any]:
        result: tuple[Layers, Any] = jax.block_until_ready(compiled(position, momentum, x, y))
        return result

    return Prepared(run, lambda r: {"position": ravel(r[0]), "logdensity": np.asarray(r[1])}, form)


def leapfrog(workload: Leapfrog) -> Prepared:
    """Own leapfrog in fori_loop."""
    return chains(workload, trajectory(workload), "jit, fori_loop, vmap over chains")


def reparam(workload: Reparam) -> Prepared:
    """One fused program; the counter-based `rbg` generator is faster on a CPU than threefry."""
    mean, rho = (jnp.asarray(a) for a in workload.variational)
    key = jax.random.key(workload.seed, impl="unsafe_rbg")
    shape = (workload.samples, workload.dim)

    @jax.jit
    def draw(key: Any, mean: Any, rho: Any) -> Any:
        return mean + jax.nn.softplus(rho) * jax.random.normal(key, shape)

    return Prepared(
        lambda: draw(key, mean, rho).block_until_ready(),
        lambda w: {"weights": np.asarray(w)},
        "jit, unsafe_rbg keys",
    )


def normals(workload: Normals) -> Prepared:
    """jax.random.normal of one shape."""
    key = jax.random.key(workload.seed, impl="unsafe_rbg")
    draw = jax.jit(lambda key: jax.random.normal(key, (workload.count,)))
    return Prepared(
        lambda: draw(key).block_until_ready(),
        lambda z: {"normals": np.asarray(z)},
        "jit, unsafe_rbg keys",
    )


def first_draw(workload: FirstDraw, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
    """HMC in one compiled scan over the draws: positions (draws, P), log densities, acceptance."""
    value_and_grad = jax.value_and_grad(logdensity(workload.of))
    sizes, eps = workload.of.sizes, workload.of.step_size

    @jax.jit
    def sample(key: Any, flat: Any, x: Any, y: Any) -> Any:
        def gradient(q: Any) -> Any:
            return value_and_grad(q, x, y)

        def leap(_: Any, carry: Any) -> Any:
            q, p, _, grad = carry
            p = jax.tree.map(lambda a, g: a + 0.5 * eps * g, p, grad)
            q = jax.tree.map(lambda a, b: a + eps * b, q, p)
            value, grad = gradient(q)
            return q, jax.tree.map(lambda a, g: a + 0.5 * eps * g, p, grad), value, grad

        def draw(state: Any, key: Any) -> Any:
            q, value, grad = state
            kick, accept = jax.random.split(key)
            p = unravel(jax.random.normal(kick, flat.shape), sizes)
            end, last, new, new_grad = lax.fori_loop(
                0, workload.num_steps, leap, (q, p, value, grad)
            )
            kinetic = [0.5 * sum(jnp.sum(a**2) for a in jax.tree.leaves(m)) for m in (p, last)]
            rate = jnp.exp(jnp.minimum(0.0, new - value + kinetic[0] - kinetic[1]))
            keep = jax.random.uniform(accept) < rate
            state = jax.tree.map(
                lambda a, b: jnp.where(keep, a, b), (end, new, new_grad), (q, value, grad)
            )
            position = jnp.concatenate([a.ravel() for a in jax.tree.leaves(state[0])])
            return state, (position, state[1], rate)

        layers = unravel(flat, sizes)
        keys = jax.random.split(key, workload.draws)
        return lax.scan(draw, (layers, *gradient(layers)), keys)[1]

    positions, values, rates = sample(jax.random.key(workload.of.seed), start, x, y)
    return np.asarray(positions), np.asarray(values), float(np.mean(rates))


PREPARE = {"leapfrog": leapfrog, "reparam": reparam, "normals": normals}
