"""The search for the first step sizes of chains, and a probe of the precision of gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit._arrays.warning import warn
from ribbit.density import Density
from ribbit.errors import PrecisionWarning
from ribbit.interrupt import InterruptGuard
from ribbit.lockstep.hmc import Point, momentum, trajectory

if TYPE_CHECKING:
    import numpy.typing as npt

_SEARCH, _PROBE = 1, 2  # layers of the stream of momenta; draws use layer 0
_STEPS = _TRAJECTORIES = 16  # of a probe: steps at most, and trajectories of all chains at least
_LIMIT = 0.1  # standard deviation of the difference of the energy errors


def first_step_sizes(
    density: Density, tuner: Any, at: Point, guard: InterruptGuard | None
) -> npt.NDArray[np.float64]:
    """Return step sizes (C,) of algorithm 4 of Hoffman and Gelman (2014)."""
    p, count = momentum(density, at, _SEARCH), len(at.chains)
    one, size = np.ones(count, dtype=np.int64), np.full(count, tuner.first_try)
    direction, active = np.zeros(count), np.ones(count, dtype=bool)
    while True:
        drop = -_energy_error(density, at, p, size, one, guard)
        if not direction.any():  # the first step decides
            direction = np.where(drop > math.log(0.5), 1.0, -1.0)
        active &= direction * drop > -direction * math.log(2.0)
        active &= (size > 1e-12) & (size < 1e7)
        if not active.any():
            return size
        size = np.where(active, size * 2.0**direction, size)


def warn_of_precision(
    function: str,
    density: Density,
    tuner: Any,
    num_steps: npt.NDArray[np.int64] | None,
    at: Point,
    guard: InterruptGuard | None,
) -> None:
    """Warn if short trajectories of a target and its reference have different energy errors."""
    chains = len(at.chains)
    steps = np.minimum(np.full(chains, _STEPS) if num_steps is None else num_steps, _STEPS)
    size, found = tuner.plan(0)[0], []
    for target in (density, Density(density.precision_reference, function=function)):
        terms, grad = target.terms_and_grad(at.position, guard)
        for repeat in range(-(-_TRAJECTORIES // chains)):
            point = at._replace(step=repeat, terms=terms, grad=grad)
            p = momentum(density, point, _PROBE)
            found.append(_energy_error(target, point, p, size, steps, guard))
    own, known = np.reshape(found, (2, -1))
    # Trajectories that diverge in the reference say nothing about precision.
    use = np.abs(known) <= tuner.divergence_threshold
    difference = own[use] - known[use]
    if difference.size < 2:
        return
    spread = float(np.std(difference, ddof=1)) if np.isfinite(difference).all() else math.inf
    if spread > _LIMIT:
        warn(
            f"[{function}] the energy errors must differ from those in float32 by a standard "
            f"deviation of at most {_LIMIT:g}, got {spread:.2g} over {difference.size} "
            f"trajectories of {steps.max()} steps with precision={density.target.precision!r}. "
            "Acceptance will suffer: use 'mixed' or 'float32'",
            PrecisionWarning,
        )


def _energy_error(
    density: Density,
    at: Point,
    p: Any,
    size: npt.NDArray[np.float64],
    steps: npt.NDArray[np.int64],
    guard: InterruptGuard | None,
) -> npt.NDArray[np.float64]:
    """Return the energy errors (C,) of trajectories on the host; infinite for lost ones."""
    error = to_host(trajectory(density, at, p, size.copy(), steps, guard)[2])
    return np.where(np.isfinite(error), error, np.inf)
