"""JAX: one compiled program per trajectory (jit, fori_loop, vmap over chains)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness.framework import Prepared, fastest
from benchmarks.rivals import jax_bayes, jax_networks
from benchmarks.rivals.jax_net import Layers, logdensity, ravel, ready, unravel, versions
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.random_weights import Normals, Reparam

Chain = Callable[[Layers, Layers, Any, Any], tuple[Layers, Any]]


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
        forms[f"vmap{suffix}"] = ready(batched, position, momentum, x, y)
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


def _single(one: Chain, position: Layers, momentum: Layers, x: Any, y: Any) -> Callable[[], Any]:
    """Without a chain axis, which would only cost; the result has one again."""
    q, p = jax.tree.map(lambda a: a[0], (position, momentum))
    compiled = jax.jit(lambda *args: jax.tree.map(lambda a: a[None], one(*args)))
    return ready(compiled, q, p, x, y)


def _shared(
    one: Chain, devices: list[Any], position: Layers, momentum: Layers, x: Any, y: Any
) -> Callable[[], Any]:
    """Chains (devices, C / devices): mapped over devices, looped over on each."""

    def several(q: Any, p: Any, x: Any, y: Any) -> Any:
        return lax.map(lambda start: one(start[0], start[1], x, y), (q, p))

    compiled = jax.pmap(several, in_axes=(0, 0, None, None), devices=devices)
    split = jax.tree.map(lambda a: a.reshape(len(devices), -1, *a.shape[1:]), (position, momentum))
    return ready(compiled, *split, x, y)


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
        "whole": ready(jax.jit(partial(one, shape=shape)), key, mean, rho),
        "lax.map over samples": ready(jax.jit(mapped), key, mean, rho),
    }
    winner, wasted = fastest(forms)
    return Prepared(
        forms[winner], lambda w: {"weights": np.asarray(w)}, f"jit, threefry; {winner}", wasted
    )


def normals(workload: Normals) -> Prepared:
    """jax.random.normal of one shape."""
    draw = jax.jit(lambda key: jax.random.normal(key, (workload.count,)))
    run = ready(draw, jax.random.key(workload.seed))
    return Prepared(run, lambda z: {"normals": np.asarray(z)}, "jit, threefry")


def first_draw(workload: Any, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
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


PREPARE = {
    "leapfrog": leapfrog,
    "bbb": jax_bayes.bbb,
    "mc_forward": jax_bayes.mc_forward,
    "mc_dropout": jax_bayes.mc_dropout,
    "sgld": jax_bayes.sgld,
    "network": jax_networks.network,
    "reparam": reparam,
    "normals": normals,
}

__all__ = ["PREPARE", "versions"]
