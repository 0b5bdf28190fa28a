"""The inverse mass of MCLMC and BAOAB."""

from __future__ import annotations

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host, is_array, namespace, to_host
from ribbit.density import Density
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array


def inverse_mass(density: Density, matrix: Array | str | None, function: str) -> Array | None:
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


def _temperature(density: Density) -> float:
    return checks.positive(
        "target", "target.temperature", getattr(density.target, "temperature", 1.0)
    )
