"""Whole public calls, as users make them: every network of the zoo, five calls each.

What one call costs beside its gradients is nobody's kernel and everybody's time. Each call here is
held to the number of gradients that its floor counts, to moves that are finite, and predictions to
the outputs of the draws one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.workload import (
    F32,
    Goal,
    Workload,
    WrongAnswerError,
    check_errors,
    relative_error,
)
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.table import WORKLOADS

Of = Leapfrog | NetworkGradient
NO_GOAL = Goal()
UNITS = {
    "HMC.sample": "draw and chain",
    "MCLMC.sample": "draw and chain",
    "SGLD.sample": "draw and chain",
    "BBB.fit": "epoch",
    "Draws.predict": "draw and 1,000 rows",
}


@dataclass(frozen=True)
class Call(Workload):
    """A call of Ribbit's on a network: `draws` of each of `chains`, or epochs of a fit.

    `steps` gradients make a draw. `of` has the network, its data and a start; predictions are for
    `new_rows` rows of the same law.
    """

    kind: ClassVar[str] = "call"

    name: str
    call: str
    of: Of
    draws: int
    step_size: float
    chains: int = 4
    steps: int = 1
    new_rows: int = 0
    threads: int = 2
    goal: Goal = NO_GOAL
    tolerance: float = 1e-4

    @cached_property
    def reduced(self) -> Call:
        """Fewer rows, draws and chains."""
        of = replace(self.of, rows=min(self.of.rows, 8))
        few = min(self.new_rows, 8)
        return replace(
            self, of=of, draws=min(self.draws, 3), chains=min(self.chains, 2), new_rows=few
        )

    @property
    def unit(self) -> str:
        """What a time is of."""
        return UNITS[self.call]

    @property
    def units(self) -> float:
        """How many of them are in a call."""
        return self.draws * self.chains * (self.new_rows / 1000.0 if self.new_rows else 1.0)

    @property
    def batch(self) -> int:
        """Rows of a gradient of SGLD: all there are, up to 128."""
        return min(self.of.rows, 128)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.of.dim

    @property
    def gradients(self) -> int:
        """Gradients of a call; those of sampled chains begin with one at the start."""
        if self.new_rows:
            return 0
        first = self.call in ("HMC.sample", "MCLMC.sample")
        return self.chains * (self.draws * self.steps + first)

    @property
    def start(self) -> F32:
        """Position (P,)."""
        return self.of.start[0][0] if isinstance(self.of, Leapfrog) else self.of.start

    @cached_property
    def positions(self) -> F32:
        """Draws (C, D, P) that are predicted with: the start and 1 % of noise."""
        rng = np.random.default_rng([self.of.seed, 31])
        noise = rng.standard_normal((self.chains, self.draws, self.dim), dtype=np.float32)
        return np.asarray(self.start * (1.0 + 0.01 * noise), np.float32)

    @cached_property
    def x(self) -> NDArray[Any]:
        """Inputs (new_rows, ...)."""
        x: NDArray[Any] = replace(self.of, rows=self.new_rows).data[0]
        return x

    def check(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return errors; `answer`: what the call's own statistics say.

        Sampled: gradients, positions (C, D, P). Predicted: found and wanted, mean and sd (2 n, K),
        the second from the draws one by one. Fitted: gradients, positions (1, 1, P), the mean.
        """
        if self.new_rows:
            errors = {"prediction": relative_error(answer["found"], answer["wanted"])}
            check_errors(self.name, errors, self.tolerance)
            return errors
        if answer["gradients"] != self.gradients:
            raise WrongAnswerError(
                f"[{self.name}] expected {self.gradients} gradients, got {answer['gradients']}"
            )
        moved = np.abs(np.asarray(answer["positions"]) - self.start).max(axis=(1, 2))
        if not (np.isfinite(moved).all() and (moved > 0.0).all()):
            raise WrongAnswerError(f"[{self.name}] expected every chain to move, got {moved}")
        return {"gradients": 0.0}


@dataclass(frozen=True)
class SmallCall(Workload):
    """One of the calls of `benchmarks.ours.small_calls`, by name; its answer is not checked."""

    kind: ClassVar[str] = "small_call"
    units: ClassVar[float] = 1.0

    name: str
    threads: int = 1

    def check(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return no errors."""
        return {}


def _five(
    name: str,
    of: Of,
    step: float,
    *,
    hmc: tuple[int, int],
    mclmc: int,
    sgld: int,
    bbb: int,
    predict: tuple[int, int],
) -> list[Call]:
    """Make the five calls of a network.

    Numbers of draws or epochs; of HMC also of leapfrogs, of predictions also of rows.
    """

    def one(call: str, draws: int, step_size: float, **more: int) -> Call:
        return Call(f"{name} {call}", call, of, draws, step_size, **more)

    return [
        one("HMC.sample", hmc[0], step, steps=hmc[1]),
        one("MCLMC.sample", mclmc, 10.0 * step, steps=25),
        one("SGLD.sample", sgld, 0.1 * step**2),
        one("BBB.fit", bbb, 1e-4, chains=1),
        one("Draws.predict", predict[0], step, new_rows=predict[1]),
    ]


def _catalogue() -> dict[str, Call]:
    def on(name: str, rows: int) -> Of:
        of: Of = replace(WORKLOADS[name], rows=rows)
        return of

    small, lenet5 = on("hmc-small-1", 927), on("lenet5", 256)
    resnet20, cnn_lstm = on("resnet20", 64), on("cnn-lstm", 128)
    found = [
        _five(
            "mlp", small, 2e-4, hmc=(50, 20), mclmc=40, sgld=1000, bbb=200, predict=(250, 10_000)
        ),
        _five("lenet5", lenet5, 1e-3, hmc=(2, 5), mclmc=1, sgld=20, bbb=20, predict=(5, 1000)),
        _five("resnet20_frn", resnet20, 1e-3, hmc=(1, 3), mclmc=1, sgld=5, bbb=5, predict=(2, 256)),
        _five("cnn_lstm", cnn_lstm, 1e-3, hmc=(2, 5), mclmc=1, sgld=10, bbb=10, predict=(5, 512)),
    ]
    return {call.name: call for calls in found for call in calls}


CALLS = _catalogue()
