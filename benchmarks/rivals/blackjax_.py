"""BlackJAX: its integrator in a scan, its HMC kernel for whole transitions."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import integrators, metrics
from jax import lax

from benchmarks.harness.framework import Prepared
from benchmarks.rivals import jax_, jax_bayes, jax_net
from benchmarks.workloads.langevin import Langevin
from benchmarks.workloads.leapfrog import Leapfrog


def versions() -> dict[str, str]:
    """Versions of BlackJAX and of what it runs on."""
    return {"blackjax": blackjax.__version__, **jax_net.versions()}


def leapfrog(workload: Leapfrog) -> Prepared:
    """`velocity_verlet` with a unit Euclidean metric, as its HMC kernel uses it."""

    def make(columns: bool) -> jax_.Chain:
        value = jax_net.logdensity(workload, columns)

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


def first_draw(workload: Any, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
    """`blackjax.hmc` in one compiled scan."""
    value = jax_net.logdensity(workload.of)
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
        return lax.scan(draw, kernel.init(jax_net.unravel(flat, sizes)), keys)[1]

    positions, values, rates = sample(jax.random.key(workload.of.seed), start, x, y)
    return np.asarray(positions), np.asarray(values), float(np.mean(rates))


def sgld(workload: Langevin) -> Prepared:
    """`blackjax.sgld`, whose step size is half of eps: theta + h g + sqrt(2 h) xi."""
    prior, likelihood = jax_net.logprior(workload), jax_net.loglikelihood(workload)
    # its estimator takes the mean over the batch of one row's log likelihood, by vmap
    gradient = blackjax.sgmcmc.gradients.grad_estimator(
        prior, lambda layers, row: likelihood(layers, row[0][None], row[1][None]), workload.rows
    )
    kernel = blackjax.sgld(gradient)

    def step(key: Any, layers: Any, batch: Any) -> Any:
        return kernel.step(key, layers, batch, 0.5 * workload.step_size)

    return jax_bayes.walk(workload, step, gradient, "sgld kernel in jit, scan, permuted batches")


PREPARE = {"leapfrog": leapfrog, "sgld": sgld}
