"""Outputs that are probabilities or rates, where a likelihood takes logits or logarithms."""

# Shapes: n rows, P parameters, K outputs.

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ribbit._arrays.warning import warn
from ribbit.errors import ModuleWarning
from ribbit.targets import likelihoods
from ribbit.targets.likelihoods import Array64, Likelihood

_DRAWS = 40  # weights at most; outputs of a linear last layer leave any range at the first ones


def _sums_to_one(f: Array64) -> bool:
    whole = np.abs(f.sum(axis=-1) - 1.0) < 1e-4
    return bool((whole & (f >= 0.0).all(axis=-1)).all())


def _logarithms_of_one(f: Array64) -> bool:
    return bool((np.abs(np.exp(np.minimum(f, 1.0)).sum(axis=-1) - 1.0) < 1e-4).all())


def _probabilities(f: Array64) -> bool:
    return bool(((f >= 0.0) & (f <= 1.0)).all())


def _not_negative(f: Array64) -> bool:
    return bool((f >= 0.0).all())


def _not_positive(f: Array64) -> bool:
    return bool((f <= 0.0).all())


def _raw_sd(f: Array64) -> Array64:
    return f[..., f.shape[-1] // 2 :]


_SOFTMAX = "takes logits and applies softmax itself: leave the last softmax out"
_SIGMOID = "takes logits and applies sigmoid itself: leave the last sigmoid out"
_EXP = "takes log rates and applies exp itself: leave the last activation out"
_SOFTPLUS = "applies softplus to the last K of 2 K outputs itself: leave their activation out"
# What outputs never leave; numbers that they come below and above, which a constant does not.
_RANGES: dict[type[Likelihood], tuple[tuple[Any, float, float, str, str], ...]] = {
    likelihoods.Categorical: (
        (_sums_to_one, 2.0, -1.0, _SOFTMAX, "probabilities"),
        (_logarithms_of_one, 2.0, -1e9, _SOFTMAX, "logarithms of probabilities"),
        (_probabilities, 0.1, 0.9, _SOFTMAX, "numbers between 0 and 1"),
    ),
    likelihoods.Bernoulli: (
        (_probabilities, 0.1, 0.9, _SIGMOID, "numbers between 0 and 1"),
        (_not_positive, -1.0, -0.1, _SIGMOID, "numbers that are never above 0"),
    ),
    likelihoods.Poisson: ((_not_negative, 0.1, 1.0, _EXP, "numbers that are never below 0"),),
    likelihoods.HeteroscedasticGaussian: (
        (
            lambda f: _not_negative(_raw_sd(f)),
            0.1,
            1.0,
            _SOFTPLUS,
            "numbers that are never below 0",
        ),
    ),
}


def warn_of_link(function: str, target: Any, likelihood: Likelihood, x: torch.Tensor) -> None:
    """Warn of a network that applies what its likelihood applies: softmax, sigmoid, exp."""
    # Its outputs at drawn weights and rows x (n, ...) tell, whatever the code of the network is.
    rules = list(_RANGES.get(type(likelihood), ()))
    lowest, highest = np.inf, -np.inf
    for number in range(_DRAWS):
        if not rules:
            return
        theta = target.init(seed=number)
        # Larger weights saturate what saturates; logits of any size are none the less.
        theta = (theta * (1.0, 4.0, 16.0)[number % 3]).astype(theta.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            f = np.asarray(target.outputs(theta, x), np.float64)
        f = f[np.isfinite(f).all(axis=-1)]
        if not f.any():
            continue
        rules = [rule for rule in rules if rule[0](f)]
        if type(likelihood) is likelihoods.HeteroscedasticGaussian:
            f = _raw_sd(f)
        lowest, highest = min(lowest, f.min()), max(highest, f.max())
    for _, below, above, wanted, got in rules:
        if lowest < below and highest > above:
            name = type(likelihood).__name__
            at = "at all weights that were tried"
            warn(
                f"[{function}] {name} {wanted}, got a network that gives {got} {at}", ModuleWarning
            )
            return
