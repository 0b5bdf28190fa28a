"""NUTS of the libraries on JAX: the log density, and chains in the fastest of three forms.

A library gives `start` (an adapted state per chain) and `step`; the loop over draws is compiled
once for any number of draws, so that a race over a few of them decides between the forms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness.framework import fastest
from benchmarks.workloads.effective_problems import Posterior

Step = Callable[[Any], tuple[Any, Any, Any]]  # state -> state, theta (P,), leapfrogs


def columns(problem: Posterior) -> tuple[Any, Any]:
    """Training rows as (D, N) and (N,), float32: the faster way round on a CPU."""
    x, y, _, _ = problem.data
    return jnp.asarray(x.T, jnp.float32), jnp.asarray(y, jnp.float32)


def network(problem: Posterior, weights: Any, x: Any) -> Any:
    """Mean function (N,) of flat weights (P - 1,), x (D, N)."""
    at = 0
    for k, (a, b) in enumerate(pairwise(problem.sizes)):
        x = weights[at : at + a * b].reshape(a, b).T @ x
        at += a * b
        if problem.bias:
            x = x + weights[at : at + b][:, None]
            at += b
        x = jnp.tanh(x) if k < len(problem.sizes) - 2 else x
    return x[0]


def logdensity(problem: Posterior) -> Callable[[Any], Any]:
    """Return the log density of flat parameters (P,), up to a constant."""
    x, y = columns(problem)

    def value(theta: Any) -> Any:
        weights, log_noise = theta[:-1], theta[-1]
        z = (y - network(problem, weights, x)) * jnp.exp(-log_noise)
        prior = jnp.sum(weights**2) / problem.prior_scale**2 + log_noise**2
        return -0.5 * (jnp.sum(z**2) + prior) - y.size * log_noise

    return value


def loop(step: Step, dim: int, most: int) -> Callable[[Any, Any], Any]:
    """One chain: (state, count) -> state, draws (most, P), leapfrogs, the first `count` filled."""

    def run(state: Any, count: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            state, draws, steps = carry
            state, theta, taken = step(state)
            return state, draws.at[i].set(theta), steps.at[i].set(taken)

        empty = jnp.zeros((most, dim)), jnp.zeros(most, jnp.int32)
        return lax.fori_loop(0, count, body, (state, *empty))

    return run


def spread(problem: Posterior, one: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Forms of `one(state, count)` for all chains: f(states (C, ...), count)."""
    devices = jax.devices()[: problem.threads]
    forms: dict[str, Callable[..., Any]] = {"vmap": jax.jit(jax.vmap(one, in_axes=(0, None)))}
    if len(devices) < 2 or problem.chains % len(devices):
        return forms

    def shared(inner: Callable[..., Any]) -> Callable[..., Any]:
        mapped = jax.pmap(inner, in_axes=(0, None), devices=devices)

        def run(states: Any, count: Any) -> Any:
            split = jax.tree.map(lambda a: a.reshape(len(devices), -1, *a.shape[1:]), states)
            found = mapped(split, count)
            return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)

        return run

    forms["vmap on each of 2 devices"] = shared(jax.vmap(one, in_axes=(0, None)))
    forms["one after the other on 2 devices"] = shared(
        lambda states, count: lax.map(lambda s: one(s, count), states)
    )
    return forms


def sample(
    problem: Posterior,
    start: Callable[[], tuple[Any, float, float]],
    step: Step,
    form: str,
    versions: dict[str, str],
) -> dict[str, Any]:
    """Warm up, race the forms on a few draws, then take all draws with the winner.

    `start` returns adapted states (C, ...), the seconds of its compilation and those of its run.
    """
    states, compiling, warming = start()
    count = problem.nuts[1]
    one = loop(step, problem.dim, count)
    forms = spread(problem, one)
    pilot = 3
    begun = time.perf_counter()
    runs = {
        name: (lambda f=f: jax.block_until_ready(f(states, pilot))) for name, f in forms.items()
    }
    if len(forms) > 1:
        winner, wasted = fastest(runs, turns=2)
    else:
        winner, wasted = next(iter(forms)), 0.0
        runs[winner]()
    compiling += time.perf_counter() - begun - wasted
    begun = time.perf_counter()
    _, draws, steps = jax.block_until_ready(forms[winner](states, count))
    return {
        "positions": np.asarray(draws),
        "compile": compiling,
        "warmup": warming,
        "sampling": time.perf_counter() - begun,
        "gradients": float(np.asarray(steps).sum()),
        "form": f"{form}; {winner}",
        "versions": versions,
    }
