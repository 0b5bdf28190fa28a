"""Checks of positions and trajectories in arrays of any library."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ribbit import _backend, _checks
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array

__all__ = ["position", "trajectory"]


def position(
    xp: ModuleType, function: str, name: str, value: Any, dtype: np.dtype[Any], dim: int
) -> tuple[Array, bool]:
    """Return a position (dim,) or (C, dim) of `xp` as a C-contiguous (C, dim), and which it was.

    Nothing is converted; errors are those of `_checks.position`.
    """
    if xp is np:
        return _checks.position(function, name, value, dtype, dim)
    if (
        not _backend.is_array(value)
        or _backend.namespace(value) is not xp
        or _backend.host_dtype(value) != dtype
    ):
        raise DTypeError(
            f"[{function}] expected {name} as a {xp.__name__} array of dtype {dtype}, "
            f"got {_checks.summary(value)}"
        )
    shape = value.shape
    if not 1 <= len(shape) <= 2 or shape[-1] != dim or shape[0] == 0:
        raise ShapeError(
            f"[{function}] expected {name} of shape ({dim},) or (C, {dim}) with C >= 1, got {shape}"
        )
    single = len(shape) == 1
    array = xp.reshape(value, (-1, dim))
    return (array if array.flags.c_contiguous else xp.ascontiguousarray(array)), single


def trajectory(
    xp: ModuleType,
    function: str,
    start: Any,
    momentum: Any,
    grad: Any,
    step_size: Any,
    num_steps: Any,
    mass: Any,
    dtype: np.dtype[Any],
    dim: int,
) -> tuple[Any, ...]:
    """Return the checked arguments of a native trajectory, in its order, all with C chains.

    Errors are those of `_checks.trajectory`; the numbers of steps are always on the host.
    """
    if xp is np:
        return _checks.trajectory(
            function,
            start,
            momentum,
            grad,
            step_size,
            num_steps,
            mass,
            dtype,
            dim,
            optional_grad=True,
        )
    arrays: list[Array] = []
    for name, value in (("position", start), ("momentum", momentum), ("grad", grad)):
        array, single = position(xp, function, name, value, dtype, dim)
        if single or (arrays and array.shape != arrays[0].shape):
            chains = arrays[0].shape[0] if arrays else "C"
            raise ShapeError(
                f"[{function}] expected {name} of shape ({chains}, {dim}), got {value.shape}"
            )
        arrays.append(array)
    count = arrays[0].shape[0]
    if _backend.is_array(step_size) and _backend.namespace(step_size) is xp:
        if step_size.shape not in ((), (count,)) or _backend.host_dtype(step_size) != np.float64:
            raise ShapeError(
                f"[{function}] expected step_size () or ({count},) float64, "
                f"got {step_size.dtype} of shape {step_size.shape}"
            )
        sizes = xp.asarray(xp.broadcast_to(step_size, (count,)), copy=True)
    else:
        host = _checks.per_chain(function, "step_size", step_size, count, np.float64)
        sizes = xp.asarray(host)
    steps = _checks.per_chain(function, "num_steps", num_steps, count, np.int64)
    if mass is not None:
        mass, single = position(xp, function, "inverse_mass", mass, dtype, dim)
        if single:
            mass = mass[0, :]
        elif mass.shape[0] != count:
            raise ShapeError(
                f"[{function}] expected inverse_mass of {count} chains, got {mass.shape}"
            )
    return (*arrays, sizes, steps, mass)
