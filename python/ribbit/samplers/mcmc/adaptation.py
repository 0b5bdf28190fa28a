"""Warmup: step size by dual averaging, diagonal mass in windows; every chain on its own."""

# The sums live on the host as float64, the running variances with the positions. Everything is part
# of the state, so that a warmup can be interrupted and resumed with the same bits.

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from ribbit._arrays import random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import HostArray

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["reasonable_step_size", "windows"]


# The momentum of the search has a layer of its own: it shares no number with a draw.
_SEARCH_LAYER = 1


@functools.lru_cache(maxsize=32)
def windows(warmup: int) -> tuple[int, frozenset[int]]:
    """Return the transition from which positions are collected, and when windows close."""
    # Stan's schedule: a fast start of 75 transitions, slow windows of 25, 50, 100, ... and a fast
    # end of 50; a short warmup scales the three to 15, 75 and 10 %. Under 20 there are no windows.
    # Unlike Stan's, no window is shorter than the first: between 151 and 174 transitions one takes
    # all.
    if warmup < 20:
        return warmup, frozenset()
    start, base, end = 75, 25, 50
    if start + base + end > warmup:
        start, end = int(0.15 * warmup), int(0.1 * warmup)
        base = warmup - start - end
    last = warmup - end
    if last < start + 2 * base:  # no room for a second window of some length: one takes all
        return start, frozenset({last})
    close, size = start + base, base
    ends = [close]
    while close != last:
        size *= 2
        close += size
        # A window too short to be followed by one of twice its size reaches to the end.
        if close != last and close + 2 * size > last:
            close = last
        ends.append(close)
    return start, frozenset(ends)


def reasonable_step_size(
    density: Density,
    position: Array,  # (C, P); terms (C, M), grad (C, P)
    terms: Array,
    grad: Array,
    inverse_mass: Array | None,  # (P,) or (C, P) or None
    *,
    start: float,  # first step size tried; a small one keeps foreign code away from wild positions
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
    guard: InterruptGuard | None,
) -> HostArray:
    """Return step sizes (C,) accepted half the time (Hoffman and Gelman 2014, algorithm 4)."""
    xp, count = density.xp, chains.shape[0]
    p0 = random_numbers.normal(
        xp,
        (count, density.dim),
        density.dtype,
        seed=seed,
        step=step,
        chains=chains,
        purpose=random_numbers.MOMENTUM,
        layer=_SEARCH_LAYER,
    )
    if inverse_mass is not None:
        p0 = p0 / xp.sqrt(inverse_mass)
    kinetic0 = transitions.kinetic_energy(xp, p0, inverse_mass)
    one = np.ones(count, dtype=np.int64)
    eps = np.full(count, start)
    direction: HostArray | None = None
    active = np.ones(count, dtype=bool)
    while True:
        _, p, new_terms, _, _ = density.leapfrog(
            position, p0, grad, from_host(xp, eps.copy()), one, inverse_mass, guard
        )
        with errstate(xp):
            kinetic = transitions.kinetic_energy(xp, p, inverse_mass)
            drop = -to_host((kinetic - kinetic0) + total(terms - new_terms))
        drop = np.where(np.isfinite(drop), drop, -np.inf)  # log acceptance ratio
        if direction is None:
            direction = np.where(drop > math.log(0.5), 1.0, -1.0)
        active &= direction * drop > -direction * math.log(2.0)
        active &= (eps > 1e-12) & (eps < 1e7)
        if not active.any():
            return eps
        eps = np.where(active, eps * 2.0**direction, eps)
