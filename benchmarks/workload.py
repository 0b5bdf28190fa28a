"""What every workload has: a goal, a reference that is computed once, an error to raise."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class WrongAnswerError(AssertionError):
    """An entry did not compute what the reference computes."""


@dataclass(frozen=True)
class Goal:
    """Target of a workload: ratio to the best rival, share of FMA peak, seconds per unit."""

    ratio: float | None = None
    share: float | None = None
    seconds: float | None = None


class Workload:
    """A workload whose `expected` is computed once, here or in another process."""

    expected: Any = None

    def compute_expected(self) -> dict[str, Any]:
        """Compute the reference now rather than inside something timed."""
        expected: dict[str, Any] = self.expected or {}
        return expected

    def use_expected(self, expected: dict[str, Any]) -> None:
        """Take the reference from another process instead of computing it again."""
        if expected:
            self.__dict__["expected"] = expected


def on_threads(workload: Any, threads: int) -> Any:
    """Return the same workload, with what it has computed, for another number of threads."""
    other = copy.copy(workload)
    object.__setattr__(other, "threads", threads)
    return other
