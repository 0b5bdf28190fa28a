"""BlackJAX: NUTS after its window adaptation (step size to 0.8, diagonal mass)."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
from blackjax.adaptation.base import get_filter_adapt_info_fn

from benchmarks.rivals import jax_effective
from benchmarks.workloads.effective_problems import Problem


class NUTS(jax_effective.Chains):
    """`window_adaptation` of its default length from the prior, then `nuts` kernels."""

    library = "blackjax"

    def __init__(self, problem: Problem, seed: int, threads: int, *, depth: int) -> None:
        super().__init__(problem, seed, threads)
        self.depth = depth
        self.kernel = blackjax.nuts.build_kernel()

    def warm_up(self) -> Any:
        """Each chain has its own tuning."""
        place, walk = jax.random.split(self.key)
        keys = jax.random.split(walk, self.problem.chains)
        keep = get_filter_adapt_info_fn(info_keys={"num_integration_steps"})

        def adapt(key: Any, theta: Any) -> Any:
            now, later = jax.random.split(key)
            tuning = blackjax.window_adaptation(
                blackjax.nuts,
                self.target,
                adaptation_info_fn=keep,
                max_num_doublings=self.depth,
            )
            (state, tuned), found = tuning.run(now, theta)
            steps = found.info.num_integration_steps.sum()
            return (state, tuned["step_size"], tuned["inverse_mass_matrix"], later), steps

        start = jax_effective.start(self.problem, place)
        states, steps = self.compiled(adapt, keys, start)(keys, start)
        self.gradients += float(steps.sum())
        return states

    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """One tree."""
        inner, eps, mass, key = state
        key, now = jax.random.split(key)
        inner, info = self.kernel(now, inner, self.target, eps, mass, max_num_doublings=self.depth)
        return (inner, eps, mass, key), inner.position, info.num_integration_steps
