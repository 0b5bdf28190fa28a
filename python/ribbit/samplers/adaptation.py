"""Warmup: step size by dual averaging, diagonal mass in windows; every chain on its own.

The sums live on the host as float64 (one number per chain), the running variances where the
positions are. Everything is part of the state, so that a warmup can be cut and resumed bit-exactly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ribbit import _backend
from ribbit.protocols import Array
from ribbit.samplers._interrupt import InterruptGuard
from ribbit.samplers.leapfrog import Density, total

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["Adaptation", "DualAveraging", "Welford", "reasonable_step_size", "windows"]

HostArray: TypeAlias = "npt.NDArray[np.float64]"

# Hoffman and Gelman 2014, section 3.2.1.
_GAMMA = 0.05
_T0 = 10.0
_KAPPA = 0.75
# The momentum of the search has a layer of its own: it shares no number with a draw.
_SEARCH_LAYER = 1
# Step sizes stay in a range where their reciprocal and square are harmless.
_LOG_MIN, _LOG_MAX = math.log(1e-12), math.log(1e7)


@dataclass(frozen=True, slots=True, eq=False)
class DualAveraging:
    """Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5).

    Attributes
    ----------
    log_step : (C,) float64
        Log of the step size to use next.
    log_average : (C,) float64
        Log of the averaged step size, the one to keep in the end.
    error : (C,) float64
        Running mean of target minus observed acceptance (the paper's H-bar).
    centre : (C,) float64
        Where log_step is drawn to (the paper's mu, log of 10 times the first step size).
    count : int
        Updates so far.
    """

    log_step: HostArray
    log_average: HostArray
    error: HostArray
    centre: HostArray
    count: int

    @staticmethod
    def start(step_size: HostArray) -> DualAveraging:
        """Begin at `step_size` (C,)."""
        log_step = _each(math.log, step_size)
        zero = np.zeros_like(log_step)
        centre = _each(lambda e: math.log(10.0 * e), step_size)
        return DualAveraging(log_step, zero, zero, centre, 0)

    def update(self, acceptance: HostArray, target: float) -> DualAveraging:
        """Take the acceptance (C,) of one more transition into account."""
        count = self.count + 1
        weight = 1.0 / (count + _T0)
        decay = count**-_KAPPA
        pull = math.sqrt(count) / _GAMMA
        error = (1.0 - weight) * self.error + weight * (target - acceptance)
        log_step = np.clip(self.centre - pull * error, _LOG_MIN, _LOG_MAX)
        log_average = decay * log_step + (1.0 - decay) * self.log_average
        return DualAveraging(log_step, log_average, error, self.centre, count)

    def step_size(self) -> HostArray:
        """Step size to explore with, (C,)."""
        return _each(math.exp, self.log_step)

    def average(self) -> HostArray:
        """Step size to keep, (C,)."""
        return _each(math.exp, self.log_average if self.count else self.log_step)


def _each(function: Callable[[float], float], values: HostArray) -> HostArray:
    """Apply a scalar function per chain; a vectorised one may round the last chains differently."""
    return np.array([function(float(v)) for v in values])


@dataclass(frozen=True, slots=True, eq=False)
class Welford:
    """Running mean and sum of squares per chain and parameter, float64 (Welford 1962).

    Attributes
    ----------
    mean, squares : (C, P) float64 array
    count : int
    """

    mean: Array
    squares: Array
    count: int

    @staticmethod
    def start(xp: ModuleType, shape: tuple[int, ...]) -> Welford:
        """Nothing seen yet."""
        zero = xp.zeros(shape, dtype=xp.float64)
        return Welford(zero, zero, 0)

    def update(self, xp: ModuleType, position: Array) -> Welford:
        """Take one more position (C, P)."""
        count = self.count + 1
        position = xp.astype(position, xp.float64)
        delta = position - self.mean
        mean = self.mean + delta / count
        return Welford(mean, self.squares + delta * (position - mean), count)

    def variance(self) -> Array:
        """Variance (C, P), shrunk towards 1e-3 as in Stan: weight n/(n+5) against 5/(n+5)."""
        n = self.count
        return (n / (n + 5.0)) * (self.squares / (n - 1)) + 1e-3 * (5.0 / (n + 5.0))


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """What is being adapted; None for what is fixed."""

    dual: DualAveraging | None
    welford: Welford | None


@functools.lru_cache(maxsize=32)
def windows(warmup: int) -> tuple[int, frozenset[int]]:
    """Windows of the mass adaptation, Stan's schedule.

    A fast start of 75 transitions, slow windows of 25, 50, 100, ... and a fast end of 50; a short
    warmup scales the three to 15, 75 and 10 %. Under 20 transitions there are no windows. Unlike
    Stan's, no window is shorter than the first: between 151 and 174 transitions one takes all.

    Parameters
    ----------
    warmup : int
        Transitions of warmup in all.

    Returns
    -------
    first : int
        The transition from which positions are collected.
    ends : frozenset of int
        Counts of done transitions at which a window closes: the mass is set from its positions and
        the collection starts again.
    """
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
    position: Array,
    terms: Array,
    grad: Array,
    inverse_mass: Array | None,
    *,
    start: float,
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
    guard: InterruptGuard | None,
) -> HostArray:
    """Find where one leapfrog step is accepted about half the time (paper's algorithm 4).

    Parameters
    ----------
    density : Density
    position, terms, grad : (C, P), (C, M), (C, P) array
    inverse_mass : (P,) or (C, P) array or None
    start : float
        First step size tried; a small one keeps foreign code away from wild positions.
    seed, step, chains
        Address of the momenta.
    guard : InterruptGuard or None

    Returns
    -------
    (C,) float64 array
    """
    xp, count = density.xp, chains.shape[0]
    p0 = _backend.normal(
        xp,
        (count, density.dim),
        density.dtype,
        seed=seed,
        step=step,
        chains=chains,
        purpose=_backend.MOMENTUM,
        layer=_SEARCH_LAYER,
    )
    if inverse_mass is not None:
        p0 = p0 / xp.sqrt(inverse_mass)
    kinetic0 = _backend.kinetic_energy(xp, p0, inverse_mass)
    one = np.ones(count, dtype=np.int64)
    eps = np.full(count, start)
    direction: HostArray | None = None
    active = np.ones(count, dtype=bool)
    while True:
        _, p, new_terms, _ = density.leapfrog(
            position, p0, grad, _backend.from_host(xp, eps.copy()), one, inverse_mass, guard
        )
        with _backend.errstate(xp):
            kinetic = _backend.kinetic_energy(xp, p, inverse_mass)
            drop = -_backend.to_host((kinetic - kinetic0) + total(terms - new_terms))
        drop = np.where(np.isfinite(drop), drop, -np.inf)  # log acceptance ratio
        if direction is None:
            direction = np.where(drop > math.log(0.5), 1.0, -1.0)
        active &= direction * drop > -direction * math.log(2.0)
        active &= (eps > 1e-12) & (eps < 1e7)
        if not active.any():
            return eps
        eps = np.where(active, eps * 2.0**direction, eps)
