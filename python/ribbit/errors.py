"""Exceptions and warnings of Ribbit.

Exceptions are ``TypeError`` or ``ValueError``; all read ``[function] expected ..., got ...``.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = [
    "ConvergenceWarning",
    "DTypeError",
    "DataError",
    "FitWarning",
    "GroupError",
    "KindError",
    "MissingError",
    "NoiseWarning",
    "NonFiniteError",
    "PrecisionWarning",
    "RibbitWarning",
    "ScaleWarning",
    "ShapeError",
]


class ShapeError(ValueError):
    """An array has the wrong shape, or is empty where it must not be."""


class DTypeError(TypeError):
    """An array has the wrong kind or dtype, or lives in the wrong library or memory."""


class DataError(ValueError):
    """An array holds a value that is not allowed: NaN, infinity, a label out of range."""


class KindError(TypeError, AttributeError):
    """A prediction has no such statistic, because its likelihood is of another kind.

    An AttributeError too, so that ``hasattr(prediction, "mean")`` is False and does not raise.
    """


class MissingError(ValueError, AttributeError):
    """A prediction does not have a statistic, because nothing that it needs was kept."""


class GroupError(ValueError):
    """The ranks of a group do not fit each other, or one has failed; raised on every one."""


class RibbitWarning(UserWarning):
    """A result may be wrong or useless; the base of the warnings that say so."""


class ConvergenceWarning(RibbitWarning):
    """Chains have not converged, or diverge: their draws are no draws of the target yet."""


class FitWarning(RibbitWarning):
    """A fit ended while its objective still rose."""


class ScaleWarning(RibbitWarning):
    """Inputs or targets are far from the unit scale that a shared prior is meant for."""


class NoiseWarning(RibbitWarning):
    """A noise sd vanishes, or may: targets take few values, or have nearly no noise."""


class PrecisionWarning(RibbitWarning):
    """Products are computed with less than float32's accuracy where that may matter."""


class NonFiniteError(ValueError):
    """A run has left the finite numbers.

    Attributes
    ----------
    state
        The last finite state of the run, or the fit so far; ``resume=error.state`` goes on from
        it. Its parameters may be very large already.
    step : int
        The step, counted from 0 over the whole run, that left a parameter not finite.
    step_size : float
        Step size or learning rate of that step.
    largest_gradient : float
        Largest finite absolute component of that step's gradient; infinity when there is none.
    chain : int or None
        Id of the first chain, or number of the first member, that it left.
    draws : Draws or None
        Of a sampler: the draws before. They end with a draw; the state is as far as the run came.
    fit : MeanField, DropoutFit, EnsembleFit, SWAGFit, LaplaceFit or None
        Of a fit: the fit so far.
    """

    def __init__(
        self,
        message: str,
        *,
        state: Any,
        step: int,
        step_size: float,
        largest_gradient: float,
        chain: int | None = None,
    ) -> None:
        super().__init__(message)
        self.state = state
        self.step = step
        self.step_size = step_size
        self.largest_gradient = largest_gradient
        self.chain = chain
        self.draws: Any = None
        self.fit: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from `args` alone, which does not give keywords back.
        keywords: dict[str, Any] = dict.fromkeys(("state", "step", "step_size", "largest_gradient"))
        return functools.partial(type(self), **keywords), self.args, self.__dict__
