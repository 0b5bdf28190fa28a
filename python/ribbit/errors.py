"""Exceptions and warnings of Ribbit.

Exceptions are a ``TypeError`` or ``ValueError`` with the form ``[function] expected ..., got ...``.
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
    "ModuleWarning",
    "NoiseWarning",
    "NonFiniteError",
    "PrecisionWarning",
    "PriorWarning",
    "RibbitWarning",
    "ScaleWarning",
    "ShapeError",
]


class ShapeError(ValueError):
    """An array has the wrong shape, or is empty where it must not be.

    Examples
    --------
    >>> try:
    ...     rb.datasets.standardize(np.ones(3))
    ... except rb.errors.ShapeError as error:
    ...     print(error)
    [standardize] expected x of shape (N, D) with rows, got (3,)
    """


class DTypeError(TypeError):
    """An array has the wrong type or dtype, or is in the wrong library or memory.

    Examples
    --------
    >>> try:
    ...     rb.datasets.standardize(np.array([["a"]]))
    ... except rb.errors.DTypeError as error:
    ...     print(error)
    [standardize] expected x as an array of real numbers, got <U1 array of shape (1, 1): leave ...
    """


class DataError(ValueError):
    """An array holds a value that is not allowed: NaN, infinity, a label out of range.

    Examples
    --------
    >>> try:
    ...     rb.datasets.standardize(np.array([[np.nan], [1.0]]))
    ... except rb.errors.DataError as error:
    ...     print(error)
    [standardize] expected finite float64 values in x, got an array where x[0, 0] is nan: ...
    """


class KindError(TypeError, AttributeError):
    """A prediction has no such statistic, because its likelihood has another kind.

    Also an AttributeError, so that ``hasattr(prediction, "mean")`` is False and does not raise.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> hasattr(draws.predict(x), "probs")  # of a regression
    False
    >>> try:
    ...     draws.predict(x).probs
    ... except rb.errors.KindError as error:
    ...     print(type(error).__name__)
    KindError
    """


class MissingError(ValueError, AttributeError):
    """A prediction lacks a statistic, because the draws that it needs were not kept.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> try:
    ...     draws.predict(x).samples
    ... except rb.errors.MissingError as error:
    ...     print(type(error).__name__)
    MissingError
    """


class GroupError(ValueError):
    """The ranks of a group do not match, or one has failed; raised on every rank.

    Examples
    --------
    >>> issubclass(rb.errors.GroupError, ValueError)
    True
    """


class RibbitWarning(UserWarning):
    """Base class of all warnings: a result may be wrong, incomplete or useless.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", rb.errors.RibbitWarning)
    """


class ConvergenceWarning(RibbitWarning):
    """The chains have not converged, or their transitions diverged. Do not use these draws.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> import warnings
    >>> hmc = rb.HMC(target, step_size=1e-4, num_leapfrog_steps=1)  # moves by next to nothing
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     draws = hmc.sample(50, warmup=0, seed=0, progress=False)
    >>> any(issubclass(w.category, rb.errors.ConvergenceWarning) for w in caught)
    True
    """


class FitWarning(RibbitWarning):
    """A fit has not converged: its objective still moved at the end, or it diverged.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     fit = rb.DeepEnsemble(target, learning_rate=1e-4, batch_size=10).fit(20, progress=False)
    >>> any(issubclass(w.category, rb.errors.FitWarning) for w in caught)
    True
    """


class ScaleWarning(RibbitWarning):
    """Inputs or targets are far from the unit scale that a shared prior is meant for.

    Also if a few extreme values flatten a standardised column.

    Examples
    --------
    >>> import warnings
    >>> x = np.linspace(1000, 2000, 20)[:, None]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     target = rb.Posterior(
    ...         rb.mlp(1, (3,), 1), x, x / 1000, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    ...     )
    >>> [w.category.__name__ for w in caught]
    ['ScaleWarning']
    """


class NoiseWarning(RibbitWarning):
    """A noise sd vanishes or may vanish: y takes few values, or has nearly no noise.

    Examples
    --------
    >>> import warnings
    >>> x, y = np.linspace(-1, 1, 100)[:, None], np.arange(100) % 2  # y takes two values
    >>> noise = rb.HeteroscedasticGaussian()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     target = rb.Posterior(rb.mlp(1, (3,), 2), x, y, prior=rb.Normal(1.0), likelihood=noise)
    >>> [w.category.__name__ for w in caught]
    ['NoiseWarning']
    """


class ModuleWarning(RibbitWarning):
    """A PyTorch module or DataLoader differs in meaning from the posterior made from it.

    Examples
    --------
    >>> issubclass(rb.errors.ModuleWarning, rb.errors.RibbitWarning)
    True
    """


class PrecisionWarning(RibbitWarning):
    """Products are less accurate than float32, which may matter.

    Examples
    --------
    >>> issubclass(rb.errors.PrecisionWarning, rb.errors.RibbitWarning)
    True
    """


class PriorWarning(RibbitWarning):
    """A prior applies to no parameter, because an earlier pattern matches all of them.

    Examples
    --------
    >>> import warnings
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> prior = {"*": rb.Normal(1.0), "0.weight": rb.Normal(3.0)}  # the first that matches wins
    >>> noise = rb.Gaussian(0.3)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     target = rb.Posterior(rb.mlp(1, (3,), 1), x, 2 * x, prior=prior, likelihood=noise)
    >>> [w.category.__name__ for w in caught]
    ['PriorWarning']
    """


class NonFiniteError(ValueError):
    """A parameter of a run or fit became infinite or NaN.

    Attributes
    ----------
    state
        The last finite state of the run, or the fit so far; ``resume=error.state`` continues from
        it. Its parameters may be very large already.
    step : int
        The step with the first infinite or NaN parameter, counted from 0 over the whole run.
    step_size : float
        Step size or learning rate of that step.
    largest_gradient : float
        Largest finite absolute component of that step's gradient; infinity if no component is
        finite.
    chain : int or None
        Id of the first such chain, or number of the first such member.
    draws : Draws or None
        For a sampler: the draws so far. They end with a draw; the state may be some steps further.
    fit : MeanField, DropoutFit, EnsembleFit, SWAGFit, LaplaceFit or None
        For a fit: the fit so far.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> sgld = rb.SGLD(target, step_size=1e6, batch_size=5)
    >>> try:
    ...     sgld.sample(100, warmup=0, seed=0, progress=False)
    ... except rb.errors.NonFiniteError as error:
    ...     print(error.step_size, error.draws is not None)
    1000000.0 True
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
