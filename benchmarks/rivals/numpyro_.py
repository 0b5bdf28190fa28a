"""NumPyro: the potential of a NumPyro model, and its own velocity Verlet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.infer import HMC, MCMC
from numpyro.infer.hmc_util import euclidean_kinetic_energy, velocity_verlet
from numpyro.infer.util import potential_energy

from benchmarks.harness.framework import Prepared
from benchmarks.rivals import jax_, jax_net
from benchmarks.workloads.leapfrog import Leapfrog


def versions() -> dict[str, str]:
    """Versions of NumPyro and of what it runs on."""
    return {"numpyro": numpyro.__version__, **jax_net.versions()}


def model(workload: Leapfrog, x: Any, y: Any, columns: bool = False) -> None:
    """Write the network as a NumPyro model: one sample site per weight and bias."""
    layers = []
    pairs = pairwise(workload.sizes)
    for k, (a, b) in enumerate(pairs):
        prior = dist.Normal(0.0, workload.prior_scale)
        weight = numpyro.sample(f"{k}.weight", prior.expand([a, b]).to_event(2))
        layers.append((weight, numpyro.sample(f"{k}.bias", prior.expand([b]).to_event(1))))
    output = jax_net.forward(layers, x, workload.activation, columns)
    if workload.likelihood == "gaussian":
        numpyro.sample("y", dist.Normal(output, workload.noise_scale).to_event(2), obs=y)
    else:
        numpyro.sample(
            "y", dist.Categorical(logits=output.T if columns else output).to_event(1), obs=y
        )


def sites(layers: jax_net.Layers) -> dict[str, Any]:
    """[(weight, bias)] as NumPyro names it."""
    named: dict[str, Any] = {}
    for k, (weight, bias) in enumerate(layers):
        named |= {f"{k}.weight": weight, f"{k}.bias": bias}
    return named


def leapfrog(workload: Leapfrog) -> Prepared:
    """`velocity_verlet` in a fori_loop, as its HMC kernel uses it."""
    count = len(workload.sizes) - 1

    def make(columns: bool) -> jax_.Chain:
        def one(q: Any, p: Any, x: Any, y: Any) -> Any:
            def potential(z: Any) -> Any:
                return potential_energy(model, (workload, x, y, columns), {}, z)

            init, update = velocity_verlet(potential, euclidean_kinetic_energy)
            mass = jnp.ones(workload.dim, jnp.float32)
            state = lax.fori_loop(
                0,
                workload.num_steps,
                lambda _, s: update(workload.step_size, mass, s),
                init(sites(q), sites(p)),
            )
            end = [(state.z[f"{k}.weight"], state.z[f"{k}.bias"]) for k in range(count)]
            return end, -state.potential_energy

        return one

    return jax_.chains(workload, make, "velocity_verlet in jit, fori_loop")


def first_draw(workload: Any, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
    """`MCMC(HMC(...))` without adaptation."""
    of = workload.of
    kernel = HMC(
        model,
        step_size=of.step_size,
        num_steps=workload.num_steps,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    mcmc = MCMC(kernel, num_warmup=0, num_samples=workload.draws, progress_bar=False)
    mcmc.run(
        jax.random.key(of.seed),
        of,
        jnp.asarray(x),
        jnp.asarray(y),
        init_params=sites(jax_net.unravel(start, of.sizes)),
        extra_fields=("potential_energy", "accept_prob"),
    )
    samples, extra = mcmc.get_samples(), mcmc.get_extra_fields()
    names = [f"{k}.{part}" for k in range(len(of.sizes) - 1) for part in ("weight", "bias")]
    blocks = [np.asarray(samples[name]).reshape(workload.draws, -1) for name in names]
    values = -np.asarray(extra["potential_energy"])
    return np.concatenate(blocks, axis=1), values, float(np.mean(extra["accept_prob"]))


PREPARE = {"leapfrog": leapfrog}
