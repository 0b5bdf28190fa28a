"""Dropout with masks that have an address."""

from __future__ import annotations

from math import floor

from ribbit._device import Launch, blocks_of
from ribbit.kernels.panel import Backward, Cell, Panel, Row
from ribbit.kernels.table import places_of

__all__ = ["write"]

_CHANNELS = 1  # argument of a row that drops whole channels


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = x times the masks of the run; backward: the gradient of x."""
    source, out, rate = panel.cells[row["input"]], panel.cells[number + 1], panel.rates[number]
    places = places_of(row) if row["argument"] == _CHANNELS else 1
    units, masks = row["out_size"] // places, panel.masks
    assert masks is not None
    threshold = min(floor(rate * 2.0**32 + 0.5), 2**32 - 1)
    shape = (panel.count, places, units)
    grid = (blocks_of(panel.count * places * -(-units // 4)), 1, 1)

    def drop(
        given: int, stride: int, to: Cell, into: int, derivative: int | None, add: int
    ) -> Launch:
        return Launch(
            f"DropUnits<{panel.scalar}>",
            (
                masks.where,
                panel.subset,
                panel.subset_stride,
                masks.first_row + panel.first,
                int(masks.shared),
                int(masks.predictive),
                row["index"],
                threshold,
                1.0 / (1.0 - rate),
                given,
                stride,
                into,
                derivative,
                to.chain_stride,
                *shape,
                add,
            ),
            grid,
        )

    panel.forward.append(drop(source.value, source.chain_stride, out, out.value, None, 0))

    def backward() -> None:
        if source.delta is None:
            return
        add, given = int(source.add()), out.delta or 0
        panel.backward.append(
            drop(given, out.chain_stride, source, source.delta, source.derivative, add)
        )

    return backward
