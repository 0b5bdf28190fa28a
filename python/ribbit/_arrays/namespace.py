"""Which array library an array belongs to, and how arrays pass between host and device."""

# Only this module and ``cupy.py`` know CuPy. Samplers, draws and predictions use these functions
# and the Python array API standard alone.

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.packages import advice
from ribbit.errors import DTypeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit._arrays.device import Device

_IGNORE: Any = contextlib.nullcontext()


_devices: dict[str, Device] = {}  # by the name of the array library
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_SILENT = {"cupy"}  # packages whose arrays have no `__array_namespace__`


def device_of(xp: ModuleType, function: str = "ribbit") -> Device | None:
    """Return the device whose arrays are those of the library `xp`; None: it is not a device's."""
    if xp is np:
        return None
    name = xp.__name__
    if name == "cupy" and name not in _devices:
        from ribbit._arrays.cupy import CupyDevice

        _devices[name] = CupyDevice(function)
    return _devices.get(name)


def library_of(value: object) -> ModuleType | None:
    """Return the library of an array by its type, None for what is no array."""
    # CuPy arrays have no ``__array_namespace__``, so the package of the type says it.
    if isinstance(value, np.ndarray | np.generic):
        return np
    if isinstance(value, type):
        return None
    if hasattr(type(value), "__cuda_array_interface__"):
        for kind in type(value).__mro__:
            package = kind.__module__.partition(".")[0]
            if package in _SILENT:
                return sys.modules[package]
    get = getattr(value, "__array_namespace__", None)
    return None if get is None else get()


def is_device_array(value: object) -> bool:
    """Whether `value` says that it lies in device memory, whatever library it belongs to."""
    if isinstance(value, np.ndarray):
        return False
    if checks.has_cuda_interface(value):
        return True
    try:
        where: Any = value.__dlpack_device__()  # type: ignore[attr-defined]
        return bool(where[0] in _DLPACK_CUDA)
    except Exception:  # no such method, or an array that lies nowhere (PyTorch's "meta")
        return False


def from_device(function: str, name: str, value: Any) -> Array:
    """Return an array in device memory as one of a known library on the same memory, uncopied."""
    library = library_of(value)
    if library is not None and library.__name__ in _devices:
        return value
    interface = checks.has_cuda_interface(value)
    wrong = checks.malformed(value) if interface else ""
    if wrong:
        raise _no_device_array(function, name, value, wrong)
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f"[{function}] expected CuPy for {name} in device memory, got {error}: {advice('cupy')}"
        ) from error
    device_of(cupy, function)
    if isinstance(value, cupy.ndarray):
        return value
    try:
        return cupy.asarray(value) if interface else cupy.from_dlpack(value)
    except Exception as error:  # what another library raises
        raise _no_device_array(function, name, value, checks.reason(error)) from error


def _no_device_array(function: str, name: str, value: object, why: str) -> DTypeError:
    return DTypeError(
        f"[{function}] expected {name} as an array in device memory, "
        f"got {checks.summary(value)} ({why})"
    )


def refuse_device_array(function: str, name: str, value: object, positions: Array) -> None:
    """Raise DTypeError for a `value` in device memory where `positions` are NumPy's."""
    if not is_device_array(positions) and is_device_array(value):
        raise DTypeError(
            f"[{function}] expected {name} in host memory, where the draws are, "
            f"got {checks.summary(value)}"
        )


def namespace(*arrays: Array, function: str = "ribbit", name: str = "an array") -> ModuleType:
    """Return the library that all `arrays` belong to: numpy, cupy, or their own namespace."""
    # Nothing is ever copied between libraries or devices silently.
    found: ModuleType | None = None
    for array in arrays:
        one = library_of(array)
        if one is None:
            got = checks.summary(array)
            of = "" if name == "an array" else f"{name} as "
            raise DTypeError(f"[{function}] expected {of}a NumPy or CuPy array, got {got}")
        if one is np and type(array) is not np.ndarray:
            checks.unmasked(function, name, array)
        if found is not None and one is not found:
            raise DTypeError(
                f"[{function}] expected arrays of one library, got {found.__name__} and "
                f"{one.__name__} (convert them yourself: nothing is copied silently)"
            )
        found = one
    return np if found is None else found


def is_lazy(array: object) -> bool:
    """Whether an array reads what is indexed, and should be asked for parts."""
    return getattr(array, "lazy", False) is True


def is_array(value: object) -> bool:
    """Whether `value` is an array of some library (and not a list or a number)."""
    return library_of(value) is not None


def to_host(array: Array) -> npt.NDArray[Any]:
    """Return a NumPy array with the contents of `array`; waits for the device."""
    if isinstance(array, np.ndarray):
        return array
    get = getattr(array, "get", None)  # CuPy refuses implicit copies to the host
    return np.asarray(get() if get is not None else array)


def from_host(xp: ModuleType, array: npt.NDArray[Any]) -> Array:
    """Return `array` in the library `xp`; NumPy arrays pass through."""
    return array if xp is np else xp.asarray(array)


def dtype_in(xp: ModuleType, dtype: np.dtype[Any]) -> Any:
    """Return the dtype object of `xp` for a NumPy float dtype."""
    return getattr(xp, dtype.name)


def host_dtype(array: Array) -> np.dtype[Any]:
    """Return the NumPy dtype of a floating array of any library."""
    dtype = array.dtype
    if isinstance(dtype, np.dtype):
        return dtype
    return np.dtype(str(dtype).rpartition(".")[2])


def require_memory(function: str, xp: ModuleType, count: int, dtype: Any, what: str) -> None:
    """Raise MemoryError when `count` numbers of a dtype are more than the host has free."""
    if xp is np:
        checks.memory(function, count, dtype, what)


def running_sum(xp: ModuleType, array: Array) -> Array:
    """Return the cumulative sums of an array along its last axis."""
    # NumPy has the name of the standard, cumulative_sum, from 2.1 on.
    if hasattr(xp, "cumulative_sum"):
        return xp.cumulative_sum(array, axis=-1)
    return xp.cumsum(array, axis=-1)


def errstate(xp: ModuleType) -> contextlib.AbstractContextManager[None]:
    """Context in which overflow and NaN are data, not warnings."""
    return np.errstate(all="ignore") if xp is np else _IGNORE
