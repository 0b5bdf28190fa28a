"""What is timed: shapes, data, seeds, the expected answer, and the goal.

A workload knows nothing about any framework. Its `kind` says which function of an entry prepares
it (`benchmarks.rivals`), its `check` raises when an answer is not the reference's. Data are
synthetic and drawn from a teacher network, so that nothing has to be downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.first_draw_child import statistics
from benchmarks.harness.workload import (
    F32,
    Goal,
    Workload,
    WrongAnswerError,
    check_replicates,
    gradient_flops,
    num_parameters,
)
from benchmarks.workloads import networks, reference
from benchmarks.workloads.langevin import Langevin
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.predictive import MaskDraws, WeightDraws
from benchmarks.workloads.random_weights import Normals, Reparam
from benchmarks.workloads.variational import BayesByBackprop


@dataclass(frozen=True)
class Leapfrog(Workload):
    """A full-batch trajectory of an MLP: `num_steps` leapfrogs of `chains` chains, unit mass.

    The run starts from the network that made the data (so the curvature is a posterior's), with
    standard normal momenta; the initial gradient is part of it, so it costs num_steps + 1
    gradients per chain.

    Tolerances, both for float32 entries against float64: the end position differs by at most
    `position_tolerance` of the distance travelled (2-norms), the log density by at most
    `logdensity_tolerance` of P + N + |log density| (the size of the terms that are summed).
    """

    kind: ClassVar[str] = "leapfrog"
    unit: ClassVar[str] = "leapfrog and chain"

    name: str
    sizes: tuple[int, ...]
    activation: str
    likelihood: str
    rows: int
    chains: int
    num_steps: int
    step_size: float
    prior_scale: float
    noise_scale: float
    goal: Goal
    threads: int = 2
    seed: int = 1
    position_tolerance: float = 2e-4
    logdensity_tolerance: float = 2e-5

    @cached_property
    def reduced(self) -> Leapfrog:
        """Fewer rows and steps."""
        steps = max(5, self.num_steps // 10)
        return replace(self, rows=min(self.rows, 512), num_steps=steps)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return num_parameters(self.sizes)

    @property
    def units(self) -> int:
        """Leapfrogs times chains in one run."""
        return self.num_steps * self.chains

    @property
    def flops(self) -> float:
        """Multiplies and adds of the dense layers in one run."""
        return gradient_flops(self.sizes, self.rows) * (self.num_steps + 1) * self.chains

    @cached_property
    def data(self) -> tuple[F32, NDArray[Any]]:
        """Inputs (N, D) float32 and targets: (N, 1) float32, or labels (N,) int64."""
        return self._made[0], self._made[1]

    @cached_property
    def start(self) -> tuple[F32, F32]:
        """Position (C, P) and momentum (C, P), float32."""
        rng = np.random.default_rng([self.seed, 2])
        noise = rng.standard_normal((self.chains, self.dim))
        position = self._made[2] + 0.02 * self.prior_scale * noise
        momentum = rng.standard_normal((self.chains, self.dim))
        return position.astype(np.float32), momentum.astype(np.float32)

    @cached_property
    def _made(self) -> tuple[F32, NDArray[Any], reference.Array]:
        rng = np.random.default_rng([self.seed, 1])
        x = rng.standard_normal((self.rows, self.sizes[0]))
        if self.sizes[0] == 2:  # the features of the synthetic regression: (u, u^2)
            u = np.linspace(-2.0, 2.0, self.rows)
            x = np.stack([u, u**2], axis=1)
        inputs = x.astype(np.float32)
        teacher = self.prior_scale * rng.standard_normal(self.dim)
        output = self._density(inputs, np.zeros(0)).forward(teacher)[0]
        y: NDArray[Any]
        if self.likelihood == "gaussian":
            noise = self.noise_scale * rng.standard_normal(output.shape)
            y = (output + noise).astype(np.float32)
        else:
            y = np.argmax(output + rng.gumbel(size=output.shape), axis=1).astype(np.int64)
        return inputs, y, teacher

    def _density(self, x: F32, y: NDArray[Any]) -> reference.Density:
        wide = y.astype(np.float64) if y.dtype.kind == "f" else y
        return reference.Density(
            self.sizes,
            self.activation,
            self.likelihood,
            self.prior_scale,
            self.noise_scale,
            x.astype(np.float64),
            wide,
        )

    @cached_property
    def density(self) -> reference.Density:
        """The float64 log density of this workload's data."""
        return self._density(*self.data)

    @cached_property
    def expected(self) -> dict[str, reference.Array]:
        """Position, logdensity, energy_error at the end, position one step earlier; (C, ...)."""
        position, momentum = (a.astype(np.float64) for a in self.start)
        ends = [
            reference.leapfrog(self.density, q, p, self.step_size, self.num_steps)
            for q, p in zip(position, momentum, strict=True)
        ]
        energy_error = [
            e.start_logdensity - e.logdensity + 0.5 * (e.momentum @ e.momentum - p @ p)
            for e, p in zip(ends, momentum, strict=True)
        ]
        return {
            "position": np.stack([e.position for e in ends]),
            "before": np.stack([e.before for e in ends]),
            "logdensity": np.array([e.logdensity for e in ends]),
            "energy_error": np.array(energy_error),
        }

    def errors(self, answer: dict[str, NDArray[Any]]) -> dict[str, float]:
        """Largest relative errors over the chains: `position` and `logdensity`."""
        position = np.asarray(answer["position"], np.float64).reshape(self.chains, self.dim)
        value = np.asarray(answer["logdensity"], np.float64).reshape(self.chains)
        travelled = np.linalg.norm(self.expected["position"] - self.start[0], axis=1)
        missed = np.linalg.norm(position - self.expected["position"], axis=1)
        size = self.dim + self.rows + np.abs(self.expected["logdensity"])
        value_missed = np.abs(value - self.expected["logdensity"]) / size
        return {
            "position": float(np.max(missed / travelled)),
            "logdensity": float(np.max(value_missed)),
        }

    def check(self, answer: dict[str, NDArray[Any]]) -> dict[str, float]:
        """Return the errors; raise WrongAnswerError when one is above its tolerance."""
        errors = self.errors(answer)
        for key, limit in (
            ("position", self.position_tolerance),
            ("logdensity", self.logdensity_tolerance),
        ):
            if not errors[key] <= limit:  # also catches NaN
                raise WrongAnswerError(
                    f"[{self.name}] expected {key} within {limit:g} of the float64 reference, "
                    f"got {errors[key]:.3g}"
                )
        return errors


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


def _networks() -> list[NetworkGradient]:
    return [
        NetworkGradient(
            "resnet20", networks.resnet20, (32, 32, 3), 512, Goal(1.8, share=0.7), reduced_rows=16
        ),
        NetworkGradient("lenet5", networks.lenet5, (28, 28, 1), 2048, Goal(1.0), reduced_rows=64),
        NetworkGradient(
            "cnn-lstm",
            networks.cnn_lstm,
            (100,),
            256,
            Goal(1.0),
            reduced_rows=16,
            tokens=20_000,
            seed=3,  # with 1 two cells of a pool are equal to float32, and gradients part ways
        ),
    ]


def _catalogue() -> dict[str, Any]:
    small: dict[str, Any] = {
        "sizes": (8, 50, 1),
        "activation": "silu",
        "likelihood": "gaussian",
        "rows": 927,
        "step_size": 2e-4,
        "prior_scale": 0.5,
        "noise_scale": 0.1,
    }
    small_1 = Leapfrog("hmc-small-1", chains=1, num_steps=200, goal=Goal(5.0), **small)
    small_8 = Leapfrog("hmc-small-8", chains=8, num_steps=200, goal=Goal(5.0), **small)
    deep = {**small, "sizes": (8, 50, 50, 50, 1), "step_size": 2e-5}
    deep_4 = Leapfrog("hmc-deep-4", chains=4, num_steps=100, goal=Goal(3.5), **deep)
    synthreg = Leapfrog(
        "hmc-synthreg",
        sizes=(2, 100, 100, 100, 1),
        activation="relu",
        likelihood="gaussian",
        rows=120,
        chains=1,
        num_steps=1000,
        step_size=1e-5,
        prior_scale=0.1,
        noise_scale=0.02,
        goal=Goal(1.3),
        threads=1,
    )
    wide = Leapfrog(
        "hmc-wide",
        sizes=(784, 256, 256, 10),
        activation="silu",
        likelihood="categorical",
        rows=8192,
        chains=1,
        num_steps=20,
        step_size=5e-4,
        prior_scale=0.05,
        noise_scale=1.0,
        goal=Goal(1.35, share=0.75),
    )
    first = FirstDraw("first-draw", of=small_1, draws=100, num_steps=10, goal=Goal(10.0, None, 0.3))
    reparam = Reparam("reparam", samples=20, dim=1_000_000, goal=Goal(5.0))
    normals = Normals("normals", count=1 << 20, goal=Goal(None, None, 1e-9))
    narrow = (1, 20, 20, 20, 20, 1)
    bbb = BayesByBackprop(
        "bbb-seed", narrow, rows=16_000, epochs=50, goal=Goal(3.0, against=("torch", 11.0))
    )
    forward = WeightDraws("mc-forward", narrow, rows=16_000, draws=1000, goal=Goal(6.0))
    dropout = MaskDraws(
        "mc-dropout", (784, 400, 400, 10), rows=10_000, samples=100, goal=Goal(4.0, share=0.6)
    )
    sgld = Langevin("sgld", (784, 256, 256, 10), rows=8192, batch=128, num_steps=64, goal=Goal(3.0))
    listed: tuple[Any, ...] = (
        small_1,
        small_8,
        deep_4,
        synthreg,
        wide,
        bbb,
        forward,
        dropout,
        sgld,
    )
    listed += (*_networks(), reparam, normals, first)
    return {workload.name: workload for workload in listed}


WORKLOADS = _catalogue()
