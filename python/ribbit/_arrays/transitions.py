"""What a Metropolis step does to each of C chains, in arrays of any library."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ribbit import _core
from ribbit._arrays import device_kernels
from ribbit._arrays.namespace import device_of
from ribbit._arrays.random_numbers import ACCEPT, ids_on, uniform
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


def kinetic_energy(xp: ModuleType, momentum: Array, inverse_mass: Array | None) -> Array:
    """Return 0.5 * sum(momentum^2 * inverse_mass) per chain, (C,), summed in float64."""
    if xp is np:
        return _core.kinetic_energy(momentum, inverse_mass)
    device = device_of(xp)
    if device is not None:
        out = xp.empty((momentum.shape[0],), dtype=xp.float64)
        device_kernels.kinetic_energy(device, momentum, inverse_mass, out)
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
        device_kernels.finite_rows(device, first, second, out)
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
    """Return accepted (C,) bool, log u < -error, and its probability (C,), 0 if not finite."""
    device = device_of(xp)
    if device is not None:
        flags = xp.empty(energy_error.shape, dtype=xp.bool)
        rates = xp.empty(energy_error.shape, dtype=xp.float64)
        ids = ids_on(device, chains)
        stream = device_kernels.stream_fields(seed, step, ACCEPT, 0, ids)
        device_kernels.accept(device, stream, energy_error, flags, rates)
        return flags, rates
    if xp is np:
        return _core.accept(energy_error, seed, step, chains)
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
        device_kernels.select(device, accepted, proposal, old, out)
        return out
    return xp.where(accepted[:, None], proposal, old)
