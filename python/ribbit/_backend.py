"""Which array library an array belongs to, and what the native module does for each.

The only module that knows about CuPy. Samplers, draws and predictions use the functions here and,
on positions and gradients, the Python array API standard alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _checks, _core
from ribbit.errors import DTypeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "MOMENTUM",
    "InterruptFlag",
    "Interrupted",
    "epoch_rows",
    "errstate",
    "finite_rows",
    "from_host",
    "kinetic_energy",
    "namespace",
    "normal",
    "num_threads",
    "set_num_threads",
    "to_host",
    "uniform",
    "version",
]

InterruptFlag = _core.InterruptFlag
Interrupted = _core.Interrupted

# Purposes of random numbers, as in core/philox_hd.h; a number never changes.
MOMENTUM, ACCEPT, JITTER, INIT, WEIGHT_NOISE = 1, 2, 3, 4, 5
MASK, BATCH_ORDER, UPDATE_NOISE, PUBLIC, PREDICTIVE_NOISE = 6, 7, 8, 9, 10
FIT_DRAW = 13

_IGNORE: Any = contextlib.nullcontext()


def namespace(*arrays: Array, function: str = "ribbit") -> ModuleType:
    """Return the library that all `arrays` belong to: numpy, cupy, or their own namespace.

    Raises
    ------
    DTypeError
        When they belong to different libraries, or one is not an array. Nothing is ever copied
        between libraries or devices silently.
    """
    found: ModuleType | None = None
    for array in arrays:
        if isinstance(array, np.ndarray | np.generic):
            one: ModuleType = np
        elif type(array).__module__.partition(".")[0] == "cupy":
            one = sys.modules["cupy"]
        else:
            get = getattr(array, "__array_namespace__", None)
            if get is None or isinstance(array, type):
                raise DTypeError(f"[{function}] expected an array, got {_checks.summary(array)}")
            one = get()
        if found is not None and one is not found:
            raise DTypeError(
                f"[{function}] expected arrays of one library, got {found.__name__} and "
                f"{one.__name__} (convert them yourself: nothing is copied silently)"
            )
        found = one
    return np if found is None else found


def is_array(value: object) -> bool:
    """Whether `value` is an array of some library (and not a list or a number)."""
    return isinstance(value, np.ndarray) or (
        hasattr(value, "__array_namespace__") and not isinstance(value, type)
    )


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


def require_memory(xp: ModuleType, count: int, dtype: Any, what: str) -> None:
    """Raise MemoryError when `count` numbers of a dtype are more than the host has free."""
    if xp is np:
        _core.require_memory(count * np.dtype(dtype).itemsize, what)


def errstate(xp: ModuleType) -> contextlib.AbstractContextManager[None]:
    """Context in which overflow and NaN are data, not warnings."""
    return np.errstate(all="ignore") if xp is np else _IGNORE


def normal(
    xp: ModuleType,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    *,
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
    purpose: int,
    layer: int = 0,
) -> Array:
    """Return standard normals (C, n) addressed by (seed, purpose, layer, step, chain, element).

    Parameters
    ----------
    xp
        Library of the result; anything but NumPy is filled on the host and copied.
    shape : (C, n)
    dtype
        float32 or float64.
    seed, step : int
        64-bit key and 40-bit counter.
    chains : (C,) uint32 array
    purpose, layer : int
        Numbers of ``core/philox_hd.h``.
    """
    out = np.empty(shape, dtype)
    _core.fill_normal(out, seed, step, chains, purpose, layer)
    return out if xp is np else xp.asarray(out)


def uniform(
    xp: ModuleType,
    shape: tuple[int, int],
    *,
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
    purpose: int,
    layer: int = 0,
) -> Array:
    """Return float64 uniforms (C, n) in (0, 1); the arguments are those of :func:`normal`."""
    out = np.empty(shape)
    _core.fill_uniform(out, seed, step, chains, purpose, layer)
    return out if xp is np else xp.asarray(out)


def epoch_rows(
    rows: int, *, seed: int, chain: int, epoch: int, begin: int, count: int
) -> npt.NDArray[np.int64]:
    """Return places begin .. begin + count - 1 of an epoch's order of the rows, (count,)."""
    out: npt.NDArray[np.int64] = _core.epoch_rows(rows, seed, chain, epoch, begin, count)
    return out


def kinetic_energy(xp: ModuleType, momentum: Array, inverse_mass: Array | None) -> Array:
    """Return 0.5 * sum(momentum^2 * inverse_mass) per chain, (C,), summed in float64."""
    if xp is np:
        return _core.kinetic_energy(momentum, inverse_mass)
    square = xp.astype(momentum, xp.float64) ** 2
    if inverse_mass is not None:
        square = square * xp.astype(inverse_mass, xp.float64)
    return 0.5 * xp.sum(square, axis=-1)


def finite_rows(xp: ModuleType, first: Array, second: Array) -> Array:
    """Return for every row of two (C, P) arrays whether all of both is finite, (C,) bool."""
    if xp is np:
        # Native sums of squares are finite when their terms are, overflow aside.
        finite = np.isfinite(_core.kinetic_energy(first, None) + _core.kinetic_energy(second, None))
        if finite.all():
            return finite
    return xp.all(xp.isfinite(first), axis=1) & xp.all(xp.isfinite(second), axis=1)


def set_num_threads(n: int) -> None:
    """Set how many threads the native code may use, for the whole process.

    The default is the number of cores this process may use, or RIBBIT_NUM_THREADS. Draws do not
    depend on it.

    Parameters
    ----------
    n : int
        At least 1.
    """
    _core.set_num_threads(_checks.integer("set_num_threads", "n", n, minimum=1, maximum=1024))


def num_threads() -> int:
    """Return how many threads the native code may use."""
    return int(_core.num_threads())


def version() -> str:
    """Return the version of the native module, which is the package's."""
    return str(_core.build_info()["version"])


def _threads_from_environment() -> None:
    text = os.environ.get("RIBBIT_NUM_THREADS", "").strip()
    if text:
        if not text.isdecimal() or not 1 <= int(text) <= 1024:
            raise ValueError(
                f"[ribbit] expected RIBBIT_NUM_THREADS as an integer from 1 to 1024, got {text!r}"
            )
        _core.set_num_threads(int(text))


_threads_from_environment()
