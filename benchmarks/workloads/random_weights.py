"""Workloads that draw random numbers: reparam, normals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.workload import F32, Goal, Workload, WrongAnswerError, check_scores


@dataclass(frozen=True)
class Reparam(Workload):
    """w = mean + softplus(rho) * eps for `samples` weight vectors of `dim`, eps ~ N(0, 1).

    The answer is random: (w - mean) / softplus(rho) must have the moments of a standard normal,
    and its neighbours (along a vector, and between vectors) must be uncorrelated, each within
    5.5 standard errors: with 6 statistics a right answer fails with probability below 3e-7
    (and seeds are fixed).
    """

    kind: ClassVar[str] = "reparam"
    unit: ClassVar[str] = "weight"
    flops: ClassVar[None] = None

    name: str
    samples: int
    dim: int
    goal: Goal
    threads: int = 2
    seed: int = 1

    @property
    def units(self) -> int:
        """Weights in one run."""
        return self.samples * self.dim

    @cached_property
    def variational(self) -> tuple[F32, F32]:
        """Mean (P,) and rho (P,)."""
        rng = np.random.default_rng([self.seed, 3])
        mean = 0.1 * rng.standard_normal(self.dim)
        rho = -2.0 + 0.3 * rng.standard_normal(self.dim)
        return mean.astype(np.float32), rho.astype(np.float32)

    def check(self, answer: dict[str, NDArray[Any]]) -> dict[str, float]:
        """Return the statistics in standard errors; raise when one is beyond 5.5."""
        mean, rho = (a.astype(np.float64) for a in self.variational)
        scale = np.logaddexp(0.0, rho)
        weights = answer["weights"]
        if weights.shape != (self.samples, self.dim):
            raise WrongAnswerError(
                f"[{self.name}] expected weights {(self.samples, self.dim)}, got {weights.shape}"
            )
        rows = ((np.asarray(row, np.float64) - mean) / scale for row in weights)
        return check_normal(self.name, rows)


@dataclass(frozen=True)
class Normals(Workload):
    """`count` standard normals, float32, into memory that is already there."""

    kind: ClassVar[str] = "normals"
    unit: ClassVar[str] = "normal"
    flops: ClassVar[None] = None

    name: str
    count: int
    goal: Goal
    threads: int = 1
    seed: int = 1

    @property
    def units(self) -> int:
        """Normals in one run."""
        return self.count

    def check(self, answer: dict[str, NDArray[Any]]) -> dict[str, float]:
        """As Reparam.check."""
        values = np.asarray(answer["normals"], np.float64).reshape(4, -1)
        if values.size != self.count:
            raise WrongAnswerError(f"[{self.name}] expected {self.count}, got {values.size}")
        return check_normal(self.name, iter(values))


def check_normal(name: str, rows: Any) -> dict[str, float]:
    """Moments and neighbour correlations of rows of N(0, 1) draws, in standard errors."""
    sums = dict.fromkeys(("mean", "variance", "skew", "kurtosis", "along", "between"), 0.0)
    # Standard deviation of one term: Var z = 1, z^2 - 1: 2, z^3: 15, z^4 - 3: 96, z z': 1.
    deviation = dict(zip(sums, (1.0, 2**0.5, 15**0.5, 96**0.5, 1.0, 1.0), strict=True))
    count = 0
    previous = None
    for z in rows:
        count += z.size
        square = z * z
        sums["mean"] += z.sum()
        sums["variance"] += square.sum() - z.size
        sums["skew"] += (square * z).sum()
        sums["kurtosis"] += (square * square).sum() - 3.0 * z.size
        sums["along"] += z[1:] @ z[:-1]
        sums["between"] += 0.0 if previous is None else z @ previous
        previous = z
    scores = {key: float(sums[key] / (deviation[key] * count**0.5)) for key in sums}
    check_scores(name, scores, 5.5)
    return scores
