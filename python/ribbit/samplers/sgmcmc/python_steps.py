"""Steps along stochastic gradients of a target without native steps, by the formulas of `Rule`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import random_numbers
from ribbit._arrays.batches import Batches
from ribbit._arrays.namespace import errstate, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import StochasticState
from ribbit.samplers.sgmcmc.rule import Rule

if TYPE_CHECKING:
    import numpy.typing as npt


def python_steps(
    density: Density,
    rule: Rule,
    batches: Batches,
    state: StochasticState,
    eps: npt.NDArray[np.float64],
    noise: npt.NDArray[np.float64],
    previous: float,
    guard: InterruptGuard | None,
) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Make the steps of native code from gradients alone."""
    # previous: the step size of the step before; a change moves the velocity by its root.
    xp = density.xp
    theta = state.position
    first: Array = state.first_moment
    second: Array = state.second_moment
    chains = state.chains.shape[0]
    failed, largest = np.full(chains, -1), np.zeros(chains)
    for i, (e, factor) in enumerate(zip(eps.tolist(), noise.tolist(), strict=True)):
        if guard is not None and guard.requested:
            raise Interrupted
        step = state.step + i
        value, grad = _gradient(density, batches, theta, step, state, guard)
        xi = 0.0
        if factor:
            xi = factor * random_numbers.normal(
                xp,
                (chains, density.dim),
                density.dtype,
                seed=state.seed,
                step=step,
                chains=state.chains,
                purpose=random_numbers.UPDATE_NOISE,
            )
        with errstate(xp):
            if rule.kind == "friction":
                push = e * grad + math.sqrt(2.0 * rule.friction * e) * xi
                keep = (1.0 - rule.friction) * (math.sqrt(e / previous) if previous > 0.0 else 0.0)
                previous = e
                first = keep * first + push
                new = theta + first
            elif rule.kind == "kinetic":
                keep, level = math.exp(-rule.friction * e), -math.expm1(-2.0 * rule.friction * e)
                first = first + (e * second) * grad
                half = theta + (0.5 * e * second) * first
                first = keep * first + math.sqrt(level) * xi
                new = half + (0.5 * e * second) * first
            elif rule.kind == "adam":
                first = rule.decay1 * first + (1.0 - rule.decay1) * grad
                second = rule.decay2 * second + (1.0 - rule.decay2) * grad * grad
                mean = first * (1.0 / (1.0 - rule.decay1 ** (step + 1)))
                spread = second * (1.0 / (1.0 - rule.decay2 ** (step + 1)))
                new = theta + e * mean / (xp.sqrt(spread) + rule.epsilon)
            elif rule.preconditioned:
                if step < state.warmup:
                    scaled = grad * (1.0 / (batches.num_rows or 1))
                    second = rule.decay2 * second + (1.0 - rule.decay2) * scaled * scaled
                metric = 1.0 / (xp.sqrt(second) + rule.epsilon)
                new = theta + (0.5 * e) * metric * grad + math.sqrt(e) * xp.sqrt(metric) * xi
            else:
                new = theta + (0.5 * e) * grad + math.sqrt(e) * xi
        bad = to_host(xp.isnan(value) | ~xp.all(xp.isfinite(new), axis=1))
        if bad.any():
            failed[bad] = i
            sizes = np.abs(to_host(grad))
            sizes = np.where(np.isfinite(sizes), sizes, -1.0).max(axis=1)
            largest[bad] = np.where(sizes < 0, np.inf, sizes)[bad]
            break
        theta = new
    return (theta, first, second), failed, largest


def rows_of(
    batches: Batches, step: int, seed: int, chains: list[int]
) -> list[npt.NDArray[np.int64]] | None:
    """Return the batch (n,) of each chain at a step; None: all rows."""
    places = batches.places(step)
    if places is None:
        return None
    assert batches.num_rows is not None
    number, (epoch, begin, count) = batches.num_rows, places
    return [
        random_numbers.epoch_rows(
            number, seed=seed, chain=chain, epoch=epoch, begin=begin, count=count
        )
        for chain in chains
    ]


def _gradient(
    density: Density,
    batches: Batches,
    theta: Array,
    step: int,
    state: StochasticState,
    guard: InterruptGuard | None,
) -> tuple[Array, Array]:
    """Log density (C,), for whether it is NaN, and gradient (C, P)."""
    rows = rows_of(batches, step, state.seed, state.chains.tolist())
    if rows is None:
        terms, grad = density.terms_and_grad(theta, guard)
        with errstate(density.xp):
            return total(terms), grad
    if density.rows_per_chain:
        return density.on_batch(theta, np.stack(rows), guard)
    parts = [density.on_batch(theta[c : c + 1, :], own, guard) for c, own in enumerate(rows)]
    values, grads = zip(*parts, strict=True)
    return density.xp.concat(values, axis=0), density.xp.concat(grads, axis=0)
