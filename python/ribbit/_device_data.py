"""Data of a posterior in device memory: the checks that `Model.rows` and a likelihood make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit import _backend, _checks
from ribbit._device import Device
from ribbit.errors import DataError, DTypeError, ShapeError
from ribbit.likelihoods import Likelihood, Poisson, log_factorials
from ribbit.model import Model
from ribbit.protocols import Array

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
    if not (_backend.is_device_array(x) and _backend.is_device_array(y)):
        raise DTypeError(
            f"[{function}] expected x and y both in device memory or neither, "
            f"got {_checks.summary(x)} and {_checks.summary(y)} (nothing is copied silently)"
        )
    x = _backend.from_device(function, "x", x)
    y = _backend.from_device(function, "y", y)
    xp = _backend.namespace(x, y, function=function)
    device = _backend.device_of(xp)
    assert device is not None
    rows = device_rows(function, model, x, dtype)
    host = likelihood.targets(
        function, _backend.to_host(y), rows.shape[0], model.output_shape, dtype
    )
    same = _backend.host_dtype(y) == dtype and y.flags.c_contiguous
    targets = xp.reshape(y, host.shape) if same else xp.asarray(host)
    constants = None
    if isinstance(likelihood, Poisson):
        constants = -log_factorials(host).sum(axis=1)
    return DeviceData(device, rows, targets, constants)


def device_rows(function: str, model: Model, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return data rows of a device array as a finite flat (N, D) in `dtype`, or in uint8."""
    xp = _backend.namespace(x, function=function)
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
    flat = xp.astype(xp.reshape(x, (count, -1)), _backend.dtype_in(xp, dtype), copy=False)
    good = xp.isfinite(flat)
    what = f"finite {dtype} values in x"
    if model.tokens:
        good = good & (flat >= 0) & (flat < model.tokens) & (flat == xp.floor(flat))
        what = f"integer tokens in [0, {model.tokens}) in x"
    if not bool(xp.all(good)):
        first = int(np.argmin(_backend.to_host(good)))
        index = tuple(int(i) for i in np.unravel_index(first, (count, *shape)))
        got = _checks.summary(_backend.to_host(x)[index])
        raise DataError(f"[{function}] expected {what}, got {got} at {index}")
    return xp.ascontiguousarray(flat)
