"""Options of HMC: checks, and defaults that come from the target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host, is_array, namespace, to_host
from ribbit.density import Density
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["inverse_mass", "mass_of_default", "step_size", "trajectory"]


def step_size(value: Any, function: str = "HMC") -> npt.NDArray[np.float64] | None:
    """Return step sizes () or (C,) in float64; None for "auto"."""
    if isinstance(value, str):
        checks.choice(function, "step_size", value, ("auto",))
        return None
    if not is_array(value) and not isinstance(value, list | tuple):
        return np.array(checks.positive(function, "step_size", value))
    host = to_host(value) if is_array(value) else value
    array = checks.data(function, "step_size", host, np.dtype(np.float64)).astype(np.float64)
    if array.ndim > 1 or array.size == 0:
        raise ShapeError(
            f"[{function}] expected step_size as a number, (C,) or 'auto', got shape {array.shape}"
        )
    checks.all_true(function, "step_size > 0", "step_size", array, array > 0.0)
    return array


def inverse_mass(
    density: Density, matrix: Array | str | None, function: str = "HMC"
) -> Array | None:
    """Return the fixed inverse mass (P,) in the target's dtype; None for the identity, "adapt"."""
    xp, name = density.xp, "inverse_mass_matrix"
    if matrix is None:
        return None
    if isinstance(matrix, str):
        checks.choice(function, name, matrix, ("prior", "adapt"))
        if matrix == "adapt":
            return None
        sd = getattr(density.target, "prior_sd", None)
        if sd is None:
            raise ValueError(
                f"[{function}] expected a target with prior_sd for inverse_mass_matrix='prior', "
                f"got {type(density.target).__name__} without it"
            )
        host = to_host(sd).astype(np.float64) ** 2 * _temperature(density)
        name = "the variance of the tempered prior"
    elif is_array(matrix):
        if namespace(matrix, function=function, name=name) is not xp:
            raise DTypeError(
                f"[{function}] expected {name} as {xp.__name__} array, got {checks.summary(matrix)}"
            )
        host = checks.numeric(function, name, to_host(matrix))
    else:
        host = checks.numeric(function, name, matrix)
    if host.shape != (density.dim,):
        raise ShapeError(
            f"[{function}] expected {name} ({density.dim},), 'prior', 'adapt' or None, "
            f"got shape {host.shape}"
        )
    with np.errstate(all="ignore"):
        cast = np.array(host, dtype=density.dtype)
    checks.all_true(function, f"{name} finite and > 0", name, cast, np.isfinite(cast) & (cast > 0))
    return from_host(xp, cast)


def trajectory(
    density: Density,
    length: float | None,
    steps: int | None,
    *,
    maximum: int,
    whitened: bool,
) -> tuple[float | None, int | None]:
    """Return (trajectory length, None) or (None, leapfrog steps)."""
    if length is not None and steps is not None:
        raise ValueError(
            "[HMC] expected at most one of trajectory_length and num_leapfrog_steps, got both"
        )
    if steps is not None:
        name = "num_leapfrog_steps"
        steps = checks.integer("HMC", name, steps, minimum=1)
        if steps > maximum:
            raise ValueError(
                f"[HMC] expected {name} <= max_num_leapfrog_steps ({maximum}), got {steps}"
            )
        return None, steps
    if isinstance(length, str):
        got = checks.summary(length)
        raise TypeError(f"[HMC] expected trajectory_length as a number or None, got {got}")
    if length is not None:
        return checks.positive("HMC", "trajectory_length", length), None
    if whitened:
        return 1.0, None
    shared = float(density.target.shared_prior_sd)
    return shared * math.sqrt(_temperature(density)), None


def mass_of_default(density: Density) -> str | None:
    """Return the inverse mass in whose units one trajectory length fits all parameters."""
    shared = getattr(density.target, "shared_prior_sd", None)
    if shared is not None and math.isfinite(shared) and shared > 0.0:
        return None
    sd = getattr(density.target, "prior_sd", None)
    if sd is None:
        return "adapt"
    host = to_host(sd)
    return "prior" if np.all(np.isfinite(host) & (host > 0.0)) else "adapt"


def _temperature(density: Density) -> float:
    return checks.positive("HMC", "target.temperature", getattr(density.target, "temperature", 1.0))
