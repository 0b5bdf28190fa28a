"""What a run says early: that it will be long, and why."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.errors import NoiseWarning
from ribbit.protocols import Array
from ribbit.results.state import AnyState
from ribbit.samplers.run.caution import warn
from ribbit.samplers.run.target import Density

__all__ = ["Foresight"]

_LOOKED = 10  # transitions that the forecast is made of
_LONG = 1000.0  # leapfrogs of a trajectory, on average


class Foresight:
    """Watches some transitions of warmup, as soon as trajectories have the length they will keep.

    Where a learned noise sd has nearly vanished they take thousands of leapfrogs each; the run goes
    on as it would, but is not waited for without a word. Draws never depend on it.
    """

    def __init__(self, density: Density, first: int | None, total: int) -> None:
        """Watch from step `first` on (None: never) in a run that ends at step `total`."""
        self._density, self._first, self._total = density, first, total
        self._begin, self._leapfrogs = 0.0, 0.0
        self._ask = getattr(density.target, "_vanishing_noise", None)

    def update(self, name: str, state: AnyState, info: dict[str, Array]) -> None:
        """Note a step that was made; warn after the last one of those watched."""
        if self._first is None or self._ask is None or state.step < self._first:
            return
        if state.step == self._first:
            self._begin = time.perf_counter()
            return
        self._leapfrogs += float(np.mean(to_host(info["n_steps"])))
        if state.step < self._first + _LOOKED:
            return
        self._first = None
        mean = self._leapfrogs / _LOOKED
        if mean < _LONG:
            return
        found = self._ask(self._density.completed(state))
        if found is not None:
            self._warn(name, state, mean, *found)

    def _warn(self, name: str, state: Any, mean: float, size: str, advice: str) -> None:
        left = self._total - state.step
        seconds = (time.perf_counter() - self._begin) / _LOOKED * left
        warn(
            f"[{name}] expected data with noise, got a noise sd of {size} after {state.step} of "
            f"{self._total} transitions: the posterior is as narrow as its noise, so that a "
            f"trajectory takes {mean:,.0f} leapfrogs on average and the rest of the run about "
            f"{_duration(seconds)}, perhaps without converging. Give {advice}; Ctrl-C returns the "
            "draws so far.",
            stacklevel=5,
            category=NoiseWarning,
        )


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2.0 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
