"""Random numbers by counter, in arrays of any library."""

# NumPy arrays are filled by ``ribbit._core``, arrays of a device by its kernels, others on the
# host.

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _core
from ribbit._arrays import checks, device_kernels
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.namespace import device_of, dtype_in, host_dtype
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit._arrays.device import Device

# Purposes of random numbers, as in core/philox_hd.h; a number never changes.
_PURPOSES = _core.codes()["PURPOSES"]
MOMENTUM, ACCEPT, JITTER = (_PURPOSES[name] for name in ("momentum", "accept", "jitter"))
INIT, WEIGHT_NOISE, FIT_DRAW = (_PURPOSES[name] for name in ("init", "weight_noise", "fit_draw"))
MASK, PREDICTIVE_MASK = _PURPOSES["mask"], _PURPOSES["predictive_mask"]
ROW_NOISE, SIGNS = _PURPOSES["row_noise"], _PURPOSES["signs"]
TREE = _PURPOSES["tree"]
UPDATE_NOISE, PUBLIC = _PURPOSES["update_noise"], _PURPOSES["public"]
REFRESH = _PURPOSES["refresh"]

# Layers of FIT_DRAW: draws of a fit and what is sampled from their predictions may meet under one
# seed. Where two of them shared a layer, their numbers would be the same.
FIT_LAYERS = {
    "weights": 0,  # of a mean field, and the diagonal of SWAG
    "members": 1,
    "low rank": 2,
    "Gaussian": 3,  # of Laplace
    "picks": 5,  # of draws, for samples of a prediction
    "noise": 6,
    "second noise": 7,
}

_chain_ids: dict[tuple[str, int, int, bytes], Array] = {}  # the last ones on a device and stream


_MOST_CHAIN_IDS = 16


def ids_on(device: Device, chains: npt.NDArray[np.uint32]) -> Array:
    """Return chain ids in device memory; the same few are asked for again and again."""
    # The default stream has the same handle on every device.
    key = device.xp.__name__, device.number, device.stream(), chains.tobytes()
    ids = _chain_ids.get(key)
    if ids is None:
        if len(_chain_ids) >= _MOST_CHAIN_IDS:
            _chain_ids.clear()
        ids = _chain_ids[key] = device.xp.asarray(chains)
    return ids


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
    """Return normals (C, n) of (seed, purpose, layer, step, chain, element), float32 or float64."""
    # purpose, layer: numbers of ``core/philox_hd.h``. Other libraries than NumPy and a device's are
    # filled on the host.
    device = device_of(xp)
    if device is not None:
        array = xp.empty(shape, dtype=dtype_in(xp, dtype))
        ids = ids_on(device, chains)
        stream = device_kernels.stream_fields(seed, step, purpose, layer, ids)
        device_kernels.fill_normal(device, stream, array)
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
        ids = ids_on(device, chains)
        stream = device_kernels.stream_fields(seed, step, purpose, layer, ids)
        device_kernels.fill_uniform(device, stream, array)
        return array
    out = np.empty(shape)
    _core.fill_uniform(out, seed, step, chains, purpose, layer)
    return out if xp is np else xp.asarray(out)


def reparameterize(
    xp: ModuleType, mean: Array, rho: Array, samples: int, *, seed: int, step: int
) -> Array:
    """Return weights mean + softplus(rho) * eps (S, P), eps of (seed, weight noise, step, s)."""
    device = device_of(xp)
    if device is None:
        return _core.reparameterize(mean, rho, samples, seed, step)
    out = xp.empty((samples, mean.shape[0]), dtype=mean.dtype)
    stream = device_kernels.stream_fields(seed, step, WEIGHT_NOISE)
    device_kernels.draw(device, stream, mean, rho, out, from_rho=True)
    return out


def draw_weights(xp: ModuleType, mean: Array, scale: Array, samples: int, *, seed: int) -> Array:
    """Return weights mean + scale * eps (S, P), eps of (seed, fit draw, s)."""
    if xp is np:
        mean, scale = np.ascontiguousarray(mean), np.ascontiguousarray(scale)
        return _core.draw_weights(mean, scale, seed, samples)
    device = device_of(xp)
    if device is None:
        ids = np.arange(samples, dtype=np.uint32)
        shape = samples, int(mean.shape[0])
        dtype = host_dtype(mean)
        eps = normal(xp, shape, dtype, seed=seed, step=0, chains=ids, purpose=FIT_DRAW)
        return mean + scale * eps
    mean, scale = xp.ascontiguousarray(mean), xp.ascontiguousarray(scale)
    out = xp.empty((samples, mean.shape[0]), dtype=mean.dtype)
    stream = device_kernels.stream_fields(seed, 0, FIT_DRAW)
    device_kernels.draw(device, stream, mean, scale, out, from_rho=False)
    return out


def epoch_rows(
    rows: int, *, seed: int, chain: int, epoch: int, begin: int, count: int
) -> npt.NDArray[np.int64]:
    """Return places begin .. begin + count - 1 of an epoch's order of the rows, (count,)."""
    out: npt.NDArray[np.int64] = _core.epoch_rows(rows, seed, chain, epoch, begin, count)
    return out


def normal_starts(
    function: str,
    seed: checks.Seed,
    chains: int | npt.ArrayLike | None,
    dim: int,
    dtype: np.dtype[Any],
) -> FloatArray:
    """Return standard normals (C, dim), chain c the same whatever the others; None: one chain."""
    number = checks.seed(function, seed)
    ids = checks.chain_ids(function, 1 if chains is None else chains, each=dtype.itemsize * dim)
    out: FloatArray = normal(
        np,
        (ids.size, dim),
        dtype,
        seed=number,
        step=0,
        chains=ids,
        purpose=INIT,
    )
    return out
