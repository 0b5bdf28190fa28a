"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.errors import ShapeError
from ribbit.models.layers._table import Table, Value

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout:
    """Dropout of units; the identity in every deterministic pass.

    Parameters
    ----------
    rate : float
        Probability that a unit is dropped, in [0, 1).
    spatial : bool, default False
        Drop whole channels of an image (H, W, C) or sequence (T, C) instead of single units
        (Tompson et al. 2015, "Efficient object localization using convolutional networks", 3.2).

    Raises
    ------
    TypeError, ValueError
        If `rate` is not a number in [0, 1).

    Examples
    --------
    >>> layers = [rb.Dense(5), rb.Dropout(0.1), rb.Dense(1)]
    >>> model = rb.Model(layers, input_shape=(3,))
    >>> model.output_shape, model.dim
    ((1,), 26)
    >>> model.dropout_layers
    ('1: Dropout(0.1)',)
    """

    op: ClassVar[int] = OPS["dropout"]
    rate: float
    spatial: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        rate = checks.fraction("Dropout", "rate", self.rate, zero=True)
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "spatial", checks.boolean("Dropout", "spatial", self.spatial))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write a row; argument 1: one mask for all places of a channel."""
        if self.spatial and len(value.shape) == 1:
            raise ShapeError(
                f"[{table.function}] expected an image (H, W, C) or a sequence (T, C) for {self}, "
                f"got {value.shape}"
            )
        table.dropout.append(f"{table.place}: Dropout({self.rate:g})")
        return table.row(
            self.op,
            value,
            value.shape,
            rate=self.rate,
            argument=int(self.spatial),
            channels=value.shape[-1],
        )
