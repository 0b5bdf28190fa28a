"""Data of a posterior in device memory: the checks that `Model.rows` and a likelihood make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays import checks
from ribbit._arrays.device import Device
from ribbit._arrays.namespace import (
    device_of,
    dtype_in,
    from_device,
    host_dtype,
    is_device_array,
    namespace,
    to_host,
)
from ribbit.errors import DataError, DTypeError, ShapeError
from ribbit.models.model import Model
from ribbit.protocols import Array
from ribbit.targets.likelihoods import Likelihood, Poisson, log_factorials

__all__ = ["DeviceData", "device_data", "device_rows"]


@dataclass(frozen=True)
class DeviceData:
    """Rows and targets in device memory.

    Attributes
    ----------
    device : Device
    x : (N, D) array
        In the target's dtype, or uint8.
    y : (N, J) array
    row_constants : (N,) float64 NumPy array or None
        -sum of log y! for counts.
    """

    device: Device
    x: Array
    y: Array
    row_constants: npt.NDArray[np.float64] | None


def device_data(
    function: str, model: Model, likelihood: Likelihood, x: Any, y: Any, dtype: np.dtype[Any]
) -> DeviceData:
    """Return checked rows and targets; what has the right dtype and layout is not copied.

    The targets are looked at on the host, once.

    Raises
    ------
    TypeError, ValueError
        For what does not fit, and when only one of `x` and `y` is in device memory.
    """
    if not (is_device_array(x) and is_device_array(y)):
        raise DTypeError(
            f"[{function}] expected x and y both in device memory or neither, "
            f"got {checks.summary(x)} and {checks.summary(y)} (nothing is copied silently)"
        )
    x = from_device(function, "x", x)
    y = from_device(function, "y", y)
    xp = namespace(x, y, function=function)
    device = device_of(xp)
    assert device is not None
    rows = device_rows(function, model, x, dtype)
    host = likelihood.targets(function, to_host(y), rows.shape[0], model.output_shape, dtype)
    same = host_dtype(y) == dtype and y.flags.c_contiguous
    targets = xp.reshape(y, host.shape) if same else xp.asarray(host)
    constants = None
    if isinstance(likelihood, Poisson):
        constants = -log_factorials(host).sum(axis=1)
    return DeviceData(device, rows, targets, constants)


def device_rows(function: str, model: Model, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return data rows of a device array as a finite flat (N, D) in `dtype`, or in uint8."""
    xp = namespace(x, function=function)
    shape = model.input_shape
    if x.ndim == 0 or x.shape[1:] != shape or x.shape[0] == 0:
        expected = ", ".join(["N", *map(str, shape)])
        raise ShapeError(
            f"[{function}] expected x of shape ({expected}) with N >= 1 for a model with "
            f"input_shape {shape}, got {x.shape}"
        )
    if not xp.isdtype(x.dtype, ("bool", "integral", "real floating")):
        raise DTypeError(f"[{function}] expected x as real numbers, got dtype {x.dtype}")
    count = x.shape[0]
    if x.dtype == xp.uint8 and len(shape) == 3:
        return xp.ascontiguousarray(xp.reshape(x, (count, -1)))
    flat = xp.astype(xp.reshape(x, (count, -1)), dtype_in(xp, dtype), copy=False)
    good = xp.isfinite(flat)
    what = f"finite {dtype} values in x"
    if model.tokens:
        good = good & (flat >= 0) & (flat < model.tokens) & (flat == xp.floor(flat))
        what = f"integer tokens in [0, {model.tokens}) in x"
    if not bool(xp.all(good)):
        first = int(np.argmin(to_host(good)))
        index = tuple(int(i) for i in np.unravel_index(first, (count, *shape)))
        got = checks.summary(to_host(x)[index])
        raise DataError(f"[{function}] expected {what}, got {got} at {index}")
    return xp.ascontiguousarray(flat)
