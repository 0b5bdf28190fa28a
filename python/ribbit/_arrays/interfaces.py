"""The two protocols by which an array says that it lies in device memory; needs no device."""

from __future__ import annotations

from numbers import Integral  # NumPy's integers too
from typing import Any

import numpy as np

__all__ = ["has_cuda_interface", "in_device_memory", "malformed", "reason"]

_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


def has_cuda_interface(value: object) -> bool:
    """Whether `value` has the CUDA array interface, also one that raises when it is read."""
    try:
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # PyTorch's property raises RuntimeError for a tensor that requires grad
        return True


def in_device_memory(value: object) -> bool:
    """Whether `value` says that it lies in device memory."""
    if isinstance(value, np.ndarray):
        return False
    if has_cuda_interface(value):
        return True
    try:
        where: Any = value.__dlpack_device__()  # type: ignore[attr-defined]
        return bool(where[0] in _DLPACK_CUDA)
    except Exception:  # no such method, or an array that lies nowhere (PyTorch's "meta")
        return False


def malformed(value: object) -> str:
    """Return what is wrong with the CUDA array interface of `value`, "" when nothing is."""
    # Checked before an array library reads it, which may do so without looking.
    try:
        given: Any = value.__cuda_array_interface__  # type: ignore[attr-defined]
    except Exception as error:
        return reason(error)
    if not isinstance(given, dict):
        return f"its __cuda_array_interface__ is {type(given).__name__}, not dict"
    missing = [repr(key) for key in ("shape", "typestr", "data", "version") if key not in given]
    if missing:
        return f"its __cuda_array_interface__ lacks {', '.join(missing)}"
    shape, data = given["shape"], given["data"]
    if not isinstance(shape, tuple) or not all(
        isinstance(n, Integral) and int(n) >= 0 for n in shape
    ):
        return f"its shape is {shape!r}"
    try:
        native = np.dtype(given["typestr"]).isnative
    except (TypeError, ValueError):
        native = False
    if not native:
        return f"its typestr is {given['typestr']!r}"
    if not (isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Integral)):
        return f"its data is {data!r}"
    if data[0] == 0 and all(shape):
        return "its pointer is null"
    strides = given.get("strides")
    if strides is not None and (
        not isinstance(strides, tuple)
        or len(strides) != len(shape)
        or not all(isinstance(n, Integral) for n in strides)
    ):
        return f"its strides are {strides!r}"
    return ""


def reason(error: BaseException) -> str:
    """Return the first line of what a library said."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
