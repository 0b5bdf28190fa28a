"""BlackJAX: its integrator in a scan, its HMC kernel for whole transitions."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import integrators, metrics
from jax import lax

from benchmarks.rivals import Prepared, jax_
from benchmarks.workloads import FirstDraw, Leapfrog


def versions() -> dict[str, str]:
    """Versions of BlackJAX and of what it runs on."""
    return {"blackjax": blackjax.__version__, **jax_.versions()}


def leapfrog(workload: Leapfrog) -> Prepared:
    """`velocity_verlet` with a unit Euclidean metric, as its HMC kernel uses it."""

    def make(columns: bool) -> jax_.Chain:
        value = jax_.logdensity(workload, columns)

        def one(q: Any, p: Any, x: Any, y: Any) -> Any:
            def target(layers: Any) -> Any:
                return value(layers, x, y)

            metric = metrics.default_metric(jnp.ones(workload.dim, jnp.float32))
            step = integrators.velocity_verlet(target, metric.kinetic_energy)
            state = integrators.new_integrator_state(target, q, p)
            state = lax.fori_loop(
                0, workload.num_steps, lambda _, s: step(s, workload.step_size), state
            )
            return state.position, state.logdensity

        return one

    return jax_.chains(workload, make, "velocity_verlet in jit, fori_loop")


def first_draw(workload: FirstDraw, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
    """`blackjax.hmc` in one compiled scan."""
    value = jax_.logdensity(workload.of)
    sizes = workload.of.sizes

    @jax.jit
    def sample(key: Any, flat: Any, x: Any, y: Any) -> Any:
        kernel = blackjax.hmc(
            lambda layers: value(layers, x, y),
            workload.of.step_size,
            jnp.ones(workload.of.dim),
            workload.num_steps,
        )

        def draw(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            position = jnp.concatenate([a.ravel() for a in jax.tree.leaves(state.position)])
            return state, (position, state.logdensity, info.acceptance_rate)

        keys = jax.random.split(key, workload.draws)
        return lax.scan(draw, kernel.init(jax_.unravel(flat, sizes)), keys)[1]

    positions, values, rates = sample(jax.random.key(workload.of.seed), start, x, y)
    return np.asarray(positions), np.asarray(values), float(np.mean(rates))


PREPARE = {"leapfrog": leapfrog}
