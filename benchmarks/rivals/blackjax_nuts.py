"""BlackJAX: NUTS after its window adaptation (step size to 0.8, diagonal mass)."""

from __future__ import annotations

import time
from typing import Any

import blackjax
import jax

from benchmarks.rivals import jax_nuts
from benchmarks.rivals.blackjax_ import versions
from benchmarks.workloads.effective_problems import Posterior


def sample(problem: Posterior) -> dict[str, Any]:
    """`window_adaptation`, then `nuts` kernels, each chain with its own tuning."""
    target = jax_nuts.logdensity(problem)
    warmup = problem.nuts[0]
    keys = jax.random.split(jax.random.key(problem.seed), problem.chains)

    def adapt(key: Any) -> Any:
        place, walk, draw = jax.random.split(key, 3)
        theta = problem.prior_scale * jax.random.normal(place, (problem.dim,))
        (state, tuned), _ = blackjax.window_adaptation(blackjax.nuts, target).run(
            walk, theta, num_steps=warmup
        )
        return state, tuned["step_size"], tuned["inverse_mass_matrix"], draw

    def start() -> tuple[Any, float, float]:
        begun = time.perf_counter()
        devices = jax.devices()[: problem.threads]
        if len(devices) > 1 and problem.chains % len(devices) == 0:
            split = keys.reshape(len(devices), -1)
            compiled = jax.pmap(jax.vmap(adapt), devices=devices).lower(split).compile()
        else:
            split = keys
            compiled = jax.jit(jax.vmap(adapt)).lower(split).compile()
        ready = time.perf_counter()
        states = jax.block_until_ready(compiled(split))
        done = time.perf_counter()
        lead = split.ndim
        states = jax.tree.map(lambda a: a.reshape(problem.chains, *a.shape[lead:]), states)
        return states, ready - begun, done - ready

    kernel = blackjax.nuts.build_kernel()

    def step(carry: Any) -> tuple[Any, Any, Any]:
        state, eps, mass, key = carry
        key, now = jax.random.split(key)
        state, info = kernel(now, state, target, eps, mass)
        return (state, eps, mass, key), state.position, info.num_integration_steps

    return jax_nuts.sample(problem, start, step, "window_adaptation, nuts in jit", versions())
