"""Fisher information of the outputs of a network: the curvature that Gauss-Newton matrices need."""

# Shapes: N rows, K outputs, J columns of y. All in float64 on NumPy arrays.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

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

__all__ = ["known_likelihoods", "noise_information", "roots"]


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
