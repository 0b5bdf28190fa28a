"""Predictions of a network for parameter draws, without the data it was trained on.

Shapes: S draws, P parameters, N rows, K outputs, J columns of y.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit import _core
from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.namespace import from_device, from_host, is_device_array, namespace, to_host
from ribbit._backends.precision import PRECISIONS
from ribbit.errors import ShapeError
from ribbit.models.model import Model
from ribbit.protocols import PredictiveTerms
from ribbit.targets import likelihoods
from ribbit.targets.likelihoods import Array64, Kind, Likelihood

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "DrawnPredictive",
    "NetworkPredictive",
    "NumberedPredictive",
    "check_addresses",
    "predictive_from_description",
]


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
    def precision(self) -> str:
        """How float32 products are computed on a device; see `Posterior`."""
        return str(self.description.get("precision", "float32"))

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    def check_inputs(self, x: npt.ArrayLike) -> None:
        """Raise TypeError or ValueError unless `x` holds finite rows (N, *input_shape)."""
        if is_device_array(x):
            from ribbit._backends.cuda.data import device_rows

            given = from_device("predict", "x", x)
            device_rows("predict", self.model, given, np.dtype(np.float64))
            return
        single = getattr(x, "dtype", None) == np.float32
        self.model.rows("predict", x, np.dtype(np.float32 if single else np.float64))

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
        return self.model.forward("predict", theta, x, self.dim, self.precision)

    def predictive(self, theta: FloatArray, x: npt.ArrayLike) -> PredictiveTerms:
        """Return mean and noise sd, or probabilities, of each draw (S, P) at each row of `x`.

        The noise is that of the untempered likelihood. Errors as for `outputs`.
        """
        return self._terms(*self._samples("predict", theta, x))

    def log_likelihood(self, theta: FloatArray, x: npt.ArrayLike, y: npt.ArrayLike) -> Array64:
        """Return the untempered log density (S, N) float64 of each row under each draw (S, P).

        `y` is checked as in `Posterior`. Errors as for `outputs`.
        """
        function = "Prediction.log_likelihood"
        return self._density(function, y, *self._samples(function, theta, x))

    def predictive_moments(
        self, positions: FloatArray, x: npt.ArrayLike
    ) -> tuple[tuple[Array64, ...], bool]:
        """Return running sums over all draws (C, D, P); see `protocols.NativePredictive`."""
        if is_device_array(positions):
            from ribbit._backends.cuda import forward as cuda_forward

            stored = cuda_forward.stored(positions, self.dim)
            return self._moments(stored, positions, x)
        source: Any = (
            _core.WeightSource32 if positions.dtype == np.float32 else _core.WeightSource64
        )
        draws = np.ascontiguousarray(positions)
        return self._moments(source.stored(draws), positions, x)

    def drawn(self, mean: FloatArray, scale: FloatArray, seed: int) -> DrawnPredictive:
        """Return predictions of normal weights that are drawn while they are used."""
        return DrawnPredictive(self.model, self.likelihood, self.description, mean, scale, seed)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """Return itself; a Posterior has one."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description for `predictive_from_description`."""
        return dict(self.description)

    def _moments(
        self, source: Any, positions: FloatArray, x: npt.ArrayLike
    ) -> tuple[tuple[Array64, ...], bool]:
        likelihood, model = self.likelihood, self.model
        binary = isinstance(likelihood, likelihoods.Bernoulli)
        count = positions.shape[0] * positions.shape[1]
        if is_device_array(positions):
            from ribbit._backends.cuda import forward as cuda_forward

            sums_on_device = cuda_forward.predictive_moments(
                model, likelihood, source, x, count, self.precision
            )
            return sums_on_device, binary
        rows = model.rows("predict", x, positions.dtype)
        native: Any = (
            _core.predictive_moments32
            if positions.dtype == np.float32
            else _core.predictive_moments64
        )
        sums: tuple[Array64, ...] = native(
            model.table,
            self._layer_rates(),
            source,
            int(likelihood.learns_noise) or likelihood.code,
            likelihood.table_scale,
            count,
            rows,
        )
        return sums, binary

    def _layer_rates(self) -> Array64:
        return self.model.rates

    def _samples(
        self, function: str, theta: FloatArray, x: npt.ArrayLike
    ) -> tuple[FloatArray, FloatArray | None]:
        if getattr(theta, "ndim", 0) != 2:
            raise ShapeError(
                f"[{function}] expected theta of shape (S, {self.dim}), got {checks.summary(theta)}"
            )
        outputs = self.model.forward(function, theta, x, self.dim, self.precision)
        return outputs, theta[:, -1] if self.likelihood.learns_noise else None

    def _terms(self, outputs: FloatArray, log_noise: FloatArray | None) -> PredictiveTerms:
        with np.errstate(over="ignore", invalid="ignore"):
            return self.likelihood.terms(outputs, log_noise)

    def _density(
        self,
        function: str,
        y: npt.ArrayLike,
        outputs: FloatArray,
        log_noise: FloatArray | None,
    ) -> Array64:
        shape = self.model.output_shape
        xp = namespace(outputs)
        if is_device_array(y):
            y = to_host(from_device(function, "y", y))
        elif xp is not np:
            namespace(outputs, np.asarray(y), function=function)  # says what is mixed
        targets = self.likelihood.targets(
            function, y, outputs.shape[1], shape, np.dtype(np.float64)
        )
        targets = from_host(xp, targets)
        with np.errstate(over="ignore", invalid="ignore"):
            values: Array64 = self.likelihood.log_likelihood(outputs, targets, log_noise)
        return values


@dataclass(frozen=True)
class NumberedPredictive(NetworkPredictive, ABC):
    """Predictions of draws that are made from their numbers, while they are used.

    The arrays of draws (S, P) that the methods are given say how many there are, from number
    `first` on, at rows of x from number `row` on.
    """

    numbered: ClassVar[bool] = True

    @abstractmethod
    def source(self, theta: FloatArray, row: int, num_rows: int) -> Any:
        """Return the source of weights and masks of the CPU, or `Samples` of a device.

        theta (P,) is the first draw given; rows of x: row, .., row + num_rows - 1.
        """

    def outputs(
        self, theta: FloatArray, x: npt.ArrayLike, *, first: int = 0, row: int = 0
    ) -> FloatArray:
        """Return raw outputs (S, N, K)."""
        return self._numbered("predict", theta, x, first, row)[0]

    def predictive(
        self, theta: FloatArray, x: npt.ArrayLike, *, first: int = 0, row: int = 0
    ) -> PredictiveTerms:
        """Return mean and noise sd, or probabilities, of each draw at each row of `x`."""
        return self._terms(*self._numbered("predict", theta, x, first, row))

    def log_likelihood(
        self,
        theta: FloatArray,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        first: int = 0,
        row: int = 0,
    ) -> Array64:
        """Return the untempered log density (S, N) float64 of each row under each draw."""
        function = "Prediction.log_likelihood"
        return self._density(function, y, *self._numbered(function, theta, x, first, row))

    def predictive_moments(
        self, positions: FloatArray, x: npt.ArrayLike
    ) -> tuple[tuple[Array64, ...], bool]:
        """Return running sums over as many draws as `positions` (1, S, P) has."""
        return self._moments(self.source(positions[0, 0, :], 0, _num_rows(x)), positions, x)

    def _numbered(
        self, function: str, theta: FloatArray, x: npt.ArrayLike, first: int, row: int
    ) -> tuple[FloatArray, FloatArray | None]:
        if getattr(theta, "ndim", 0) != 2 or theta.shape[1] != self.dim:
            raise ShapeError(
                f"[{function}] expected theta of shape (S, {self.dim}), got {checks.summary(theta)}"
            )
        if is_device_array(theta):
            from ribbit._backends.cuda import forward as cuda_forward

            source = self.source(theta[0, :], row, _num_rows(x))
            out, log_noise = cuda_forward.numbered_outputs(
                function, self.model, source, x, first, theta.shape[0], self.precision
            )
            return out, log_noise if self.likelihood.learns_noise else None
        dtype = checks.float_dtype(function, theta.dtype)
        rows = self.model.rows(function, x, dtype)
        native: Any = _core.forward32 if dtype == np.float32 else _core.forward64
        out, log_noise = native(
            self.model.table,
            self._layer_rates(),
            self.source(theta[0], row, len(rows)),
            first,
            theta.shape[0],
            rows,
        )
        shaped = out.reshape((*out.shape[:2], *self.model.output_shape))
        return shaped, log_noise if self.likelihood.learns_noise else None


@dataclass(frozen=True, eq=False)
class DrawnPredictive(NumberedPredictive):
    """Predictions of independent normal weights, drawn while they are used.

    Parameters
    ----------
    mean, scale : numpy.ndarray
        (P,) each.
    seed : int
        64-bit key; draw s is row s of ``MeanField(mean, scale).sample``.
    """

    mean: FloatArray
    scale: FloatArray
    seed: int

    def source(self, theta: FloatArray, row: int, num_rows: int) -> Any:
        """Return the source of weights."""
        if is_device_array(theta):
            from ribbit._backends.cuda.samples import Drawn

            xp = namespace(theta)
            mean, scale = (xp.ascontiguousarray(a) for a in (self.mean, self.scale))
            return Drawn(mean, scale, self.seed)
        source: Any = _core.WeightSource32 if theta.dtype == np.float32 else _core.WeightSource64
        mean, scale = (np.ascontiguousarray(a, theta.dtype) for a in (self.mean, self.scale))
        return source.drawn(mean, scale, self.seed)


def _num_rows(x: Any) -> int:
    shape = x.shape if hasattr(x, "shape") else np.shape(x)
    return int(shape[0]) if shape else 1


def check_addresses(name: str, model: Model, num_rows: int) -> None:
    """Raise when noise for each row and unit would run out of addresses (2^32 blocks of four)."""
    widest = int(model.table[:, 1:3].max())
    if num_rows * -(-widest // 4) >= 2**32:
        raise ValueError(
            f"[{name}] expected rows times widest layer < 2^34, got {num_rows} rows, {widest} units"
        )


def predictive_from_description(description: Mapping[str, Any]) -> NetworkPredictive:
    """Rebuild from `Posterior.describe` what predicts at new rows, without the data.

    Raises
    ------
    TypeError, ValueError
        If the description is not one of a posterior.
    """
    function = "predictive_from_description"
    given = checks.mapping(function, "description", description)
    if not {"model", "likelihood"} <= set(given):
        raise ValueError(f"[{function}] expected entries model and likelihood, got {list(given)}")
    model = Model.from_description(given["model"])
    likelihood = likelihoods.from_description(given["likelihood"])
    likelihood.columns(function, model.output_shape)
    if given.get("precision", "float32") not in PRECISIONS:
        raise ValueError(
            f"[{function}] expected precision as one of {', '.join(PRECISIONS)}, "
            f"got {checks.summary(given['precision'])}"
        )
    return NetworkPredictive(model, likelihood, dict(given))
