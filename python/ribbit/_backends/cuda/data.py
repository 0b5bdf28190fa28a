"""Data rows in device memory: the checks that `Cpu.rows` makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import dtype_in, namespace, to_host
from ribbit._arrays.row_shapes import check_rows
from ribbit._backends.density_table import NetworkTable
from ribbit.errors import DataError, DTypeError
from ribbit.protocols import Array

__all__ = ["device_rows"]


def device_rows(function: str, network: NetworkTable, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return rows of a device array as a finite flat (N, D) in `dtype` or uint8."""
    xp = namespace(x, function=function)
    shape = network.input_shape
    check_rows(function, tuple(x.shape), shape, str(x.shape))
    if not xp.isdtype(x.dtype, ("bool", "integral", "real floating")):
        raise DTypeError(f"[{function}] expected x as real numbers, got dtype {x.dtype}")
    count = x.shape[0]
    if x.dtype == xp.uint8 and len(shape) == 3:
        return xp.ascontiguousarray(xp.reshape(x, (count, -1)))
    flat = xp.astype(xp.reshape(x, (count, -1)), dtype_in(xp, dtype), copy=False)
    good = xp.isfinite(flat)
    what = f"finite {dtype} values in x"
    if network.tokens:
        good = good & (flat >= 0) & (flat < network.tokens) & (flat == xp.floor(flat))
        what = f"integer tokens in [0, {network.tokens}) in x"
    if not bool(xp.all(good)):
        first = int(np.argmin(to_host(good)))
        index = tuple(int(i) for i in np.unravel_index(first, (count, *shape)))
        got = checks.summary(to_host(x)[index])
        raise DataError(f"[{function}] expected {what}, got {got} at {index}")
    return xp.ascontiguousarray(flat)
