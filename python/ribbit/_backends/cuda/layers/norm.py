"""Filter response norms, layer norms and group norms, with a sum and an activation that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ribbit._arrays.device import THREADS, Launch
from ribbit._backends.codes import OPS, number_of
from ribbit._backends.cuda.layers import products
from ribbit._backends.cuda.layers.op import Op, places_of
from ribbit._backends.cuda.layers.panel import Backward, Cell, Panel, Row

_MOST_LANES = 32  # threads of a block that neighbouring channels occupy
_COLUMNS = 32  # of a block of SumRows


def lanes_of(channels: int) -> int:
    """Return the power of two that holds the channels, or as many as a block takes at a time."""
    return min(_MOST_LANES, 1 << (channels - 1).bit_length())


def parameters(panel: Panel, row: Row) -> tuple[Any, ...]:
    """Members of NormParameters."""
    offsets = (row["weight"], row["bias"], row["third"])
    return (*(panel.theta(offset) for offset in offsets), panel.dim)


def outputs(panel: Panel, number: int) -> tuple[Any, ...]:
    """Members of NormOutput."""
    other, place = panel.sums.get(number, (None, number))
    out = panel.cells[place + 1]
    added: tuple[int | None, int] = (None, 0)
    if other is not None:
        added = panel.cells[other].value, panel.cells[other].chain_stride
    return (out.value, out.derivative, out.chain_stride, *added)


def code_of(panel: Panel, number: int) -> int:
    """Return the code of the activation that the kernel applies: its own or that of the sum."""
    return panel.codes[panel.sums[number][1] if number in panel.sums else number]


def columns_of(rows: Sequence[Row], run: int) -> list[tuple[int, int, int, int]]:
    """Return what each block of SumRows adds up of the terms (run, arrays, channels)."""
    # The first number, numbers from data row to data row, columns, place of the gradient.
    made, begin = [], 0
    for row in (one for one in rows if one["op"] in _CODES):
        channels, apart = row["channels"], op_terms(row)
        found = [row[name] for name in ("weight", "bias", "third") if row[name] >= 0]
        made += [
            (begin + array * channels + c, apart, min(_COLUMNS, channels - c), offset + c)
            for array, offset in enumerate(found)
            for c in range(0, channels, _COLUMNS)
        ]
        begin += run * apart
    return made


def op_terms(row: Row) -> int:
    """Terms of all arrays that a data row has."""
    return (3 if row["op"] == OPS["filter_response_norm"] else 2) * row["channels"]


def _write_response_norm(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(max(gamma z / rms(z) + beta, tau)); backward: all gradients."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    channels, places = row["channels"], places_of(row)
    lanes = lanes_of(channels)
    grid = (panel.count * -(-channels // lanes), 1, 1)
    inverse, stride = panel.state(number)
    terms, terms_stride = panel.row_terms(number)
    head = (source.value, source.chain_stride, *parameters(panel, row))
    if number not in panel.made:
        panel.forward.append(
            Launch(
                f"ResponseNorm<{panel.scalar}, {code_of(panel, number)}, {lanes}>",
                (
                    *head,
                    *outputs(panel, number),
                    inverse,
                    stride,
                    places,
                    channels,
                    number_of(row["number"]),
                ),
                grid,
            )
        )

    def backward() -> None:
        if number in panel.undone:
            return
        add = source.delta is not None and source.add()
        panel.backward.append(
            Launch(
                f"ResponseNormBackward<{panel.scalar}, {lanes}>",
                (
                    *head,
                    out.delta,
                    out.chain_stride,
                    inverse,
                    stride,
                    terms,
                    terms_stride,
                    source.delta,
                    source.derivative,
                    source.chain_stride,
                    places,
                    channels,
                    int(add),
                ),
                grid,
            )
        )

    return backward


def is_aligned(panel: Panel, number: int) -> bool:
    """Whether the value that the norm sums lies at multiples of 16 bytes, by shapes alone."""
    return number not in panel.sums or panel.cells[panel.sums[number][0]] is not panel.cells[0]


def response_sink(panel: Panel, number: int, row: Row, bias: int | None) -> products.Operand:
    """Return the sink of a convolution that makes the value of the norm behind it, too."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    kept = None if out.delta is None else source.value  # for the way back
    fields = (
        *(bias, panel.dim),
        *(kept, source.chain_stride),
        *parameters(panel, row),
        *outputs(panel, number),
        *panel.state(number),
        number_of(row["number"]),
    )
    panel.made.add(number)
    return products.Operand(f"ResponseNormSink<{code_of(panel, number)}>", fields)


def response_delta_sink(
    panel: Panel, number: int, row: Row, value: Cell, sink: products.Operand
) -> products.Operand:
    """Return the sink of deltas that also makes the norm's backward pass."""
    # sink: of the delta of `value`, the norm's or the sum that it is a part of. The norm's own
    # delta is not written, because nothing else reads it.
    source = panel.cells[row["input"]]
    source.add()
    delta, *others = sink.fields
    fields = (
        *(None if value is panel.cells[number + 1] else delta, *others),
        *(source.value, source.chain_stride),
        *parameters(panel, row),
        *panel.state(number),
        *panel.row_terms(number),
        *(source.delta, source.chain_stride),
    )
    panel.undone.add(number)
    return products.Operand("ResponseNormDeltaSink", fields)


def _write_layer_norm(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(gamma (z - mean) / sd + beta); backward: all gradients."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    channels, places = row["channels"], places_of(row)
    lanes, positions = lanes_of(channels), panel.count * places
    grid = (-(-positions * lanes // THREADS), 1, 1)
    moments, stride = panel.state(number)
    terms, terms_stride = panel.row_terms(number)
    given = (source.value, source.chain_stride)
    panel.forward.append(
        Launch(
            f"LayerNorm<{panel.scalar}, {code_of(panel, number)}, {lanes}>",
            (
                *given,
                *parameters(panel, row),
                *outputs(panel, number),
                moments,
                stride,
                positions,
                channels,
                number_of(row["number"]),
            ),
            grid,
        )
    )

    def backward() -> None:
        seen = (out.delta, out.chain_stride, moments, stride)
        panel.backward.append(
            Launch(
                f"LayerNormTerms<{panel.scalar}, {lanes}>",
                (*given, *seen, terms, terms_stride, places, channels),
                (panel.count * -(-channels // lanes), 1, 1),
            )
        )
        if source.delta is None:
            return
        panel.backward.append(
            Launch(
                f"LayerNormBackward<{panel.scalar}, {lanes}>",
                (
                    *given,
                    *parameters(panel, row),
                    *seen,
                    source.delta,
                    source.derivative,
                    source.chain_stride,
                    positions,
                    channels,
                    int(source.add()),
                ),
                grid,
            )
        )

    return backward


def _write_group_norm(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(gamma (z - mean) / sd + beta) of groups; backward: all gradients."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    channels, groups = row["channels"], row["argument"]
    lanes, sizes = lanes_of(channels // groups), (places_of(row), channels, groups)
    grid = (panel.count * groups, 1, 1)
    moments, stride = panel.state(number)
    terms, terms_stride = panel.row_terms(number)
    head = (source.value, source.chain_stride, *parameters(panel, row))
    panel.forward.append(
        Launch(
            f"GroupNorm<{panel.scalar}, {code_of(panel, number)}, {lanes}>",
            (
                *head,
                *outputs(panel, number),
                moments,
                stride,
                *sizes,
                number_of(row["number"]),
            ),
            grid,
        )
    )

    def backward() -> None:
        add = source.delta is not None and source.add()
        panel.backward.append(
            Launch(
                f"GroupNormBackward<{panel.scalar}, {lanes}>",
                (
                    *head,
                    out.delta,
                    out.chain_stride,
                    moments,
                    stride,
                    terms,
                    terms_stride,
                    source.delta,
                    source.derivative,
                    source.chain_stride,
                    *sizes,
                    int(add),
                ),
                grid,
            )
        )

    return backward


OPERATIONS = {
    "filter_response_norm": Op(
        _write_response_norm,
        True,
        lambda row: (row["channels"],) * 3,
        state=lambda row: row["channels"],  # 1 / root mean square
        row_terms=op_terms,
    ),
    "layer_norm": Op(
        _write_layer_norm,
        True,
        lambda row: (row["channels"], row["channels"], 0),
        state=lambda row: 2 * places_of(row),  # mean and 1 / sd of each place
        row_terms=op_terms,
    ),
    "group_norm": Op(
        _write_group_norm,
        True,
        lambda row: (row["channels"], row["channels"], 0),
        state=lambda row: 2 * row["argument"],  # mean and 1 / sd of each group
        row_terms=op_terms,
    ),
}
_CODES = {OPS[name] for name in OPERATIONS}
