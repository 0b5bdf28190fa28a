"""Where the weights and masks of samples on a device come from; see `cpu/predictive/forward.h`."""

# Shapes: S samples, P parameters.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ribbit._arrays import device_kernels, random_numbers
from ribbit._arrays.device import Device
from ribbit.protocols import Array


class Samples(Protocol):
    """What a forward pass asks of its samples."""

    @property
    def theta(self) -> Array:
        """An array (.., P) of their library and dtype."""
        ...

    def load(self, device: Device, into: Array, first: int) -> None:
        """Write the weights of samples first, first + 1, .. into a buffer (S, >= P)."""
        ...


@dataclass(frozen=True)
class Stored:
    """Weights (S, P) that lie in memory."""

    theta: Array

    def load(self, device: Device, into: Array, first: int) -> None:
        """Copy weights."""
        del device
        into[:, : self.theta.shape[1]] = self.theta[first : first + into.shape[0], :]


@dataclass(frozen=True)
class Drawn:
    """Independent normal weights that are drawn when they are needed."""

    mean: Array  # (P,): C-contiguous
    scale: Array
    seed: int

    @property
    def theta(self) -> Array:
        """The mean."""
        return self.mean

    def load(self, device: Device, into: Array, first: int) -> None:
        """Draw weights, with the bits of `random_numbers.draw_weights`."""
        stream = device_kernels.stream_fields(self.seed, 0, random_numbers.FIT_DRAW)
        xp, more = device.xp, int(into.shape[1] - self.mean.shape[0])
        mean, scale = self.mean, self.scale
        if more:  # numbers that nobody reads: a normal depends on its place alone
            rest = xp.zeros(more, dtype=mean.dtype)
            mean, scale = xp.concat([mean, rest], axis=0), xp.concat([scale, rest], axis=0)
        device_kernels.draw(device, stream, mean, scale, into, from_rho=False, first=first)


@dataclass(frozen=True)
class Masked:
    """One weight vector under the masks of samples."""

    theta: Array  # (P,)
    rates: Sequence[float]  # by layer: probability of being dropped, 0 where nothing is
    seed: int
    shared: bool  # one mask per sample and unit; else one per sample, row and unit
    first_row: int  # number of row 0 of x

    def load(self, device: Device, into: Array, first: int) -> None:
        """Copy the weights, those of all samples; `into` is (1, >= P)."""
        del device, first
        into[0, : self.theta.shape[0]] = self.theta

    def address(self, first: int) -> npt.NDArray[np.uint64]:
        """Return seed, step and number of the masks of sample `first`."""
        return np.array([self.seed, 0, first], dtype=np.uint64)
