"""Bayes by Backprop on all rows, per epoch: bbb-seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
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
    gradient_flops,
    num_parameters,
    relative_error,
)
from benchmarks.workloads import reference
from benchmarks.workloads.random_weights import check_normal


@dataclass(frozen=True)
class BayesByBackprop(Workload):
    """`epochs` full-batch Adam steps on the negative bound of an MLP's mean-field normal.

    One weight sample per step for all rows (reparameterised), Gaussian likelihood, iid normal
    prior, KL in closed form and summed, scale = softplus(rho).

    The answer is held to three things. The gradient in (mean, rho) at the start, at noise that the
    entry names, is the float64 reference's to `gradient_tolerance` (2-norms). The noise itself,
    `noise` (R, P) with that of the gradient in row 0, has a standard normal's moments. And the run
    goes where `replicates` float64 runs go: the bound over the last half, and how far mean and rho
    travelled, within `tolerance` of their standard deviations (a t statistic, missed by a right
    answer with probability below 1e-6).
    """

    kind: ClassVar[str] = "bbb"
    unit: ClassVar[str] = "epoch"
    activation: ClassVar[str] = "relu"
    likelihood: ClassVar[str] = "gaussian"

    name: str
    sizes: tuple[int, ...]
    rows: int
    epochs: int
    goal: Goal
    learning_rate: float = 1e-3
    prior_scale: float = 1.0
    noise_scale: float = 0.1
    init_scale: float = 0.02
    threads: int = 2
    seed: int = 1
    replicates: int = 16
    tolerance: float = 10.0
    gradient_tolerance: float = 1e-4

    @cached_property
    def reduced(self) -> BayesByBackprop:
        """Fewer rows and epochs."""
        return replace(self, rows=1000, epochs=20)

    @property
    def dim(self) -> int:
        """Number of weights and biases."""
        return num_parameters(self.sizes)

    @property
    def units(self) -> int:
        """Epochs in one run."""
        return self.epochs

    @property
    def flops(self) -> float:
        """Multiplies and adds of the dense layers in one run."""
        return gradient_flops(self.sizes, self.rows) * self.epochs

    @cached_property
    def data(self) -> tuple[F32, F32]:
        """X (N, 1) on a grid, y (N, 1) a noisy sine."""
        rng = np.random.default_rng([self.seed, 5])
        x = np.linspace(-2.0, 2.0, self.rows)[:, None]
        y = np.sin(3.0 * x) + self.noise_scale * rng.standard_normal(x.shape)
        return x.astype(np.float32), y.astype(np.float32)

    @cached_property
    def start(self) -> tuple[F32, F32]:
        """Mean (P,), uniform within 1 / sqrt(fan-in), and rho (P,)."""
        rng = np.random.default_rng([self.seed, 6])
        pairs = pairwise(self.sizes)
        blocks = [rng.uniform(-1.0, 1.0, (a + 1) * b) / a**0.5 for a, b in pairs]
        rho = np.full(self.dim, np.log(np.expm1(self.init_scale)))
        return np.concatenate(blocks).astype(np.float32), rho.astype(np.float32)

    @cached_property
    def noise(self) -> F32:
        """Standard normals (P,), for entries whose gradient takes its noise from outside."""
        rng = np.random.default_rng([self.seed, 7])
        return rng.standard_normal(self.dim).astype(np.float32)

    @cached_property
    def _density(self) -> reference.Density:
        x, y = (a.astype(np.float64) for a in self.data)
        return reference.Density(
            self.sizes, self.activation, self.likelihood, self.prior_scale, self.noise_scale, x, y
        )

    def train(self, replicate: int, noise_factor: float = 1.0) -> dict[str, NDArray[Any]]:
        """One float64 run, with noise from NumPy (times a factor, to show that it matters)."""
        rng = np.random.default_rng([self.seed, 8, replicate])
        parameters = np.stack([a.astype(np.float64) for a in self.start])
        moments = np.zeros_like(parameters), np.zeros_like(parameters)
        elbo = np.zeros(self.epochs)
        for epoch in range(self.epochs):
            noise = noise_factor * rng.standard_normal(self.dim)
            loss, *grads = reference.negative_elbo(
                self._density, parameters[0], parameters[1], noise
            )
            elbo[epoch] = -loss
            reference.adam(parameters, moments, np.stack(grads), epoch + 1, self.learning_rate)
        return {"mean": parameters[0], "rho": parameters[1], "elbo": elbo}

    def statistics(self, run: dict[str, NDArray[Any]]) -> dict[str, float]:
        """Reduce a run to what is compared."""
        mean, rho = (a.astype(np.float64) for a in self.start)
        half = np.asarray(run["elbo"], np.float64)[self.epochs // 2 :]
        return {
            "elbo": float(np.mean(half)),
            "mean_travelled": float(np.linalg.norm(run["mean"] - mean)),
            "rho_travelled": float(np.linalg.norm(run["rho"] - rho)),
            # up or down: scales shrink where the data speak
            "rho_change": float(np.mean(run["rho"] - rho)),
        }

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Statistics of the reference runs, (replicates,) each."""
        runs = [self.statistics(self.train(k)) for k in range(self.replicates)]
        return {key: np.array([run[key] for run in runs]) for key in runs[0]}

    def check(self, answer: dict[str, NDArray[Any]]) -> dict[str, float]:
        """Return errors and scores; `answer`: mean, rho, elbo (E,), noise (R, P), gradient."""
        noise = np.asarray(answer["noise"], np.float64)
        gradient = np.asarray(answer["gradient"])
        if gradient.shape != (2, self.dim) or noise.shape[1:] != (self.dim,):
            raise WrongAnswerError(
                f"[{self.name}] expected gradient {(2, self.dim)} and noise (R, {self.dim}), "
                f"got {gradient.shape} and {noise.shape}"
            )
        mean, rho = (a.astype(np.float64) for a in self.start)
        _, by_mean, by_rho = reference.negative_elbo(self._density, mean, rho, noise[0])
        errors = {
            "gradient_mean": relative_error(gradient[0], by_mean),
            "gradient_rho": relative_error(gradient[1], by_rho),
        }
        check_errors(self.name, errors, self.gradient_tolerance)
        check_normal(self.name, iter(noise))
        if np.shape(answer["elbo"]) != (self.epochs,):
            raise WrongAnswerError(
                f"[{self.name}] expected {self.epochs} epochs, got {np.shape(answer['elbo'])}"
            )
        found = self.statistics(answer)
        return errors | check_replicates(self.name, self.expected, found, self.tolerance)
