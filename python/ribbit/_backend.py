"""Which array library an array belongs to, and what the native modules do for each.

NumPy arrays go to ``ribbit._core``, arrays of a device to ``ribbit._cuda``, those of any other
library are filled on the host or left to the library. The only module that knows about CuPy, with
``_cupy.py``. Samplers, draws and predictions use the functions here and, on positions and
gradients, the Python array API standard alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _checks, _core, _interfaces
from ribbit.errors import DTypeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit._device import Device


__all__ = [
    "MOMENTUM",
    "InterruptFlag",
    "Interrupted",
    "accept",
    "device_of",
    "draw_weights",
    "epoch_rows",
    "errstate",
    "finite_rows",
    "from_device",
    "from_host",
    "is_device_array",
    "kinetic_energy",
    "namespace",
    "normal",
    "num_threads",
    "refuse_device_array",
    "reparameterize",
    "select",
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

_devices: dict[str, Device] = {}  # by the name of the array library
_chain_ids: dict[tuple[str, int, int, bytes], Array] = {}  # the last ones on a device and stream
_MOST_CHAIN_IDS = 16


def device_of(xp: ModuleType, function: str = "ribbit") -> Device | None:
    """Return the device whose arrays are those of the library `xp`; None: it is not a device's.

    `function` names the caller in errors.

    Raises
    ------
    ImportError, RuntimeError
        When `xp` is CuPy and something that a device needs is missing; see `CupyDevice`.
    """
    if xp is np:
        return None
    name = xp.__name__
    if name == "cupy" and name not in _devices:
        from ribbit._cupy import CupyDevice

        _devices[name] = CupyDevice(function)
    return _devices.get(name)


def is_device_array(value: object) -> bool:
    """Whether `value` lies in device memory, whatever library it belongs to."""
    return _interfaces.in_device_memory(value)


def from_device(function: str, name: str, value: Any) -> Array:
    """Return an array in device memory as one of a library that ribbit computes with, uncopied.

    CuPy arrays pass through; those of PyTorch, JAX and others that know the CUDA array interface or
    DLPack become CuPy arrays on the same memory.

    Raises
    ------
    DTypeError
        When the interface is malformed, or the library does not give the memory away.
    ImportError, RuntimeError
        When CuPy is not installed, and as for :func:`device_of`.
    """
    get = getattr(value, "__array_namespace__", None)
    if get is not None and not isinstance(value, type) and get().__name__ in _devices:
        return value
    interface = _interfaces.has_cuda_interface(value)
    wrong = _interfaces.malformed(value) if interface else ""
    if wrong:
        raise _no_device_array(function, name, value, wrong)
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            f"[{function}] expected CuPy for {name} in device memory, got {error} "
            '(pip install ".[cuda13]" or ".[cuda12]", from the root of ribbit)'
        ) from error
    device_of(cupy, function)
    if isinstance(value, cupy.ndarray):
        return value
    try:
        return cupy.asarray(value) if interface else cupy.from_dlpack(value)
    except Exception as error:  # what another library raises
        raise _no_device_array(function, name, value, _interfaces.reason(error)) from error


def _no_device_array(function: str, name: str, value: object, why: str) -> DTypeError:
    return DTypeError(
        f"[{function}] expected {name} as an array in device memory, "
        f"got {_checks.summary(value)} ({why})"
    )


def refuse_device_array(function: str, name: str, value: object, positions: Array) -> None:
    """Raise DTypeError for a `value` in device memory where `positions` are NumPy's."""
    if isinstance(positions, np.ndarray) and is_device_array(value):
        raise DTypeError(
            f"[{function}] expected {name} in host memory, where the draws are, "
            f"got {_checks.summary(value)}"
        )


def _ids_on(device: Device, chains: npt.NDArray[np.uint32]) -> Array:
    """Return chain ids in device memory; the same few are asked for again and again."""
    # The default stream has the same handle on every device.
    key = device.xp.__name__, device.number, device.stream(), chains.tobytes()
    ids = _chain_ids.get(key)
    if ids is None:
        if len(_chain_ids) >= _MOST_CHAIN_IDS:
            _chain_ids.clear()
        ids = _chain_ids[key] = device.xp.asarray(chains)
    return ids


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
                got = _checks.summary(array)
                raise DTypeError(f"[{function}] expected a NumPy or CuPy array, got {got}")
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
        Library of the result; what is neither NumPy's nor a device's is filled on the host.
    shape : (C, n)
    dtype
        float32 or float64.
    seed, step : int
        64-bit key and 40-bit counter.
    chains : (C,) uint32 array
    purpose, layer : int
        Numbers of ``core/philox_hd.h``.
    """
    device = device_of(xp)
    if device is not None:
        array = xp.empty(shape, dtype=dtype_in(xp, dtype))
        ids = _ids_on(device, chains)
        device.native.fill_normal(array, seed, step, ids, purpose, layer, device.stream())
        return array
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
    device = device_of(xp)
    if device is not None:
        array = xp.empty(shape, dtype=xp.float64)
        ids = _ids_on(device, chains)
        device.native.fill_uniform(array, seed, step, ids, purpose, layer, device.stream())
        return array
    out = np.empty(shape)
    _core.fill_uniform(out, seed, step, chains, purpose, layer)
    return out if xp is np else xp.asarray(out)


def reparameterize(
    xp: ModuleType, mean: Array, rho: Array, samples: int, *, seed: int, step: int
) -> Array:
    """Return weights mean + softplus(rho) * eps (S, P), eps of (seed, weight noise, step, s).

    Parameters
    ----------
    xp
        Library of the arrays: NumPy or a device's.
    mean, rho : (P,) array
    samples : int
        S.
    seed, step : int
        64-bit key and 40-bit counter.

    Returns
    -------
    (S, P) array
    """
    device = device_of(xp)
    if device is None:
        native = _core.reparameterize32 if mean.dtype == np.float32 else _core.reparameterize64
        return native(mean, rho, samples, seed, step)
    out = xp.empty((samples, mean.shape[0]), dtype=mean.dtype)
    device.native.reparameterize(out, mean, rho, seed, step, device.stream())
    return out


def draw_weights(xp: ModuleType, mean: Array, scale: Array, samples: int, *, seed: int) -> Array:
    """Return weights mean + scale * eps (S, P), eps of (seed, fit draw, s).

    Parameters
    ----------
    xp
        Library of the arrays; a library's without native code computes in two roundings.
    mean, scale : (P,) array
    samples : int
        S.
    seed : int
        64-bit key.

    Returns
    -------
    (S, P) array
    """
    if xp is np:
        mean, scale = np.ascontiguousarray(mean), np.ascontiguousarray(scale)
        native = _core.draw_weights32 if mean.dtype == np.float32 else _core.draw_weights64
        return native(mean, scale, seed, samples)
    device = device_of(xp)
    if device is None:
        ids = np.arange(samples, dtype=np.uint32)
        shape = samples, int(mean.shape[0])
        dtype = host_dtype(mean)
        eps = normal(xp, shape, dtype, seed=seed, step=0, chains=ids, purpose=FIT_DRAW)
        return mean + scale * eps
    mean, scale = xp.ascontiguousarray(mean), xp.ascontiguousarray(scale)
    out = xp.empty((samples, mean.shape[0]), dtype=mean.dtype)
    device.native.draw_weights(out, mean, scale, seed, device.stream())
    return out


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
    device = device_of(xp)
    if device is not None:
        out = xp.empty((momentum.shape[0],), dtype=xp.float64)
        device.native.kinetic_energy(out, momentum, inverse_mass, device.stream())
        return out
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
    device = device_of(xp)
    if device is not None:
        out = xp.empty((first.shape[0],), dtype=xp.bool)
        device.native.finite_rows(out, first, second, device.stream())
        return out
    return xp.all(xp.isfinite(first), axis=1) & xp.all(xp.isfinite(second), axis=1)


def accept(
    xp: ModuleType,
    energy_error: Array,
    *,
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
) -> tuple[Array, Array]:
    """Return accepted (C,) bool and acceptance probability (C,) for energy errors (C,) float64.

    Accepted where the error is finite and log u < -error; the probability is 0 where it is not
    finite.
    """
    device = device_of(xp)
    if device is not None:
        flags = xp.empty(energy_error.shape, dtype=xp.bool)
        rates = xp.empty(energy_error.shape, dtype=xp.float64)
        ids = _ids_on(device, chains)
        device.native.accept(flags, rates, energy_error, seed, step, ids, ACCEPT, device.stream())
        return flags, rates
    finite = xp.isfinite(energy_error)
    shape = chains.shape[0], 1
    u = uniform(xp, shape, seed=seed, step=step, chains=chains, purpose=ACCEPT)[:, 0]
    drop = -energy_error
    accepted = finite & (xp.log(u) < drop)
    rate = xp.where(finite, xp.exp(xp.minimum(drop, 0.0)), 0.0)
    return accepted, rate


def select(xp: ModuleType, accepted: Array, proposal: Array, old: Array) -> Array:
    """Return rows (C, n) of `proposal` where accepted (C,), else of `old`."""
    device = device_of(xp)
    if device is not None:
        out = xp.empty(proposal.shape, dtype=proposal.dtype)
        device.native.select(out, accepted, proposal, old, device.stream())
        return out
    return xp.where(accepted[:, None], proposal, old)


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
