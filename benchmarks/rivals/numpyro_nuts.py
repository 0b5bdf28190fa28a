"""NumPyro: a model, and its NUTS kernel with the adaptation of `MCMC` (to 0.8, diagonal mass)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.infer import NUTS as Kernel
from numpyro.infer.util import initialize_model

from benchmarks.rivals import jax_effective
from benchmarks.workloads.effective_problems import Problem

WARMUP = 1000  # of its BNN example; `MCMC` has no default


class NUTS(jax_effective.Chains):
    """Its kernel is stepped as `MCMC` does it, `WARMUP` adapting steps first, from its start."""

    library = "numpyro"

    def __init__(self, problem: Problem, seed: int, threads: int, *, depth: int) -> None:
        super().__init__(problem, seed, threads)
        self.kernel = Kernel(self.model, max_tree_depth=depth)

    def model(self) -> None:
        """State the problem; weights are one vector."""
        problem = self.problem
        count = problem.dim - problem.learns_noise
        prior = dist.Normal(0.0, problem.prior_scale).expand([count]).to_event(1)
        weights = numpyro.sample("weights", prior)
        f = jax_effective.network(problem, problem.data.x)(weights)
        y = jnp.asarray(problem.data.y)
        if problem.noise == "classes":
            numpyro.sample("y", dist.Categorical(logits=f.T).to_event(1), obs=y)
            return
        if problem.noise == "gamma":
            scale = 1.0 / jnp.sqrt(numpyro.sample("precision", dist.Gamma(3.0, 1.0)))
        elif problem.noise == "normal":
            scale = jnp.exp(numpyro.sample("log_noise", dist.Normal(0.0, 1.0)))
        else:
            scale = jax.nn.softplus(f[1])
        numpyro.sample("y", dist.Normal(f[0], scale).to_event(1), obs=y.astype(jnp.float32))

    def flat(self, z: Any) -> Any:
        """Unconstrained values of the sites as theta (P,): of a precision its logarithm."""
        if self.problem.noise == "gamma":
            return jnp.append(z["weights"], -0.5 * z["precision"])
        return jnp.append(z["weights"], z["log_noise"]) if "log_noise" in z else z["weights"]

    def flat_density(self, theta: Any) -> Any:
        """Turn the potential that the model gives."""
        sites = {"weights": theta}
        if self.problem.noise == "gamma":
            sites = {"weights": theta[:-1], "precision": -2.0 * theta[-1]}
        elif self.problem.noise == "normal":
            sites = {"weights": theta[:-1], "log_noise": theta[-1]}
        return -initialize_model(jax.random.key(0), self.model).potential_fn(sites)

    def warm_up(self) -> Any:
        """Adapt by `WARMUP` transitions."""
        keys = jax.random.split(jax.random.PRNGKey(self.seed), self.problem.chains)
        each = [self.kernel.init(key, WARMUP, None, (), {}) for key in keys]
        first = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

        def adapt(state: Any) -> Any:
            def body(_: Any, carry: Any) -> Any:
                state, spent = carry
                state = self.kernel.sample(state, (), {})
                return state, spent + state.num_steps

            return lax.fori_loop(0, WARMUP, body, (state, jnp.int32(0)))

        states, spent = self.compiled(adapt, first)(first)
        self.gradients += float(spent.sum())
        return states

    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """One tree."""
        state = self.kernel.sample(state, (), {})
        return state, self.flat(state.z), state.num_steps
