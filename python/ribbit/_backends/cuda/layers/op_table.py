"""What a row of the layer table needs on a device: parameters, sums, memory.

The numbers depend on the table alone, neither on the device nor on how many chains run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ribbit._backends.codes import OPS
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
    "TABLE",
    "Op",
    "activation_codes",
    "arrays_of",
    "fused_activations",
    "gradient_terms",
    "places_of",
    "skipped_rows",
    "state_size",
]

DENSE, ACTIVATION, DROPOUT = OPS["dense"], OPS["activation"], OPS["dropout"]
CONV, MAX_POOL, AVERAGE_POOL = OPS["conv"], OPS["max_pool"], OPS["average_pool"]
RESPONSE_NORM, LAYER_NORM = OPS["filter_response_norm"], OPS["layer_norm"]
ADD, EMBEDDING, LSTM = OPS["add"], OPS["embedding"], OPS["lstm"]


@dataclass(frozen=True)
class Op:
    """What a device needs for a row of the layer table.

    Attributes
    ----------
    stem : str
        The module of this folder that writes its launches.
    fuses : bool
        Whether its kernels apply an activation.
    arrays : function of a row
        Sizes of its arrays of parameters: weight, bias, third.
    terms : function of a row
        How many terms of a weight's gradient one data row gives; 0: no slices of them are made.
    state : function of a row
        Numbers per data row that it keeps from the way forward to the way back.
    """

    stem: str
    fuses: bool = False
    arrays: Callable[[Row], tuple[int, int, int]] = lambda row: (0, 0, 0)
    terms: Callable[[Row], int] = lambda row: 0
    state: Callable[[Row], int] = lambda row: 0


def _dense_arrays(row: Row) -> tuple[int, int, int]:
    return row["in_size"] * row["out_size"], row["out_size"], 0


def _conv_arrays(row: Row) -> tuple[int, int, int]:
    taps = row["kernel_height"] * row["kernel_width"]
    return taps * row["channels"] * row["out_channels"], row["out_channels"], 0


def _lstm_arrays(row: Row) -> tuple[int, int, int]:
    units = row["out_channels"]
    return row["channels"] * 4 * units, 4 * units, units * 4 * units


def _lstm_state(row: Row) -> int:
    # gates and cells of all steps, delta of the cell, states if not given
    steps, units = row["width"], row["out_channels"]
    return (5 if row["argument"] else 6) * steps * units + units


def places_of(row: Row) -> int:
    """How many places the channels of a norm or of a mask are seen at."""
    return row["in_size"] // row["channels"]


TABLE = {
    DENSE: Op("dense", True, _dense_arrays, lambda row: 1),
    ACTIVATION: Op("elementwise"),
    DROPOUT: Op("dropout"),
    CONV: Op("conv", True, _conv_arrays, lambda row: row["out_height"] * row["out_width"]),
    MAX_POOL: Op("pool"),
    AVERAGE_POOL: Op("pool"),
    RESPONSE_NORM: Op(
        "norm",
        True,
        lambda row: (row["channels"],) * 3,
        state=lambda row: 4 * row["channels"],  # 1 / root mean square, terms of gamma, beta and tau
    ),
    LAYER_NORM: Op(
        "norm",
        True,
        lambda row: (row["channels"], row["channels"], 0),
        # mean and 1 / sd of each place, terms of gamma and beta
        state=lambda row: 2 * places_of(row) + 2 * row["channels"],
    ),
    ADD: Op("elementwise", True),
    EMBEDDING: Op(
        "embedding",
        arrays=lambda row: (row["argument"] * row["channels"], 0, 0),
        terms=lambda row: row["in_size"],
    ),
    LSTM: Op("lstm", False, _lstm_arrays, lambda row: row["width"], _lstm_state),
}
"""One entry for each operation of ``codes.OPS``."""


def arrays_of(row: Row) -> list[tuple[int, int]]:
    """Offset and size of each array of parameters: weight, bias, third."""
    offsets = (row["weight"], row["bias"], row["third"])
    sizes = TABLE[row["op"]].arrays(row)
    return [pair for pair in zip(offsets, sizes, strict=True) if pair[0] >= 0 and pair[1] > 0]


def gradient_terms(row: Row) -> int:
    """How many terms of a weight's gradient one data row gives; 0: no slices of them are made."""
    return TABLE[row["op"]].terms(row)


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


def fused_activations(rows: Sequence[Row]) -> dict[int, int]:
    """Return for each row whose value goes into one activation alone: that activation's row.

    Rows whose kernels cannot apply an activation are left out.
    """
    fused = {}
    for number, row in enumerate(rows):
        readers = [i for i, r in enumerate(rows) if number + 1 in (r["input"], r["second"])]
        if TABLE[row["op"]].fuses and len(readers) == 1 and rows[readers[0]]["op"] == ACTIVATION:
            fused[number] = readers[0]
    return fused
