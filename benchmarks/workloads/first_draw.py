"""From a fresh process to 100 draws: first-draw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness.first_draw_child import statistics
from benchmarks.harness.workload import Goal, Workload, check_replicates
from benchmarks.workloads import reference
from benchmarks.workloads.leapfrog import Leapfrog


@dataclass(frozen=True)
class FirstDraw(Workload):
    """A fresh process: import, build `of`, `draws` HMC transitions of `num_steps` leapfrogs.

    The wall time is taken from outside the process. The answer is random: mean log density of the
    last half, distance from the start to the last draw, and mean acceptance must lie within
    `tolerance` standard deviations (over `replicates` float64 reference runs) of the reference's
    mean; for a right answer that is a t statistic with replicates - 1 degrees of freedom
    (probability of a miss below 1e-6 in all).
    """

    kind: ClassVar[str] = "first_draw"
    unit: ClassVar[str] = "process"
    flops: ClassVar[None] = None

    name: str
    of: Leapfrog
    draws: int
    num_steps: int
    goal: Goal
    replicates: int = 8
    tolerance: float = 25.0
    threads: int = 2
    most_rounds: int = 0  # 0: as many as of others

    @cached_property
    def quick(self) -> FirstDraw:
        """One round: each is a process for every entry, which may compile for seconds."""
        return replace(self, most_rounds=1)

    @property
    def units(self) -> int:
        """One process."""
        return 1

    @cached_property
    def expected(self) -> dict[str, reference.Array]:
        """Statistics of the reference runs, (replicates,) each."""
        runs = []
        start = self.of.start[0][0].astype(np.float64)
        for replicate in range(self.replicates):
            rng = np.random.default_rng([self.of.seed, 4, replicate])
            positions, values, rate = reference.hmc(
                self.of.density, start, self.of.step_size, self.num_steps, self.draws, rng
            )
            runs.append(statistics(start, positions, values, rate))
        return {key: np.array([run[key] for run in runs]) for key in runs[0]}

    def check(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return the statistics in standard deviations; raise when one is beyond tolerance."""
        return check_replicates(self.name, self.expected, answer, self.tolerance)
