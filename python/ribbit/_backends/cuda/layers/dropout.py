"""Dropout with masks that have an address."""

from __future__ import annotations

from math import floor
from typing import Any

from ribbit._arrays.device import THREADS, Launch, blocks_of
from ribbit._arrays.random_numbers import MASK, PREDICTIVE_MASK
from ribbit._backends.cuda.layers.op import Op, places_of
from ribbit._backends.cuda.layers.panel import Backward, Cell, LearnedRate, Panel, Row
from ribbit.protocols import Array

_CHANNELS = 1  # argument of a row that drops whole channels


def blocks_of_units(rows: int, units: int) -> int:
    """Blocks of a grid whose threads make the masks of four units of a row."""
    return blocks_of(rows * -(-units // 4))


def sums_of_units(rows: int, units: int) -> int:
    """Blocks of the same threads without an end: each has a sum of its own."""
    return -(-rows * -(-units // 4) // THREADS)


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = x times the masks of the run; backward: the gradient of x."""
    if number in panel.learned:
        return _write_relaxed(panel, number, row, panel.learned[number])
    source, out, rate = panel.cells[row["input"]], panel.cells[number + 1], panel.rates[number]
    places = places_of(row) if row["argument"] == _CHANNELS else 1
    units = row["out_size"] // places
    threshold = min(floor(rate * 2.0**32 + 0.5), 2**32 - 1)
    shape = (panel.count, places, units)
    grid = (blocks_of_units(panel.count * places, units), 1, 1)

    def drop(
        given: int, stride: int, to: Cell, into: int, derivative: int | None, add: int
    ) -> Launch:
        return Launch(
            f"DropUnits<{panel.scalar}>",
            (
                *_address(panel, row),
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


def _address(panel: Panel, row: Row) -> tuple[Any, ...]:
    """Members of RowAddress."""
    masks = panel.masks
    assert masks is not None
    return (
        masks.where,
        panel.subset,
        panel.subset_stride,
        masks.first_row + panel.first,
        int(masks.shared),
        PREDICTIVE_MASK if masks.predictive else MASK,
        row["index"],
    )


def _write_relaxed(panel: Panel, number: int, row: Row, rate: LearnedRate) -> Backward:
    """Append value = x times relaxed masks; backward: the gradients of x and of the logit."""
    source, out, units = panel.cells[row["input"]], panel.cells[number + 1], row["out_size"]
    head = (*_address(panel, row), rate.logit, panel.dim, panel.count, units)
    grid = (blocks_of_units(panel.count, units), 1, 1)
    panel.forward.append(
        Launch(
            f"RelaxUnits<{panel.scalar}>",
            (*head, source.value, source.chain_stride, out.value, out.chain_stride),
            grid,
        )
    )

    def backward() -> None:
        add = source.delta is not None and source.add()
        panel.backward.append(
            Launch(
                f"RelaxedBackward<{panel.scalar}>",
                (
                    *head,
                    out.delta,
                    out.value,
                    out.chain_stride,
                    source.delta,
                    source.derivative,
                    source.chain_stride,
                    int(add),
                    rate.sums,
                    int(rate.sums.shape[1]),
                    _first_block(panel, units),
                ),
                (sums_of_units(panel.count, units), 1, 1),
            )
        )

    return backward


def _first_block(panel: Panel, units: int) -> int:
    """Return the place of a panel's first block among the sums of all panels."""
    runs, inside = divmod(panel.first, panel.run)
    return runs * sums_of_units(panel.run, units) + sums_of_units(inside, units)


def prior_of_learned(
    scalar: str,
    rate: LearnedRate,  # the gradient by its logit is complete after these launches
    *,
    precision: float,  # of the prior of the weights behind it, at a rate of 0
    units: int,  # that it drops
    # parameters (C, P), P, and offset and size of the weights
    weights: tuple[Array, int, int, int],
    grad: Array,  # (C, P)
    weight: float,  # of the log prior in the gradient
    terms: tuple[Array, int, int],  # where the value goes, (C, slots), slots and the slot
) -> tuple[list[Launch], list[Launch]]:
    """Return launches for gradient and value of the prior that goes by a learned rate."""
    theta, dim, offset, size = weights
    slots = int(rate.sums.shape[1])
    head = (precision, rate.logit, theta, dim, offset, size)

    def by_rate(by_logit: bool, out: tuple[Array, int, int]) -> Launch:
        fields = (*head, units, int(by_logit), weight, *out)
        return Launch(f"LearnedRate<{scalar}>", fields, (1, 1, 1))

    sums = (rate.sums, slots, 0.0, 1.0, None, 0, rate.grad, dim)
    gradient = [
        Launch(f"LearnedScore<{scalar}>", (*head, weight, grad), (blocks_of(size), 1, 1)),
        by_rate(True, (rate.sums, slots, slots - 1)),
        Launch(f"SumTerms<{scalar}>", sums, (1, 1, 1)),
    ]
    return gradient, [by_rate(False, terms)]


OPERATIONS = {"dropout": Op(write)}
