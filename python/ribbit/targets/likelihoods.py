"""Likelihoods: the distribution of y given a network's outputs, and the checks of y.

The native log density knows each by its code; the pointwise terms here are for predictions and are
summed in float64, on arrays of any library. Shapes: S draws, N rows, K outputs of the network, J
columns of y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import errstate, from_host, namespace, to_host
from ribbit._backends.codes import LIKELIHOODS
from ribbit._backends.density_table import LikelihoodTable
from ribbit.errors import ShapeError
from ribbit.protocols import Array, PredictiveTerms

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Poisson",
    "StudentTNoise",
]

_LOG_2PI = math.log(2.0 * math.pi)
_LEAST_FLOOR = 1e-15  # whose square is a normal float32

Array64: TypeAlias = "npt.NDArray[np.float64]"
Kind: TypeAlias = Literal["regression", "classification", "count"]


class Likelihood:
    """Base class of likelihoods; one column of y per output unless stated otherwise.

    Examples
    --------
    >>> isinstance(rb.Gaussian(0.1), rb.Likelihood), rb.Gaussian(0.1).kind
    (True, 'regression')
    """

    kind: ClassVar[Kind]

    @property
    def learns_noise(self) -> bool:
        """Whether the target has extra parameters "log_noise"."""
        return False

    def noises(self, outputs: tuple[int, ...]) -> int:
        """Return the length of "log_noise" for a network with `outputs`."""
        return len(self.scales(outputs)) if self.learns_noise else 0

    @property
    def noise_floor(self) -> float:
        """Smallest sd of noise that the network predicts; 0 if there is no floor."""
        return 0.0

    def scales(self, outputs: tuple[int, ...]) -> tuple[float, ...]:
        """Return the scales of the noise: one for all outputs, or one each; ones if learned."""
        del outputs
        return (1.0,)

    @property
    def constant(self) -> float:
        """A second constant for a backend, else 0."""
        return 0.0

    @property
    def code(self) -> str:
        """Name of the functor of ``core/likelihood_hd.h``."""
        return type(self).__name__ + ("Learned" if self.learns_noise else "")

    def _table(self, function: str, outputs: tuple[int, ...]) -> LikelihoodTable:
        """Return what a backend is told; ValueError if a network with `outputs` does not fit."""
        columns = self._columns(function, outputs)
        return LikelihoodTable(
            LIKELIHOODS[self.code],
            self.scales(outputs),
            self.constant,
            columns,
            classes=self.kind == "classification",
            learns_noise=self.learns_noise,
        )

    def _constants(self, y: npt.NDArray[Any]) -> Array64 | None:
        """Return what each row's log likelihood has of y (N, J) alone, (N,)."""
        # Kernels of a device leave it out. None: they leave nothing out.
        del y
        return None

    def _columns(self, function: str, outputs: tuple[int, ...]) -> int:
        """Return J, the columns of y for a network with `outputs`; ValueError if none fits."""
        if len(outputs) != 1:
            raise ShapeError(f"[{function}] expected a model with flat outputs, got {outputs}")
        return outputs[0]

    def _targets(
        self,
        function: str,
        y: npt.ArrayLike,
        rows: int,
        outputs: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> FloatArray:
        """Return y as a checked (N, J) copy in `dtype`; (N,) means (N, 1)."""
        columns = self._columns(function, outputs)
        raw = checks.numeric(function, "y", y)
        array = raw[:, None] if raw.ndim == 1 else raw
        if array.shape != (rows, columns):
            flat = f" or ({rows},)" if columns == 1 else ""
            if isinstance(self, Categorical):
                flat += " of labels, not one-hot rows,"
            raise ShapeError(
                f"[{function}] expected y of shape ({rows}, {columns}){flat} for "
                f"{type(self).__name__} and {outputs[0]} outputs, got {checks.summary(raw)}"
            )
        # A place in the message has the indices of the y that came.
        values = checks.data(function, "y", raw, dtype)
        self._support(function, raw, outputs[0])
        return values.reshape(rows, columns)

    def _support(self, function: str, y: npt.NDArray[Any], outputs: int) -> None:
        """Raise DataError if a value of y, finite already, cannot occur."""

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return the predictive terms of outputs (S, N, K) and log noises (S, n), if learned."""
        raise NotImplementedError

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log density (S, N) float64 of y (N, J) given outputs (S, N, K)."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, without the prior of a learned noise."""
        return {"likelihood": type(self).__name__}


def _double(xp: ModuleType, array: Array) -> Array:
    return xp.astype(array, xp.float64)


def _normal_log_density(xp: ModuleType, residual: Array, log_sd: Array) -> Array:
    # (S, N, J) -> (S, N). Overflow means a density of zero: -inf is the right answer.
    with errstate(xp):
        # The bound keeps 0 * inf, a NaN, out; e**700 is near the largest float64.
        factor = xp.exp(xp.minimum(-log_sd, 700.0))
        scaled = residual * factor
        values = -0.5 * scaled * scaled - log_sd - 0.5 * _LOG_2PI
    return xp.sum(values, axis=-1)


def _softplus(xp: ModuleType, x: Array) -> Array:
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def _sigmoid(xp: ModuleType, x: Array) -> Array:
    e = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


class _ScaledNoise(Likelihood):
    """Noise of one scale per output, known or learned."""

    scale: float | tuple[float, ...] | None
    log_noise_prior: Any
    per_output: bool

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "scale", _scale(name, self.scale))
        checks.boolean(name, "per_output", self.per_output)
        if isinstance(self.scale, tuple) and not self.per_output:
            raise ValueError(f"[{name}] expected one scale with per_output=False, got {self.scale}")
        if self.log_noise_prior is None:
            return
        got = checks.summary(self.log_noise_prior)
        if isinstance(self.log_noise_prior, type) or not hasattr(
            self.log_noise_prior, "_table_values"
        ):
            raise TypeError(f"[{name}] expected log_noise_prior as a prior, got {got}")
        if self.scale is not None:
            raise ValueError(f"[{name}] expected a scale or a log_noise_prior, got both: {got}")

    @property
    def learns_noise(self) -> bool:
        """Whether the target has extra parameters "log_noise"."""
        return self.scale is None

    def scales(self, outputs: tuple[int, ...]) -> tuple[float, ...]:
        """Return the scales of the noise, one for all outputs or one each; ones if learned."""
        if isinstance(self.scale, tuple):
            return self.scale
        if self.scale is not None:
            return (self.scale,)
        return (1.0,) * (outputs[-1] if self.per_output else 1)

    def _columns(self, function: str, outputs: tuple[int, ...]) -> int:
        """Return the number of outputs; ValueError unless there is one scale or one for each."""
        count = super()._columns(function, outputs)
        if isinstance(self.scale, tuple) and len(self.scale) != count:
            raise ShapeError(
                f"[{function}] expected one scale of {type(self).__name__}, or one for each of "
                f"{count} outputs, got {len(self.scale)}"
            )
        return count

    def _noise_scale(self, xp: ModuleType, outputs: Array, log_noise: Array | None) -> Array:
        # (S, 1, 1) or (S, 1, K) float64
        if log_noise is None:
            known = from_host(xp, np.array(self.scales(outputs.shape[2:])))
            return xp.ones((outputs.shape[0], 1, 1), dtype=xp.float64) * known[None, None, :]
        return xp.exp(_double(xp, log_noise))[:, None, :]

    def _log_scale(self, xp: ModuleType, outputs: Array, log_noise: Array | None) -> Array:
        # (1, 1, 1) or (1, 1, K) if it is known, else (S, 1, 1) or (S, 1, K), float64
        if log_noise is None:
            logs = [math.log(scale) for scale in self.scales(outputs.shape[2:])]
            return from_host(xp, np.array(logs))[None, None, :]
        return _double(xp, log_noise)[:, None, :]

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, without the prior of a learned noise."""
        scale = list(self.scale) if isinstance(self.scale, tuple) else self.scale
        shared = {} if self.per_output else {"per_output": False}
        return {"likelihood": type(self).__name__, "scale": scale, **shared}


def _scale(name: str, scale: Any) -> float | tuple[float, ...] | None:
    # The checked scale of the noise, None if it is learned; a sequence of one is a number.
    if scale is None:
        return None
    if not isinstance(scale, list | tuple) and getattr(scale, "ndim", 0) == 0:
        return checks.positive(name, "scale", scale)
    array = checks.numeric(name, "scale", scale)
    if array.ndim != 1 or array.size == 0:
        got = checks.summary(scale)
        raise ShapeError(f"[{name}] expected scale as a number or one per output, got {got}")
    each = enumerate(array.tolist())
    found = tuple(checks.positive(name, f"scale[{k}]", value) for k, value in each)
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True)
class Gaussian(_ScaledNoise):
    """Normal noise with one sd per output: y[:, k] ~ N(f(x)[:, k], scale[k]**2).

    All rows share these sds; for noise that depends on x see `HeteroscedasticGaussian`.

    Parameters
    ----------
    scale : float or sequence of float, optional
        Known noise sd, > 0, of all outputs, or one for each output. None learns one sd per output:
        the target has K more parameters "log_noise", the logarithms of the sds.
    log_noise_prior : Prior, optional
        Prior of each "log_noise"; None means ``Normal(1.0)``. Only without a scale.
    per_output : bool, default True
        False learns a single sd for all outputs. If their noise differs, intervals are then too
        wide for some outputs and too narrow for others. With several outputs, `Posterior` can
        integrate out the last layer only if this is False.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number or a sequence of them, or both a scale and a
        prior are given.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> y = np.sin(3 * x)
    >>> model, likelihood = rb.mlp(1, (3,), 1), rb.Gaussian()
    >>> target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)
    >>> target.value_and_grad(target.init(seed=0))[1].shape
    (11,)
    >>> target.dim - target.model.dim  # the logarithm of the noise sd
    1

    Two outputs have two noise sds.

    >>> two = np.column_stack([y, 10 * y])
    >>> model = rb.mlp(1, (3,), 2)
    >>> target = rb.Posterior(model, x, two, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    >>> target.unravel(target.init(seed=0))["log_noise"].shape
    (2,)
    """

    kind: ClassVar[Kind] = "regression"
    _order: ClassVar[str] = ": the first argument is the sd of the noise; its mean is 0"
    scale: float | tuple[float, ...] | None = None
    log_noise_prior: Any = field(default=None, kw_only=True)
    per_output: bool = field(default=True, kw_only=True)

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return mean (S, N, K) and noise sd (S, 1, 1) or (S, 1, K) float64."""
        xp = namespace(outputs)
        sd = self._noise_scale(xp, outputs, log_noise)
        return PredictiveTerms(mean=outputs, noise_sd=sd)

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log density (S, N) float64."""
        xp = namespace(outputs, y)
        residual = _double(xp, y) - _double(xp, outputs)
        return _normal_log_density(xp, residual, self._log_scale(xp, outputs, log_noise))


@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """Normal noise with an sd per row: outputs are K means, then K raw sds through softplus.

    variance = min_sd**2 + softplus(raw)**2. `min_sd` stands for noise of known size, such as
    rounding: y in steps of size g has a rounding sd of g / sqrt(12). Without it the density is
    unbounded if y takes few values, because the network can fit many rows exactly with an sd near
    0.

    Parameters
    ----------
    min_sd : float, default 0.0
        Smallest noise sd, 0 or in [1e-15, 1e15], in the target's units of y. With
        ``Posterior(standardize=True)`` these are standardised.

    Raises
    ------
    TypeError, ValueError
        If `min_sd` is not such a number.

    Examples
    --------
    >>> import ribbit as rb
    >>> rb.HeteroscedasticGaussian(min_sd=0.05)
    HeteroscedasticGaussian(min_sd=0.05)
    """

    kind: ClassVar[Kind] = "regression"
    min_sd: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        name = "HeteroscedasticGaussian"
        floor = checks.real(name, "min_sd", self.min_sd)
        if not (floor == 0.0 or _LEAST_FLOOR <= floor <= 1.0 / _LEAST_FLOOR):
            raise ValueError(
                f"[{name}] expected min_sd as 0 or in [{_LEAST_FLOOR:g}, {1.0 / _LEAST_FLOOR:g}], "
                f"got {self.min_sd!r}"
            )
        object.__setattr__(self, "min_sd", abs(floor))

    @property
    def noise_floor(self) -> float:
        """The smallest sd, `min_sd`."""
        return self.min_sd

    @property
    def constant(self) -> float:
        """The smallest noise sd."""
        return self.min_sd

    @property
    def code(self) -> str:
        """Name of the functor, which depends on the floor."""
        return "HeteroscedasticGaussian" + ("Floored" if self.min_sd else "")

    def _columns(self, function: str, outputs: tuple[int, ...]) -> int:
        """Return half the outputs; an odd number of outputs is a ValueError."""
        count = super()._columns(function, outputs)
        if count % 2:
            raise ShapeError(
                f"[{function}] expected an even number of outputs (means, then raw sds) for "
                f"HeteroscedasticGaussian, got {count}"
            )
        return count // 2

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return mean and noise sd, both (S, N, J)."""
        xp = namespace(outputs)
        half = outputs.shape[-1] // 2
        sd = _softplus(xp, _double(xp, outputs[..., half:]))  # float32 underflows at -104
        if self.min_sd:
            sd = xp.hypot(sd, xp.full_like(sd, self.min_sd))
        return PredictiveTerms(mean=outputs[..., :half], noise_sd=sd)

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log density (S, N) float64."""
        xp = namespace(outputs, y)
        half = outputs.shape[-1] // 2
        values = _double(xp, outputs)
        raw = values[..., half:]
        # log(softplus(r)) is r to one part in 1e16 below -37, where softplus underflows later on.
        log_sd = xp.where(raw < -37.0, raw, xp.log(_softplus(xp, xp.maximum(raw, -40.0))))
        if self.min_sd:
            log_sd = 0.5 * xp.logaddexp(
                2.0 * log_sd, xp.full_like(raw, 2.0 * math.log(self.min_sd))
            )
        return _normal_log_density(xp, _double(xp, y) - values[..., :half], log_sd)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, with a floor only if there is one."""
        floor = {"min_sd": self.min_sd} if self.min_sd else {}
        return {"likelihood": "HeteroscedasticGaussian", **floor}


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of K classes from logits (softmax); y holds integer labels (N,) in [0, K).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> y = np.arange(20) % 3
    >>> model, likelihood = rb.mlp(1, (3,), 3), rb.Categorical()
    >>> target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)
    >>> target.value_and_grad(target.init(seed=0))[1].shape
    (18,)
    """

    kind: ClassVar[Kind] = "classification"

    def _columns(self, function: str, outputs: tuple[int, ...]) -> int:
        """Return 1; fewer than two outputs are a ValueError."""
        if super()._columns(function, outputs) < 2:
            raise ShapeError(f"[{function}] expected >= 2 outputs for Categorical, got 1")
        return 1

    def _support(self, function: str, y: npt.NDArray[Any], outputs: int) -> None:
        """Raise DataError unless y holds whole numbers in [0, K)."""
        good = (y >= 0) & (y < outputs) & (np.floor(y) == y)
        checks.all_true(function, f"y as integer labels in [0, {outputs})", "y", y, good)

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return the probabilities (S, N, K)."""
        xp = namespace(outputs)
        e = xp.exp(outputs - xp.max(outputs, axis=-1, keepdims=True))
        return PredictiveTerms(probs=e / xp.sum(e, axis=-1, keepdims=True))

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log probability (S, N) float64 of the labels."""
        xp = namespace(outputs, y)
        logits = _double(xp, outputs)
        logits = logits - xp.max(logits, axis=-1, keepdims=True)
        labels = xp.broadcast_to(xp.astype(y, xp.int64)[None, :, :], (*logits.shape[:2], 1))
        chosen = xp.take_along_axis(logits, labels, axis=2)[:, :, 0]
        return chosen - xp.log(xp.sum(xp.exp(logits), axis=-1))


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Independent binary outputs from logits (sigmoid); y holds 0 or 1.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> y = np.arange(20) % 2
    >>> model, likelihood = rb.mlp(1, (3,), 1), rb.Bernoulli()
    >>> target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)
    >>> target.value_and_grad(target.init(seed=0))[1].shape
    (10,)
    """

    kind: ClassVar[Kind] = "classification"

    def _support(self, function: str, y: npt.NDArray[Any], outputs: int) -> None:
        """Raise DataError unless y holds zeros and ones."""
        checks.all_true(function, "y as 0 or 1", "y", y, (y == 0) | (y == 1))

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return the probabilities (S, N, K) of y = 1."""
        xp = namespace(outputs)
        return PredictiveTerms(probs=_sigmoid(xp, outputs), binary=True)

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log probability (S, N) float64."""
        xp = namespace(outputs, y)
        signed = (1.0 - 2.0 * _double(xp, y)) * _double(xp, outputs)
        return -xp.sum(_softplus(xp, signed), axis=-1)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts with log rates as outputs; y holds whole numbers >= 0.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> y = np.arange(20) // 4
    >>> model, likelihood = rb.mlp(1, (3,), 1), rb.Poisson()
    >>> target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)
    >>> target.value_and_grad(target.init(seed=0))[1].shape
    (10,)
    """

    kind: ClassVar[Kind] = "count"

    def _support(self, function: str, y: npt.NDArray[Any], outputs: int) -> None:
        """Raise DataError unless y holds whole numbers >= 0."""
        good = (y >= 0) & (np.floor(y) == y)
        checks.all_true(function, "y as whole numbers >= 0", "y", y, good)

    def _constants(self, y: npt.NDArray[Any]) -> Array64 | None:
        """Return -sum of log y! of each row, (N,)."""
        rows: Array64 = -log_factorials(y).sum(axis=1)
        return rows

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return the rate as mean and its square root as noise sd, both (S, N, K) float64."""
        xp = namespace(outputs)
        with errstate(xp):  # in float64: exp(40) in float32 lies many sds off
            rate = xp.exp(_double(xp, outputs))
        return PredictiveTerms(mean=rate, noise_sd=xp.sqrt(rate))

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log probability (S, N) float64, log y! included."""
        xp = namespace(outputs, y)
        log_factorial = from_host(xp, log_factorials(to_host(y)))
        log_rate = _double(xp, outputs)
        with errstate(xp):
            values = _double(xp, y) * log_rate - xp.exp(log_rate) - log_factorial
        return xp.sum(values, axis=-1)


@dataclass(frozen=True)
class StudentTNoise(_ScaledNoise):
    """Robust regression: y ~ f(x) + scale * t with `df` degrees of freedom (Student's t).

    Each output has its own scale, which all rows share.

    Outliers have little influence on f (Lange, Little and Taylor 1989, JASA 84). The mean of a
    prediction is f for any df; if ``df <= 1``, y has no mean and f is its location. The noise sd is
    scale * sqrt(df / (df - 2)). It is infinite, like ``Prediction.std``, if ``df <= 2``; use
    quantiles then.

    Parameters
    ----------
    df : float
        Degrees of freedom, > 0.
    scale : float or sequence of float, optional
        Known scale of the noise, > 0, of all outputs, or one for each output. None learns one scale
        per output: the target has K more parameters "log_noise", the logarithms of the scales.
    log_noise_prior : Prior, optional
        Prior of each "log_noise"; None means ``Normal(1.0)``. Only without a scale.
    per_output : bool, default True
        False learns a single scale that all outputs share; see `Gaussian`.

    Raises
    ------
    TypeError, ValueError
        If df is not a positive finite number, the scale is not one or a sequence of them, or both a
        scale and a prior are given.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> y = np.sin(3 * x)
    >>> model, likelihood = rb.mlp(1, (3,), 1), rb.StudentTNoise(4.0)
    >>> target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)
    >>> target.value_and_grad(target.init(seed=0))[1].shape
    (11,)
    """

    kind: ClassVar[Kind] = "regression"
    df: float
    scale: float | tuple[float, ...] | None = None
    log_noise_prior: Any = field(default=None, kw_only=True)
    per_output: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "df", checks.positive("StudentTNoise", "df", self.df))
        super().__post_init__()

    @property
    def constant(self) -> float:
        """The degrees of freedom."""
        return self.df

    def _terms(self, outputs: Array, log_noise: Array | None) -> PredictiveTerms:
        """Return location (S, N, K), noise sd and scale (S, 1, 1) or (S, 1, K) float64."""
        xp = namespace(outputs)
        scale = self._noise_scale(xp, outputs, log_noise)
        wider = math.sqrt(self.df / (self.df - 2.0)) if self.df > 2.0 else math.inf
        return PredictiveTerms(
            mean=outputs, noise_sd=scale * wider, noise_df=self.df, noise_scale=scale
        )

    def _log_likelihood(self, outputs: Array, y: Array, log_noise: Array | None) -> Array:
        """Return the log density (S, N) float64."""
        xp = namespace(outputs, y)
        _, root, more, log_norm = self._table("log_likelihood", outputs.shape[2:]).constants
        scale = self._noise_scale(xp, outputs, log_noise)
        with errstate(xp):
            u = (_double(xp, y) - _double(xp, outputs)) / (scale * root)
            values = -0.5 * more * xp.log1p(u * u) - xp.log(scale) + log_norm
        return xp.sum(values, axis=-1)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, without the prior of a learned noise."""
        return {**super().describe(), "df": self.df}


def log_factorials(counts: npt.NDArray[Any]) -> Array64:
    """Return log y! of an array of whole numbers, float64."""
    different, inverse = np.unique(counts, return_inverse=True)
    values = np.array([math.lgamma(float(v) + 1.0) for v in different])
    return values[inverse].reshape(counts.shape)


_LIKELIHOODS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Bernoulli,
        Categorical,
        Gaussian,
        HeteroscedasticGaussian,
        Poisson,
        StudentTNoise,
    )
}


def check(function: str, likelihood: object) -> Likelihood:
    """Return `likelihood`, or raise TypeError if the core does not know it."""
    expected = "a likelihood object, such as rb.Gaussian(0.1)"
    return cast(
        "Likelihood",
        checks.known_class(function, "likelihood", expected, likelihood, Likelihood, _LIKELIHOODS),
    )


def from_description(description: object) -> Likelihood:
    """Rebuild a likelihood from `Likelihood.describe`."""
    function = "likelihoods.from_description"
    given = checks.mapping(function, "description", description)
    likelihood: Likelihood = checks.rebuild(function, "likelihood", given, _LIKELIHOODS)
    return likelihood


explain(globals())
