"""Use a sampler of BlackJAX
=========================

BlackJAX has samplers for JAX functions. Here its HMC samples a Ribbit posterior: the log density
becomes a JAX operation that calls Ribbit's core, and JAX compiles the whole loop. With
``jax.vmap`` over the chains there is one call for all of them.

Run it with ``python examples/embed_jax.py``. It needs JAX and BlackJAX.
"""

import time

import blackjax
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ribbit as rb
from ribbit.jax import jax_log_density

DRAWS = 300  # per chain
CHAINS, STEPS = 4, 30  # leapfrog steps for each draw

# %%
# The target
# ----------

x, y = rb.datasets.toy_regression(100, seed=0)
target = rb.Posterior(
    rb.mlp(1, (10,), 1, activation="tanh"), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.2)
)

# %%
# The sampler
# -----------
# :func:`ribbit.jax.jax_log_density` turns the target into a function that BlackJAX can use.

sampler = blackjax.hmc(
    jax_log_density(target),
    step_size=2e-3,
    inverse_mass_matrix=jnp.ones(target.dim),
    num_integration_steps=STEPS,
)


@jax.jit
def run(key, position):
    """Return the log densities and acceptance rates (DRAWS, CHAINS)."""

    def step(state, key):
        state, info = jax.vmap(sampler.step)(jax.random.split(key, CHAINS), state)
        return state, (state.logdensity, info.acceptance_rate)

    states = jax.vmap(sampler.init)(position)
    return jax.lax.scan(step, states, jax.random.split(key, DRAWS))[1]


start = jnp.asarray(target.init(seed=0, chains=CHAINS))
compiled = run.lower(jax.random.key(0), start).compile()
begin = time.perf_counter()
values, rates = jax.block_until_ready(compiled(jax.random.key(0), start))
seconds = (time.perf_counter() - begin) / (DRAWS * STEPS * CHAINS)

# %%
# Ribbit's own HMC
# ----------------
# The same moves without JAX, to compare the time.

native = rb.HMC(target, step_size=2e-3, num_leapfrog_steps=STEPS)
chains = rb.Chains(native, np.asarray(start), warmup=0)
begin = time.perf_counter()
own_values = chains.advance(DRAWS)[1]["lp"]
own_seconds = (time.perf_counter() - begin) / (DRAWS * STEPS * CHAINS)

print(f"BlackJAX: log density {values[0].mean():.0f} -> {values[-1].mean():.0f}", end=", ")
print(f"acceptance {rates.mean():.2f}")
print(f"microseconds per gradient: BlackJAX {1e6 * seconds:.1f}, Ribbit {1e6 * own_seconds:.1f}")

# %%
# Both samplers climb to the same level of the log density.

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.plot(values.mean(axis=1), label="BlackJAX")
ax.plot(own_values.mean(axis=0), label="Ribbit")
ax.set(xlabel="draw", ylabel="log density, mean of 4 chains", yscale="symlog")
ax.legend(frameon=False)
figure.savefig("embed_jax.png", dpi=100)

# %%
# The recorded output::
#
#     BlackJAX: log density -273 -> -1, acceptance 1.00
#     microseconds per gradient: BlackJAX 2.2, Ribbit 3.2
#
# The times are from a busy machine.
#
# .. image:: /_static/gallery/embed_jax.png
#    :alt: Two curves of the log density that rise and then vary around the same level.

# sphinx_gallery_thumbnail_path = "_static/gallery/embed_jax.png"
