"""What the steps of Bayes by Backprop are made with: data, no launches."""

# Shapes: P parameters, S weight samples.

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ribbit._arrays.batches import Batches
from ribbit.protocols import Array

# Offset, size, kind and constants of a prior.
Segment: TypeAlias = tuple[int, int, int, tuple[float, ...]]


class GradientProgram(Protocol):
    """What a step needs of the program that evaluates the likelihood."""

    chains: int
    theta: Array  # (chains, P), or (chains, 2 P) with two paths
    grad: Array  # as theta
    row_terms: Array  # (chains, slots) float64: the log likelihood is the sum over slots

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all kernels."""
        ...

    def run(self, chains: int, *, gradient: bool, values: bool) -> None:
        """Evaluate at ``theta[:chains]``: fills `grad` and ``row_terms`` if `gradient`."""
        ...


@dataclass(frozen=True)
class Approximation:
    """Where a mean-field Gaussian lies, and its noise for each row."""

    state: Array  # (6, P): mean, rho and the moments of each
    scale: Array  # (P,): softplus(rho)
    # (3,) uint64: seed, step and the first sample of the gradient that is being made. Not read by
    # "reparam".
    where: Array
    paired: Array  # (P,) uint8: 1 for parameters with two paths

    @property
    def dim(self) -> int:
        """P."""
        return int(self.state.shape[1])


@dataclass(frozen=True)
class Batch:
    """Batches of one size."""

    count: int  # rows
    # (count,) int64 or None: where the program reads which rows; None: all in their order
    rows: Array | None
    # the log likelihood of the batch, not scaled, and its tempered gradient
    program: GradientProgram


@dataclass(frozen=True)
class Scheme:
    """What the steps of a fit have in common."""

    batches: Batches  # how an epoch of the N rows is cut
    num_samples: int  # S
    closed: bool  # E[log prior] in closed form: every prior is normal
    decay: tuple[float, float]  # constants of Adam
    epsilon: float
    estimator: int  # of ``ribbit._backends.cuda.layers.row_noise``
