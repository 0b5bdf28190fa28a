"""Changes of shape."""

from __future__ import annotations

from dataclasses import dataclass

from ribbit.models.layers._table import Table, Value

__all__ = ["Flatten"]


@dataclass(frozen=True)
class Flatten:
    """An image (H, W, C) or sequence (T, C) as a flat row, in C order; computes nothing.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 402)
    """

    def _compile(self, table: Table, value: Value) -> Value:
        """Write nothing."""
        return Value(value.number, (value.size,))
