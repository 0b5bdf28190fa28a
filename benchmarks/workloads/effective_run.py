"""What `benchmarks.effective` asks of an entry: one run, block after block."""

from __future__ import annotations

import contextlib
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from benchmarks.workloads.effective_problems import Problem


class NotStatedError(Exception):
    """An entry cannot state this problem, or has not what it needs for it."""


class Run(ABC):
    """All chains of one entry on one problem with one seed.

    Attributes
    ----------
    problem : Problem
        What it samples.
    gradients : float
        So far, of all chains on all rows, warmup and tuning included.
    compile, compile_cpu : float
        Seconds and CPU seconds spent in compiling so far, no part of the time that is judged.
    ahead : float
        Seconds spent on draws that were not yet asked for, no part of it either.
    form : str
        How it runs, for the record.
    versions : dict of str
        Of the packages.
    most : int
        Draws per chain that it can give. One that is fixed beforehand is a budget of its own: then
        the problem's budgets are not looked at.
    """

    problem: Problem
    form: str
    versions: dict[str, str]
    most: int = 10**7

    def __init__(self) -> None:
        self.gradients = 0.0
        self.compile = self.compile_cpu = self.ahead = 0.0

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Take the body for compilation."""
        begun, cpu = time.perf_counter(), processor_time()
        yield
        self.compile += time.perf_counter() - begun
        self.compile_cpu += processor_time() - cpu

    @abstractmethod
    def density(self, theta: Any) -> tuple[Any, Any]:
        """Log density (M,), up to a constant, and gradient (M, P) at float64 theta (M, P)."""

    @abstractmethod
    def start(self) -> None:
        """Warm up; what it compiles is added to `compile`."""

    @abstractmethod
    def draw(self, count: int) -> Any:
        """Go on: `count` draws of each chain, (C, count, P). A multiple of the problem's block."""


def processor_time() -> float:
    """CPU seconds of this process, of all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
