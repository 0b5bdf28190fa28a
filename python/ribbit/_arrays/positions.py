"""Checks of positions and trajectories in arrays of any library."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.checks import _MAX_STEPS, all_true, numeric, own_memory, summary, unmasked
from ribbit._arrays.namespace import host_dtype, is_array, namespace
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


def position(
    xp: ModuleType, function: str, name: str, value: Any, dtype: np.dtype[Any], dim: int
) -> tuple[Array, bool]:
    """Return a position (dim,) or (C, dim) of `xp` as a C-contiguous (C, dim), and which it was."""
    if xp is np:
        return host_position(function, name, value, dtype, dim)
    if not is_array(value) or namespace(value) is not xp or host_dtype(value) != dtype:
        raise DTypeError(
            f"[{function}] expected {name} as a {xp.__name__} array of dtype {dtype}, "
            f"got {summary(value)}"
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
    """Return the checked arguments of a trajectory of C chains; grad: an array, or None."""
    arrays: list[Array] = []
    for name, value in (("position", start), ("momentum", momentum), ("grad", grad)):
        if name == "grad" and value is None:
            arrays.append(None)
            continue
        array, single = position(xp, function, name, value, dtype, dim)
        if single or (arrays and array.shape != arrays[0].shape):
            chains = arrays[0].shape[0] if arrays else "C"
            raise ShapeError(
                f"[{function}] expected {name} of shape ({chains}, {dim}), got {summary(value)}"
            )
        arrays.append(array)
    count = arrays[0].shape[0]
    if xp is not np and is_array(step_size) and namespace(step_size) is xp:
        if step_size.shape not in ((), (count,)) or host_dtype(step_size) != np.float64:
            raise ShapeError(
                f"[{function}] expected step_size () or ({count},) float64, "
                f"got {step_size.dtype} of shape {step_size.shape}"
            )
        sizes = xp.asarray(xp.broadcast_to(step_size, (count,)), copy=True)
    else:
        host = per_chain(function, "step_size", step_size, count, np.float64)
        sizes = host if xp is np else xp.asarray(host)
    steps = per_chain(function, "num_steps", num_steps, count, np.int64)
    if mass is not None:
        given = mass
        mass, single = position(xp, function, "inverse_mass", given, dtype, dim)
        if single:
            mass = mass[0, :]
        elif mass.shape[0] != count:
            raise ShapeError(
                f"[{function}] expected inverse_mass of {count} chains, got {summary(given)}"
            )
    return (*arrays, sizes, steps, mass)


def host_position(
    function: str, name: str, value: object, dtype: np.dtype[Any], dim: int
) -> tuple[npt.NDArray[Any], bool]:
    """Return a position (dim,) or (C, dim) as (C, dim), unconverted, and whether it was (dim,)."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        raise DTypeError(
            f"[{function}] expected {name} as a NumPy array of dtype {dtype}, got {summary(value)}"
        )
    if type(value) is not np.ndarray:
        unmasked(function, name, value)
    shape = value.shape
    if not 1 <= len(shape) <= 2 or shape[-1] != dim or shape[0] == 0:
        raise ShapeError(
            f"[{function}] expected {name} of shape ({dim},) or (C, {dim}) with C >= 1, "
            f"got {summary(value)}"
        )
    own_memory(function, name, value)
    single = len(shape) == 1
    array = value[None] if single else value
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C", copy=True)
    return array, single


def drawn_positions(function: str, value: object, dim: int) -> npt.NDArray[Any]:
    """Return positions (C, D, dim) of draws, of any real dtype, as a NumPy array."""
    array = numeric(function, "draws", value)
    if array.ndim != 3 or array.shape[2] != dim or 0 in array.shape:
        raise ShapeError(
            f"[{function}] expected draws, or their positions (C, D, {dim}) with C, D >= 1, got "
            f"shape {array.shape}"
        )
    return array


def one_position(function: str, value: object, dim: int) -> npt.NDArray[Any]:
    """Return a single position (dim,), of any real dtype, as a NumPy array."""
    array = numeric(function, "theta", value)
    if array.shape != (dim,):
        raise ShapeError(f"[{function}] expected theta of shape ({dim},), got {summary(array)}")
    return array


def per_chain(
    function: str, name: str, value: object, chains: int, dtype: type[np.generic]
) -> npt.NDArray[Any]:
    """Return a number, or one per chain, as (C,) in float64 or int64; int64 must be >= 1."""
    whole = dtype is np.int64
    if type(value) is np.ndarray and value.dtype == dtype and value.shape == (chains,):
        array: npt.NDArray[Any] = value  # what samplers pass, without the detours below
    else:
        array = numeric(function, name, value)
        if array.dtype.kind not in ("iu" if whole else "iuf"):
            kind = "integers" if whole else "numbers"
            raise DTypeError(f"[{function}] expected {name} as {kind}, got {summary(array)}")
        if array.shape not in ((), (chains,)):
            raise ShapeError(
                f"[{function}] expected {name} of shape () or ({chains},), got {summary(array)}"
            )
        array = np.broadcast_to(array, (chains,))
    if whole and not 1 <= int(array.min()) <= int(array.max()) <= _MAX_STEPS:
        good = (array >= 1) & (array <= _MAX_STEPS)
        all_true(function, f"{name} in [1, {_MAX_STEPS}]", name, array, good)
    return np.ascontiguousarray(array, dtype=dtype)


def check_made(function: str, made: object, chains: int) -> None:
    """Raise unless `made` is None or an array (C,) that numbers of steps can be written to."""
    if made is None:
        return
    if not isinstance(made, np.ndarray) or made.dtype != np.int64 or not made.flags.writeable:
        raise DTypeError(
            f"[{function}] expected made as a writable int64 NumPy array, got {summary(made)}"
        )
    if made.shape != (chains,):
        raise ShapeError(f"[{function}] expected made of shape ({chains},), got {summary(made)}")
