"""What a device needs for an operation of the layer table, by the table alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ribbit._backends.cuda.layers.panel import Backward, Panel, Row


@dataclass(frozen=True)
class Op:
    """What a device needs for a row of the layer table. A layer's module has its own, by name."""

    # appends the launches of the way forward; returns what appends those of the way back
    write: Callable[[Panel, int, Row], Backward]
    fuses: bool = False  # whether its kernels apply an activation
    # sizes of its arrays of parameters: weight, bias, third
    arrays: Callable[[Row], tuple[int, int, int]] = lambda row: (0, 0, 0)
    # how many terms of a weight's gradient one data row gives; 0: no slices of them are made
    terms: Callable[[Row], int] = lambda row: 0
    # numbers per data row that it keeps from the way forward to the way back
    state: Callable[[Row], int] = lambda row: 0
    # terms of its parameters' gradients that each data row has; they lie array by array
    row_terms: Callable[[Row], int] = lambda row: 0
    # whether its way back adds what was left for its input's delta (`Cell.leave`)
    joins: bool = False


def places_of(row: Row) -> int:
    """How many places the channels of a norm or of a mask are seen at."""
    return row["in_size"] // row["channels"]
