"""What a row of the layer table needs on a device: parameters, sums, memory.

The numbers depend on the table alone, neither on the device nor on how many chains run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ribbit._backends.cuda.layers.panel import Row

__all__ = [
    "ACTIVATION",
    "ADD",
    "AVERAGE_POOL",
    "CONV",
    "DENSE",
    "DROPOUT",
    "EMBEDDING",
    "LAYER_NORM",
    "LSTM",
    "MAX_POOL",
    "RESPONSE_NORM",
    "activation_codes",
    "arrays_of",
    "fused_activations",
    "gradient_terms",
    "places_of",
    "skipped_rows",
    "state_size",
]

# enum class Op of core/network.h
DENSE, ACTIVATION, DROPOUT, CONV, MAX_POOL, AVERAGE_POOL = range(6)
RESPONSE_NORM, LAYER_NORM, ADD, EMBEDDING, LSTM = range(6, 11)

_FUSE = (DENSE, CONV, RESPONSE_NORM, LAYER_NORM, ADD)  # kernels that apply an activation


def arrays_of(row: Row) -> list[tuple[int, int]]:
    """Offset and size of each array of parameters: weight, bias, third."""
    channels, outs = row["channels"], row["out_channels"]
    sizes = {
        DENSE: (row["in_size"] * row["out_size"], row["out_size"], 0),
        CONV: (row["kernel_height"] * row["kernel_width"] * channels * outs, outs, 0),
        RESPONSE_NORM: (channels, channels, channels),
        LAYER_NORM: (channels, channels, 0),
        EMBEDDING: (row["argument"] * channels, 0, 0),
        LSTM: (channels * 4 * outs, 4 * outs, outs * 4 * outs),
    }.get(row["op"], (0, 0, 0))
    offsets = (row["weight"], row["bias"], row["third"])
    return [pair for pair in zip(offsets, sizes, strict=True) if pair[0] >= 0 and pair[1] > 0]


def gradient_terms(row: Row) -> int:
    """How many terms of a weight's gradient one data row gives; 0: no slices of them are made."""
    return {
        DENSE: 1,
        CONV: row["out_height"] * row["out_width"],
        EMBEDDING: row["in_size"],
        LSTM: row["width"],
    }.get(row["op"], 0)


def places_of(row: Row) -> int:
    """How many places the channels of a norm or of a mask are seen at."""
    return row["in_size"] // row["channels"]


def state_size(row: Row) -> int:
    """Numbers per data row that a layer keeps from the way forward to the way back."""
    channels, steps, units = row["channels"], row["width"], row["out_channels"]
    op = row["op"]
    if op == RESPONSE_NORM:  # 1 / root mean square, terms of gamma, beta and tau
        return 4 * channels
    if op == LAYER_NORM:  # mean and 1 / sd of each place, terms of gamma and beta
        return 2 * places_of(row) + 2 * channels
    if op == LSTM:  # gates and cells of all steps, delta of the cell, states if not given
        return (5 if row["argument"] else 6) * steps * units + units
    return 0


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


def fused_activations(rows: Sequence[Row]) -> dict[int, int]:
    """Return for each row whose value goes into one activation alone: that activation's row.

    Rows whose kernels cannot apply an activation are left out.
    """
    fused = {}
    for number, row in enumerate(rows):
        readers = [i for i, r in enumerate(rows) if number + 1 in (r["input"], r["second"])]
        if row["op"] in _FUSE and len(readers) == 1 and rows[readers[0]]["op"] == ACTIVATION:
            fused[number] = readers[0]
    return fused
