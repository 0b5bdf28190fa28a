"""BlackJAX beside NUTS: ChEES, MEADS, MCLMC and adjusted MCLMC, each by its own adaptation.

Starts are draws from the prior. What an adaptation asks for and gives no default stands here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import optax
from blackjax.adaptation.base import get_filter_adapt_info_fn
from blackjax.mcmc import adjusted_mclmc_dynamic, dynamic_hmc
from blackjax.mcmc.adjusted_mclmc_dynamic import make_random_trajectory_length_fn

from benchmarks.rivals import jax_effective
from benchmarks.workloads.effective_problems import Problem

STEPS = 10_000  # that the tuning of MCLMC is told will follow; it takes shares of them
ACCEPTANCE = 0.9  # that adjusted MCLMC is told to reach
# Of ChEES: the first step of BlackJAX's own test, and Adam as the method's authors have it, without
# a first moment (the defaults of TensorFlow Probability's GradientBasedTrajectoryLengthAdaptation).
FIRST_STEP, ADAM = 0.1, {"learning_rate": 0.025, "b1": 0.0, "b2": 0.95}
# Of MEADS at least: 16 in each of four folds, the least that its documentation names, as the paper.
# From the two in a fold of 8 its step size was not finite at times, and nine steps of ten diverged.
ENSEMBLE = 64
GRADIENTS = 2.0  # in a step of McLachlan's integrator, the default of both forms of MCLMC


class Ensemble(jax_effective.Chains):
    """Chains that are tuned together, in one program on one device."""

    library = "blackjax"

    def together(self, function: Any, *arguments: Any) -> Any:
        """Compile and run."""
        with self.compiling():
            program = jax.jit(function).lower(*arguments).compile()
        return jax.block_until_ready(program(*arguments))

    def keys(self) -> tuple[Any, Any, Any]:
        """Keys of starts, of the warmup, and (C,) of the chains after it."""
        place, walk, later = jax.random.split(self.key, 3)
        return place, walk, jax.random.split(later, self.problem.chains)

    def each(self, tree: Any) -> Any:
        """Give what all chains share to each."""
        count = self.problem.chains
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *jnp.shape(a))), tree)


class ChEES(Ensemble):
    """`chees_adaptation`, then `dynamic_hmc` with its trajectory lengths."""

    def warm_up(self) -> Any:
        """Lengths of trajectories are the Halton sequence's, the same for all chains."""
        place, walk, later = self.keys()
        keep = get_filter_adapt_info_fn(info_keys={"num_integration_steps"})
        tuning = blackjax.chees_adaptation(
            self.target, self.problem.chains, adaptation_info_fn=keep
        )
        found: dict[str, Any] = {}

        def adapt(key: Any, theta: Any) -> Any:
            (states, given), tuned = tuning.run(key, theta, FIRST_STEP, optax.adam(**ADAM))
            arrays = {k: v for k, v in given.items() if not callable(v)}
            found.update({k: v for k, v in given.items() if callable(v)})
            return states, arrays, tuned.info.num_integration_steps.sum()

        start = jax_effective.start(self.problem, place)
        states, arrays, steps = self.together(adapt, walk, start)
        self.gradients += float(steps)
        self.kernel = dynamic_hmc.build_kernel(
            next_random_arg_fn=found["next_random_arg_fn"],
            integration_steps_fn=found["integration_steps_fn"],
        )
        return states, self.each(arrays), later

    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """One trajectory."""
        inner, given, key = state
        key, now = jax.random.split(key)
        inner, info = self.kernel(now, inner, self.target, **given)
        return (inner, given, key), inner.position, info.num_integration_steps


class MEADS(Ensemble):
    """`meads_adaptation`, then `ghmc`."""

    thin = jax_effective.THIN

    def __init__(self, problem: Problem, seed: int, threads: int) -> None:
        chains = max(problem.chains, ENSEMBLE)
        super().__init__(dataclasses.replace(problem, chains=chains), seed, threads)

    def warm_up(self) -> Any:
        """Count three quarters of the gradients: a fold of four stands still in each step."""
        place, walk, later = self.keys()
        keep = get_filter_adapt_info_fn()
        tuning = blackjax.meads_adaptation(
            self.target, self.problem.chains, adaptation_info_fn=keep
        )
        self.kernel = blackjax.ghmc.build_kernel()

        def adapt(key: Any, theta: Any) -> Any:
            (states, given), _ = tuning.run(key, theta)
            return states, given

        start = jax_effective.start(self.problem, place)
        states, given = self.together(adapt, walk, start)
        self.gradients += 0.75 * 1000 * self.problem.chains
        return states, self.each(given), later

    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """One gradient."""
        inner, given, key = state
        key, now = jax.random.split(key)
        inner, _ = self.kernel(now, inner, self.target, **given)
        return (inner, given, key), inner.position, 1.0


class MCLMC(jax_effective.Chains):
    """`mclmc_find_L_and_step_size`, then `mclmc`; every chain tunes itself."""

    library = "blackjax"
    thin = jax_effective.THIN

    def warm_up(self) -> Any:
        """Step size, decoherence length and diagonal, by the energy error."""
        self.kernel = blackjax.mclmc.build_kernel()
        place, walk = jax.random.split(self.key)
        keys = jax.random.split(walk, self.problem.chains)

        def adapt(key: Any, theta: Any) -> Any:
            first, now, later = jax.random.split(key, 3)
            state = blackjax.mcmc.mclmc.init(theta, self.target, first)
            state, tuned, steps = blackjax.mclmc_find_L_and_step_size(
                self.kernel, STEPS, state, now, logdensity_fn=self.target
            )
            return (state, tuned, later), jnp.float32(steps)

        start = jax_effective.start(self.problem, place)
        states, steps = self.compiled(adapt, keys, start)(keys, start)
        self.gradients += GRADIENTS * float(steps.sum())
        return states

    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """Two gradients."""
        inner, tuned, key = state
        key, now = jax.random.split(key)
        inner, _ = self.kernel(
            now, inner, self.target, tuned.inverse_mass_matrix, tuned.L, tuned.step_size
        )
        return (inner, tuned, key), inner.position, GRADIENTS


class AdjustedMCLMC(jax_effective.Chains):
    """`adjusted_mclmc_find_L_and_step_size`, then `adjusted_mclmc_dynamic`, random lengths."""

    library = "blackjax"

    def warm_up(self) -> Any:
        """Every chain tunes itself."""
        self.kernel = adjusted_mclmc_dynamic.build_kernel(
            integration_steps_fn=make_random_trajectory_length_fn(True)
        )
        place, walk = jax.random.split(self.key)
        keys = jax.random.split(walk, self.problem.chains)

        def adapt(key: Any, theta: Any) -> Any:
            first, now, later = jax.random.split(key, 3)
            state = adjusted_mclmc_dynamic.init(theta, self.target, first)
            state, tuned, steps = blackjax.adjusted_mclmc_find_L_and_step_size(
                self.kernel, self.target, STEPS, state, now, ACCEPTANCE
            )
            return (state, tuned, later), jnp.float32(steps)

        start = jax_effective.start(self.problem, place)
        states, steps = self.compiled(adapt, keys, start)(keys, start)
        self.gradients += GRADIENTS * float(steps.sum())
        return states

    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """One trajectory."""
        inner, tuned, key = state
        key, now = jax.random.split(key)
        inner, info = self.kernel(
            now,
            inner,
            self.target,
            step_size=tuned.step_size,
            inverse_mass_matrix=tuned.inverse_mass_matrix,
            integration_steps_params=(tuned.L / tuned.step_size,),
        )
        spent = GRADIENTS * info.num_integration_steps
        return (inner, tuned, key), inner.position, spent
