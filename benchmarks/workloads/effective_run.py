"""What `benchmarks.effective` asks of an entry: one run, block after block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class NotStatedError(Exception):
    """An entry cannot state this problem, or has not what it needs for it."""


class Run(ABC):
    """All chains of one entry on one problem with one seed.

    Attributes
    ----------
    gradients : float
        So far, of all chains on all rows, warmup and tuning included.
    compile : float
        Seconds spent in compiling so far, no part of the time that is judged.
    form : str
        How it runs, for the record.
    versions : dict of str
        Of the packages.
    """

    gradients: float
    compile: float
    form: str
    versions: dict[str, str]

    @abstractmethod
    def density(self, theta: Any) -> tuple[Any, Any]:
        """Log density (M,), up to a constant, and gradient (M, P) at float64 theta (M, P)."""

    @abstractmethod
    def start(self) -> None:
        """Warm up; what it compiles is added to `compile`."""

    @abstractmethod
    def draw(self, count: int) -> Any:
        """Go on: `count` draws of each chain, (C, count, P). A multiple of the problem's block."""
