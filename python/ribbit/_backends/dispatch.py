"""Which backend computes, decided once by where the arrays lie."""

# The device part is imported where a device is in use: a first draw on the CPU does not wait for
# it.

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import device_of, from_device, host_dtype, is_device_array, namespace
from ribbit._backends.cpu import Cpu
from ribbit._backends.density_table import NetworkTable
from ribbit.errors import DTypeError
from ribbit.protocols import Array

Backend: TypeAlias = Any  # Cpu or Cuda

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def backend_of(function: str, theta: Any) -> Backend:
    """Return what computes with parameters: their memory and their dtype decide."""
    if is_device_array(theta):
        xp = namespace(theta, function=function, name="theta")
        dtype = host_dtype(theta)
        if dtype not in _FLOATS:
            raise DTypeError(
                f"[{function}] expected theta in float32 or float64, got {theta.dtype}"
            )
        return _cuda(function, xp, dtype)
    kind = getattr(theta, "dtype", None)
    if kind not in (np.float32, np.float64):
        raise DTypeError(
            f"[{function}] expected theta as a float32 or float64 NumPy array, "
            f"got {checks.summary(theta)}"
        )
    return Cpu(np.dtype(kind))


def backend_of_data(function: str, dtype: np.dtype[Any], **data: Any) -> Backend:
    """Return what computes in `dtype` with data, all of it in device memory or none."""
    there = [is_device_array(value) for value in data.values()]
    if not any(there):
        return Cpu(dtype)
    if not all(there):
        raise DTypeError(
            f"[{function}] expected {' and '.join(data)} both in device memory or neither, "
            f"got {' and '.join(map(checks.summary, data.values()))} (nothing is copied silently)"
        )
    arrays = [from_device(function, name, value) for name, value in data.items()]
    return _cuda(function, namespace(*arrays, function=function), dtype)


def outputs(
    function: str,
    network: NetworkTable,
    theta: Any,
    x: Any,
    dim: int,
    precision: str = "float32",
    scales: Any = None,
) -> Array:
    """Return raw outputs (N, K) or (S, N, K) for parameters (dim,) or (S, dim), the last unused."""
    # scales (K, 8): learned scales of weights if parameters are positions; see `DensityTable`.
    backend = backend_of(function, theta)
    samples, single = backend.position(function, theta, dim)
    source = backend.stored(samples[None, :, :], scales)
    count = samples.shape[0]
    out, _ = backend.outputs(
        function, network, source, x, first=0, count=count, precision=precision
    )
    return out[0, :, :] if single else out


def _cuda(function: str, xp: Any, dtype: np.dtype[Any]) -> Backend:
    from ribbit._backends.cuda.backend import Cuda

    device = device_of(xp, function)
    assert device is not None
    return Cuda(device, dtype)
