"""What a backend is told of a network and of a log density: tables and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit import _core


@dataclass(frozen=True, eq=False)
class NetworkTable:
    """A network as a table, and what its rows of data look like."""

    table: npt.NDArray[np.int64]  # (R, columns) int64: the layer table
    # (R,) float64: dropout rate of each row, 0 where it is no Dropout layer
    rates: npt.NDArray[np.float64]
    input_shape: tuple[int, ...]  # shape of a data row and of its outputs (K,)
    output_shape: tuple[int, ...]
    tokens: int  # data rows hold whole numbers below this one; 0: any number


@dataclass(frozen=True)
class LikelihoodTable:
    """A likelihood as numbers."""

    kind: int  # its code in ``codes.LIKELIHOODS``
    # known scales of the noise, else ones: one for all outputs, or one for each. As many where they
    # are learned.
    scales: tuple[float, ...]
    # what else its functor has a constant for, else 0: ``LikelihoodParameters`` of
    # ``core/likelihood_hd.h``
    constant: float
    columns: int  # J, the columns of y and of the means of predictions
    classes: bool  # whether outputs become probabilities
    # whether the parameters behind the network's are the logarithms of the scales
    learns_noise: bool

    @property
    def noises(self) -> int:
        """How many scales of the noise are learned."""
        return len(self.scales) if self.learns_noise else 0

    @property
    def per_output(self) -> bool:
        """Whether outputs have noise scales of their own."""
        return len(self.scales) > 1

    def scales_on(self, xp: Any, dtype: np.dtype[Any]) -> Any:
        """Return the known scales of several outputs as an array of a library, else None."""
        if self.learns_noise or not self.per_output:
            return None
        return xp.asarray(np.array(self.scales, dtype))

    @property
    def constants(self) -> tuple[float, float, float, float]:
        """``LikelihoodConstants`` of ``core/likelihood_hd.h``."""
        return _core.likelihood_constants(self.kind, self.scales[0], self.constant)


@dataclass(frozen=True, eq=False)
class IntegratedLayer:
    """A last dense layer that is integrated out; ``cpp/cpu/density/last_layer.h``."""

    bias: bool  # whether it has one: the last of its K inputs, always 1
    # whether no layer lies below it. The layer table is then its own, else that of the layers
    # below.
    alone: bool
    sd: npt.NDArray[np.float64]  # (K,) float64: of the normal prior of the weights of each input
    mean: npt.NDArray[np.float64]  # (K, J) float64: of the prior


@dataclass(frozen=True)
class DensityTable:
    """What a log density is made of, as tables."""

    table: npt.NDArray[np.int64]  # (rows, columns) int64: the layer table
    # (segments, 6) float64: offset, size, kind, a, b, c of each segment
    prior: npt.NDArray[np.float64]
    # (segments, 5) float64: those of ``core/prior_hd.h``, made on the host
    constants: npt.NDArray[np.float64]
    likelihood: LikelihoodTable
    temperature: float
    likelihood_temperature: float
    # (rows,) float64: probability with which each row's masks drop a unit. None: there are no
    # masks, and Dropout layers hand on what they are given.
    rates: npt.NDArray[np.float64] | None = None
    # rows whose rates are learned: their logits follow the other parameters
    learned: tuple[int, ...] = ()
    precision: str = "float32"  # how products of float32 numbers are computed; ``precision.py``
    centre: Any = None  # (P,): means of the priors in the dtype of positions. None: 0 for all.
    # the last layer, whose weights are no parameters: the others and the prior leave it out
    integrated: IntegratedLayer | None = None
    # (K, 8) float64: learned scales of weights, on the CPU alone: ``targets/scales.py``
    scales: npt.NDArray[np.float64] | None = None
    # (N,): how often the log likelihood of each row counts, on the CPU alone. None: once.
    weights: Any = None

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
        """Place of the first logarithm of a learned noise."""
        return self.logits_at - self.likelihood.noises

    @property
    def learns_noise(self) -> bool:
        """Whether the last parameters but the logits are logarithms of the noise."""
        return self.likelihood.learns_noise


def prior_constants(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the constants (segments, 5) of a prior table (segments, 6)."""
    made: npt.NDArray[np.float64] = _core.prior_constants(rows)
    return made


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
