"""What a device needs for an operation of the layer table.

The numbers depend on the table alone, neither on the device nor on how many chains run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ribbit._backends.cuda.layers.panel import Backward, Panel, Row

__all__ = ["Op", "places_of"]


@dataclass(frozen=True)
class Op:
    """What a device needs for a row of the layer table. A layer's module has its own, by name.

    Attributes
    ----------
    write : function of a panel, a number and its row
        Appends the launches of the way forward; returns what appends those of the way back.
    fuses : bool
        Whether its kernels apply an activation.
    arrays : function of a row
        Sizes of its arrays of parameters: weight, bias, third.
    terms : function of a row
        How many terms of a weight's gradient one data row gives; 0: no slices of them are made.
    state : function of a row
        Numbers per data row that it keeps from the way forward to the way back.
    row_terms : function of a row
        Terms of its parameters' gradients that each data row has; they lie array by array.
    joins : bool
        Whether its way back adds what was left for its input's delta (`Cell.leave`).
    """

    write: Callable[[Panel, int, Row], Backward]
    fuses: bool = False
    arrays: Callable[[Row], tuple[int, int, int]] = lambda row: (0, 0, 0)
    terms: Callable[[Row], int] = lambda row: 0
    state: Callable[[Row], int] = lambda row: 0
    row_terms: Callable[[Row], int] = lambda row: 0
    joins: bool = False


def places_of(row: Row) -> int:
    """How many places the channels of a norm or of a mask are seen at."""
    return row["in_size"] // row["channels"]
