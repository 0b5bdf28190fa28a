"""Which steps give draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Calendar"]


@dataclass(frozen=True)
class Calendar:
    """The last `many` steps of every `period`, `gap` apart; steps are counted from 1 after warmup.

    Attributes
    ----------
    period : int
        Steps; with ``many=1`` every period-th step gives a draw.
    many : int
        Draws of a period.
    gap : int
        Steps between them; ``many * gap <= period``.
    """

    period: int
    many: int = 1
    gap: int = 1

    @property
    def _first(self) -> int:
        return self.period - (self.many - 1) * self.gap

    def count(self, step: int) -> int:
        """Return how many draws steps 1 ... `step` give."""
        full, rest = divmod(step, self.period)
        inside = 0 if rest < self._first else 1 + (rest - self._first) // self.gap
        return full * self.many + inside

    def step(self, number: int) -> int:
        """Return the step of draw `number`, from 1."""
        full, place = divmod(number - 1, self.many)
        return full * self.period + self._first + place * self.gap

    def several(self, step: int, count: int) -> npt.NDArray[np.int64]:
        """Return the first `count` steps behind `step` that give draws, (count,)."""
        full, place = np.divmod(np.arange(count) + self.count(step), self.many)
        steps: npt.NDArray[np.int64] = full * self.period + self._first + place * self.gap
        return steps

    def after(self, step: int) -> int:
        """Return the first step behind `step` that gives a draw."""
        return self.step(self.count(step) + 1)

    def stop(self, step: int, warmup: int, *, each: bool) -> int:
        """Return where a run looks next at its chains: the next draw, or the end of warmup.

        Parameters
        ----------
        step : int
            Of the run, its `warmup` steps included.
        each : bool
            Whether every step of warmup is kept.
        """
        if step < warmup:
            return step + 1 if each else warmup
        return warmup + self.after(step - warmup)
