"""Random numbers and Metropolis steps on arrays of a device: a launch each, nothing waits."""

# Functions have the names of ``ribbit._core``; arrays are C-contiguous, and the last arguments are
# what is written.

from __future__ import annotations

from typing import Any

import numpy as np

from ribbit._arrays.device import (
    MOST_ALONG_Y,
    THREADS,
    Device,
    Field,
    blocks_of,
    numbers_at_once,
    pack,
)
from ribbit._arrays.namespace import host_dtype
from ribbit.protocols import Array

_SCALARS = {"float32": "float", "float64": "double"}
# Samples of a thread, which keeps what does not depend on them; and blocks that fill a device.
_MOST_SAMPLES, _ENOUGH_BLOCKS = 32, 2048
_PER_BLOCK = 4  # numbers that a thread makes of one block of the generator


def names(dtype: np.dtype[Any]) -> list[str]:
    """Return the kernels that Metropolis samplers launch, for positions of a dtype."""
    scalar = _SCALARS[dtype.name]
    of_scalar = [f"{name}<{scalar}>" for name in ("FillNormal", "KineticEnergy", "FiniteRows")]
    selects = [f"Select<{one}>" for one in {scalar, "double"}]  # positions, log densities
    return [*of_scalar, *selects, "FillUniform", "Accept"]


def stream_fields(
    seed: int, step: int, purpose: int, layer: int = 0, chains: Array | None = None
) -> tuple[Field, ...]:
    """Return the members of ``Stream`` (random_kernels.h): chains (C,) ids, None for 0, 1, ..."""
    return seed, step, purpose << 24 | layer << 8, chains


def round_keys(seed: int) -> tuple[int, ...]:
    """Return the members of ``RoundKeys`` (random_kernels.h), the keys of the ten rounds."""
    mask = (1 << 32) - 1
    return tuple(
        (seed + 0x9E3779B9 * i) & mask | (((seed >> 32) + 0xBB67AE85 * i) & mask) << 32
        for i in range(10)
    )


def fill_normal(device: Device, stream: tuple[Field, ...], out: Array) -> None:
    """Fill out (C, n), float32 or float64, with standard normals."""
    rows, n = _rows("normals", out)
    grid = blocks_of(-(-n // _PER_BLOCK)), rows
    _launch(device, f"FillNormal<{_scalar(out)}>", grid, *stream, n, out)


def fill_uniform(device: Device, stream: tuple[Field, ...], out: Array) -> None:
    """Fill out (C, n) float64 with uniforms of 53 bits."""
    rows, n = _rows("uniforms", out)
    _launch(device, "FillUniform", (blocks_of(-(-n // 2)), rows), *stream, n, out)


def draw(
    device: Device,
    stream: tuple[Field, ...],
    mean: Array,
    scale: Array,
    out: Array,
    *,
    from_rho: bool,
    first: int = 0,
) -> None:
    """Fill out (S, P) with mean + scale * eps; `from_rho`: scale is softplus of what is given."""
    # Sample s has chain first + s. Arrays are float32 or float64, mean and scale (P,).
    samples, n = out.shape
    size, flag = host_dtype(out).itemsize, str(from_rho).lower()
    at_once = numbers_at_once(device, n, size, mean, scale, out)
    name = f"Reparameterize<{_scalar(out)}, {flag}, {at_once}>"
    row, wide = n * size, blocks_of(-(-n // _PER_BLOCK))
    each = max(1, min(_MOST_SAMPLES, wide * samples // _ENOUGH_BLOCKS))  # of a thread
    most, keys = MOST_ALONG_Y * each, round_keys(stream[0])
    for begin in range(0, samples, most):
        count = min(most, samples - begin)
        to = device.pointer(out) + begin * row
        fields = *keys, *stream, None, first + begin, each, count, mean, scale, n, to
        _launch(device, name, (wide, -(-count // each)), *fields)


def kinetic_energy(device: Device, momentum: Array, inverse_mass: Array | None, out: Array) -> None:
    """Write 0.5 sum p^2 inverse_mass of momentum (C, P) to out (C,) float64."""
    rows, n = _rows("chains", momentum)
    stride = n if inverse_mass is not None and inverse_mass.ndim == 2 else 0
    name = f"KineticEnergy<{_scalar(momentum)}>"
    _launch(device, name, (1, rows), momentum, inverse_mass, stride, n, out)


def finite_rows(device: Device, first: Array, second: Array, out: Array) -> None:
    """Write whether all of a row of both arrays (C, P) is finite, (C,) bool."""
    rows, n = _rows("chains", first)
    _launch(device, f"FiniteRows<{_scalar(first)}>", (1, rows), first, second, n, out)


def accept(
    device: Device, stream: tuple[Field, ...], error: Array, accepted: Array, rate: Array
) -> None:
    """Write who is accepted (C,) bool and the probability (C,) for energy errors (C,) float64."""
    (count,) = error.shape
    grid = -(-count // THREADS), 1
    _launch(device, "Accept", grid, *stream, error, count, accepted, rate)


def select(device: Device, accepted: Array, proposal: Array, old: Array, out: Array) -> None:
    """Write rows (C, n) of `proposal` where accepted (C,) bool, else of `old`."""
    rows, n = _rows("chains", out)
    grid = blocks_of(n), rows
    _launch(device, f"Select<{_scalar(out)}>", grid, accepted, proposal, old, n, out)


def _launch(device: Device, name: str, grid: tuple[int, int], *fields: Field) -> None:
    device.kernels([name])[name]((*grid, 1), pack(device, fields))


def _scalar(array: Array) -> str:
    return _SCALARS[host_dtype(array).name]


def _rows(what: str, array: Array) -> tuple[int, int]:
    rows, n = array.shape
    if rows > MOST_ALONG_Y:
        raise ValueError(
            f"[ribbit] expected {what} of at most {MOST_ALONG_Y} chains in one call on a device, "
            f"got {rows}"
        )
    return rows, n
