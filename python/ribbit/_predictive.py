"""Predictions of a network for parameter draws, without the data it was trained on.

Shapes: S draws, P parameters, N rows, K outputs, J columns of y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _checks, likelihoods
from ribbit._checks import FloatArray
from ribbit.errors import ShapeError
from ribbit.likelihoods import Array64, Kind, Likelihood
from ribbit.model import Model
from ribbit.protocols import PredictiveTerms

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["NetworkPredictive", "predictive_from_description"]


@dataclass(frozen=True)
class NetworkPredictive:
    """Predictions of a network for parameter draws; holds no data.

    Parameters
    ----------
    model : Model
        The network.
    likelihood : Likelihood
        What its outputs mean.
    description : dict
        What `describe` returns.
    """

    model: Model
    likelihood: Likelihood
    description: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def dim(self) -> int:
        """Number of parameters P, "log_noise" included."""
        return self.model.dim + int(self.likelihood.learns_noise)

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    def outputs(self, theta: FloatArray, x: npt.ArrayLike) -> FloatArray:
        """Return the raw outputs of the network, (N, K) or (S, N, K), in the dtype of `theta`.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (S, P), float32 or float64.
        x : array
            Rows (N, *input_shape), converted to the dtype of `theta`.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or `x` is not finite.
        """
        return self.model.forward("predict", theta, x, self.dim)

    def predictive(self, theta: FloatArray, x: npt.ArrayLike) -> PredictiveTerms:
        """Return mean and noise sd, or probabilities, of each draw (S, P) at each row of `x`.

        The noise is that of the untempered likelihood. Errors as for `outputs`.
        """
        outputs, log_noise = self._samples("predict", theta, x)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood.terms(outputs, log_noise)

    def log_likelihood(self, theta: FloatArray, x: npt.ArrayLike, y: npt.ArrayLike) -> Array64:
        """Return the untempered log density (S, N) float64 of each row under each draw (S, P).

        `y` is checked as in `Posterior`. Errors as for `outputs`.
        """
        function = "Prediction.log_likelihood"
        outputs, log_noise = self._samples(function, theta, x)
        shape = self.model.output_shape
        targets = self.likelihood.targets(
            function, y, outputs.shape[1], shape, np.dtype(np.float64)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood.log_likelihood(outputs, targets, log_noise)

    def _samples(
        self, function: str, theta: FloatArray, x: npt.ArrayLike
    ) -> tuple[FloatArray, FloatArray | None]:
        if getattr(theta, "ndim", 0) != 2:
            raise ShapeError(
                f"[{function}] expected theta of shape (S, {self.dim}), "
                f"got {_checks.summary(theta)}"
            )
        outputs = self.model.forward(function, theta, x, self.dim)
        return outputs, theta[:, -1] if self.likelihood.learns_noise else None

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description for `predictive_from_description`."""
        return dict(self.description)


def predictive_from_description(description: Mapping[str, Any]) -> NetworkPredictive:
    """Rebuild from `Posterior.describe` what predicts at new rows, without the data.

    Raises
    ------
    TypeError, ValueError
        If the description is not one of a posterior.
    """
    function = "predictive_from_description"
    given = _checks.mapping(function, "description", description)
    if not {"model", "likelihood"} <= set(given):
        raise ValueError(f"[{function}] expected entries model and likelihood, got {list(given)}")
    model = Model.from_description(given["model"])
    likelihood = likelihoods.from_description(given["likelihood"])
    likelihood.columns(function, model.output_shape)
    return NetworkPredictive(model, likelihood, dict(given))
