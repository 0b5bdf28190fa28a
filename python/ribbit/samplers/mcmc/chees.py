"""How long trajectories should be: the gradient of ChEES across chains (Hoffman et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Moves", "log_length_gradient"]


class Moves(NamedTuple):
    """What the trajectories of one transition did, accepted or not.

    Attributes
    ----------
    start, end, momentum : (C, P) array
        Positions before and after, and the momentum there.
    lengths : (C,) float64 NumPy array
        Step size times leapfrog steps.
    inverse_mass : (P,) or (C, P) array or None
        Under which they were made.
    """

    start: Array
    end: Array
    momentum: Array
    lengths: npt.NDArray[np.float64]
    inverse_mass: Array | None


def log_length_gradient(
    moves: Moves, acceptance: npt.NDArray[np.float64], chains: npt.NDArray[np.uint32]
) -> float:
    """Gradient of ChEES by the log of the mean trajectory length (section 3 and algorithm 1).

    ChEES is the expected square of how far a trajectory changes |q - E q|^2, over 4. Its derivative
    by the time t that a trajectory has run is (|q' - m'|^2 - |q - m|^2) (q' - m') . v' at the end;
    times t it is that by the log of the mean length, since t is a random multiple of it. Chains
    count by their acceptance; distances are those of whitened positions. 0 where nothing was
    accepted. The chains are summed in the order of their ids: only their set matters.

    Parameters
    ----------
    moves : Moves
    acceptance : (C,) float64
        Acceptance probabilities; 0 for what is not finite.
    chains : (C,) ids
    """
    order = np.argsort(chains)
    start, end, momentum = (
        to_host(array)[order].astype(np.float64)
        for array in (moves.start, moves.end, moves.momentum)
    )
    weight, lengths = acceptance[order], moves.lengths[order]
    lost = ~(weight > 0.0)
    end[lost] = momentum[lost] = 0.0  # not finite, perhaps
    total = float(weight.sum())
    if not total > 0.0:
        return 0.0
    mass = 1.0 if moves.inverse_mass is None else to_host(moves.inverse_mass).astype(np.float64)
    if np.ndim(mass) == 2:
        mass = np.asarray(mass)[order]
    start = start - start.mean(axis=0)
    end = end - (weight[:, None] * end).sum(axis=0) / total
    growth = (end * end / mass).sum(axis=1) - (start * start / mass).sum(axis=1)
    outward = (end * momentum).sum(axis=1)  # the velocity is mass * momentum
    return float((weight * lengths * growth * outward).sum() / total)
