"""Where the weights and the masks of samples on a device come from; `cpu/forward.h` has the same.

Shapes: S samples, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ribbit.protocols import Array

__all__ = ["Masked", "Samples", "Stored"]


class Samples(Protocol):
    """What a forward pass asks of its samples."""

    @property
    def theta(self) -> Array:
        """An array (.., P) of their library and dtype."""
        ...

    def load(self, into: Array, first: int) -> None:
        """Write the weights of samples first, first + 1, .. into a buffer (S, P)."""
        ...


@dataclass(frozen=True)
class Stored:
    """Weights that lie in memory.

    Attributes
    ----------
    theta : (S, P) array
    """

    theta: Array

    def load(self, into: Array, first: int) -> None:
        """Copy weights."""
        into[...] = self.theta[first : first + into.shape[0], :]


@dataclass(frozen=True)
class Masked:
    """One weight vector under the masks of samples.

    Attributes
    ----------
    theta : (P,) array
    rates : sequence of float
        By layer: probability of being dropped, 0 where nothing is.
    seed : int
        64-bit key of the masks.
    shared : bool
        One mask per sample and unit; else one per sample, row and unit.
    first_row : int
        Number of row 0 of x.
    """

    theta: Array
    rates: Sequence[float]
    seed: int
    shared: bool
    first_row: int

    def load(self, into: Array, first: int) -> None:
        """Copy the weights, those of all samples; `into` is (1, P)."""
        del first
        into[0, :] = self.theta

    def address(self, first: int) -> npt.NDArray[np.uint64]:
        """Return seed, step and number of the masks of sample `first`."""
        return np.array([self.seed, 0, first], dtype=np.uint64)
