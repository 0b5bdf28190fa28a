"""Fully connected layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.errors import ShapeError
from ribbit.models.layers._table import MAX_SIZE, Table, Value

__all__ = ["Dense"]


@dataclass(frozen=True)
class Dense:
    """A fully connected layer, ``y = x @ W + b`` with W of shape (in, out).

    Parameters
    ----------
    units : int
        Number of outputs, >= 1.
    bias : bool, default True
        Whether to add a bias (units,).

    Raises
    ------
    TypeError, ValueError
        If `units` is not a positive integer or `bias` not a bool.

    Examples
    --------
    >>> layers = [rb.Dense(5)]
    >>> model = rb.Model(layers, input_shape=(3,))
    >>> model.output_shape, model.dim
    ((5,), 20)
    """

    op: ClassVar[int] = OPS["dense"]
    units: int
    bias: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        units = checks.integer("Dense", "units", self.units, minimum=1, maximum=MAX_SIZE)
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "bias", checks.boolean("Dense", "bias", self.bias))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write weight (in, units), then bias (units,); the input must be flat."""
        if len(value.shape) != 1:
            raise ShapeError(
                f"[{table.function}] expected a flat input for {self}, got {value.shape}: put "
                "rb.Flatten() before it"
            )
        (fan_in,) = value.shape
        weight = table.parameter("weight", (fan_in, self.units), fan_in=fan_in, is_weight=True)
        bias = table.parameter("bias", (self.units,)) if self.bias else -1
        return table.row(self.op, value, (self.units,), weight=weight, bias=bias)
