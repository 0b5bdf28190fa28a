"""Stochastic gradient Langevin dynamics, per step: sgld."""

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
    check_replicates,
    check_scores,
    gradient_flops,
    num_parameters,
    relative_error,
)
from benchmarks.workloads import reference


@dataclass(frozen=True)
class Langevin(Workload):
    """`num_steps` steps theta += (eps/2) g + sqrt(eps) xi on batches of `batch` of `rows` rows.

    g is the gradient of log likelihood (scaled by N/n) plus log prior; batches come without
    replacement within an epoch. `silent` inputs are 0 in every row, as the rim of a picture is.

    The answer is held to three things. The gradient on the first batch of rows at the start is the
    float64 reference's to `gradient_tolerance`. The first-layer weights of the silent inputs feel
    prior and noise alone, so that their law is known exactly (an autoregression): their mean and
    variance lie within 6 standard errors. The rest goes where `replicates` float64 runs go: full
    log likelihood at the end, drift along the first gradient and distance, within `tolerance` of
    their standard deviations. A right answer misses with probability below 1e-6.
    """

    kind: ClassVar[str] = "sgld"
    unit: ClassVar[str] = "step"
    activation: ClassVar[str] = "relu"
    likelihood: ClassVar[str] = "categorical"
    noise_scale: ClassVar[float] = 1.0  # of a gaussian likelihood; not used

    name: str
    sizes: tuple[int, ...]
    rows: int
    batch: int
    num_steps: int
    goal: Goal
    step_size: float = 4e-6
    prior_scale: float = 0.05
    silent: int = 144
    threads: int = 2
    seed: int = 1
    replicates: int = 8
    tolerance: float = 25.0
    gradient_tolerance: float = 1e-4

    @cached_property
    def reduced(self) -> Langevin:
        """Fewer rows and steps."""
        return replace(self, rows=8 * self.batch, num_steps=16, step_size=8 * self.step_size)

    @property
    def dim(self) -> int:
        """Number of weights and biases."""
        return num_parameters(self.sizes)

    @property
    def units(self) -> int:
        """Steps in one run."""
        return self.num_steps

    @property
    def flops(self) -> float:
        """Multiplies and adds of the dense layers in one run."""
        return gradient_flops(self.sizes, self.batch) * self.num_steps

    @property
    def epochs(self) -> int:
        """Epochs begun in one run."""
        return -(-self.num_steps * self.batch // self.rows)

    @cached_property
    def data(self) -> tuple[F32, NDArray[np.int64]]:
        """Inputs (N, D) and labels (N,) of a teacher network."""
        rng = np.random.default_rng([self.seed, 9])
        x = rng.standard_normal((self.rows, self.sizes[0]))
        x[:, : self.silent] = 0.0
        teacher = 0.08 * rng.standard_normal(self.dim)
        logits = reference.outputs(teacher, self.sizes, self.activation, x)
        y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        return x.astype(np.float32), y.astype(np.int64)

    @cached_property
    def start(self) -> F32:
        """Position (P,): a draw of the prior."""
        rng = np.random.default_rng([self.seed, 10])
        return (self.prior_scale * rng.standard_normal(self.dim)).astype(np.float32)

    def _density(self, rows: Any) -> reference.Density:
        x, y = self.data
        return reference.Density(
            self.sizes,
            self.activation,
            self.likelihood,
            self.prior_scale,
            self.noise_scale,
            x[rows].astype(np.float64),
            y[rows],
        )

    @cached_property
    def _whole(self) -> reference.Density:
        return self._density(slice(None))

    def gradient(self, theta: reference.Array, rows: Any) -> reference.Array:
        """Gradient of the log density, estimated on the given rows."""
        batch = self._density(rows)
        prior = -theta / self.prior_scale**2
        scale = self.rows / len(batch.x)
        return np.asarray(scale * (batch.value_and_grad(theta)[1] - prior) + prior)

    def walk(self, replicate: int, noise_factor: float = 1.0) -> reference.Array:
        """End of one float64 run (with the noise times a factor, to show that it matters)."""
        rng = np.random.default_rng([self.seed, 11, replicate])
        orders = np.concatenate([rng.permutation(self.rows) for _ in range(self.epochs)])
        theta = self.start.astype(np.float64)
        for step in range(self.num_steps):
            rows = orders[step * self.batch : (step + 1) * self.batch]
            noise = noise_factor * self.step_size**0.5 * rng.standard_normal(self.dim)
            theta = theta + 0.5 * self.step_size * self.gradient(theta, rows) + noise
        return theta

    def statistics(self, position: reference.Array) -> dict[str, float]:
        """Reduce the end of a run to what is compared."""
        output = self._whole.forward(position)[0]
        moved = position - self.start
        return {
            "loglikelihood": self._whole.log_likelihood(output)[0],
            "drift": float(moved @ self._direction),
            "distance": float(np.linalg.norm(moved)),
        }

    @cached_property
    def _direction(self) -> reference.Array:
        """Unit vector (P,) along the likelihood's gradient at the start."""
        start = self.start.astype(np.float64)
        grad = self._whole.value_and_grad(start)[1] + start / self.prior_scale**2
        return np.asarray(grad / np.linalg.norm(grad))

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Statistics of the reference runs, (replicates,) each."""
        runs = [self.statistics(self.walk(k)) for k in range(self.replicates)]
        return {key: np.array([run[key] for run in runs]) for key in runs[0]}

    def silent_scores(self, position: reference.Array) -> dict[str, float]:
        """Mean and variance of the noise in the weights of the silent inputs, in standard errors.

        Each is w -> a w + sqrt(eps) xi with a = 1 - eps / (2 prior_scale^2).
        """
        count = self.silent * self.sizes[1]  # the first rows of the first weight matrix
        a = 1.0 - 0.5 * self.step_size / self.prior_scale**2
        variance = self.step_size * np.sum(a ** (2.0 * np.arange(self.num_steps)))
        moved = position[:count] - a**self.num_steps * self.start[:count].astype(np.float64)
        z = moved / np.sqrt(variance)
        return {
            "noise_mean": float(np.mean(z) * count**0.5),
            "noise_variance": float((np.mean(z**2) - 1.0) * (count / 2.0) ** 0.5),
        }

    def check(self, answer: dict[str, NDArray[Any]]) -> dict[str, float]:
        """Return errors and scores; `answer`: position (P,), gradient (P,)."""
        position = np.asarray(answer["position"], np.float64)
        if position.shape != (self.dim,):
            raise WrongAnswerError(
                f"[{self.name}] expected position {(self.dim,)}, got {position.shape}"
            )
        wanted = self.gradient(self.start.astype(np.float64), slice(0, self.batch))
        errors = {"gradient": relative_error(answer["gradient"], wanted)}
        check_errors(self.name, errors, self.gradient_tolerance)
        scores = self.silent_scores(position)
        check_scores(self.name, scores, 6.0)
        found = self.statistics(position)
        return errors | scores | check_replicates(self.name, self.expected, found, self.tolerance)
