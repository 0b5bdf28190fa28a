"""Samplers whose steps are those of a `Stepper`: what SGLD and SGHMC share."""

from __future__ import annotations

from typing import Any, ClassVar

from ribbit import _checks
from ribbit.protocols import Array
from ribbit.samplers._interrupt import InterruptGuard
from ribbit.samplers.state import StochasticState
from ribbit.samplers.stochastic import Stepper

__all__ = ["Stepping"]


class Stepping:
    """The part of a `Sampler` that a `Stepper` does; a base beside it."""

    statistics: ClassVar[dict[str, str]] = {"lp": "float64", "step_size": "float64"}

    _stepper: Stepper

    def step(
        self, state: StochasticState, *, num_steps: int = 1
    ) -> tuple[StochasticState, dict[str, Array]]:
        """Make `num_steps` steps in native code.

        Parameters
        ----------
        state : StochasticState
            Not changed.
        num_steps : int
            At least 1.

        Returns
        -------
        state : StochasticState
        info : dict of (C,) arrays
            lp and step_size of the last step.

        Raises
        ------
        NonFiniteError
            When a parameter is not finite any more; carries the last finite state.
        """
        name = f"{type(self).__name__}.step"
        count = _checks.integer(name, "num_steps", num_steps, minimum=1)
        return self._stepper.advance(self._stepper.adopt(name, state), count, None)

    def _thin(self, function: str, num_draws: int, thin: int) -> int:
        return self._stepper.thin(function, num_draws, thin)

    def _check_end(self, function: str, state: Any, num_draws: int, thin: int) -> None:
        self._stepper.check_end(function, state, num_draws, thin)

    def _adopt(self, function: str, state: Any, guard: InterruptGuard | None) -> StochasticState:
        return self._stepper.adopt(function, state)

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[StochasticState, dict[str, Array]]:
        return self._stepper.advance(state, num_steps, guard)
