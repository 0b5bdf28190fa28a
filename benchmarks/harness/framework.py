"""An entry: how its process is started, what it prepares, which of its forms is the fastest."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

OURS = "ribbit"  # the entry that is held against the rest, and measures the FMA peak


@dataclass(frozen=True)
class Prepared:
    """Work that is ready to be timed.

    Attributes
    ----------
    run : callable
        Does the whole workload once and returns when the result is there.
    answer : callable
        Turns what `run` returned into NumPy arrays for the workload's `check`; not timed.
    form : str
        How this entry is written, for the record.
    tuning_seconds : float
        Part of the preparation that went into forms which were not taken.
    """

    run: Callable[[], Any]
    answer: Callable[[Any], dict[str, Any]]
    form: str
    tuning_seconds: float = 0.0


racing = True  # False: `fastest` takes the first form, where only the answer is wanted


def fastest(
    forms: dict[str, Callable[[], Any]], turns: int = 5, patience: float = 20.0
) -> tuple[str, float]:
    """Race several forms of one entry; the best of `turns` interleaved runs decides.

    No turn begins when the race has taken `patience` seconds, but each form has one. Returns the
    winner's name and the seconds spent that its user would not spend: the other forms' first
    calls, and the race.
    """
    if len(forms) == 1 or not racing:
        return next(iter(forms)), 0.0
    started = time.perf_counter()
    first = {}
    for name, run in forms.items():
        first[name] = _seconds(run)  # compiles
    best = {name: _seconds(run) for name, run in forms.items()}
    for _ in range(turns - 1):
        if time.perf_counter() - started > patience:
            break
        for name, run in forms.items():
            best[name] = min(best[name], _seconds(run))
    winner = min(best, key=lambda name: best[name])
    return winner, time.perf_counter() - started - first[winner]


def _seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


@dataclass(frozen=True)
class Framework:
    """An entry: where its code is, what it needs, what its process is started with.

    `fresh` is the module whose ``first_draw`` samples in a fresh process, "" where there is none.
    """

    name: str
    module: str
    needs: tuple[str, ...]
    variant: str = ""
    env: dict[str, str] = field(default_factory=dict)
    fresh: str = ""

    def installed(self) -> bool:
        """Whether every package it needs can be found."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)

    def load(self) -> ModuleType:
        """Import its module, and with it the framework."""
        return importlib.import_module(self.module)

    def obstacle(self) -> str:
        """Why it cannot run on this machine although it is installed; "" when it can."""
        find = getattr(self.load(), "obstacle", None)
        return str(find(self.variant)) if find else ""

    def prepare(self, workload: Any) -> Prepared:
        """Build the workload; raises KeyError for a kind it does not do."""
        prepare = self.load().PREPARE[workload.kind]
        prepared: Prepared = prepare(workload, self.variant) if self.variant else prepare(workload)
        return prepared
