"""Everything a chain needs to go on: position, tuning, counters. Never changed in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ribbit.protocols import Array
from ribbit.samplers.adaptation import Adaptation

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["AnyState", "State", "StochasticState"]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """State of C chains between two transitions.

    Together with the sampler it decides every later draw: there is no hidden generator.

    Attributes
    ----------
    position : (C, P) array
    logdensity : (C,) float64 array
        Tempered log density at `position`.
    grad : (C, P) array
        Its gradient.
    terms : (C, M) float64 array
        Its terms, see :class:`ribbit.protocols.SplitLogDensity`.
    step : int
        Transitions done so far, warmup included; the counter of the random numbers.
    seed : int
        64-bit key of the random numbers.
    chains : (C,) uint32 NumPy array
        Ids of the chains. A chain's draws depend on its own id only.
    step_size : (C,) float64 array
    num_steps : (C,) int64 NumPy array
        Leapfrog steps per transition, on the host: it decides control flow.
    capped : (C,) bool NumPy array
        Whether `num_steps` was cut to ``max_num_leapfrog_steps``.
    inverse_mass : (P,) or (C, P) array or None
        Diagonal of the inverse mass matrix; None is the identity.
    adaptation : Adaptation or None
        Running sums of the adaptation while in warmup.
    warmup : int
        Transitions of warmup planned in all; windows of the adaptation hang on it.
    """

    position: Array
    logdensity: Array
    grad: Array
    terms: Array
    step: int
    seed: int
    chains: npt.NDArray[np.uint32]
    step_size: Array
    num_steps: npt.NDArray[np.int64]
    capped: npt.NDArray[np.bool_]
    inverse_mass: Array | None = None
    adaptation: Adaptation | None = None
    warmup: int = 0

    def __repr__(self) -> str:
        chains, dim = self.position.shape
        phase = f"warmup {self.step}/{self.warmup}" if self.step < self.warmup else "warm"
        return f"State({chains} chains, dim {dim}, step {self.step}, {phase}, seed {self.seed})"


@dataclass(frozen=True, slots=True, eq=False)
class StochasticState:
    """State of C chains between two steps along stochastic gradients.

    Attributes
    ----------
    position : (C, P) array
    logdensity : (C,) float64 array
        Tempered log density on all rows; NaN unless it is tracked.
    first_moment : (C, P) array or None
        Velocity of SGHMC, running mean of the gradients of Adam.
    second_moment : (C, P) array or None
        Running mean of the squared gradients.
    step : int
        Steps done so far, warmup included; the counter of batches and random numbers.
    seed : int
        64-bit key of the random numbers.
    chains : (C,) uint32 NumPy array
        Ids of the chains. A chain's draws depend on its own id only.
    warmup : int
        Steps of warmup planned in all.
    """

    position: Array
    logdensity: Array
    first_moment: Array | None
    second_moment: Array | None
    step: int
    seed: int
    chains: npt.NDArray[np.uint32]
    warmup: int = 0

    def __repr__(self) -> str:
        chains, dim = self.position.shape
        return f"StochasticState({chains} chains, dim {dim}, step {self.step}, seed {self.seed})"


AnyState: TypeAlias = State | StochasticState
