"""What arrays of a file may be: whole numbers and lengths that a run can have left there.

A file whose checksums are right may still have been written, or edited, by somebody else. All
checks raise ValueError with what is wrong; the reader of the file adds its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["check_array", "check_chains", "check_statistics", "check_tuning", "whole"]

_FLOATS = ("float32", "float64")
# Arrays of a state: dtypes (the first letter P: that of the positions), shape, and what they hold.
_TUNING: dict[str, tuple[str | tuple[str, ...], str, str]] = {
    "state/position": ("P", "CP", "finite"),
    "state/grad": ("P", "CP", "finite"),
    "state/terms": ("float64", "CM", "any"),
    "state/chains": ("uint32", "C", "distinct"),
    "state/step_size": ("float64", "C", "positive"),
    "state/num_steps": ("int64", "C", "positive"),
    "state/capped": ("bool", "C", "any"),
    "state/divergences": ("int64", "C", "not negative"),
    "state/velocity": ("P", "CP", "finite"),
    "state/mixing": ("P", "CK", "finite"),
    "state/decoherence_length": ("float64", "C", "positive"),
    "state/energy_squares": ("float64", "C", "not negative"),
    "state/first_moment": ("P", "CP", "finite"),
    "state/second_moment": ("P", "CP", "not negative"),
    "dual/log_step": ("float64", "C", "finite"),
    "dual/log_average": ("float64", "C", "finite"),
    "dual/error": ("float64", "C", "finite"),
    "dual/centre": ("float64", "C", "finite"),
    "dual/log_settled": ("float64", "C", "finite"),
    "errors/needed": ("float64", "C", "not negative"),
    "errors/weight": ("float64", "C", "not negative"),
    "gradients/sums": ("float64", "CK", "not negative"),
    "products/gradients": ("float64", "CK", "finite"),
    "products/positions": ("float64", "CK", "finite"),
    "welford/mean": ("float64", "CP", "finite"),
    "welford/squares": ("float64", "CP", "not negative"),
}
_HOLDS: dict[str, Callable[[npt.NDArray[Any]], bool]] = {
    "any": lambda array: True,
    "finite": lambda array: bool(np.isfinite(array).all()),
    "positive": lambda array: bool((np.isfinite(array) & (array > 0)).all()),
    "not negative": lambda array: bool((array >= 0).all()),
    "distinct": lambda array: np.unique(array).size == array.size,
}


def whole(name: str, value: object, *, below: int) -> int:
    """Return a number of the header: a whole one in [0, below)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ValueError(f"{name} is not a whole number in [0, {below:g}): {value!r:.60}")
    return value


def check_array(
    name: str,
    array: npt.NDArray[Any],
    dtypes: str | tuple[str, ...],
    shape: tuple[int | None, ...],
    holds: str = "any",
) -> None:
    """Raise for another dtype, shape (None: any length) or content."""
    allowed = (dtypes,) if isinstance(dtypes, str) else dtypes
    if array.dtype.name not in allowed:
        raise ValueError(f"{name} is {array.dtype}, not {' or '.join(allowed)}")
    if array.ndim != len(shape) or any(
        want not in (None, got) for want, got in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} has shape {array.shape}, not ({wanted})")
    if not _HOLDS[holds](array):
        raise ValueError(f"{name} is not {holds} everywhere")


def check_chains(name: str, positions: npt.NDArray[Any]) -> None:
    """Raise unless positions are finite, (C, D, P), of at least one chain and parameter."""
    check_array(name, positions, _FLOATS, (None, None, None), "finite")
    if 0 in positions.shape[::2]:
        raise ValueError(f"{name} has shape {positions.shape}: no chain or no parameter")


def check_statistics(
    group: str, stats: Mapping[str, npt.NDArray[Any]], positions: npt.NDArray[Any]
) -> None:
    """Raise unless all are numbers (C, D), as many as the positions (C, D, P) where these exist."""
    chains, draws = positions.shape[:2]
    length: int | None = draws or None
    for name, values in stats.items():
        if values.dtype.kind not in "biuf":
            raise ValueError(f"{group}/{name} is {values.dtype}, not a number")
        check_array(f"{group}/{name}", values, values.dtype.name, (chains, length))
        length = values.shape[1]


def check_tuning(
    arrays: Mapping[str, npt.NDArray[Any]], positions: npt.NDArray[Any], kind: str
) -> None:
    """Raise unless a state's arrays fit the positions (C, D, P) and a run can have left them."""
    chains, _, dim = positions.shape
    lengths = {"C": chains, "P": dim, "M": None, "K": None}
    for name, (dtypes, letters, holds) in _TUNING.items():
        if name in arrays:
            shape = tuple(lengths[letter] for letter in letters)
            check_array(
                name, arrays[name], positions.dtype.name if dtypes == "P" else dtypes, shape, holds
            )
    # Of stochastic gradients it is NaN unless it is tracked.
    holds = "any" if kind == "StochasticState" else "finite"
    check_array("state/logdensity", arrays["state/logdensity"], "float64", (chains,), holds)
    if (mass := arrays.get("state/inverse_mass")) is not None:
        each = (dim,) if mass.ndim == 1 else (chains, dim)
        check_array("state/inverse_mass", mass, _FLOATS, each, "positive")
