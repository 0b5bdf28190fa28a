"""How sums over rows are cut: partial sums of the gradients of weights, and who adds them up."""

from __future__ import annotations

from collections.abc import Sequence

from ribbit._backends.cuda.layers import op_table
from ribbit._backends.cuda.layers.panel import Arrays, Row, Slices
from ribbit._backends.cuda.programs.plan import GROUP

_SLICE = 256  # terms of a weight's gradient that one block adds up, at least
_TILE = 4096  # numbers of a weight that a block makes
MOST_SLICES = 256  # of a weight's gradient, where its terms allow it: they fill a large device
_GROUPED_BLOCKS = 1024  # of runs of many rows: less than a tenth of the processors idle at the end


def slices_of(rows: Sequence[Row], run: int, *, grouped: bool, tail: int = 0) -> dict[int, Slices]:
    """Return by row the partial sums of its weight's gradient, for runs of `run` rows."""
    # As many as give a large device something to do. grouped: panels may end after any group of
    # rows, so partial sums are of whole groups, or of 1/2, 1/4, .. of one. tail: rows of each
    # partial sum of the last row, if `tail.py` writes it.
    found = {}
    for number, row in enumerate(rows):
        each = op_table.gradient_terms(row)
        if each == 0:
            continue
        largest = max((size for _, size in op_table.arrays_of(row)), default=1)
        tiles = max(1, -(-largest // _TILE))
        if grouped:
            wanted = max(1, min(MOST_SLICES, _GROUPED_BLOCKS // tiles, run * each // _SLICE))
            length = max(power_of_two(run // wanted), 1)
            length = min(length if -(-run // length) <= MOST_SLICES else 2 * length, GROUP)
            found[number] = Slices(-(-run // length), length)
        else:
            found[number] = Slices(max(1, min(MOST_SLICES // tiles, run * each // _SLICE)))
    if tail:
        found[len(rows) - 1] = Slices(-(-run // tail), tail)
    return found


def power_of_two(number: int) -> int:
    """Return the largest power of two up to a number of at least 1."""
    return 1 << (number.bit_length() - 1)


def joined(arrays: Arrays) -> list[tuple[int, int]]:
    """Return arrays with neighbours merged: none begins where the previous one ends."""
    found: list[tuple[int, int]] = []
    for offset, size in arrays:
        if found and sum(found[-1]) == offset:
            found[-1] = found[-1][0], found[-1][1] + size
        else:
            found.append((offset, size))
    return found
