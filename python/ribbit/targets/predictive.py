"""Predictions of a network for parameter draws, without the data it was trained on."""

# Shapes: S draws, P parameters, N rows, K outputs, J columns of y.

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.namespace import from_host, is_device_array
from ribbit._backends import dispatch
from ribbit._backends.density_table import NetworkTable
from ribbit._backends.precision import PRECISIONS
from ribbit.errors import DTypeError, ShapeError
from ribbit.models.layers import Dropout
from ribbit.models.model import Model
from ribbit.protocols import PredictiveTerms
from ribbit.targets import likelihoods, prior_table, priors
from ribbit.targets.likelihoods import Array64, Kind, Likelihood
from ribbit.targets.linearized import LinearizedNetwork, NormalNetwork, first_of
from ribbit.targets.prior_base import LOG_NOISE
from ribbit.targets.scales import ScaleTable
from ribbit.targets.units import Units

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Masks:
    """Draws of one weight vector under masks; draw number s takes the masks of sample s."""

    rates: tuple[float, ...]  # rate of every row of the layer table, 0 where it is no Dropout layer
    seed: int
    # a mask per sample, row of x and unit, or one per sample and unit: one function per draw
    masks: str

    def source(
        self, backend: dispatch.Backend, theta: FloatArray, row: int, scales: Any = None
    ) -> Any:
        """Return samples whose weights are theta (P,), at rows of x from number `row` on."""
        assert scales is None  # masks with learned scales are refused
        shared = self.masks == "shared"
        return backend.masked(theta, self.rates, self.seed, shared=shared, first_row=row)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {"rates": list(self.rates), "seed": self.seed, "masks": self.masks}

    @staticmethod
    def from_description(description: Mapping[str, Any]) -> Masks:
        """Rebuild from `describe`; TypeError or ValueError for anything else."""
        function = "predictive_from_description"
        rates = tuple(
            checks.fraction(function, "rates", rate, zero=True) for rate in description["rates"]
        )
        masks = checks.choice(function, "masks", description["masks"], ("row", "shared"))
        return Masks(rates, checks.seed(function, description["seed"]), masks)


@dataclass(frozen=True, eq=False)
class NormalWeights:
    """Draws of independent normal weights, made while they are used."""

    mean: FloatArray  # (P,) each
    scale: FloatArray
    seed: int

    def source(
        self, backend: dispatch.Backend, theta: FloatArray, row: int, scales: Any = None
    ) -> Any:
        """Return samples; neither theta nor the rows matter."""
        del theta, row
        return backend.drawn(self.mean, self.scale, self.seed, scales)


@dataclass(frozen=True)
class NetworkPredictive:
    """Predictions of a network for parameter draws; holds no data."""

    model: Model  # the network
    likelihood: Likelihood  # what its outputs mean
    # what `describe` returns, of draws that lie in memory
    description: Mapping[str, Any] = field(repr=False, compare=False)
    # draws that are made from their numbers while they are used. The arrays of draws (S, P) that
    # the methods are given then say how many there are, from number `first` on, at rows of x from
    # number `row` on. None: the arrays are the draws.
    draws: Masks | NormalWeights | None = None
    # of the data, where the network sees them standardised: inputs, targets and predictions are in
    # these units, `outputs` in those of the network
    units: Units | None = field(default=None, repr=False)
    # learned scales: draws are positions, of which these make weights
    scales: ScaleTable | None = field(default=None, repr=False)

    @functools.cached_property
    def dim(self) -> int:
        """Number of parameters P, "log_noise" and learned scales included."""
        count = 0 if self.scales is None else self.scales.count
        return self.model.dim + self.noises + count

    @functools.cached_property
    def noise_at(self) -> int:
        """Place of the first "log_noise" in a position, where the noise is learned."""
        return self.model.dim

    @functools.cached_property
    def noises(self) -> int:
        """How many numbers "log_noise" has."""
        return self.likelihood.noises(self.model.output_shape)

    @functools.cached_property
    def numbered(self) -> bool:
        """Whether a prediction depends on the numbers of its draw and row."""
        return self.draws is not None

    @functools.cached_property
    def precision(self) -> str:
        """How float32 products are computed on a device; see `Posterior`."""
        return str(self.description.get("precision", "float32"))

    @functools.cached_property
    def flat(self) -> bool:
        """Whether predictions of a single output are (N,), as its y was."""
        return bool(self.description.get("flat", False))

    @functools.cached_property
    def columns(self) -> tuple[str | int, ...] | None:
        """Names of the columns of the data, if it was a frame; see `Posterior`."""
        names = self.description.get("columns")
        return None if names is None else tuple(names)

    @functools.cached_property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    @functools.cached_property
    def network(self) -> NetworkTable:
        """The network with the rates of its masks."""
        table = self.model.network
        if not isinstance(self.draws, Masks):
            return table
        return dataclasses.replace(table, rates=np.asarray(self.draws.rates, np.float64))

    def unravel(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of positions (..., P); see `Posterior.unravel`."""
        return unravel("predict", self, theta)

    def check_inputs(self, x: npt.ArrayLike) -> None:
        """Raise TypeError or ValueError unless `x` holds finite rows (N, *input_shape)."""
        single = getattr(x, "dtype", None) == np.float32 and not is_device_array(x)
        dtype = np.dtype(np.float32 if single else np.float64)
        x = self.network_inputs("predict", x)
        dispatch.backend_of_data("predict", dtype, x=x).rows("predict", self.network, x)

    def outputs(
        self, theta: FloatArray, x: npt.ArrayLike, *, first: int = 0, row: int = 0
    ) -> FloatArray:
        """Return the raw outputs of the network, (N, K) or (S, N, K), in the dtype of `theta`."""
        if self.draws is not None:
            return self._samples("predict", theta, x, first, row)[0]
        x = self.network_inputs("predict", x)
        out: FloatArray = dispatch.outputs(
            "predict", self.network, theta, x, self.dim, self.precision, self._scale_rows
        )
        return out

    def predictive(
        self, theta: FloatArray, x: npt.ArrayLike, *, first: int = 0, row: int = 0
    ) -> PredictiveTerms:
        """Return mean and noise sd, or probabilities, of each draw (S, P) at each row of `x`."""
        # The noise is that of the untempered likelihood.
        outputs, log_noise = self._samples("predict", theta, x, first, row)
        with np.errstate(over="ignore", invalid="ignore"):
            terms = self.likelihood._terms(outputs, log_noise)
        return terms if self.units is None else self.units.terms(terms)

    def log_likelihood(
        self,
        theta: FloatArray,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        first: int = 0,
        row: int = 0,
    ) -> Array64:
        """Return the untempered log density (S, N) float64 of each row under each draw (S, P)."""
        function = "Prediction.log_likelihood"
        outputs, log_noise = self._samples(function, theta, x, first, row)
        backend = dispatch.backend_of(function, outputs)
        if self.units is not None:
            y = self.units.targets(function, y)
        targets = self.likelihood._targets(
            function,
            backend.given(function, "y", y),
            outputs.shape[1],
            self.model.output_shape,
            np.dtype(np.float64),
        )
        targets = from_host(backend.xp, targets)
        with np.errstate(over="ignore", invalid="ignore"):
            values: Array64 = self.likelihood._log_likelihood(outputs, targets, log_noise)
        return values if self.units is None else values - self.units.log_scale

    def predictive_moments(
        self, positions: FloatArray, x: npt.ArrayLike
    ) -> tuple[tuple[Array64, ...], bool]:
        """Return running sums over all draws (C, D, P), and `PredictiveTerms.binary`."""
        # The sums: the first draw's means, or probabilities, v_0 (N, K); the sums of v_s - v_0 and
        # of its square (N, K); the summed noise variances (N, K), or for classification the summed
        # entropies (N,).
        shape = getattr(positions, "shape", ())
        if not isinstance(shape, tuple) or len(shape) != 3 or 0 in shape or shape[2] < self.dim:
            raise ShapeError(
                f"[predict] expected positions of shape (C, D, {self.dim}), got "
                f"{checks.summary(positions)}"
            )
        backend = dispatch.backend_of("predict", positions)
        sums = backend.moments(
            self.network,
            self.likelihood._table("predict", self.model.output_shape),
            self._source(backend, positions, x, 0),
            self.network_inputs("predict", x),
            count=positions.shape[0] * positions.shape[1],
            precision=self.precision,
        )
        if self.units is not None:
            sums = self.units.moments(sums)
        return sums, isinstance(self.likelihood, likelihoods.Bernoulli)

    def drawn(self, mean: FloatArray, scale: FloatArray, seed: int) -> NetworkPredictive:
        """Return predictions of normal weights that are drawn while they are used."""
        return dataclasses.replace(self, draws=NormalWeights(mean, scale, seed))

    def linearized(self, mode: Array64, subset: str) -> LinearizedNetwork:
        """Return predictions of the network as a linear function of a subset of its weights."""
        first = first_of("predict", self.model, subset)
        at = checks.numeric("predict", "mode", mode)
        if at.shape != (self.dim,):
            raise ShapeError(f"[predict] expected mode of shape ({self.dim},), got {at.shape}")
        return LinearizedNetwork(self, at.astype(np.float64), first)

    def normal(self, mode: Array64, subset: str, factor: Array64) -> NormalNetwork | None:
        """Return the same under normal weights in closed form; None where noise is not normal."""
        if type(self.likelihood) is not likelihoods.Gaussian:
            return None
        return NormalNetwork(self.linearized(mode, subset), factor)

    def mask_predictive(self, seed: int, masks: str, rates: Array64) -> NetworkPredictive:
        """Return what predicts with masks of `rates` (L,) by row or shared: see `Masks`."""
        name = "mask_predictive"
        drops = self.model.table[:, 0] == Dropout.op
        found, shape = checks.numeric(name, "rates", rates), (int(drops.sum()),)
        if found.shape != shape:
            raise ShapeError(
                f"[{name}] expected rates of shape {shape}, got {checks.summary(found)}"
            )
        checks.all_true(name, "rates in [0, 1)", "rates", found, (found >= 0) & (found < 1))
        layer_rates = np.zeros(len(drops))
        layer_rates[drops] = found
        chosen = checks.choice(name, "masks", masks, ("row", "shared"))
        drawn = Masks(tuple(float(r) for r in layer_rates), checks.seed(name, seed), chosen)
        return dataclasses.replace(self, draws=drawn)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """Return itself; a Posterior has one."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description for `predictive_from_description`."""
        masks = {"dropout": self.draws.describe()} if isinstance(self.draws, Masks) else {}
        return dict(self.description) | masks

    def network_inputs(self, function: str, x: npt.ArrayLike) -> Any:
        """Return inputs in the units of the network, not checked where they are the user's."""
        x = checks.matched(function, x, self.columns)
        return x if self.units is None else self.units.inputs(function, x)

    def _source(
        self, backend: dispatch.Backend, positions: FloatArray, x: npt.ArrayLike, row: int
    ) -> Any:
        """Return samples of draws (C, D, P)."""
        if self.draws is None:
            return backend.stored(positions, self._scale_rows)
        check_addresses("predict", self.model, row + _num_rows(x))
        return self.draws.source(backend, positions[0, 0, :], row, self._scale_rows)

    @functools.cached_property
    def _scale_rows(self) -> Array64 | None:
        return None if self.scales is None else self.scales.rows

    def _samples(
        self, function: str, theta: FloatArray, x: npt.ArrayLike, first: int, row: int
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return outputs (S, N, K) of draws (S, P), and their log noises (S, n) if learned."""
        if getattr(theta, "ndim", 0) != 2 or (self.numbered and theta.shape[1] != self.dim):
            raise ShapeError(
                f"[{function}] expected theta of shape (S, {self.dim}), got {checks.summary(theta)}"
            )
        backend = dispatch.backend_of(function, theta)
        if self.draws is None:
            theta, _ = backend.position(function, theta, self.dim)
        outputs, log_noise = backend.outputs(
            function,
            self.network,
            self._source(backend, theta[None, :, :], x, row),
            self.network_inputs(function, x),
            first=first,
            count=theta.shape[0],
            noises=self.noises,
            precision=self.precision,
        )
        return outputs, log_noise if self.noises else None


def unravel(
    function: str, predictive: NetworkPredictive, theta: FloatArray
) -> dict[str, FloatArray]:
    """Return named views of positions (..., P): as `Model.unravel`, with "log_noise"."""
    # "log_noise" is (...) if there is one, else (..., K). With learned scales the network's arrays
    # are copies, its weights, and views of the log scales (..., *shape) follow.
    model, scales = predictive.model, predictive.scales
    if predictive.dim == model.dim:
        return model.unravel(theta)
    dim, shape = predictive.dim, getattr(theta, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(theta, "dtype"):
        got = checks.summary(theta)
        raise DTypeError(f"[{function}] expected an array (..., {dim}), got {got}")
    if not shape or shape[-1] != dim:
        raise ShapeError(f"[{function}] expected shape (..., {dim}), got {shape}")
    weights = theta if scales is None else scales.weights(function, theta)
    views = model.unravel(weights[..., : model.dim])
    if predictive.noises:
        views[LOG_NOISE] = log_noise_view(theta, model.dim, predictive.noises)
    if scales is None:
        return views
    for array in scales.arrays:
        first = dim - scales.count + array.first
        part = theta[..., first : first + array.count]
        views[array.name] = part.reshape((*shape[:-1], *array.shape))
    return views


def log_noise_view(theta: FloatArray, first: int, noises: int) -> FloatArray:
    """Return the view of log noises in positions (..., P): (...) of a single one, else (..., n)."""
    # With the ellipsis a view, for (P,) too.
    return theta[..., first] if noises == 1 else theta[..., first : first + noises]


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
    """Rebuild from `NetworkPredictive.describe` what predicts at new rows, without the data."""
    function = "predictive_from_description"
    given = checks.mapping(function, "description", description)
    if not {"model", "likelihood"} <= set(given):
        raise ValueError(f"[{function}] expected entries model and likelihood, got {list(given)}")
    model = Model.from_description(given["model"])
    likelihood = likelihoods.from_description(given["likelihood"])
    likelihood._columns(function, model.output_shape)
    if given.get("precision", "float32") not in PRECISIONS:
        raise ValueError(
            f"[{function}] expected precision as one of {', '.join(PRECISIONS)}, "
            f"got {checks.summary(given['precision'])}"
        )
    names = given.get("columns")
    if names is not None and (
        not isinstance(names, list)
        or not all(isinstance(name, str | int) for name in names)
        or model.input_shape != (len(names),)
        or len(set(names)) < len(names)
    ):
        raise ValueError(f"[{function}] expected columns as names, got {checks.summary(names)}")
    base = {key: value for key, value in given.items() if key != "dropout"}
    masks = None
    if "dropout" in given:
        masks = Masks.from_description(given["dropout"])
        if len(masks.rates) != len(model.rates):
            raise ValueError(
                f"[{function}] expected {len(model.rates)} rates, got {len(masks.rates)}"
            )
    units = None if given.get("units") is None else Units.from_description(given["units"])
    scales = None
    if given.get("learned_scales"):
        prior = priors.from_description(given.get("prior"))
        scales = prior_table.resolve(function, prior, model.parameters).scales
    return NetworkPredictive(model, likelihood, base, masks, units, scales)
