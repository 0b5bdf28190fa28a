"""What every prior has: a base for those of weights and one for those of a scale."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np

from ribbit._arrays import checks

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LOG_NOISE", "LearnedScales", "Means", "Prior", "PriorLike", "ScalePrior"]

Means: TypeAlias = "float | npt.NDArray[np.float64]"  # of all numbers of an array, or (size,)

LOG_NOISE = "log_noise"
"""Name of the extra parameter of a likelihood that learns its noise."""


@dataclass(frozen=True)
class LearnedScales:
    """Scales that are learned with the weights: w = scale z / divisor(fan_in), z ~ N(0, 1)."""

    scale: ScalePrior  # of each
    per: str  # what has one of its own, as in `Normal`
    divisor: Callable[[int], float]  # of the fan-in
    # of a scale that multiplies all those of an array, and of one that none of the products goes
    # much beyond
    shared: ScalePrior | None = None
    slab: ScalePrior | None = None

    def factor(self, fan_in: int) -> float:
        """Return what multiplies the scales of weights of this fan-in."""
        return 1.0 / self.divisor(fan_in)


class Prior:
    """Base class of priors of weights.

    With ``fan_in=True`` the scales are divided by sqrt(fan-in) of each parameter array; a bias has
    fan-in 1 and keeps its scale.

    Examples
    --------
    >>> isinstance(rb.Normal(0.5), rb.Prior)
    True
    """

    kind: ClassVar[int]  # code in the prior table
    # Advice for calls that take the first argument for a mean, such as Normal(0.0, 1.0).
    _order: ClassVar[str] = ""
    fan_in: bool

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (a, b, c) of the prior table for a parameter with this fan-in."""
        raise NotImplementedError

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd for a parameter with this fan-in; its scale where the sd is infinite."""
        raise NotImplementedError

    @property
    def sd(self) -> float:
        """Marginal standard deviation at fan-in 1; may be infinite."""
        return self._spread()

    def _named(self) -> tuple[str, ...]:
        """Return the names of parameters that the prior says something of; a target has them."""
        return ()

    def _means(self, function: str, parameter: Parameter, dim: int) -> Means:
        """Return the mean of each number of a parameter, of a model of `dim` in all."""
        del function, parameter, dim
        return 0.0

    def _centres(self, function: str, parameter: Parameter, dim: int) -> Means:
        """Return what the core subtracts before it takes the density: the mean."""
        return self._means(function, parameter, dim)

    def _learned_scales(self) -> LearnedScales | None:
        """Return the scales that are learned with the weights, None where the prior is fixed."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description from which `from_description` rebuilds the prior."""
        return {"prior": type(self).__name__, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    def _set_positive(self, *names: str) -> None:
        owner = type(self).__name__
        for name in names:
            try:
                value = checks.positive(owner, name, getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{error}{self._order}") from None
            object.__setattr__(self, name, value)
        if "fan_in" in self.__dict__:
            object.__setattr__(self, "fan_in", checks.boolean(owner, "fan_in", self.fan_in))

    def _divisor(self, fan_in: int) -> float:
        return math.sqrt(fan_in) if self.fan_in else 1.0


class ScalePrior(Prior):
    """Base class of priors of a scale, a positive number that a target stores as its logarithm.

    Their density is the density of u = log(scale), with the Jacobian. Use them for the noise sd
    (``log_noise_prior=``, or the entry "log_noise" of a dict of priors), and for learned scales of
    weights, ``Normal(scale=...)``.

    Examples
    --------
    >>> isinstance(rb.HalfNormal(1.0), rb.ScalePrior)
    True
    """

    fan_in = False

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale."""
        raise NotImplementedError

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale."""
        raise NotImplementedError

    @property
    def root_mean_square(self) -> float:
        """Root of the mean of scale**2; may be infinite."""
        return math.inf

    def _means(self, function: str, parameter: Parameter, dim: int) -> Means:
        """Return the mean of the log scale."""
        del function, parameter, dim
        return self.log_mean

    def _centres(self, function: str, parameter: Parameter, dim: int) -> Means:
        """Return 0: the density is of the log scale itself."""
        del function, parameter, dim
        return 0.0


PriorLike: TypeAlias = Prior | Mapping[str, Prior]


class Parameter(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def fan_in(self) -> int: ...
