"""Curvature that Gauss-Newton matrices need: information of the outputs, and of the prior."""

# Shapes: P parameters, N rows, K outputs, J columns of y. All in float64 on NumPy arrays.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._backends.codes import PRIORS
from ribbit.targets.likelihoods import (
    Array64,
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentTNoise,
)

if TYPE_CHECKING:
    import numpy.typing as npt


def roots(likelihood: Likelihood, outputs: Array64, log_noise: Array64 | None) -> Array64:
    """Return roots R (N, K), if diagonal, or (N, K, K) of the information of each row: R^T R."""
    # The information is the expectation over y of minus the second derivative of the log density by
    # the outputs. For Gaussian noise of known scale, Categorical, Bernoulli and Poisson that is
    # minus the second derivative itself, whatever y (Martens 2020, "New insights and perspectives
    # on the natural gradient method", JMLR 21, section 9.2).
    with np.errstate(over="ignore"):
        return _ROOTS[type(likelihood)](likelihood, outputs, log_noise)


def noise_information(likelihood: Likelihood) -> float:
    """Return the information that one number y has of "log_noise"; none is shared with outputs."""
    # 2 for Gaussian noise, 2 df / (df + 3) for Student's t (Lange, Little and Taylor 1989, JASA
    # 84).
    if isinstance(likelihood, StudentTNoise):
        return 2.0 * likelihood.df / (likelihood.df + 3.0)
    return 2.0


def known_likelihoods() -> set[type[Likelihood]]:
    """Return the likelihoods whose information is known."""
    return set(_ROOTS)


def _scale(likelihood: Any, log_noise: Array64 | None) -> Array64:
    # (1,) or (K,)
    return np.atleast_1d(likelihood.scale) if log_noise is None else np.exp(log_noise)


def _gaussian(likelihood: Any, outputs: Array64, log_noise: Array64 | None) -> Array64:
    return np.broadcast_to(1.0 / _scale(likelihood, log_noise), outputs.shape)


def _student_t(likelihood: Any, outputs: Array64, log_noise: Array64 | None) -> Array64:
    # of the location: (df + 1) / ((df + 3) scale^2)
    root = math.sqrt((likelihood.df + 1.0) / (likelihood.df + 3.0))
    return np.broadcast_to(root / _scale(likelihood, log_noise), outputs.shape)


def _heteroscedastic(likelihood: Any, outputs: Array64, log_noise: Array64 | None) -> Array64:
    # 1 / sd^2 of the mean, 2 (d log sd / d raw)^2 of the raw sd, and nothing between them
    del log_noise
    raw = outputs[:, outputs.shape[1] // 2 :]
    made = np.logaddexp(0.0, raw)
    slope = 1.0 / (1.0 + np.exp(-raw))
    # softplus(r) is exp(r) to one part in 1e16 below -37, where it underflows later on
    relative = np.where(raw < -37.0, 1.0, slope / np.maximum(made, 1e-300))
    # a floor of the sd, where there is one: sd^2 = floor^2 + softplus^2
    made = np.maximum(made, 1e-150)
    sd = np.hypot(getattr(likelihood, "min_sd", 0.0), made)
    return np.concatenate([1.0 / sd, math.sqrt(2.0) * relative * (made / sd) ** 2], axis=1)


def _categorical(likelihood: Any, outputs: Array64, log_noise: Array64 | None) -> Array64:
    # R[i, j] = sqrt(p_i) (1[i = j] - p_j): R^T R = diag(p) - p p^T
    del likelihood, log_noise
    e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    found: Array64 = np.sqrt(p)[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :])
    return found


def _bernoulli(likelihood: Any, outputs: Array64, log_noise: Array64 | None) -> Array64:
    # sqrt(p (1 - p)) = 1 / (2 cosh(f / 2))
    del likelihood, log_noise
    e = np.exp(-0.5 * np.abs(outputs))
    found: Array64 = e / (1.0 + e * e)
    return found


def _poisson(likelihood: Any, outputs: Array64, log_noise: Array64 | None) -> Array64:
    del likelihood, log_noise
    found: Array64 = np.exp(0.5 * outputs)
    return found


_ROOTS: dict[type[Likelihood], Callable[[Any, Array64, Array64 | None], Array64]] = {
    Gaussian: _gaussian,
    StudentTNoise: _student_t,
    HeteroscedasticGaussian: _heteroscedastic,
    Categorical: _categorical,
    Bernoulli: _bernoulli,
    Poisson: _poisson,
}


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


def _student_t_prior(t: Array64, a: float, b: float, c: float) -> Array64:
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
    "StudentT": _student_t_prior,
    "Logistic": _logistic,
    "ScaleMixture": _scale_mixture,
    # of the logarithm of a scale
    "GammaPrecision": _gamma_precision,
    "HalfNormal": _half_normal,
    "HalfCauchy": _half_cauchy,
}
_NAMES = tuple(_BY_NAME)
_CURVATURES = {PRIORS[name]: curvature for name, curvature in _BY_NAME.items()}
