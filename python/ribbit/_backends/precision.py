"""How products of float32 numbers are computed on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.warning import warn
from ribbit.errors import PrecisionWarning

if TYPE_CHECKING:
    from ribbit._arrays.device import Device

Precision: TypeAlias = Literal["float32", "mixed", "float64", "tf32"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


class Passes(NamedTuple):
    """Products of TF32 numbers that make one product; 0: it is computed in the scalar's dtype."""

    forward: int = 0  # 0, 1 (TF32) or 3 (3xTF32, as accurate as float32)
    backward: int = 0

    @property
    def exact(self) -> Passes:
        """Those of values that a sampler decides by: no plain TF32."""
        return Passes(0 if self.forward == 1 else self.forward)


PASSES = {"float32": Passes(), "float64": Passes(), "mixed": Passes(3, 1), "tf32": Passes(1, 1)}


def resolve(function: str, dtype: object, precision: object) -> tuple[np.dtype[Any], str]:
    """Return the dtype and the precision that two options stand for; None: the other decides."""
    chosen = None if dtype is None else checks.float_dtype(function, dtype)
    if precision is None:
        chosen = np.dtype(np.float32) if chosen is None else chosen
        return chosen, chosen.name
    name = checks.choice(function, "precision", precision, PRECISIONS)
    needed = np.dtype(np.float64 if name == "float64" else np.float32)
    if chosen is not None and chosen != needed:
        raise ValueError(
            f"[{function}] expected dtype {needed} for precision={name!r}, got dtype {chosen}"
        )
    return needed, name


def check_memory(function: str, precision: str, device: Device | None) -> None:
    """Raise ValueError unless the memory's device, None for the host, can compute so."""
    if not any(PASSES[precision]):
        return
    if device is None:
        raise ValueError(
            f"[{function}] expected precision='float32' or 'float64' for data in host memory, "
            f"got {precision!r}: tensor cores need data in device memory (cupy.asarray, "
            "tensor.cuda())"
        )
    if not device.tensor_cores:
        raise ValueError(
            f"[{function}] expected a device of compute capability 8.0 or more for "
            f"precision={precision!r}, got an older one: use 'float32'"
        )


def warn_of_tf32(function: str, precision: str) -> None:
    """Warn of plain TF32."""
    if precision == "tf32":
        warn(
            f"[{function}] expected precision='float32' or 'mixed' for gradients that HMC can rely "
            "on, got 'tf32': 10-bit products can halve the acceptance",
            PrecisionWarning,
        )
