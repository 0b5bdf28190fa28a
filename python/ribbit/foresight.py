"""What a run says early: that it will be long, and why."""

from __future__ import annotations

import sys

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit._arrays.warning import warn
from ribbit.density import Density
from ribbit.errors import NoiseWarning, RibbitWarning
from ribbit.protocols import Array
from ribbit.results.state import AnyState

__all__ = ["Foresight"]

_LOOKED = 10  # transitions that the forecast is made of
_SOON = 15.0  # seconds after which it is made of fewer
# Leapfrogs of a trajectory, on average. HMC's default length is cut to 1,024, and the mean of ten
# random lengths has an sd of 190.
_LONG = 700.0
_PATIENCE = 120.0  # seconds that nobody needs to be told of


class Foresight:
    """Watches some transitions of warmup, as soon as trajectories have the length they will keep.

    Where a learned noise sd has nearly vanished, or the posterior is far narrower than its prior
    somewhere else, they take thousands of leapfrogs each; the run goes on as it would, but is not
    waited for without a word. Draws never depend on it.
    """

    def __init__(self, density: Density, first: int | None, total: int) -> None:
        """Watch from step `first` on (None: never) in a run that ends at step `total`."""
        self._density, self._first, self._total = density, first, total
        self._looked, self._leapfrogs, self._seconds = 0, 0.0, 0.0
        self._watching = False
        self._ask = getattr(density.target, "_vanishing_noise", None)

    @property
    def stop(self) -> int:
        """Step that no block crosses: where watching begins, or may end."""
        return sys.maxsize if self._first is None else self._first + _LOOKED * self._watching

    def update(
        self, name: str, state: AnyState, before: int, stats: dict[str, Array], seconds: float
    ) -> None:
        """Note a block that began at step `before` and took so long; warn after the last one.

        stats: of its transitions, (C, K) each.
        """
        if self._first is None or state.step < self._first:
            return
        self._watching = True
        if before < self._first or not stats:
            return
        lengths = to_host(stats["n_steps"])
        self._leapfrogs += float(lengths.mean(axis=0).sum())
        self._looked, self._seconds = self._looked + lengths.shape[1], self._seconds + seconds
        looked, seconds = self._looked, self._seconds
        if looked < _LOOKED and seconds < _SOON:
            return
        self._first = None
        mean, left = self._leapfrogs / looked, seconds / looked * (self._total - state.step)
        if mean < _LONG:
            return
        found = None if self._ask is None else self._ask(self._density.completed(state))
        place = f"after {state.step} of {self._total} transitions"
        if found is not None:
            self._warn_noise(name, place, mean, left, *found)
        elif left > _PATIENCE:
            steps = to_host(stats["step_size"])[:, -1]
            self._warn_long(name, place, mean, left, float(np.median(steps)))

    def _warn_noise(
        self, name: str, place: str, mean: float, left: float, size: str, advice: str
    ) -> None:
        warn(
            f"[{name}] expected data with noise, got a noise sd of {size} {place}: the posterior "
            f"is as narrow as its noise, so that a trajectory takes {mean:,.0f} leapfrogs on "
            f"average and the rest of the run about {_duration(left)}, perhaps without converging. "
            f"Give {advice}; Ctrl-C returns the draws so far.",
            NoiseWarning,
        )

    def _warn_long(self, name: str, place: str, mean: float, left: float, step: float) -> None:
        warn(
            f"[{name}] expected trajectories of some hundred leapfrogs, got {mean:,.0f} on average "
            f"(step sizes of {step:.1g}) {place}: the posterior is far narrower than its prior "
            f"somewhere, and the rest of the run takes about {_duration(left)}. "
            "num_leapfrog_steps=200 takes shorter ones, for draws that depend more on each other; "
            "rb.MCLMC(target) takes one gradient a step; Ctrl-C returns the draws so far.",
            RibbitWarning,
        )


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2.0 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
