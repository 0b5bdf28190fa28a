"""A posterior whose Dropout layers drop: masks by address, in training and in prediction."""

# Shapes: C chains, S masks, P parameters, N rows, K outputs.

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays import positions as positions_
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.namespace import from_host, host_dtype, namespace, to_host
from ribbit._backends.codes import COLUMNS
from ribbit.errors import DTypeError, ShapeError
from ribbit.models.layers import Activation, Dense, Dropout, Residual
from ribbit.targets import likelihoods
from ribbit.targets.likelihoods import Array64
from ribbit.targets.native import NativeSteps
from ribbit.targets.predictive import NetworkPredictive, check_addresses
from ribbit.targets.prior_base import PriorLike
from ribbit.targets.priors import Normal
from ribbit.targets.spec import DensitySpec, digest

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit.models.model import Model

_COLUMN = {name: i for i, name in enumerate(COLUMNS)}


class MaskedPosterior(NativeSteps):
    """A posterior of the weights under random masks (Gal and Ghahramani 2016)."""

    # Dropout layers multiply each unit by 0 with probability `rate`, else by 1 / (1 - rate), by the
    # counter (seed, step, chain, layer, row of the data, unit). rate: of all layers; None: their
    # own; "concrete": their own to start with, then learned (Gal, Hron and Kendall 2017): the masks
    # of training are relaxed at temperature 0.1, and the logits of the rates are L more parameters
    # at the end of theta. length_scale l: all weights that act on units, z M with masks z of 0 and
    # 1, have the prior N(0, l^-2), which in their appendix (eq. 7) leaves k l^2 |M|^2 / 2 of the KL
    # term, k the probability that a unit is kept. Masks here are z / k, so that M is theta / k, and
    # theta gets the precision l^2 / k, for learned rates too (2017, eq. 3). Biases have precision
    # l^2. None: the target's priors, those behind learned rates with k in their variance. precision
    # tau: the noise is Gaussian with variance 1 / tau.

    array_namespace: ModuleType
    interruptible: ClassVar[bool] = True

    def __init__(
        self,
        spec: DensitySpec,
        *,
        rate: float | Literal["concrete"] | None = None,
        length_scale: float | None = None,
        precision: float | None = None,
    ) -> None:
        name = "MCDropout"
        model = spec.model
        if not model.dropout_layers:
            raise TypeError(
                f"[{name}] expected a model with Dropout layers, got {model!r} without: put "
                "rb.Dropout(0.1) after an activation, or use BBB or DeepEnsemble"
            )
        if spec.table.scales is not None:
            raise ValueError(
                f"[{name}] expected priors of known scales for masks, got {spec.prior!r}: masks "
                "with learned scales are not supported"
            )
        drops = model.table[:, 0] == Dropout.op
        rates = model.rates.copy()
        concrete = isinstance(rate, str)
        if concrete and rate != "concrete":
            raise ValueError(
                f"[{name}] expected rate as a number in (0, 1) or 'concrete', got {rate!r}"
            )
        if rate is not None:
            rates[drops] = rates[drops] if concrete else checks.fraction(name, "rate", rate)
        if not (rates[drops] > 0).all():
            raise ValueError(
                f"[{name}] expected rates in (0, 1), got layers {', '.join(model.dropout_layers)}"
            )
        likelihood = spec.likelihood
        if precision is not None:
            tau = checks.positive(name, "precision", precision)
            if not isinstance(likelihood, likelihoods.Gaussian) or likelihood.learns_noise:
                raise TypeError(
                    f"[{name}] expected a Gaussian likelihood of known scale for precision, "
                    f"got {likelihood!r}: use rb.Gaussian(1.0), whose scale precision replaces"
                )
            likelihood = likelihoods.Gaussian(tau**-0.5)
        prior = spec.table.rows
        if length_scale is not None:
            scale = checks.positive(name, "length_scale", length_scale)
            _check_centred(name, "length_scale", spec.prior, spec.table.centre[: model.dim])
            # Learned rates enter the precision in the core.
            fixed = np.zeros_like(rates) if concrete else rates
            prior = _length_scale_prior(model, fixed, scale, prior)
        if concrete:
            _check_concrete(name, model.table, prior)
            _check_centred(name, "rate='concrete'", spec.prior, spec.table.centre)
        check_addresses(name, model, spec.num_rows)
        self._options = {"rate": rate, "length_scale": length_scale, "precision": precision}
        self._spec, self.model, self.likelihood = spec, model, likelihood
        self.dtype, self.num_rows = spec.dtype, spec.num_rows
        self.rates: Array64 = rates[drops]
        self.learns_rates = concrete
        self.dim = spec.dim + (len(self.rates) if concrete else 0)
        self.array_namespace = spec.backend.xp
        learned = tuple(int(i) for i in np.flatnonzero(drops)) if concrete else ()
        self._native = spec.density(
            likelihood=likelihood, prior=prior, rates=rates, learned=learned
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The native object is built again.
        return _rebuild, (self._spec, self._options)

    @property
    def fingerprint(self) -> dict[str, str]:
        """As `Posterior.fingerprint`, with what the masks were asked to be."""
        return {**self._spec.fingerprint, "masks": digest(self._options)}

    def init(self, seed: checks.Seed = 0, chains: int | npt.ArrayLike | None = None) -> FloatArray:
        """Draw a starting position, as the target does."""
        return self.with_rates(self._spec.init(seed, chains))

    @property
    def num_weights(self) -> int:
        """Parameters before the logits of learned rates."""
        return self._spec.dim

    def with_rates(self, theta: FloatArray) -> FloatArray:
        """Append the logits of the first rates to weights (..., P) where rates are learned."""
        _check_last_axis("MaskedPosterior.with_rates", "theta", theta, self.num_weights)
        if not self.learns_rates:
            return theta
        xp = namespace(theta)
        odds = np.log(self.rates / (1.0 - self.rates)).astype(host_dtype(theta))
        logits = from_host(xp, odds)
        shape = (*theta.shape[:-1], odds.size)
        both: FloatArray = xp.concat([theta, xp.broadcast_to(logits, shape)], axis=-1)
        return both

    def split(self, position: FloatArray) -> tuple[FloatArray, Array64]:
        """Return weights (P,) and rates (L,) of a position."""
        _check_last_axis("MaskedPosterior.split", "position", position, self.dim)
        if not self.learns_rates:
            return position, self.rates
        logits = to_host(position[self.num_weights :]).astype(np.float64)
        return position[: self.num_weights], 1.0 / (1.0 + np.exp(-logits))

    def masked_value_and_grad(
        self, theta: FloatArray, rows: npt.ArrayLike | None = None, *, seed: int, step: int
    ) -> tuple[Any, FloatArray]:
        """Return the tempered log density and its gradient under the masks of (seed, step)."""
        # Chain c takes the masks of sample c; a row's mask does not depend on the others.
        function = "MaskedPosterior.masked_value_and_grad"
        theta, single = positions_.position(
            self.array_namespace, function, "theta", theta, self.dtype, self.dim
        )
        batch = None
        if rows is not None:
            batch = checks.integer_array(function, "rows", rows, below=self.num_rows)
        number = checks.seed(function, seed)
        place = checks.integer(function, "step", step, minimum=0, maximum=2**40 - 1)
        likelihood, prior, grad = self._native.masked_value_and_grad(theta, batch, number, place)
        parts, rest = self._spec.temper(likelihood, prior)
        lp = parts + rest
        return (lp[0], grad[0, :]) if single else (lp, grad)

    def value_and_grad(
        self, theta: FloatArray, rows: npt.ArrayLike | None = None
    ) -> tuple[Any, FloatArray]:
        """Return log density and gradient under the masks of seed 0, step 0."""
        return self.masked_value_and_grad(theta, rows, seed=0, step=0)

    def mask_predictive(self, seed: int, masks: str, rates: Array64) -> NetworkPredictive:
        """Return what predicts with masks of `rates` (L,) by row or shared: see `Masks`."""
        return self.network_predictive.mask_predictive(seed, masks, rates)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """What predicts, without the data and without masks."""
        base = self._spec.describe() | {"likelihood": self.likelihood.describe()}
        return NetworkPredictive(self.model, self.likelihood, base, units=self._spec.units)


def _check_last_axis(function: str, name: str, value: Any, size: int) -> None:
    """Raise unless a value is an array (..., size)."""
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        got = checks.summary(value)
        raise DTypeError(f"[{function}] expected {name} as an array (..., {size}), got {got}")
    if shape[-1:] != (size,):
        raise ShapeError(f"[{function}] expected {name} of shape (..., {size}), got {shape}")


def _rebuild(spec: DensitySpec, options: dict[str, Any]) -> MaskedPosterior:
    return MaskedPosterior(spec, **options)


def _check_centred(name: str, option: str, prior: PriorLike, mean: Array64) -> None:
    """Raise unless the priors that an option makes others from have mean 0."""
    if mean.any():
        raise ValueError(f"[{name}] expected priors of mean 0 for {option}, got {prior!r}")


def _check_concrete(name: str, table: npt.NDArray[np.int64], prior: Array64) -> None:
    """Raise unless the rates of all Dropout layers can be learned."""
    channels = (table[:, 0] == Dropout.op) & (table[:, _COLUMN["argument"]] == 1)
    if channels.any() or not np.isin(table[:, 0], (Dense.op, Activation.op, Dropout.op)).all():
        raise TypeError(
            f"[{name}] expected a network of dense layers for rate='concrete', got other layers: "
            "give a number"
        )
    for i in np.flatnonzero(table[:, 0] == Dropout.op):
        if i + 1 == len(table) or table[i + 1, 0] != Dense.op:
            raise TypeError(
                f"[{name}] expected every Dropout layer right below a Dense layer for "
                f"rate='concrete', got layer {i} elsewhere"
            )
        row = prior[prior[:, 0] == table[i + 1, _COLUMN["weight"]]][0]
        if row[2] != Normal.kind:
            raise ValueError(
                f"[{name}] expected normal priors of weights behind Dropout layers for "
                f"rate='concrete', got another for layer {i + 1}"
            )


def _length_scale_prior(model: Model, rates: Array64, length_scale: float, old: Array64) -> Array64:
    """Prior table (G, 6) of independent normals; what is not the network's keeps its prior."""
    sds = {p.offset: 1.0 / length_scale for p in model.parameters}
    weights = {p.offset for p in model.parameters if p.is_weight}
    kept = [1.0]  # of each value: probability that a unit got there past Dropout layers
    for layer, rate in zip(model.table, rates, strict=True):
        row = dict(zip(COLUMNS, (int(v) for v in layer), strict=True))
        keep = kept[row["input"]]
        if row["op"] == Dropout.op:
            keep *= 1.0 - float(rate)
        if row["op"] == Residual.op:
            keep = min(keep, kept[row["second"]])
        behind = row["weight"] in weights  # an LSTM's recurrent weights are behind its own states
        if behind:
            sds[row["weight"]] = keep**0.5 / length_scale
        kept.append(1.0 if behind else keep)
    rows = [
        (p.offset, p.size, 0, *Normal(sds[p.offset])._table_values(1)) for p in model.parameters
    ]
    return np.array([*rows, *(tuple(r) for r in old if r[0] >= model.dim)], dtype=np.float64)
