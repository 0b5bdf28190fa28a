"""
Device kernels of ribbit. Arrays are checked, never converted.
"""

from __future__ import annotations
import typing

__all__: list[str] = [
    "DeviceError",
    "accept",
    "device_count",
    "device_name",
    "device_problem",
    "draw_weights",
    "fill_normal",
    "fill_uniform",
    "finite_rows",
    "kinetic_energy",
    "reparameterize",
    "runtime_version",
    "select",
]

class DeviceError(RuntimeError):
    pass

def accept(
    accepted: typing.Any,
    rate: typing.Any,
    energy_error: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    chains: typing.Any,
    purpose: typing.SupportsInt | typing.SupportsIndex,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def device_count() -> int: ...
def device_name() -> str: ...
def device_problem() -> str: ...
def draw_weights(
    out: typing.Any,
    mean: typing.Any,
    scale: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def fill_normal(
    out: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    chains: typing.Any,
    purpose: typing.SupportsInt | typing.SupportsIndex,
    layer: typing.SupportsInt | typing.SupportsIndex,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def fill_uniform(
    out: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    chains: typing.Any,
    purpose: typing.SupportsInt | typing.SupportsIndex,
    layer: typing.SupportsInt | typing.SupportsIndex,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def finite_rows(
    out: typing.Any,
    first: typing.Any,
    second: typing.Any,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def kinetic_energy(
    out: typing.Any,
    momentum: typing.Any,
    inverse_mass: typing.Any,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def reparameterize(
    out: typing.Any,
    mean: typing.Any,
    rho: typing.Any,
    seed: typing.SupportsInt | typing.SupportsIndex,
    step: typing.SupportsInt | typing.SupportsIndex,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def runtime_version() -> int: ...
def select(
    out: typing.Any,
    accepted: typing.Any,
    proposal: typing.Any,
    old: typing.Any,
    stream: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
