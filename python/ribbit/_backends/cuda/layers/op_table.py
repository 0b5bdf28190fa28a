"""What a row of the layer table needs on a device, by the table alone: parameters, sums, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ribbit._backends.codes import OPS
from ribbit._backends.cuda.layers import (
    conv,
    dense,
    dropout,
    elementwise,
    embedding,
    lstm,
    norm,
    pool,
)
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Norms, Panel, Row

ACTIVATION, DROPOUT = OPS["activation"], OPS["dropout"]
ADD = OPS["add"]
_NORMS = {OPS[name] for name in norm.OPERATIONS}  # they read the delta of their value alone
_STEMS = (conv, dense, dropout, elementwise, embedding, lstm, norm, pool)
TABLE: dict[int, Op] = {OPS[name]: op for stem in _STEMS for name, op in stem.OPERATIONS.items()}
"""One entry for each operation of ``codes.OPS``."""


def arrays_of(row: Row) -> list[tuple[int, int]]:
    """Offset and size of each array of parameters: weight, bias, third."""
    offsets = (row["weight"], row["bias"], row["third"])
    sizes = TABLE[row["op"]].arrays(row)
    return [pair for pair in zip(offsets, sizes, strict=True) if pair[0] >= 0 and pair[1] > 0]


def gradient_terms(row: Row) -> int:
    """How many terms of a weight's gradient one data row gives; 0: no slices of them are made."""
    return TABLE[row["op"]].terms(row)


def row_terms(row: Row) -> int:
    """Terms of the gradient of a norm's parameters that one data row has."""
    return TABLE[row["op"]].row_terms(row)


def state_size(row: Row) -> int:
    """Numbers per data row that a layer keeps from the way forward to the way back."""
    return TABLE[row["op"]].state(row)


def activation_codes(rows: Sequence[Row]) -> list[int]:
    """Return the code of the activation that each row's kernel applies, 0 for none."""
    fused = fused_activations(rows)
    return [
        rows[fused.get(i, i)]["argument"] if i in fused or row["op"] == ACTIVATION else 0
        for i, row in enumerate(rows)
    ]


def skipped_rows(rows: Sequence[Row], rates: Sequence[float]) -> set[int]:
    """Return rows whose value is their input's: fused activations, Dropout that drops nothing."""
    idle = {i for i, row in enumerate(rows) if row["op"] == DROPOUT and rates[i] == 0}
    return idle | set(fused_activations(rows).values())


def lent_deltas(rows: Sequence[Row], skipped: Collection[int]) -> dict[int, int]:
    """Return rows whose value goes into one sum alone, by the row of that sum: deltas are equal."""
    # Of norms without an activation; `skipped` rows have the values of their inputs.
    read = [
        (made(rows, skipped, row[name]) - 1, number)
        for number, row in enumerate(rows)
        if number not in skipped
        for name in ("input", "second")
        if row[name] >= 0
    ]
    readers, codes = Counter(source for source, _ in read), activation_codes(rows)
    return {
        source: number
        for source, number in read
        if source >= 0
        and rows[number]["op"] == ADD
        and rows[source]["op"] in _NORMS
        and readers[source] == 1
        and codes[source] == 0
    }


def settled(panel: Panel, number: int, row: Row) -> None:
    """Append what a row's way back reads: its delta, and its input's where that is added to."""
    elementwise.settle(panel, panel.cells[number + 1])
    if not TABLE[row["op"]].joins:
        elementwise.settle(panel, panel.cells[row["input"]])


def joined_sums(
    rows: Sequence[Row], skipped: Collection[int], fixed: Collection[int] = ()
) -> dict[int, tuple[int, int]]:
    """Return norms whose kernels add another value: the number of that and the row of the sum."""
    # Of those in `lent_deltas`; where a sum is of two norms that is the second one. Of `fixed` rows
    # one kernel makes the values of all chains.
    found = {}
    for number, place in sorted(lent_deltas(rows, skipped).items()):
        row = rows[place]
        operands = {made(rows, skipped, row[name]): row[name] for name in ("input", "second")}
        [(before, other)] = [one for one in operands.items() if one[0] != number + 1]
        if before <= number and (number in fixed) == (place in fixed):
            found[number] = other, place
    return found


def norms_of(rows: Sequence[Row], skipped: Collection[int], fixed: Collection[int] = ()) -> Norms:
    """Return the filter response norms that stand beside convolutions."""
    # A norm that a convolution's kernel makes adds no value that is made later.
    lent, joined = lent_deltas(rows, skipped), joined_sums(rows, skipped, fixed)
    readers: dict[int, list[int]] = {}  # of a value, in order
    for number, row in enumerate(rows):
        for value in {row["input"], row["second"]} if number not in skipped else ():
            readers.setdefault(made(rows, skipped, value), []).append(number)
    behind, before = {}, {}
    for number, row in enumerate(rows):
        if row["op"] != OPS["filter_response_norm"] or number in skipped:
            continue
        source = row["input"] - 1
        other = made(rows, skipped, joined[number][0]) if number in joined else 0
        alone = readers.get(source + 1) == [number] and (source in fixed) == (number in fixed)
        if source < 0 or rows[source]["op"] != OPS["conv"] or not alone:
            continue
        if other <= source:
            behind[source] = number, row
        reader = readers.get(lent.get(number, number) + 1, [-1])[0]
        if reader >= 0 and rows[reader]["op"] == OPS["conv"]:
            before[reader] = number, row
    return Norms(behind, before)


def last_layers(
    rows: Sequence[Row], skipped: Collection[int], fixed: Collection[int] = ()
) -> dict[int, tuple[int, Row]]:
    """Return a dense layer whose value the last one, dense too, alone reads, and the last."""
    # Of `fixed` rows one kernel makes the values of all chains.
    last = max((i for i in range(len(rows)) if i not in skipped), default=-1)
    if last < 0 or rows[last]["op"] != OPS["dense"]:
        return {}
    source = made(rows, skipped, rows[last]["input"]) - 1
    readers = [
        number
        for number, row in enumerate(rows)
        if number not in skipped
        and source + 1 in (made(rows, skipped, row["input"]), made(rows, skipped, row["second"]))
    ]
    both = source >= 0 and rows[source]["op"] == OPS["dense"] and readers == [last]
    if not both or made(rows, skipped, len(rows)) != last + 1:
        return {}
    return {source: (last, rows[last])} if (source in fixed) == (last in fixed) else {}


def made(rows: Sequence[Row], skipped: Collection[int], value: int) -> int:
    """Return the number of the value that a row makes or the input is, 0, for one like it."""
    while value > 0 and value - 1 in skipped:
        value = rows[value - 1]["input"]
    return value


def fused_activations(rows: Sequence[Row]) -> dict[int, int]:
    """Return the activation's row by each row that alone feeds it and whose kernel can apply it."""
    fused = {}
    for number, row in enumerate(rows):
        readers = [i for i, r in enumerate(rows) if number + 1 in (r["input"], r["second"])]
        if TABLE[row["op"]].fuses and len(readers) == 1 and rows[readers[0]]["op"] == ACTIVATION:
            fused[number] = readers[0]
    return fused
