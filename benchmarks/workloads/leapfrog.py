"""Trajectories of MLPs: hmc-small-1, hmc-small-8, hmc-deep-4, hmc-synthreg, hmc-wide."""

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
    gradient_flops,
    num_parameters,
)
from benchmarks.workloads import reference


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
    quick_rows: int = 0
    threads: int = 2
    seed: int = 1
    position_tolerance: float = 2e-4
    logdensity_tolerance: float = 2e-5

    @cached_property
    def reduced(self) -> Leapfrog:
        """Fewer rows and steps."""
        steps = max(5, self.num_steps // 10)
        return replace(self, rows=min(self.rows, 512), num_steps=steps)

    @cached_property
    def quick(self) -> Leapfrog:
        """Fewer rows, if it is the large one."""
        return replace(self, rows=self.quick_rows) if self.quick_rows else self

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
