"""Gaussians around the iterates of an optimiser, one for each member."""

# Shapes: M members, K deviations, P parameters, S draws, E points of a history.

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks, records
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import host_dtype, namespace, require_memory, to_host
from ribbit.protocols import Array, Predictive
from ribbit.results.draws import Draws
from ribbit.results.fits import Fit, drawn, draws_and_seed, fit_noise, packed_weights
from ribbit.results.outcome import History
from ribbit.results.prediction import Prediction

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["SWAGFit"]

_FEWEST = 2  # iterates, and deviations, that have a spread
_AT_ONCE = 1 << 22  # numbers of the noise that is held beside the draws


@dataclass(frozen=True, eq=False, repr=False)
class SWAGFit(Fit):
    """A Gaussian, diagonal plus low rank, for each member, fitted by :class:`ribbit.SWAG`.

    The covariance of member m is diag(variance[m]) / 2 + D^T D / (2 (K - 1)) with the rows of D =
    deviations[m] (Maddox et al. 2019, section 4.2). All members have equal weights.

    Attributes
    ----------
    mean : (M, P) float64 array
        Mean of the iterates; the last weights if none was collected.
    squares : (M, P) float64 array
        Sum of the squared distances of the iterates from `mean`.
    deviations : (M, K, P) array
        The last iterates minus the running mean (which includes the iterate), oldest first; K =
        min(count, max_rank). It is 0 for the first iterate.
    count : int
        Iterates collected, one per epoch.
    first_step : int or None
        Step after which collecting began; None if nothing was collected.
    complete : bool
        False if the fit was interrupted.
    settings : dict
        Options, seed and versions: plain values.
    predictive : Predictive or None
        The target, or another object that predicts.
    state : StochasticState
        State from which ``fit(resume=...)`` continues.
    history : dict of arrays
        "epoch" (E,) and "objective" (E, M): the objective of each member on fixed rows, at about
        twenty epochs of training and twenty of collecting.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> fit = rb.SWAG(target, batch_size=5).fit(20, progress=False)
    >>> fit.draws(8).positions.shape
    (1, 8, 10)
    """

    mean: Array
    squares: Array
    deviations: Array
    count: int
    first_step: int | None
    complete: bool
    settings: dict[str, Any]
    predictive: Predictive | None = None
    state: Any = None
    history: History = field(default_factory=dict)

    # What to do when the objective still rose: what was collected stays in the moments.
    advice: ClassVar[str] = (
        "train longer before collecting (init=fit.mean starts another fit there) and let the "
        "learning rate fall on the way (schedule=rb.schedules.cosine(num_steps))"
    )

    def __post_init__(self) -> None:
        records.check(self, mean="M P", squares="M P", deviations="M R P")

    def _facts(self) -> str:
        members, rank, dim = self.deviations.shape
        return f"{members} members, {dim} parameters, {self.count} iterates, rank {rank}"

    @property
    def variance(self) -> Array:
        """Variance of the iterates, (M, P) float64: mean square distance from `mean`."""
        return self.squares / max(1, self.count)

    def _packed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file holds: header and arrays."""
        names = ("mean", "squares", "deviations")
        arrays = {name: to_host(getattr(self, name)) for name in names}
        collected = {"count": self.count, "first_step": self.first_step}
        return packed_weights(self, self.predictive, arrays, collected=collected)

    def _starts(self, chains: npt.NDArray[np.uint32] | None, seed: int) -> Array:
        """Return draw c (C, P) for each chain id c; a draw per member, at least four, when None."""
        many = max(4, self.mean.shape[0])
        ids = np.arange(many, dtype=np.uint32) if chains is None else chains
        self._require_spread("SWAGFit")
        return self._drawn(np.asarray(ids, np.uint32), seed)

    def draws(self, num_draws: int, *, seed: checks.Seed = 0) -> Draws:
        """Return independent draws as one chain, from the members in turn.

        Draw s is mean + sqrt(variance / 2) z1 + D^T z2 / sqrt(2 (K - 1)) of member s mod M (Maddox
        et al. 2019, equation 1), with standard normals z1 (P,) and z2 (K,).

        Parameters
        ----------
        num_draws : int
            S, >= 1. A multiple of M gives the members equal weights.
        seed : int, Generator, SeedSequence or None
            64-bit key; draw s depends on (seed, s) alone.

        Returns
        -------
        Draws
            positions (1, S, P).

        Raises
        ------
        ValueError
            If fewer than two iterates were collected.
        MemoryError
            If the draws do not fit into free memory.
        """
        name = "SWAGFit.draws"
        count, key = draws_and_seed(name, num_draws, seed)
        self._require_spread(name)
        dim = int(self.mean.shape[1])
        dtype = host_dtype(self.deviations)
        what = f"{count} draws of {dim} parameters"
        # the draws, and the copy that lines them up
        require_memory(name, namespace(self.deviations), 2 * count * dim, dtype, what)
        positions = self._drawn(np.arange(count, dtype=np.uint32), key)
        return drawn(self, positions[None, ...], self.predictive, key)

    def predict(self, x: Array, num_draws: int = 1000, *, seed: checks.Seed = 0) -> Prediction:
        """Return ``draws(num_draws, seed=seed).predict(x)``."""
        return self.draws(num_draws, seed=seed).predict(x)

    def _require_spread(self, name: str) -> None:
        if self.count < _FEWEST:
            raise ValueError(
                f"[{name}] expected a fit of at least {_FEWEST} iterates, got {self.count}: "
                "collect more (fit(0, swag_epochs=..., resume=fit))"
            )

    def _drawn(self, ids: npt.NDArray[np.uint32], seed: int) -> Array:
        """Draws (S, P) of these numbers, some at a time: each is a function of its number."""
        xp = namespace(self.deviations)
        size = max(1, _AT_ONCE // int(self.mean.shape[1]))
        parts = [self._some(ids[i : i + size], seed) for i in range(0, len(ids), size)]
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)

    def _some(self, ids: npt.NDArray[np.uint32], seed: int) -> Array:
        xp = namespace(self.deviations)
        members, rank, dim = self.deviations.shape
        dtype = host_dtype(self.deviations)
        own = xp.asarray((ids % members).astype(np.int64))
        sd = xp.astype(xp.sqrt(0.5 * self.variance), self.deviations.dtype)
        mean = xp.astype(self.mean, self.deviations.dtype)
        away = xp.take(sd, own, axis=0) * fit_noise(
            xp, dim, dtype, seed=seed, numbers=ids, stream="weights"
        )
        z2 = fit_noise(xp, rank, dtype, seed=seed, numbers=ids, stream="low rank") / math.sqrt(
            2.0 * (rank - 1)
        )
        # One deviation after the other: a matrix product rounds by how many draws there are.
        for k in range(rank):
            away = away + z2[:, k : k + 1] * xp.take(self.deviations[:, k, :], own, axis=0)
        return xp.take(mean, own, axis=0) + away


explain(globals())
