"""NumPyro: a model, and its NUTS kernel with the adaptation of `MCMC` (to 0.8, diagonal mass)."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS

from benchmarks.rivals import jax_nuts
from benchmarks.rivals.numpyro_ import versions
from benchmarks.workloads.effective_problems import Posterior


def sample(problem: Posterior) -> dict[str, Any]:
    """Its kernel is stepped as `MCMC` does it, `warmup` adapting steps first."""
    x, y = jax_nuts.columns(problem)
    warmup = problem.nuts[0]

    def model() -> None:
        prior = dist.Normal(0.0, problem.prior_scale).expand([problem.dim - 1]).to_event(1)
        weights = numpyro.sample("weights", prior)
        log_noise = numpyro.sample("log_noise", dist.Normal(0.0, 1.0))
        mean = jax_nuts.network(problem, weights, x)
        numpyro.sample("y", dist.Normal(mean, jnp.exp(log_noise)).to_event(1), obs=y)

    kernel = NUTS(model)
    keys = jax.random.split(jax.random.PRNGKey(problem.seed), problem.chains)
    each = [kernel.init(key, warmup, None, (), {}) for key in keys]
    first = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def step(state: Any) -> tuple[Any, Any, Any]:
        state = kernel.sample(state, (), {})
        theta = jnp.append(state.z["weights"], state.z["log_noise"])
        return state, theta, state.num_steps

    def start() -> tuple[Any, float, float]:
        forms = jax_nuts.spread(problem, jax_nuts.loop(step, problem.dim, 1))
        run = list(forms.values())[min(1, len(forms) - 1)]
        begun = time.perf_counter()
        jax.block_until_ready(run(first, 0))
        ready = time.perf_counter()
        states = jax.block_until_ready(run(first, warmup)[0])
        return states, ready - begun, time.perf_counter() - ready

    return jax_nuts.sample(problem, start, step, "NUTS kernel in jit", versions())
