"""JAX: one compiled program per trajectory (jit, fori_loop, vmap over chains)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.random_weights import Normals, Reparam
from benchmarks.rivals import Prepared, fastest
from benchmarks.workloads import FirstDraw, Leapfrog

Layers = list[tuple[Any, Any]]
Chain = Callable[[Layers, Layers, Any, Any], tuple[Layers, Any]]


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


def logdensity(workload: Leapfrog, columns: bool = False) -> Callable[[Layers, Any, Any], Any]:
    """Return the normalised log density of one chain: f(layers, x, y)."""
    half_log_2pi = 0.5 * math.log(2 * math.pi)
    prior_constant = workload.dim * (math.log(workload.prior_scale) + half_log_2pi)
    noise_constant = math.log(workload.noise_scale) + half_log_2pi
    outputs = 0 if columns else 1  # the axis of K

    def value(layers: Layers, x: Any, y: Any) -> Any:
        output = forward(layers, x, workload.activation, columns)
        if workload.likelihood == "gaussian":
            residual = (y - output) / workload.noise_scale
            loglik = -0.5 * jnp.sum(residual**2) - y.size * noise_constant
        else:
            logprobs = jax.nn.log_softmax(output, axis=outputs)
            labels = jnp.expand_dims(y, outputs)
            loglik = jnp.sum(jnp.take_along_axis(logprobs, labels, axis=outputs))
        squares = sum(jnp.sum(a**2) for a in jax.tree.leaves(layers))
        return loglik - 0.5 * squares / workload.prior_scale**2 - prior_constant

    return value


def trajectory(workload: Leapfrog, columns: bool = False) -> Chain:
    """One chain: (position, momentum, x, y) -> (position, log density)."""
    value_and_grad = jax.value_and_grad(logdensity(workload, columns))
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


def chains(workload: Leapfrog, make: Callable[[bool], Chain], form: str) -> Prepared:
    """Run a one-chain trajectory for all chains, in the fastest of its forms.

    The forms: x as (N, D) or as (D, N) ("columns"); chains by vmap, or shared out over one CPU
    device per thread (pmap) and there one after the other. Also used by the rivals built on JAX.
    """
    position, momentum = (unravel(a, workload.sizes) for a in workload.start)
    forms: dict[str, Callable[[], Any]] = {}
    devices = jax.devices()[: workload.threads]
    for columns in (False, True):
        x, y = (jnp.asarray(a.T if columns else a) for a in workload.data)
        one, suffix = make(columns), ", columns" if columns else ""
        if workload.chains == 1:
            forms[f"one chain{suffix}"] = _single(one, position, momentum, x, y)
            continue
        batched = jax.jit(jax.vmap(one, in_axes=(0, 0, None, None)))
        forms[f"vmap{suffix}"] = _ready(batched, position, momentum, x, y)
        if len(devices) > 1 and workload.chains % len(devices) == 0:
            run = _shared(one, devices, position, momentum, x, y)
            forms[f"pmap over {len(devices)} devices{suffix}"] = run
    winner, wasted = fastest(forms)

    def answer(result: tuple[Layers, Any]) -> dict[str, Any]:
        return {
            "position": ravel(result[0]).reshape(workload.chains, -1),
            "logdensity": np.asarray(result[1]).ravel(),
        }

    return Prepared(forms[winner], answer, f"{form}; {winner}", wasted)


def _ready(compiled: Any, *arguments: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(compiled(*arguments))


def _single(one: Chain, position: Layers, momentum: Layers, x: Any, y: Any) -> Callable[[], Any]:
    """Without a chain axis, which would only cost; the result has one again."""
    q, p = jax.tree.map(lambda a: a[0], (position, momentum))
    compiled = jax.jit(lambda *args: jax.tree.map(lambda a: a[None], one(*args)))
    return _ready(compiled, q, p, x, y)


def _shared(
    one: Chain, devices: list[Any], position: Layers, momentum: Layers, x: Any, y: Any
) -> Callable[[], Any]:
    """Chains (devices, C / devices): mapped over devices, looped over on each."""

    def several(q: Any, p: Any, x: Any, y: Any) -> Any:
        return lax.map(lambda start: one(start[0], start[1], x, y), (q, p))

    compiled = jax.pmap(several, in_axes=(0, 0, None, None), devices=devices)
    split = jax.tree.map(lambda a: a.reshape(len(devices), -1, *a.shape[1:]), (position, momentum))
    return _ready(compiled, *split, x, y)


def leapfrog(workload: Leapfrog) -> Prepared:
    """Own leapfrog in fori_loop."""

    def make(columns: bool) -> Chain:
        return trajectory(workload, columns)

    return chains(workload, make, "jit, fori_loop")


def reparam(workload: Reparam) -> Prepared:
    """Whole at once, or sample by sample; threefry beats the rbg generators on a CPU."""
    mean, rho = (jnp.asarray(a) for a in workload.variational)
    key = jax.random.key(workload.seed)

    def one(key: Any, mean: Any, rho: Any, shape: tuple[int, ...] = (workload.dim,)) -> Any:
        return mean + jax.nn.softplus(rho) * jax.random.normal(key, shape)

    def mapped(key: Any, mean: Any, rho: Any) -> Any:
        keys = jax.random.split(key, workload.samples)
        return lax.map(lambda k: one(k, mean, rho), keys)

    shape = (workload.samples, workload.dim)
    forms = {
        "whole": _ready(jax.jit(partial(one, shape=shape)), key, mean, rho),
        "lax.map over samples": _ready(jax.jit(mapped), key, mean, rho),
    }
    winner, wasted = fastest(forms)
    return Prepared(
        forms[winner], lambda w: {"weights": np.asarray(w)}, f"jit, threefry; {winner}", wasted
    )


def normals(workload: Normals) -> Prepared:
    """jax.random.normal of one shape."""
    draw = jax.jit(lambda key: jax.random.normal(key, (workload.count,)))
    run = _ready(draw, jax.random.key(workload.seed))
    return Prepared(run, lambda z: {"normals": np.asarray(z)}, "jit, threefry")


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
