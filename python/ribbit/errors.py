"""Exceptions of Ribbit.

All are ``TypeError`` or ``ValueError`` and read ``[function] expected ..., got ...``.
"""

from __future__ import annotations

__all__ = ["DTypeError", "DataError", "ShapeError"]


class ShapeError(ValueError):
    """An array has the wrong shape, or is empty where it must not be."""


class DTypeError(TypeError):
    """An array has the wrong kind or dtype, or lives in the wrong library or memory."""


class DataError(ValueError):
    """An array holds a value that is not allowed: NaN, infinity, a label out of range."""
