"""Ribbit's log density inside a BlackJAX loop: ``python examples/embed_jax.py``.

The native gradient is called through ``pure_callback`` and given to JAX as a custom derivative, so
that any JAX sampler can use it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import ribbit as rb


def as_jax(target: rb.Posterior):
    """Return theta (P,) -> log density () as a function that JAX can differentiate once."""
    shapes = (
        jax.ShapeDtypeStruct((), np.float32),
        jax.ShapeDtypeStruct((target.dim,), np.float32),
    )

    def native(theta):
        value, grad = target.value_and_grad(np.ascontiguousarray(theta, np.float32))
        return np.float32(value), grad

    def both(theta):
        return jax.pure_callback(native, shapes, theta, vmap_method="sequential")

    @jax.custom_vjp
    def log_density(theta):
        return both(theta)[0]

    log_density.defvjp(
        lambda theta: both(theta),
        lambda grad, upstream: (upstream * grad,),
    )
    return log_density


def main(num_draws: int = 300) -> dict[str, float]:
    import blackjax

    x, y = rb.datasets.toy_regression(100, seed=0)
    target = rb.Posterior(
        rb.mlp(1, (10,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.2),
    )
    log_density = as_jax(target)
    start = jnp.asarray(target.init(seed=0))
    sampler = blackjax.hmc(
        log_density,
        step_size=2e-3,
        inverse_mass_matrix=jnp.ones(target.dim),
        num_integration_steps=30,
    )

    @jax.jit
    def run(key, state):
        def step(state, key):
            state, info = sampler.step(key, state)
            return state, (state.logdensity, info.acceptance_rate)

        return jax.lax.scan(step, state, jax.random.split(key, num_draws))

    _, (values, rates) = run(jax.random.key(0), sampler.init(start))
    print(
        f"BlackJAX on Ribbit's density: log density {float(values[0]):.0f} -> "
        f"{float(values[-1]):.0f}, acceptance {float(rates.mean()):.2f}"
    )
    return {"first": float(values[0]), "last": float(values[-1]), "rate": float(rates.mean())}


if __name__ == "__main__":
    main()
