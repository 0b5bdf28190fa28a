"""Numbers that the native core and the device's kernels share with Python, by name."""

# They come from the core, where each is typed once: ``cpp/bindings/bind_codes.cpp``.

from __future__ import annotations

import struct

from ribbit import _core

_TABLES = _core.codes()


def _ordered(name: str) -> dict[str, int]:
    return dict(sorted(_TABLES[name].items(), key=lambda item: item[1]))


OPS = _ordered("OPS")
"""Operations of a row of the layer table, as in ``core/network.h``."""
COLUMNS = tuple(_ordered("COLUMNS"))
"""Columns of the layer table. Absent offsets and numbers are -1; "number" holds a
float64."""
ACTIVATIONS = _ordered("ACTIVATIONS")
"""Kinds of activations, as in ``core/activation_hd.h``; gelu is the exact one, with erf."""
PRIORS = _ordered("PRIORS")
"""Kinds of priors by the name of their class, as in ``core/prior_hd.h``."""
LIKELIHOODS = _ordered("LIKELIHOODS")
"""Kinds of likelihoods by the name of their class, "Learned" behind it where the noise is learned;
``core/likelihood_hd.h``."""
ESTIMATORS = _ordered("ESTIMATORS")
"""Gradient estimators of a mean-field Gaussian, as in ``cpu/network/mlp_row_noise.h``."""
INTEGRATORS = _ordered("INTEGRATORS")
"""Integrators of microcanonical dynamics, as in ``core/isokinetic_hd.h``."""


def bits_of(number: float) -> int:
    """Return the bits of a float64, as the column "number" holds them."""
    (bits,) = struct.unpack("q", struct.pack("d", number))
    return int(bits)


def number_of(bits: int) -> float:
    """Return the float64 of these bits."""
    (number,) = struct.unpack("d", struct.pack("q", bits))
    return float(number)
