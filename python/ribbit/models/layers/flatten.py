"""Changes of shape."""

from __future__ import annotations

from dataclasses import dataclass

from ribbit.models.layers._table import Table, Value

__all__ = ["Flatten"]


@dataclass(frozen=True)
class Flatten:
    """An image (H, W, C) or sequence (T, C) as a flat row, in C order; computes nothing."""

    def compile(self, table: Table, value: Value) -> Value:
        """Write nothing."""
        return Value(value.number, (value.size,))
