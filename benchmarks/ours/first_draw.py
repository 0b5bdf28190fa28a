"""Ribbit's entry of the first-draw workload: it imports what a user's script would."""

from __future__ import annotations

from typing import Any

import ribbit as rb


def first_draw(given: Any, x: Any, y: Any, start: Any) -> tuple[Any, Any, float]:
    """`rb.HMC`: positions (draws, P), log densities (draws,), mean acceptance."""
    of = given.of
    target = rb.Posterior(
        rb.mlp(of.sizes[0], of.sizes[1:-1], of.sizes[-1], activation=of.activation),
        x,
        y,
        prior=rb.Normal(of.prior_scale),
        likelihood=rb.Gaussian(of.noise_scale),
    )
    hmc = rb.HMC(
        target, step_size=of.step_size, num_leapfrog_steps=given.num_steps, randomize_length=False
    )
    draws = hmc.sample(given.draws, warmup=0, chains=1, seed=1, init=start, progress=False)
    rate = float(draws.stats["acceptance_rate"].mean())
    return draws.positions[0], draws.stats["lp"][0], rate
