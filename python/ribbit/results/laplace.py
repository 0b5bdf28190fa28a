"""A Gaussian at a mode, with the curvature there as precision."""

# Shapes: P parameters, Q of them in the subset, S draws, N rows, K outputs.

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks, records
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import refuse_device_array, require_memory
from ribbit.protocols import Array, Predictive
from ribbit.results.draws import Draws
from ribbit.results.fits import (
    Fit,
    drawn,
    draws_and_seed,
    fit_noise,
    network_predictive_of,
    packed_weights,
)
from ribbit.results.normal_prediction import NormalPrediction
from ribbit.results.outcome import History, summary_of_fit
from ribbit.results.prediction import Prediction
from ribbit.results.summary import CONVERGED, NOT, Row, Summary

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LaplaceFit", "near_mode"]

# Draws are made in blocks of this many, so that one rounds the same however many are wanted.
_BLOCK = 64
# Nats that the log density gains at most, to second order, from the mean to the mode. A draw of the
# Gaussian lies Q / 2 nats below it: a mean that is as far off is no centre.
_CLOSE, _SHARE = 0.5, 0.01


def near_mode(size: int) -> float:
    """Return how many nats below the mode the mean of `size` parameters may lie."""
    return max(_CLOSE, _SHARE * size)


@dataclass(frozen=True, eq=False, repr=False)
class LaplaceFit(Fit):
    """A Gaussian at a mode of the posterior, fitted by :class:`ribbit.LaplaceApproximation`.

    Attributes
    ----------
    mean : (P,) array
        The mode, in the target's dtype.
    factor : (Q, Q) float64 array
        Upper triangular, with factor @ factor.T the covariance of the subset; the other parameters
        stay at the mean. (0, 0) if the fit was interrupted before.
    first : int
        The subset holds the parameters first to first + Q - 1.
    log_density : float
        The target's (tempered) log density at the mean.
    newton_decrement : float
        Gain of a Newton step from the mean, to second order, in nats: g^T H^-1 g / 2, 0 at the
        mode.
    effective_parameters : float
        Number of directions that the data determine, Q - trace(covariance times curvature of the
        prior) (MacKay 1992, section 4).
    complete : bool
        False if the fit was interrupted.
    settings : dict
        Options, seed and versions: plain values.
    predictive : Predictive or None
        The target; after ``tune_prior`` or ``tune_noise`` with the scales that were found.
    state : StochasticState or None
        State from which ``fit(resume=...)`` continues; None if the weights were given.
    history : dict of arrays
        "epoch" (E,) and "objective" (E, 1): the log density on fixed rows, at about twenty epochs.
    tuning : dict of arrays
        For each round of tuning: "log_evidence" (R,), "noise_sd" (R,), and for each group of
        parameters its prior sd (R,) under its name. Empty if nothing was tuned.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> fit = rb.LaplaceApproximation(target, batch_size=10).fit(20, progress=False)
    >>> fit.covariance.shape
    (10, 10)
    >>> fit.predict(x).std.shape
    (20, 1)
    """

    mean: Array
    factor: npt.NDArray[np.float64]
    first: int
    log_density: float
    newton_decrement: float
    effective_parameters: float
    complete: bool
    settings: dict[str, Any]
    predictive: Predictive | None = None
    state: Any = None
    history: History = field(default_factory=dict)
    tuning: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    advice: ClassVar[str] = (
        "train longer (init=fit.mean starts another fit there) and let the learning rate fall "
        "(schedule=rb.schedules.cosine(num_steps))"
    )
    climb: ClassVar[str] = f"{advice[0].upper()}{advice[1:]}, or climb the rest with polish=100"

    def __post_init__(self) -> None:
        records.check(self, mean="P", factor="Q Q")

    def _facts(self) -> str:
        text = f"{self.mean.shape[0]} parameters, {self.subset}"
        if self.factor.size:
            text += f", log evidence {self.log_evidence:.6g}"
        return text

    @property
    def subset(self) -> str:
        """The parameters with a covariance: "all" or "last_layer"."""
        return str(self.settings.get("subset", "all"))

    @property
    def covariance(self) -> npt.NDArray[np.float64]:
        """Covariance of the subset's parameters, (Q, Q) float64."""
        self._require_factor("LaplaceFit.covariance")
        found: npt.NDArray[np.float64] = self.factor @ self.factor.T
        return found

    @property
    def log_evidence(self) -> float:
        """Log of the integral of exp(log density) over the subset, to second order.

        log density at the mean + Q / 2 log(2 pi) + log det(covariance) / 2 (MacKay 1992, equation
        30; Immer et al. 2021b, equation 5). Without temperatures, and with all parameters in the
        subset, this is the log marginal likelihood of the model.
        """
        self._require_factor("LaplaceFit.log_evidence")
        volume = float(np.log(np.diagonal(self.factor)).sum())
        return self.log_density + 0.5 * len(self.factor) * math.log(2.0 * math.pi) + volume

    @property
    def _wanted(self) -> float:
        """Nats from the mean to the mode of the subset, at most."""
        return near_mode(len(self.factor))

    @property
    def at_mode(self) -> bool:
        """Whether the mean is a mode for the subset's parameters; others are ignored."""
        return self.newton_decrement <= self._wanted

    def summary(self) -> Summary:
        """Return a table that says whether the mean is a mode, and what to do next."""
        base = summary_of_fit(self)
        if not self.factor.size:
            return base
        near, wanted = self.at_mode, f"at most {self._wanted:.3g}"
        rows = [
            # Newton's steps ended the training of all parameters.
            *(
                row._replace(wanted="", good=None) if self.subset == "all" else row
                for row in base.rows
            ),
            Row("nats to the mode", f"{self.newton_decrement:.2g}", wanted, near),
            Row("log evidence", f"{self.log_evidence:.6g}"),
            Row(
                "parameters that the data determine",
                f"{self.effective_parameters:.4g} of {self.factor.shape[0]}",
            ),
        ]
        for name, values in self.tuning.items():
            rows.append(Row(f"tuned {name}", f"{values[0]:.4g} -> {values[-1]:.4g}"))
        outcome, text = CONVERGED, "Converged: the Gaussian lies at a mode."
        if not near:
            own = "Raise epochs=, or give options={'polish': 100}"
            way = own if "caller" in self.settings else self.climb
            outcome, text = NOT, "Not converged: the mean is no mode, because a Newton step gains "
            text += f"{self.newton_decrement:.2g} nats. {way}."
        elif self.subset == "last_layer" and not base.converged:
            # Newton's steps have moved the last layer alone.
            outcome = base.outcome
            text = f"{base.message} This holds for the layers below the last one."
        return Summary(base.title, tuple(rows), outcome, text)

    def _packed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file holds: header and arrays."""
        arrays: dict[str, Any] = {"mean": self.mean, "factor": self.factor}
        arrays |= {f"tuning/{name}": values for name, values in self.tuning.items()}
        curvature = {
            "first": self.first,
            "log_density": self.log_density,
            "newton_decrement": self.newton_decrement,
            "effective_parameters": self.effective_parameters,
        }
        return packed_weights(self, self.predictive, arrays, curvature=curvature)

    def _starts(self, chains: npt.NDArray[np.uint32] | None, seed: int) -> Array:
        """Return draw c (C, P) for each chain id c; four draws when None."""
        self._require_factor("LaplaceFit")
        ids = np.arange(4, dtype=np.uint32) if chains is None else chains
        return self._drawn(np.asarray(ids, np.uint32), seed)

    def draws(self, num_draws: int, *, seed: checks.Seed = 0) -> Draws:
        """Return independent draws of the Gaussian as one chain.

        Their predictions use the network itself, not the linearized one. They spread more than the
        posterior's if the network is not linear within the Gaussian (Lawrence 2001; Immer et al.
        2021a). Prefer :meth:`predict`.

        Parameters
        ----------
        num_draws : int
            S, >= 1.
        seed : int, Generator, SeedSequence or None
            64-bit key; draw s depends on (seed, s) alone.

        Returns
        -------
        Draws
            positions (1, S, P).

        Raises
        ------
        ValueError
            If the fit was interrupted before there was a covariance.
        MemoryError
            If the draws do not fit into free memory.
        """
        name = "LaplaceFit.draws"
        count, key = draws_and_seed(name, num_draws, seed)
        self._require_factor(name)
        dim = int(self.mean.shape[0])
        require_memory(name, np, count * dim, self.mean.dtype, f"{count} draws of {dim} parameters")
        positions = self._drawn(np.arange(count, dtype=np.uint32), key)
        return drawn(self, positions[None, ...], self.predictive, key)

    def predict(
        self, x: Array, num_draws: int = 1000, *, seed: checks.Seed = 0, linearized: bool = True
    ) -> Prediction:
        """Return predictions at new inputs, by default of the linearized network.

        The Gauss-Newton curvature belongs to the linearized network f(x, mean) + J(x) (theta -
        mean), which predicts better (Immer et al. 2021a, section 3). With Gaussian noise of known
        sd its predictions are normal in closed form. A learned noise is integrated over 64 equal
        parts of its distribution (with ``subset="last_layer"`` it stays at its mode). Other
        likelihoods average over draws.

        Parameters
        ----------
        x : (N, ...) array
        num_draws : int
            S, >= 1; the draws of :meth:`draws`. The closed form uses them for ``sample`` only.
        seed : int, Generator, SeedSequence or None
            64-bit key.
        linearized : bool
            False: ``draws(num_draws, seed=seed).predict(x)``.

        Returns
        -------
        Prediction
            A `NormalPrediction` for the linearized network if that has a closed form.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, without a network, or if the fit was interrupted before there was a
            covariance.

        References
        ----------
        Immer, Korzepa and Bauer (2021a), "Improving predictions of Bayesian neural nets via local
        linearization", AISTATS.
        """
        name = "LaplaceFit.predict"
        count, key = draws_and_seed(name, num_draws, seed)
        checks.boolean(name, "linearized", linearized)
        self._require_factor(name)
        base = network_predictive_of(name, self.predictive)
        refuse_device_array(name, "x", x, self.mean)
        base.check_inputs(x)  # a wrong x is an error here
        if not linearized:
            return self.draws(count, seed=key).predict(x)

        def by_draws() -> Prediction:
            draws = self.draws(count, seed=key)
            if self.subset == "last_layer":  # of which the network is linear already
                return draws.predict(x)
            line = base.linearized(self.mean, self.subset)
            return Prediction(line, x, positions=draws.positions)

        normal = base.normal(self.mean, self.subset, self.factor)
        if normal is None:
            return by_draws()
        return NormalPrediction(normal, x, by_draws)

    def _require_factor(self, name: str) -> None:
        if not self.factor.size:
            raise ValueError(
                f"[{name}] expected a fit with a covariance, got one that was interrupted before: "
                "continue with fit(0, resume=fit), or fit(0, init=fit.mean)"
            )

    def _drawn(self, ids: npt.NDArray[np.uint32], seed: int) -> npt.NDArray[Any]:
        """Draws (S, P) of these numbers: mean + factor z, the normals z at (seed, number)."""
        size = self.factor.shape[0]
        found = np.empty((len(ids), self.mean.shape[0]), self.mean.dtype)
        found[:] = self.mean
        centre = self.mean[self.first : self.first + size].astype(np.float64)
        for block in np.unique(ids // _BLOCK):
            numbers = block * _BLOCK + np.arange(_BLOCK, dtype=np.uint32)
            noise = fit_noise(
                np, size, np.dtype(np.float64), seed=seed, numbers=numbers, stream="Gaussian"
            )
            moved = centre + noise @ self.factor.T
            own = np.flatnonzero(ids // _BLOCK == block)
            found[own, self.first : self.first + size] = moved[ids[own] % _BLOCK]
        return found


explain(globals())
