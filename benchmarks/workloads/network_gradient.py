"""One gradient of a convolutional or recurrent network: resnet20, lenet5, cnn-lstm."""

from __future__ import annotations

import math
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
from benchmarks.workloads import layer_table, networks, reference

NO_CONSTANT = 1.0 / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class NetworkGradient(Workload):
    """Value and gradient of a classifier's log posterior on all rows, at one position.

    Standard normal images, or uniform tokens; uniform labels; iid normal prior. At the default
    `prior_scale` its normaliser is 0, so that it cannot hide the likelihood in the value.

    The answer is held to three things: the value; the gradient without the prior's part, which is
    known exactly; and of that the worst array of parameters (2-norms, over that of the array or
    1e-3 of the whole, as a few thresholds have next to none).
    """

    kind: ClassVar[str] = "network"
    unit: ClassVar[str] = "gradient"
    units: ClassVar[int] = 1

    name: str
    wiring: networks.Wiring
    input_shape: tuple[int, ...]
    rows: int
    goal: Goal
    reduced_rows: int
    quick_rows: int = 0
    tokens: int = 0
    prior_scale: float = NO_CONSTANT
    threads: int = 2
    seed: int = 1
    value_tolerance: float = 1e-5
    gradient_tolerance: float = 1e-4
    array_tolerance: float = 1e-3

    @cached_property
    def reduced(self) -> NetworkGradient:
        """Fewer rows."""
        return replace(self, rows=self.reduced_rows)

    @cached_property
    def quick(self) -> NetworkGradient:
        """Fewer rows, if it is one of the large ones; many enough to fill both threads."""
        return replace(self, rows=self.quick_rows) if self.quick_rows else self

    @cached_property
    def layout(self) -> networks.Layout:
        """Parameters and cost."""
        return networks.Layout(self.wiring, self.input_shape)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.layout.dim

    @property
    def flops(self) -> float:
        """Multiplies and adds of kernels, dense and LSTM products in one gradient."""
        return self.layout.gradient_flops(self.rows)

    @cached_property
    def data(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Inputs (N, ...), float32 or tokens int64, and labels (N,)."""
        rng = np.random.default_rng([self.seed, 12])
        y = rng.integers(self.layout.outputs, size=self.rows)
        shape = (self.rows, *self.input_shape)
        if self.tokens:
            return rng.integers(self.tokens, size=shape), y
        return rng.standard_normal(shape, dtype=np.float32), y

    @cached_property
    def start(self) -> F32:
        """Position (P,): weights of variance 2 / fan-in, the rest around 0, gammas 1.

        Thresholds are around -6, below all cells: near a kink float32 decides some cells
        it otherwise.
        """
        rng = np.random.default_rng([self.seed, 13])
        blocks = []
        for array in self.layout.arrays:
            scale = (2.0 / array.fan_in) ** 0.5 if array.fan_in else 0.1
            scale = 0.05 if array.kind == "embedding" else scale
            centre = {"gamma": 1.0, "tau": -6.0}.get(array.kind, 0.0)
            blocks.append(centre + scale * rng.standard_normal(array.size))
        return np.concatenate(blocks).astype(np.float32)

    def split(self, flat: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut (P,) into the arrays of the layout, in their shapes."""
        arrays = self.layout.arrays
        parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
        return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def value_and_grad(self, theta: reference.Array) -> tuple[float, reference.Array]:
        """Log posterior () and gradient (P,) by the reference."""
        rows = layer_table.LayerTable(self.wiring, self.input_shape).rows
        return layer_table.value_and_grad(rows, theta, *self.data, self.prior_scale)

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """The reference's value () and gradient (P,)."""
        value, gradient = self.value_and_grad(self.start.astype(np.float64))
        return {"value": np.array(value), "gradient": gradient}

    def check(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return the errors; `answer`: value, gradient (P,)."""
        gradient = np.asarray(answer["gradient"], np.float64)
        if gradient.shape != (self.dim,):
            raise WrongAnswerError(
                f"[{self.name}] expected gradient {(self.dim,)}, got {gradient.shape}"
            )
        prior = -self.start.astype(np.float64) / self.prior_scale**2
        found, wanted = gradient - prior, self.expected["gradient"] - prior
        least = 1e-3 * float(np.linalg.norm(wanted))
        pairs = zip(self.split(found - wanted), self.split(wanted), strict=True)

        def norm(a: NDArray[Any]) -> float:
            return float(np.linalg.norm(a))

        errors = {
            "value": relative_error(answer["value"], self.expected["value"]),
            "gradient": relative_error(found, wanted),
            "array": max(norm(a) / max(norm(b), least) for a, b in pairs),
        }
        for key, error in errors.items():
            check_errors(self.name, {key: error}, getattr(self, f"{key}_tolerance"))
        return errors
