"""A network as a linear function of its weights around a mode."""

# Shapes: S draws, P parameters, Q of them in the subset, N rows, K outputs, H features.

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.checks import row_blocks
from ribbit._backends import dispatch
from ribbit._backends.cpu import Cpu
from ribbit.models.layers import Dense
from ribbit.models.model import Model
from ribbit.protocols import PredictiveTerms
from ribbit.targets.likelihoods import Array64, Kind

if TYPE_CHECKING:
    import numpy.typing as npt

_FLOAT64 = np.dtype(np.float64)
_NUMBERS = 1 << 22  # of a block of Jacobians: 32 MB, and some milliseconds between two questions
_PARTS = 64  # of the distribution of a learned noise
_HELD = 1 << 24  # numbers of Jacobians that are kept from one block of draws to the next


def first_of(function: str, model: Model, subset: str) -> int:
    """Return where a subset of the network's parameters begins; it goes on to their end."""
    if checks.choice(function, "subset", subset, ("all", "last_layer")) == "all":
        return 0
    last = model.layers[-1]
    if not isinstance(last, Dense):
        raise ValueError(
            f"[{function}] expected a model that ends with a Dense layer for "
            f"subset='last_layer', got {last!r}"
        )
    return model.dim - _last_size(model, last)


def jacobian(
    function: str, model: Model, theta: Array64, x: Any, first: int, interrupt: Any = None
) -> tuple[Array64, Array64]:
    """Return outputs (N, K) and their derivatives (N, K, Q) by the parameters from `first` on."""
    network = np.ascontiguousarray(theta[: model.dim])
    below = _below(model) if first else None
    if below is None:
        f, derivatives = Cpu(_FLOAT64).jacobian(function, model.network, network, x, interrupt)
        return f, derivatives[:, :, first:]
    features = dispatch.outputs(function, below.network, network[:first], x, first)
    last = cast(Dense, model.layers[-1])
    if last.bias:
        features = np.concatenate([features, np.ones((features.shape[0], 1))], axis=1)
    rows, width = features.shape
    units = last.units
    found = np.zeros((rows, units, width, units))
    for k in range(units):
        found[:, k, :, k] = features
    f = features @ network[first:].reshape(width, units)
    return f, found.reshape(rows, units, -1)


def blocks(rows: int, numbers: int) -> Iterator[slice]:
    """Cut rows into blocks whose Jacobians of `numbers` a row are not too large."""
    return row_blocks(rows, numbers, _NUMBERS)


@functools.lru_cache(maxsize=8)
def _below(model: Model) -> Model | None:
    """Return the network below its last layer, None where there are no parameters."""
    last = cast(Dense, model.layers[-1])
    if model.dim == _last_size(model, last):
        return None
    return Model(model.layers[:-1], input_shape=model.input_shape)


def _last_size(model: Model, last: Dense) -> int:
    arrays = model.parameters[-2:] if last.bias else model.parameters[-1:]
    return sum(p.size for p in arrays)


@dataclass(frozen=True, eq=False)
class LinearizedNetwork:
    """Predictions of f(x, mode) + J(x) (theta - mode), J the derivative at the mode."""

    # Another chunking changes its numbers by rounding alone.

    base: Any  # a NetworkPredictive
    mode: Array64  # (P,) float64
    # parameters from this one on count, and the last ones, "log_noise", where there are any
    first: int
    _held: list[Any] = field(default_factory=list, repr=False)

    @property
    def kind(self) -> Kind:
        """That of the likelihood."""
        kind: Kind = self.base.kind
        return kind

    @property
    def flat(self) -> bool:
        """As of the network."""
        return bool(self.base.flat)

    @property
    def columns(self) -> Any:
        """As of the network."""
        return self.base.columns

    def describe(self) -> dict[str, Any]:
        """Return a description of the network, not linearized."""
        return dict(self.base.describe())

    def check_inputs(self, x: Any) -> None:
        """Raise TypeError or ValueError unless `x` holds finite rows (N, *input_shape)."""
        self.base.check_inputs(x)

    def derivatives(self, x: Any) -> Iterator[tuple[slice, Array64, Array64]]:
        """Yield rows, outputs (n, K) and Jacobians (n, K, Q) of one block of x after another."""
        if self._held and self._held[0] is x:
            yield from self._held[1]
            return
        model = self.base.model
        numbers = model.output_shape[0] * (model.dim - self.first)
        inputs = np.asarray(self.base.network_inputs("predict", x))
        found, keep = [], inputs.shape[0] * numbers <= _HELD
        for rows in blocks(inputs.shape[0], numbers):
            block = rows, *jacobian("predict", model, self.mode, inputs[rows], self.first)
            found.append(block if keep else None)
            yield block
        if keep:
            self._held[:] = [x, found]

    def outputs(self, theta: npt.NDArray[Any], x: Any) -> Array64:
        """Return the linear function (S, N, K) of draws (S, P)."""
        model = self.base.model
        away = theta[:, self.first : model.dim] - self.mode[self.first : model.dim]
        parts = []
        for _, f, derivatives in self.derivatives(x):
            rows, outputs, size = derivatives.shape
            moved = away @ derivatives.reshape(rows * outputs, size).T
            parts.append(f + moved.reshape(-1, rows, outputs))
        return np.concatenate(parts, axis=1)

    def predictive(self, theta: npt.NDArray[Any], x: Any) -> PredictiveTerms:
        """Return what each draw (S, P) predicts at each row of `x`."""
        with np.errstate(over="ignore", invalid="ignore"):
            terms = self.base.likelihood._terms(self.outputs(theta, x), self._log_noise(theta))
        units = self.base.units
        found: PredictiveTerms = terms if units is None else units.terms(terms)
        return found

    def log_likelihood(self, theta: npt.NDArray[Any], x: Any, y: Any) -> Array64:
        """Return the log density (S, N) of each row under each draw (S, P)."""
        targets = self.network_targets(x, y)
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.base.likelihood._log_likelihood(
                self.outputs(theta, x), targets, self._log_noise(theta)
            )
        found: Array64 = values if self.base.units is None else values - self.base.units.log_scale
        return found

    def _log_noise(self, theta: npt.NDArray[Any]) -> Any:
        noise = theta[:, self.base.noise_at :].astype(np.float64)
        return noise if self.base.noises else None

    def network_targets(self, x: Any, y: Any) -> Array64:
        """Return y at x as checked (N, J), in the network's units."""
        name = "Prediction.log_likelihood"
        if self.base.units is not None:
            y = self.base.units.targets(name, y)
        shape = self.base.model.output_shape
        found: Array64 = self.base.likelihood._targets(name, y, np.shape(x)[0], shape, _FLOAT64)
        return found


@dataclass(frozen=True, eq=False)
class NormalNetwork:
    """The linearized network under normal weights and noise: y is normal too, in closed form."""

    # Its draws share the mean and differ in a learned noise. The ``noise_sd`` of a prediction
    # includes the spread of the weights.

    line: LinearizedNetwork
    # (Q, Q) float64: of the weights' covariance factor factor^T; their mean is the mode
    factor: Array64
    _held: list[Any] = field(default_factory=list, repr=False)

    @property
    def kind(self) -> Literal["regression"]:
        """A regression."""
        return "regression"

    @property
    def flat(self) -> bool:
        """As of the network."""
        return self.line.flat

    @property
    def columns(self) -> Any:
        """As of the network."""
        return self.line.columns

    def describe(self) -> dict[str, Any]:
        """Return a description of the network alone."""
        return self.line.describe()

    def moments(self, x: Any) -> tuple[Array64, Array64]:
        """Mean (N, K) and covariance (N, K, K) of the function, in the network's units."""
        if self._held and self._held[0] is x:
            return cast("tuple[Array64, Array64]", self._held[1])
        means, covariances = [], []
        size = self.line.base.model.dim - self.line.first
        for _, f, derivatives in self.line.derivatives(x):
            spread = derivatives.reshape(-1, derivatives.shape[2]) @ self.factor[:size, :]
            spread = spread.reshape(*f.shape, -1)
            means.append(f)
            covariances.append(spread @ spread.transpose(0, 2, 1))
        found = np.concatenate(means), np.concatenate(covariances)
        self._held[:] = [x, found]
        return found

    def noise_sd(self, theta: npt.NDArray[Any]) -> Array64:
        """Return the sd of y given the function, (S, K), in the network's units."""
        base = self.line.base
        if base.noises:
            sd: Array64 = np.exp(theta[:, base.noise_at : base.noise_at + base.noises])
            return sd
        return np.array([base.likelihood.scales(base.model.output_shape)])

    def draws(self) -> Array64:
        """Return draws (S, P) that stand for the distribution of the noise: one, if it is known."""
        # Each stands for one of S equal parts of the normal distribution of log noise and has the
        # mean variance of its part, so that the mean variance over all parts is exact.
        base, mode = self.line.base, self.line.mode
        own = self.factor[base.noise_at - self.line.first :, :][: base.noises, :]
        if not own.size:
            return mode[None]
        from statistics import NormalDist  # not with ribbit: slow to load

        sd = np.linalg.norm(own, axis=1)
        edges = np.array([NormalDist().inv_cdf(i / _PARTS) for i in range(1, _PARTS)])
        # The noises of outputs are independent: each has an order of its own.
        u = random_numbers.uniform(
            np,
            (base.noises, _PARTS),
            seed=0,
            step=0,
            chains=np.arange(base.noises, dtype=np.uint32),
            purpose=random_numbers.FIT_DRAW,
            layer=random_numbers.FIT_LAYERS["noise"],
        )
        orders = np.argsort(u, axis=1)
        found = np.tile(mode, (_PARTS, 1))
        for k in range(base.noises):
            # erfc keeps the relative precision of small parts
            below = [0.5 * math.erfc(z / math.sqrt(2.0)) for z in 2.0 * sd[k] - edges]
            share = np.diff([0.0, *below, 1.0])
            found[orders[k], base.noise_at + k] += sd[k] ** 2 + 0.5 * np.log(_PARTS * share)
        return found

    def spread(self, x: Any) -> tuple[Array64, Array64, Any]:
        """Mean and sd of the function (N, K) and the unit of its numbers, in the user's units."""
        mean, covariance = self.moments(x)
        sd = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        units = self.line.base.units
        if units is None or units.y_scale is None:
            return mean, sd, 1.0
        return mean * units.y_scale + units.y_mean, sd * units.y_scale, units.y_scale

    def outputs(self, theta: Any, x: Any) -> Array64:
        """Return the mean of the function (S, N, K)."""
        mean = self.moments(x)[0]
        return np.broadcast_to(mean, (len(theta), *mean.shape))

    def predictive(self, theta: Any, x: Any) -> PredictiveTerms:
        """Return mean and sd of y, weights and noise together, (S, N, K)."""
        mean, sd, unit = self.spread(x)
        noise = np.hypot(sd, (self.noise_sd(theta) * unit)[:, None, :])
        return PredictiveTerms(mean=np.broadcast_to(mean, noise.shape), noise_sd=noise)

    def log_likelihood(self, theta: Any, x: Any, y: Any) -> Array64:
        """Return the joint log density (S, N) of the columns of each row."""
        targets = self.line.network_targets(x, y)
        mean, covariance = self.moments(x)
        variance = self.noise_sd(theta)[:, None, :, None] ** 2
        lower = np.linalg.cholesky(covariance + variance * np.eye(mean.shape[1]))
        u = np.linalg.solve(lower, (targets - mean)[:, :, None])[..., 0]
        logs = np.log(np.diagonal(lower, axis1=2, axis2=3)).sum(axis=2)
        values = -0.5 * (u * u).sum(axis=2) - logs - 0.5 * mean.shape[1] * np.log(2.0 * np.pi)
        units = self.line.base.units
        found: Array64 = values - (0.0 if units is None else units.log_scale)
        return found
