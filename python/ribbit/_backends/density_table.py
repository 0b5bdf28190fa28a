"""What kernels are told of a log density: tables of its network, prior and likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["DensityTable", "merged"]


@dataclass(frozen=True)
class DensityTable:
    """What a log density is made of, as tables.

    Attributes
    ----------
    table : (rows, columns) int64 array
        The layer table.
    prior : (segments, 6) float64 array
        offset, size, kind, a, b, c of each segment.
    constants : (segments, 5) float64 array
        Those of ``core/prior_hd.h``, made on the host.
    kind : int
        Of the likelihood; ``core/likelihood_hd.h``.
    scale : float
        Known sd of the noise.
    temperature, likelihood_temperature : float
    rates : (rows,) float64 array, optional
        Probability with which each row's masks drop a unit. None: there are no masks, and Dropout
        layers hand on what they are given.
    learned : tuple of int
        Rows whose rates are learned: their logits follow the other parameters.
    precision : str, default "float32"
        How products of float32 numbers are computed; ``precision.py``.
    """

    table: npt.NDArray[np.int64]
    prior: npt.NDArray[np.float64]
    constants: npt.NDArray[np.float64]
    kind: int
    scale: float
    temperature: float
    likelihood_temperature: float
    rates: npt.NDArray[np.float64] | None = None
    learned: tuple[int, ...] = ()
    precision: str = "float32"

    @property
    def dim(self) -> int:
        """P, a learned noise and logits of learned rates included."""
        return self.logits_at + len(self.learned)

    @property
    def logits_at(self) -> int:
        """Place of the first logit."""
        return int(self.prior[:, 1].sum())

    @property
    def noise_at(self) -> int:
        """Place of the logarithm of a learned noise."""
        return self.logits_at - 1

    @property
    def learns_noise(self) -> bool:
        """Whether the last parameter but the logits is the logarithm of the noise."""
        return self.kind == 1


def merged(
    prior: npt.NDArray[np.float64], constants: npt.NDArray[np.float64]
) -> list[tuple[int, int, int, tuple[float, ...]]]:
    """Offset, size, kind and constants of the prior's segments, equal neighbours made one."""
    found: list[tuple[int, int, int, tuple[float, ...]]] = []
    for row, made in zip(prior, constants, strict=True):
        offset, size, kind = (int(v) for v in row[:3])
        values = tuple(float(v) for v in made)
        start, before = found[-1][:2] if found else (0, 0)
        if found and found[-1][2:] == (kind, values) and start + before == offset:
            found[-1] = (start, before + size, kind, values)
        else:
            found.append((offset, size, kind, values))
    return found
