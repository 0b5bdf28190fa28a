"""Options of samplers: checks, and defaults that come from the target."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _backend, _checks
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array
from ribbit.samplers.leapfrog import Density

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "batch_size",
    "inverse_mass",
    "no_dropout",
    "num_rows",
    "same_kind",
    "step_size",
    "trajectory",
]

_WAYS = (
    "give trajectory_length or num_leapfrog_steps, or inverse_mass_matrix='prior', 'adapt' or an "
    "array, or one prior sd for all weights"
)


def no_dropout(function: str, target: Any) -> None:
    """Raise TypeError for a target with Dropout layers."""
    layers = tuple(getattr(target, "dropout_layers", ()))
    if layers:
        raise TypeError(
            f"[{function}] expected a target without Dropout layers, got "
            f"{', '.join(map(str, layers))} (use MCDropout, or take the layer out)"
        )


def num_rows(function: str, target: Any) -> int | None:
    """Return a target's number of rows, None where it has none."""
    rows = getattr(target, "num_rows", None)
    if rows is None:
        return None
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
        raise TypeError(
            f"[{function}] expected target.num_rows as an integer >= 1, got {_checks.summary(rows)}"
        )
    return int(rows)


def batch_size(function: str, value: int | None, rows: int | None) -> int | None:
    """Return the rows of a batch; None: all there are, whatever their number."""
    if value is None:
        return rows
    size = _checks.integer(function, "batch_size", value, minimum=1)
    if rows is None:
        raise ValueError(
            f"[{function}] expected batch_size=None for a target without num_rows, got {size}"
        )
    if size > rows:
        raise ValueError(
            f"[{function}] expected batch_size <= {rows}, the rows of the data, or None for "
            f"all of them, got {size}{' (the default)' if size == 128 else ''}"
        )
    return size


def same_kind(function: str, density: Density, position: Array) -> None:
    """Raise for a state's position (C, P) of another size, array library or dtype."""
    xp = density.xp
    if position.shape[1] != density.dim:
        raise ShapeError(
            f"[{function}] expected a state of dim {density.dim}, got {position.shape[1]}"
        )
    if (
        _backend.namespace(position, function=function) is not xp
        or _backend.host_dtype(position) != density.dtype
    ):
        raise DTypeError(
            f"[{function}] expected a state of {xp.__name__} {density.dtype} arrays, "
            f"got {_checks.summary(position)}"
        )


def step_size(value: Any) -> npt.NDArray[np.float64] | None:
    """Return step sizes () or (C,) in float64; None for "auto"."""
    if isinstance(value, str):
        _checks.choice("HMC", "step_size", value, ("auto",))
        return None
    if not _backend.is_array(value) and not isinstance(value, list | tuple):
        return np.array(_checks.positive("HMC", "step_size", value))
    host = _backend.to_host(value) if _backend.is_array(value) else value
    array = _checks.data("HMC", "step_size", host, np.dtype(np.float64)).astype(np.float64)
    if array.ndim > 1 or array.size == 0:
        raise ShapeError(
            f"[HMC] expected step_size as a number, (C,) or 'auto', got shape {array.shape}"
        )
    _checks.all_true("HMC", "step_size > 0", "step_size", array, array > 0.0)
    return array


def inverse_mass(density: Density, matrix: Array | str | None) -> Array | None:
    """Return the fixed inverse mass (P,) in the target's dtype; None for the identity, "adapt"."""
    xp, name = density.xp, "inverse_mass_matrix"
    if matrix is None:
        return None
    if isinstance(matrix, str):
        _checks.choice("HMC", name, matrix, ("prior", "adapt"))
        if matrix == "adapt":
            return None
        sd = getattr(density.target, "prior_sd", None)
        if sd is None:
            raise ValueError(
                "[HMC] expected a target with prior_sd for inverse_mass_matrix='prior', "
                f"got {type(density.target).__name__} without it"
            )
        host = _backend.to_host(sd).astype(np.float64) ** 2 * _temperature(density)
    elif _backend.is_array(matrix):
        if _backend.namespace(matrix, function="HMC") is not xp:
            raise DTypeError(
                f"[HMC] expected {name} as {xp.__name__} array, got {_checks.summary(matrix)}"
            )
        host = _checks.numeric("HMC", name, _backend.to_host(matrix))
    else:
        host = _checks.numeric("HMC", name, matrix)
    if host.shape != (density.dim,):
        raise ShapeError(
            f"[HMC] expected {name} ({density.dim},), 'prior', 'adapt' or None, "
            f"got shape {host.shape}"
        )
    with np.errstate(all="ignore"):
        cast = np.array(host, dtype=density.dtype)
    _checks.all_true("HMC", f"{name} finite and > 0", name, cast, np.isfinite(cast) & (cast > 0))
    return _backend.from_host(xp, cast)


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
        steps = _checks.integer("HMC", name, steps, minimum=1)
        if steps > maximum:
            raise ValueError(
                f"[HMC] expected {name} <= max_num_leapfrog_steps ({maximum}), got {steps}"
            )
        return None, steps
    if length is not None:
        return _checks.positive("HMC", "trajectory_length", length), None
    if whitened:
        return 0.5 * math.pi, None
    shared = getattr(density.target, "shared_prior_sd", None)
    if shared is None:
        raise ValueError(
            f"[HMC] expected a trajectory length, got none and no default for it: {_WAYS}"
        )
    if not (math.isfinite(shared) and shared > 0.0):
        raise ValueError(f"[HMC] expected a finite prior sd > 0, got {shared}: {_WAYS}")
    return 0.5 * math.pi * float(shared) * math.sqrt(_temperature(density)), None


def _temperature(density: Density) -> float:
    return _checks.positive(
        "HMC", "target.temperature", getattr(density.target, "temperature", 1.0)
    )
