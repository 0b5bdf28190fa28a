"""Learned scales of weights: which weight has which, and what positions make of them."""

# A prior over a scale tau is stated non-centred: what moves is z ~ N(0, 1) and u = log tau, and the
# network sees w = tau z (Betancourt and Girolami 2015). Shapes: P = dim parameters.

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._backends import dispatch
from ribbit.targets.prior_base import LearnedScales, Parameter, ScalePrior

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class ScaleArray:
    """Log scales of one name: `count` of them from number `first` on, as `shape`."""

    name: str
    first: int
    shape: tuple[int, ...]
    prior: ScalePrior

    @property
    def count(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class ScaleTable:
    """The learned scales of a target; their logarithms are its last parameters."""

    # (K, 8) float64: of each array of weights: offset, size, first, block, count, global, slab,
    # factor. Weight i of it has the scale first + i // block % count, times the global one, under
    # the slab; -1: there is none. factor: a number that multiplies them.
    rows: npt.NDArray[np.float64]
    arrays: tuple[ScaleArray, ...]  # the log scales by name, in order

    @property
    def count(self) -> int:
        """Number of scales."""
        return sum(array.count for array in self.arrays)

    def weights(self, function: str, theta: Any) -> Any:
        """Return weights for positions (..., P): as theta, with w in the places of z."""
        backend = dispatch.backend_of(function, theta)
        return backend.scaled_weights(theta, self.rows)

    def position(self, weights: npt.NDArray[Any]) -> tuple[Any, Any]:
        """Return where z and u may start (..., Q) and (..., S) for network weights (..., Q)."""
        # A scale starts at the median of its prior, moved towards the root mean square of its
        # weights by at most one sd of the prior (the shared one if there is one); z is what the
        # weights then are.
        z = np.array(weights, np.float64)
        u = np.empty((*z.shape[:-1], self.count))
        squares, counts = np.zeros_like(u), np.zeros(self.count)
        flat, sums = z.reshape(-1, z.shape[-1]), squares.reshape(-1, self.count)  # views
        for row in self.rows:
            place, number, shared, _, factor = _of_row(row)
            moved = number if shared < 0 else np.full_like(number, shared)
            counts += np.bincount(moved, minlength=self.count)
            for total, chain in zip(sums, flat, strict=True):
                square = (chain[place] / factor) ** 2
                total += np.bincount(moved, weights=square, minlength=self.count)
        for array in self.arrays:
            some = slice(array.first, array.first + array.count)
            middle, sd = array.prior.log_median, array.prior._spread()
            with np.errstate(divide="ignore", invalid="ignore"):
                away = 0.5 * np.log(squares[..., some] / counts[some]) - middle
            away = np.where(np.isfinite(away), np.clip(away, -sd, sd), 0.0)
            u[..., some] = middle + away
        for row in self.rows:
            place, number, shared, slab, factor = _of_row(row)
            log_scale = u[..., number]
            if shared >= 0:
                log_scale = log_scale + u[..., shared, None]
            if slab >= 0:
                over = 2.0 * (log_scale - u[..., slab, None])
                log_scale = log_scale - 0.5 * np.logaddexp(0.0, over)
            z[..., place] *= np.exp(-log_scale) / factor
        return z.astype(weights.dtype), u.astype(weights.dtype)


def _of_row(row: npt.NDArray[np.float64]) -> tuple[slice, Any, int, int, float]:
    """Return the place of the weights, the scale of each, the shared one, the slab, the factor."""
    offset, size, first, block, count, shared, slab = (int(value) for value in row[:7])
    number = first + np.arange(size) // block % count
    return slice(offset, offset + size), number, shared, slab, float(row[7])


class ScaleBuilder:
    """Collects the learned scales of a target, array by array."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._arrays: list[ScaleArray] = []
        self._numbers: dict[str, int] = {}

    def add(
        self, function: str, parameter: Parameter, pattern: str, learned: LearnedScales
    ) -> None:
        """Give an array of weights, whose prior stands under `pattern`, its scales."""
        shape, size, name = parameter.shape, parameter.size, parameter.name
        block, of = size, name
        many: tuple[int, ...] = ()
        if learned.per in ("input", "unit") and len(shape) > 1:
            if len(shape) != 2:
                raise ValueError(
                    f"[{function}] expected per='array' or 'layer' for {name!r} of shape {shape}, "
                    f"got {learned.per!r}, which is for matrices"
                )
            by_input = learned.per == "input"
            block, many = (shape[1], (shape[0],)) if by_input else (1, (shape[1],))
        elif learned.per == "weight":
            block, many = 1, shape
        elif learned.per == "layer":
            of = name.rpartition(".")[0]
        elif learned.per == "all":
            of = pattern
        word = "scale" if learned.shared is None else "local"
        first = self._number(f"log_{word}.{of}", many, learned.scale)
        shared = slab = -1
        if learned.shared is not None:
            shared = self._number(f"log_global.{name}", (), learned.shared)
        if learned.slab is not None:
            slab = self._number(f"log_slab.{name}", (), learned.slab)
        count = math.prod(many)
        factor = learned.factor(parameter.fan_in)
        self._rows.append((parameter.offset, size, first, block, count, shared, slab, factor))

    def _number(self, name: str, shape: tuple[int, ...], prior: ScalePrior) -> int:
        if name not in self._numbers:
            first = sum(array.count for array in self._arrays)
            self._numbers[name] = first
            self._arrays.append(ScaleArray(name, first, shape, prior))
        return self._numbers[name]

    def table(self) -> ScaleTable | None:
        """Return what was collected, None for nothing."""
        if not self._rows:
            return None
        return ScaleTable(np.array(self._rows, np.float64), tuple(self._arrays))
