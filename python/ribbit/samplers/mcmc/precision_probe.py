"""A short trajectory before a run whose gradients are less accurate than float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import random_numbers, transitions
from ribbit._arrays.namespace import errstate, to_host
from ribbit._arrays.warning import warn
from ribbit.density import Density, total
from ribbit.errors import PrecisionWarning
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["warn_of_precision"]

_STEPS = 16  # leapfrog steps, or as many as a trajectory has
_TRAJECTORIES = 16  # at least, of all chains
_LIMIT = 0.1  # sd of the difference of the energy errors
# The momenta of the probe have a layer of their own: they share no number with a draw.
_PROBE_LAYER = 2


def warn_of_precision(
    function: str,
    density: Density,
    reference: Density,
    position: Array,  # (C, P)
    tuned: dict[str, Any],  # step_size, num_steps and inverse_mass of the run
    *,
    seed: int,
    chains: npt.NDArray[np.uint32],
    divergence_threshold: float,
    guard: InterruptGuard | None,
) -> None:
    """Warn if a target and its ``precision_reference`` have different energy errors."""
    # Both make short trajectories from the same positions and momenta. Those that diverge in the
    # reference say nothing of the precision and are left out.
    repeats = -(-_TRAJECTORIES // chains.shape[0])
    found = np.array(
        [
            [
                _energy_error(d, position, tuned, seed, repeat, chains, guard)
                for d in (density, reference)
            ]
            for repeat in range(repeats)
        ]
    )  # (repeats, 2, C)
    own, known = found[:, 0], found[:, 1]
    use = np.abs(known) <= divergence_threshold
    if np.count_nonzero(use) < 2:
        return
    difference = own[use] - known[use]
    spread = float(np.std(difference, ddof=1)) if np.isfinite(difference).all() else np.inf
    if spread > _LIMIT:
        steps = min(_STEPS, int(tuned["num_steps"].max()))
        warn(
            f"[{function}] expected the energy errors of float32 within a standard deviation of "
            f"{_LIMIT:g}, got {spread:.2g} over {difference.size} trajectories of {steps} steps "
            f"with precision={density.target.precision!r}: acceptance will suffer, use 'mixed' or "
            "'float32'",
            PrecisionWarning,
        )


def _energy_error(
    density: Density,
    position: Array,
    tuned: dict[str, Any],
    seed: int,
    repeat: int,
    chains: npt.NDArray[np.uint32],
    guard: InterruptGuard | None,
) -> npt.NDArray[np.float64]:
    """Energy error (C,) of a short trajectory, infinity where it is lost."""
    xp, mass = density.xp, tuned["inverse_mass"]
    p0 = random_numbers.normal(
        xp,
        (chains.shape[0], density.dim),
        density.dtype,
        seed=seed,
        step=repeat,
        chains=chains,
        purpose=random_numbers.MOMENTUM,
        layer=_PROBE_LAYER,
    )
    if mass is not None:
        p0 = p0 / xp.sqrt(mass)
    terms0, grad = density.terms_and_grad(position, guard)
    steps = np.minimum(tuned["num_steps"], _STEPS)
    _, p, terms, _, _ = density.leapfrog(position, p0, grad, tuned["step_size"], steps, mass, guard)
    with errstate(xp):
        kinetic0, kinetic = (transitions.kinetic_energy(xp, v, mass) for v in (p0, p))
        error = to_host((kinetic - kinetic0) + total(terms0 - terms))
    return np.where(np.isfinite(error), error, np.inf)
