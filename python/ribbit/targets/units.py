"""Data in units of their own spread, and predictions back in the user's."""

# Shapes: N rows, J columns of y, S draws, K outputs.

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, columns
from ribbit._arrays.mapped import MappedRows
from ribbit._arrays.namespace import (
    errstate,
    from_device,
    from_host,
    is_device_array,
    namespace,
    to_host,
)
from ribbit._arrays.warning import warn
from ribbit.errors import DataError, ScaleWarning
from ribbit.protocols import PredictiveTerms
from ribbit.targets.likelihoods import Array64, Likelihood
from ribbit.targets.prior_base import Prior

if TYPE_CHECKING:
    from ribbit.models.model import Model

# Columns with a larger mean or sd, or with a smaller sd, are far from unit scale. Not inputs of a
# table that seldom, but then do leave their mean: a rare category, a pixel of the margin of a flat
# image.
_LARGE, _SMALL = 10.0, 0.01
_SELDOM = 10.0  # sds from the mean
_FEW = 20  # rows, of which a small sd says little
_ENOUGH = 1 << 20  # numbers of a file that say how wide its columns are
_SQUARED = 1e150  # sums of squares of more, and of less than 1 / this, are no numbers


@dataclass(frozen=True, eq=False)
class Units:
    """Where the columns of data lie and how wide they are: of images and sequences, channels."""

    # (*input_shape) float64 or None: inputs are shifted and divided by these, see `columns.spread`;
    # None for bytes and tokens
    x_mean: Array64 | None
    x_scale: Array64 | None
    # (J,) float64 or None: the same of the targets; None where they have no unit (labels, counts)
    y_mean: Array64 | None
    y_scale: Array64 | None

    @staticmethod
    def of(
        function: str,
        model: Model,
        x: Any,
        y: Any,
        likelihood: Likelihood,
        weights: Array64 | None = None,
        *,
        titles: Any = None,
    ) -> Units:
        """Measure the training data; raises as `Posterior` does for what is no data."""
        x_mean = x_scale = y_mean = y_scale = None
        if has_scale(model, x):
            x_mean, x_scale = _mean_and_scale(function, "x", x, weights)
            _warn_of_far_cells(function, "x", x, x_scale, weights, titles)
        if likelihood.kind == "regression":
            y_mean, y_scale = target_units(function, y, weights)
            _warn_of_far_cells(function, "y", y, y_scale, weights)
        return Units(x_mean, x_scale, y_mean, y_scale)

    def inputs(self, function: str, x: Any) -> Any:
        """Return inputs (N, *input_shape) in their spread; what does not fit is left alone."""
        if self.x_mean is None or self.x_scale is None:
            return x
        array = _array(function, "x", x)
        if tuple(array.shape[1:]) != self.x_mean.shape:
            return x  # whoever reads it says what is wrong
        return _moved(array, self.x_mean, self.x_scale)

    def raw_inputs(self, x: Any) -> Any:
        """Return inputs (N, *input_shape) in the user's units, of those in their spread."""
        if self.x_mean is None or self.x_scale is None:
            return x
        xp = namespace(x)
        return x * from_host(xp, self.x_scale) + from_host(xp, self.x_mean)

    def targets(self, function: str, y: Any) -> Any:
        """Return targets (N,) or (N, J) in their spread; what does not fit is left alone."""
        if self.y_mean is None or self.y_scale is None:
            return y
        array = _array(function, "y", y)
        if array.ndim not in (1, 2) or math.prod(array.shape[1:]) != self.y_mean.size:
            return y
        return _moved(array, self.y_mean, self.y_scale)

    @property
    def log_scale(self) -> float:
        """What a row's log density in the user's units has less than in the spread's."""
        return 0.0 if self.y_scale is None else float(np.log(self.y_scale).sum())

    def terms(self, terms: PredictiveTerms) -> PredictiveTerms:
        """Return what draws predict in the user's units."""
        if self.y_mean is None or self.y_scale is None or terms.mean is None:
            return terms
        xp = namespace(terms.mean)
        mean, scale = from_host(xp, self.y_mean), from_host(xp, self.y_scale)
        with errstate(xp):
            return dataclasses.replace(
                terms,
                mean=terms.mean * scale + mean,
                noise_sd=None if terms.noise_sd is None else terms.noise_sd * scale,
                noise_scale=None if terms.noise_scale is None else terms.noise_scale * scale,
            )

    def moments(self, sums: tuple[Array64, ...]) -> tuple[Array64, ...]:
        """Return running sums of `predictive_moments` in the user's units."""
        if self.y_mean is None or self.y_scale is None:
            return sums
        first, total, squares, noise = sums
        xp = namespace(first)
        mean, scale = from_host(xp, self.y_mean), from_host(xp, self.y_scale)
        return first * scale + mean, total * scale, squares * scale**2, noise * scale**2

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {
            field.name: None if value is None else value.tolist()
            for field in dataclasses.fields(self)
            for value in [getattr(self, field.name)]
        }

    @staticmethod
    def from_description(description: Mapping[str, Any]) -> Units:
        """Rebuild from `describe`; TypeError or ValueError for anything else."""
        function = "predictive_from_description"
        given = checks.mapping(function, "units", description)
        found = {}
        for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
            value = given.get(name)
            if value is not None:
                value = np.asarray(checks.numeric(function, name, value), np.float64)
                checks.finite(function, name, value)
                if name.endswith("scale"):
                    checks.all_true(function, f"{name} > 0", name, value, value > 0)
            found[name] = value
        return Units(**found)


def has_scale(model: Model, x: Any) -> bool:
    """Whether inputs are numbers of some unit: no tokens, no images of bytes."""
    tokens = bool(model.network.tokens)
    images = str(getattr(x, "dtype", "")) == "uint8" and len(model.input_shape) == 3
    return not (tokens or images)


def warn_of_scale(model: Model, x: Any, y: Any, prior: Any, likelihood: Likelihood) -> None:
    """Warn of checked data (N, D) and (N, J) far from unit scale under one prior for all."""
    # Such a prior says that inputs and outputs are of the order of one.
    if not isinstance(prior, Prior):
        return
    if isinstance(x, MappedRows):
        x = x.some(_ENOUGH)
    found = []
    if has_scale(model, x):
        found = _far("x", namespace(x).reshape(x, (x.shape[0], *model.input_shape)))
    if likelihood.kind == "regression":
        found += _far("y", y)
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        warn(
            "[Posterior] expected inputs and targets of about unit scale under one prior for all "
            f"weights, got {', '.join(found[:3])}{more}: give standardize=True (predictions come "
            "back in your units), or scale them yourself: "
            "scaler = rb.datasets.standardize(x, y); x, y = scaler.x, scaler.y",
            ScaleWarning,
        )


def target_units(function: str, y: Any, weights: Array64 | None = None) -> tuple[Array64, Array64]:
    """Return mean and scale (J,) of targets (N,) or (N, J), whose variances do not overflow."""
    mean, scale = (one.reshape(-1) for one in _mean_and_scale(function, "y", y, weights))
    if ((scale > _SQUARED) | (scale < 1.0 / _SQUARED)).any():
        raise DataError(
            f"[{function}] expected y with an sd from {1.0 / _SQUARED:g} to {_SQUARED:g}, since "
            f"variances are squares, got {scale[np.argmax(np.abs(np.log(scale)))]:.3g}: "
            "divide y by that"
        )
    return mean, scale


def _far(name: str, array: Any) -> list[str]:
    means, sds = (np.atleast_1d(each) for each in columns.moments(array))
    column = "column" if array.ndim == 2 else "channel"
    far = np.maximum(np.abs(means), sds) > _LARGE
    small = (sds > 0) & (sds < _SMALL)
    if array.shape[0] >= _FEW and small.any():
        if name == "x" and array.ndim == 2:
            xp = namespace(array)
            top, bottom = (to_host(each(array, axis=0)) for each in (xp.max, xp.min))
            small &= np.maximum(top - means, means - bottom) < _SELDOM * sds
        far |= small
    single = name == "y" and far.size == 1
    return [
        f"{name if single else f'{name} {column} {i}'} with mean {means[i]:.3g} and sd {sds[i]:.3g}"
        for i in np.flatnonzero(far)
    ]


def _array(function: str, name: str, value: Any) -> Any:
    if isinstance(value, MappedRows):
        return value
    if is_device_array(value):
        return from_device(function, name, value)
    return checks.numeric(function, name, value)


def _mean_and_scale(
    function: str, name: str, value: Any, weights: Array64 | None
) -> tuple[Array64, Array64]:
    array = _array(function, name, value)
    if array.ndim == 0 or math.prod(array.shape) == 0:
        return np.zeros(()), np.ones(())  # an error of whoever reads the data
    if weights is not None and (weights.shape[0] != array.shape[0] or is_device_array(array)):
        weights = None  # refused by whoever checks them
    if isinstance(array, MappedRows) and weights is not None:
        raise ValueError(
            f"[{function}] expected no sample_weight with standardize=True and a memory-mapped "
            f"{name}: its means would be of all rows, so scale the file, or give np.array({name})"
        )
    mean, scale = columns.spread(array, weights)
    if not (np.isfinite(mean).all() and np.isfinite(scale).all()):
        if isinstance(array, MappedRows):
            array.check_finite(function, name)
        else:
            checks.finite(function, name, to_host(array))
    return mean, scale


def _warn_of_far_cells(
    function: str,
    name: str,
    value: Any,
    scale: Array64,
    weights: Array64 | None,
    titles: Any = None,
) -> None:
    array = _array(function, name, value)
    if array.ndim and (weights is None or not is_device_array(array)):
        columns.warn_of_far_cells(function, name, array, scale, weights, titles=titles)


def _moved(array: Any, mean: Array64, scale: Array64) -> Any:
    if isinstance(array, MappedRows):
        return array.moved(mean, scale)
    return columns.moved(array, mean, scale)
