"""BlackJAX samples a Ribbit posterior
===================================

``python examples/embed_jax.py``

The log density is an operation of the compiled program, which calls Ribbit's core without Python;
`jax.vmap` over chains makes one native call for all of them.
"""

from __future__ import annotations

import time

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import ribbit as rb
from ribbit.jax import jax_log_density


def main(num_draws: int = 300, chains: int = 4) -> dict[str, float]:
    x, y = rb.datasets.toy_regression(100, seed=0)
    target = rb.Posterior(
        rb.mlp(1, (10,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.2),
    )
    steps = 30
    sampler = blackjax.hmc(
        jax_log_density(target),
        step_size=2e-3,
        inverse_mass_matrix=jnp.ones(target.dim),
        num_integration_steps=steps,
    )

    @jax.jit
    def run(key, position):
        def step(state, key):
            state, info = jax.vmap(sampler.step)(jax.random.split(key, chains), state)
            return state, (state.logdensity, info.acceptance_rate)

        states = jax.vmap(sampler.init)(position)
        return jax.lax.scan(step, states, jax.random.split(key, num_draws))

    start = jnp.asarray(target.init(seed=0, chains=chains))
    compiled = run.lower(jax.random.key(0), start).compile()
    begin = time.perf_counter()
    _, (values, rates) = jax.block_until_ready(compiled(jax.random.key(0), start))
    gradients = num_draws * steps * chains
    each = (time.perf_counter() - begin) / gradients

    native = rb.HMC(target, step_size=2e-3, num_leapfrog_steps=steps)
    state = native.init(np.asarray(start))
    begin = time.perf_counter()
    for _ in range(num_draws):
        state, _ = native.step(state)
    own = (time.perf_counter() - begin) / gradients
    print(
        f"BlackJAX on Ribbit's density: log density {float(values[0].mean()):.0f} -> "
        f"{float(values[-1].mean()):.0f}, acceptance {float(rates.mean()):.2f}\n"
        f"seconds per gradient and chain: BlackJAX {each:.2e}, Ribbit's own HMC {own:.2e}"
    )
    return {
        "first": float(values[0].mean()),
        "last": float(values[-1].mean()),
        "rate": float(rates.mean()),
        "seconds": each,
        "native": own,
    }


if __name__ == "__main__":
    main()
