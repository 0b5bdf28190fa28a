"""How much the log prior bends at a position, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._backends.codes import PRIORS
from ribbit.targets.likelihoods import Array64

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["prior_curvature"]


def prior_curvature(
    function: str, rows: npt.NDArray[np.float64], centre: Array64, theta: Array64
) -> Array64:
    """Return minus the second derivative of the untempered log prior (P,), or 0 if negative."""
    found = np.empty(theta.shape, np.float64)
    for offset, size, kind, a, b, c in rows:
        part = slice(int(offset), int(offset + size))
        if int(kind) not in _CURVATURES:
            raise ValueError(
                f"[{function}] expected priors among {', '.join(_NAMES)}, got another one on "
                f"parameters {part.start} to {part.stop - 1}"
            )
        found[part] = _CURVATURES[int(kind)](theta[part] - centre[part], a, b, c)
    return np.maximum(found, 0.0)


def _normal(t: Array64, a: float, b: float, c: float) -> Array64:
    del b, c
    return np.full(t.shape, 1.0 / (a * a))


def _laplace(t: Array64, a: float, b: float, c: float) -> Array64:
    del a, b, c
    return np.zeros(t.shape)


def _student_t(t: Array64, a: float, b: float, c: float) -> Array64:
    del c
    square, width = t * t, a * b * b
    found: Array64 = (a + 1.0) * (width - square) / (width + square) ** 2
    return found


def _logistic(t: Array64, a: float, b: float, c: float) -> Array64:
    # sech^2(t / 2a) / (2 a^2)
    del b, c
    e = np.exp(-np.abs(t) / a)
    found: Array64 = 2.0 * e / (1.0 + e) ** 2 / (a * a)
    return found


def _scale_mixture(t: Array64, a: float, b: float, c: float) -> Array64:
    # The mean of the components' precisions less t^2 times their variance, both over the
    # probabilities of the components given t.
    first, second = 1.0 / (b * b), 1.0 / (c * c)
    square = t * t
    odds = np.log(a / b) - np.log((1.0 - a) / c) - 0.5 * square * (first - second)
    share = np.exp(-np.logaddexp(0.0, -odds))
    mean = share * first + (1.0 - share) * second
    found: Array64 = mean - square * share * (1.0 - share) * (first - second) ** 2
    return found


def _gamma_precision(u: Array64, a: float, b: float, c: float) -> Array64:
    del a, c
    return 4.0 * b * np.exp(-2.0 * u)


def _half_normal(u: Array64, a: float, b: float, c: float) -> Array64:
    del b, c
    return 2.0 * np.exp(2.0 * u) / (a * a)


def _half_cauchy(u: Array64, a: float, b: float, c: float) -> Array64:
    # sech^2(u - log a)
    del b, c
    e = np.exp(-2.0 * np.abs(u - np.log(a)))
    found: Array64 = 4.0 * e / (1.0 + e) ** 2
    return found


_BY_NAME: dict[str, Callable[[Any, float, float, float], Array64]] = {
    "Normal": _normal,
    "Laplace": _laplace,
    "StudentT": _student_t,
    "Logistic": _logistic,
    "ScaleMixture": _scale_mixture,
    # of the logarithm of a scale
    "GammaPrecision": _gamma_precision,
    "HalfNormal": _half_normal,
    "HalfCauchy": _half_cauchy,
}
_NAMES = tuple(_BY_NAME)
_CURVATURES = {PRIORS[name]: curvature for name, curvature in _BY_NAME.items()}
