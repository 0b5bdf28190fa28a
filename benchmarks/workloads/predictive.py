"""Monte Carlo predictions: mc-forward (weight draws) and mc-dropout (masks)."""

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
    check_scores,
    num_parameters,
    relative_error,
)
from benchmarks.workloads import reference


def spread_out(rows: int, count: int) -> NDArray[np.int64]:
    """Return `count` row numbers from the first to the last."""
    return np.unique(np.linspace(0, rows - 1, count).astype(np.int64))


def check_shapes(name: str, answer: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Mean, sd and outputs are there for every row and finite."""
    for key in ("mean", "sd", "outputs"):
        if np.shape(answer[key]) != shape or not np.isfinite(answer[key]).all():
            raise WrongAnswerError(
                f"[{name}] expected finite {key} {shape}, got {np.shape(answer[key])}"
            )


def moments(drawn: reference.Array) -> dict[str, NDArray[Any]]:
    """Mean, variance and fourth central moment (n, K) of draws (S, n, K)."""
    centre = drawn.mean(axis=0)
    return {
        "mean": centre,
        "variance": drawn.var(axis=0, ddof=1),
        "fourth": ((drawn - centre) ** 4).mean(axis=0),
        "draws": np.array(len(drawn)),
    }


def deviations(
    answer: dict[str, Any], expected: dict[str, Any], count: int
) -> dict[str, tuple[reference.Array, reference.Array]]:
    """How far mean and variance of `count` draws are off, and the squared standard errors of that.

    `expected`: mean, variance, fourth central moment and the number of draws behind them.
    """
    variance, fourth = expected["variance"], expected["fourth"]
    terms = 1.0 / count + 1.0 / expected["draws"]
    found = np.asarray(answer["sd"], np.float64) ** 2 * count / (count - 1)
    return {
        "mean": (np.asarray(answer["mean"], np.float64) - expected["mean"], variance * terms),
        "variance": (found - variance, (fourth - variance**2) * terms),
    }


@dataclass(frozen=True)
class WeightDraws(Workload):
    """Mean and sd over `draws` weight vectors mean + scale eps of an MLP's output at `rows` rows.

    The answer is held to two things. The outputs of one given weight vector at every row are the
    float64 reference's to `output_tolerance` (2-norms). Mean and variance at 64 rows are those of
    `reference_draws` reference draws within 6.5 standard errors: 128 statistics of nearly normal
    law, missed by a right answer with probability below 1e-7.
    """

    kind: ClassVar[str] = "mc_forward"
    unit: ClassVar[str] = "run"
    activation: ClassVar[str] = "relu"

    name: str
    sizes: tuple[int, ...]
    rows: int
    draws: int
    goal: Goal
    scale: float = 0.02
    threads: int = 2
    seed: int = 1
    reference_draws: int = 20_000
    output_tolerance: float = 1e-5

    @cached_property
    def reduced(self) -> WeightDraws:
        """Fewer rows and draws."""
        return replace(self, rows=1000, draws=200)

    @cached_property
    def quick(self) -> WeightDraws:
        """A quarter of the rows."""
        return replace(self, rows=self.rows // 4)

    @property
    def dim(self) -> int:
        """Number of weights and biases."""
        return num_parameters(self.sizes)

    @property
    def units(self) -> int:
        """One run."""
        return 1

    @property
    def flops(self) -> float:
        """Multiplies and adds of the dense layers in one run."""
        return 2.0 * self.draws * self.rows * sum(a * b for a, b in pairwise(self.sizes))

    @cached_property
    def x(self) -> F32:
        """Inputs (N, 1) on a grid."""
        return np.linspace(-2.0, 2.0, self.rows, dtype=np.float32)[:, None]

    @cached_property
    def variational(self) -> tuple[F32, F32]:
        """Mean (P,) and scale (P,)."""
        rng = np.random.default_rng([self.seed, 12])
        pairs = pairwise(self.sizes)
        blocks = [rng.standard_normal((a + 1) * b) * (2.0 / a) ** 0.5 for a, b in pairs]
        scale = self.scale * np.exp(0.3 * rng.standard_normal(self.dim))
        return np.concatenate(blocks).astype(np.float32), scale.astype(np.float32)

    @cached_property
    def weights(self) -> F32:
        """One weight vector (P,), whose outputs are compared row by row."""
        rng = np.random.default_rng([self.seed, 13])
        mean, scale = self.variational
        return (mean + scale * rng.standard_normal(self.dim)).astype(np.float32)

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        return spread_out(self.rows, 64)

    def simulate(
        self, draws: int, rows: Any, replicate: int, noise_factor: float = 1.0
    ) -> reference.Array:
        """Draw outputs (draws, n, K), float64 (noise times a factor, to show that it matters)."""
        rng = np.random.default_rng([self.seed, 14, replicate])
        mean, scale = (a.astype(np.float64) for a in self.variational)
        x = self.x[rows].astype(np.float64)
        drawn = np.empty((draws, len(x), self.sizes[-1]))
        for row in drawn:
            weights = mean + noise_factor * scale * rng.standard_normal(self.dim)
            row[:] = reference.outputs(weights, self.sizes, self.activation, x)
        return drawn

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Moments (64, K) of the outputs over reference draws, and outputs (N, K)."""
        drawn = self.simulate(self.reference_draws, self._rows, 0)
        whole, weights = self.x.astype(np.float64), self.weights.astype(np.float64)
        outputs = reference.outputs(weights, self.sizes, self.activation, whole)
        return moments(drawn) | {"outputs": outputs}

    def check(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return errors and scores; `answer`: mean, sd, outputs, (N, K) each."""
        check_shapes(self.name, answer, (self.rows, self.sizes[-1]))
        errors = {"outputs": relative_error(answer["outputs"], self.expected["outputs"])}
        check_errors(self.name, errors, self.output_tolerance)
        picked = {key: np.asarray(answer[key])[self._rows] for key in ("mean", "sd")}
        scores = {}
        for key, (missed, square) in deviations(picked, self.expected, self.draws).items():
            z = (missed / np.sqrt(square)).ravel()
            scores[key] = float(z[np.argmax(np.abs(z))])
        check_scores(self.name, scores, 6.5)
        return errors | scores


@dataclass(frozen=True)
class MaskDraws(Workload):
    """Mean and sd over `samples` dropout masks of a classifier's probabilities at `rows` rows.

    Units after each hidden layer are dropped with probability `rate`, the rest scaled by
    1 / (1 - rate); each sample, row and unit has its own mask.

    The answer is held to two things. The logits with nothing dropped are the float64 reference's
    at every row to `output_tolerance` (2-norms). Mean and variance, each averaged over 256 rows,
    are those of `reference_samples` reference masks within 6 standard errors per class, which
    include that rows are independent: masks shared between the rows would be off by a multiple. A
    right answer misses with probability below 1e-7.
    """

    kind: ClassVar[str] = "mc_dropout"
    unit: ClassVar[str] = "run"
    activation: ClassVar[str] = "relu"

    name: str
    sizes: tuple[int, ...]
    rows: int
    samples: int
    goal: Goal
    rate: float = 0.5
    threads: int = 2
    seed: int = 1
    reference_samples: int = 400
    output_tolerance: float = 1e-5

    @cached_property
    def reduced(self) -> MaskDraws:
        """Fewer rows."""
        return replace(self, rows=300)

    @cached_property
    def quick(self) -> MaskDraws:
        """A tenth of the rows."""
        return replace(self, rows=self.rows // 10)

    @property
    def dim(self) -> int:
        """Number of weights and biases."""
        return num_parameters(self.sizes)

    @property
    def units(self) -> int:
        """One run."""
        return 1

    @property
    def flops(self) -> float:
        """Multiplies and adds of the dense layers in one run, the first layer once."""
        first, *others = (a * b for a, b in pairwise(self.sizes))
        return 2.0 * self.rows * (first + self.samples * sum(others))

    @cached_property
    def x(self) -> F32:
        """Inputs (N, D)."""
        rng = np.random.default_rng([self.seed, 15])
        return rng.standard_normal((self.rows, self.sizes[0])).astype(np.float32)

    @cached_property
    def weights(self) -> F32:
        """Weights and biases (P,)."""
        rng = np.random.default_rng([self.seed, 16])
        pairs = pairwise(self.sizes)
        blocks = [rng.standard_normal((a + 1) * b) * (1.5 / a) ** 0.5 for a, b in pairs]
        return np.concatenate(blocks).astype(np.float32)

    @cached_property
    def _rows(self) -> NDArray[np.int64]:
        return spread_out(self.rows, 256)

    def simulate(
        self, samples: int, rows: Any, replicate: int, shared: bool = False
    ) -> reference.Array:
        """Draw probabilities (samples, n, K), float64 (`shared`: a mask for all rows, a fault)."""
        rng = np.random.default_rng([self.seed, 17, replicate])
        theta, keep = self.weights.astype(np.float64), 1.0 - self.rate
        (first, bias), *others = reference.unravel(theta, self.sizes)
        hidden = np.maximum(self.x[rows].astype(np.float64) @ first + bias, 0.0)
        drawn = np.empty((samples, len(hidden), self.sizes[-1]))
        for sample in drawn:
            h = hidden
            for k, (weight, bias) in enumerate(others):
                shape = (1 if shared else len(h), h.shape[1])
                h = (h * (rng.random(shape) < keep) / keep) @ weight + bias
                h = np.maximum(h, 0.0) if k < len(others) - 1 else h
            sample[:] = reference.softmax(h)
        return drawn

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Moments (256, K) of the probabilities over reference masks, and logits (N, K)."""
        drawn = self.simulate(self.reference_samples, self._rows, 0)
        theta, x = self.weights.astype(np.float64), self.x.astype(np.float64)
        outputs = reference.outputs(theta, self.sizes, self.activation, x)
        return moments(drawn) | {"outputs": outputs}

    def check(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return errors and scores; `answer`: mean, sd, outputs, (N, K) each."""
        check_shapes(self.name, answer, (self.rows, self.sizes[-1]))
        errors = {"outputs": relative_error(answer["outputs"], self.expected["outputs"])}
        check_errors(self.name, errors, self.output_tolerance)
        picked = {key: np.asarray(answer[key])[self._rows] for key in ("mean", "sd")}
        scores = {}
        for key, (missed, square) in deviations(picked, self.expected, self.samples).items():
            z = missed.sum(axis=0) / np.sqrt(square.sum(axis=0))  # rows are independent
            scores[key] = float(z[np.argmax(np.abs(z))])
        check_scores(self.name, scores, 6.0)
        return errors | scores
