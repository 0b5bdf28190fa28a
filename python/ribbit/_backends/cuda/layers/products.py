"""Matrix products of the device: operands, sinks and launches by the names of the C++ types.

Sizes: C chains, R rows of a panel. Every operand holds one matrix per chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ribbit._arrays.device import STATIC_SHARED, THREADS, Launch
from ribbit._backends.cuda.layers.panel import Cell, Panel, Row

__all__ = [
    "DEPTH",
    "Operand",
    "activation_sink",
    "aligned",
    "delta_sink",
    "gradient_sink",
    "has_taps",
    "matrix",
    "product",
    "tap_gradient",
    "weight_gradient",
]

DEPTH = 16  # terms of a sum that lie in shared memory at a time
_NARROW = 16  # columns, or weights of an output, that a tile of 64 would be mostly padding for
_TALL = 1024  # rows that fill a device with tiles of 128
_WIDE = 1 << 18  # multiply-adds from which wide products pay
_MOST_WIDE = 1 << 26  # whose 16 lines are counted in 32 bits
# Tiles of wide products: instructions of 16 terms, as counted, and blocks of a multiprocessor; of
# matrices, and of what finds its numbers.
_TILES = {
    (128, 128): (1173, 2),
    (128, 64): (647, 2),
    (128, 32): (390, 3),
    (128, 16): (249, 3),
    (64, 64): (346, 4),
    (64, 32): (226, 4),
    (64, 16): (152, 4),
    (32, 32): (154, 4),
    (32, 16): (112, 4),
}
_FOUND_TILES = {
    (256, 32): (690, 2),
    (256, 16): (440, 2),
    (128, 64): (700, 2),
    (128, 32): (400, 2),
    (128, 16): (250, 2),
    (64, 64): (390, 2),
    (64, 32): (270, 2),
    (64, 16): (178, 2),
}
_TAPS, _TAP_CHANNELS = 9, 16  # of a block of TapGradient
_ACROSS = (64, 32, 16)  # and its outs
_PROCESSORS = 132  # multiprocessors that are to have work: of an H100


@dataclass(frozen=True)
class Operand:
    """A C++ type that stands for a matrix, with its members.

    Attributes
    ----------
    name : str
    fields : tuple
    plain : bool
        A matrix that lies in memory, or a sink that wide products know.
    found : bool
        What wide products have the address of a number of, by the type's `find`.
    transposed : bool
        Neighbours in memory are neighbours in a column.
    ones : bool
        There is a row of ones below.
    aligned : bool
        Four neighbours can be moved at once: of a matrix, where its lines are multiples of 4.
    """

    name: str
    fields: tuple[Any, ...]
    plain: bool = False
    found: bool = False
    transposed: bool = False
    ones: bool = False
    aligned: bool = False


def aligned(addresses: Sequence[int | None], strides: Sequence[int]) -> bool:
    """Whether what lies there begins at multiples of four float32."""
    return not any((a or 0) % 16 for a in addresses) and not any(s % 4 for s in strides)


def matrix(
    scalar: str, base: int, chain_stride: int, row_stride: int, *, transposed: bool = False
) -> Operand:
    """Return the matrix whose element (i, j) is at base + chain chain_stride + i row_stride + j."""
    flag = "true" if transposed else "false"
    return Operand(
        f"Matrix<{scalar}, {flag}>",
        (base, chain_stride, row_stride),
        plain=True,
        transposed=transposed,
        aligned=aligned([base], [chain_stride, row_stride]),
    )


def with_ones(scalar: str, operand: Operand, rows: int) -> Operand:
    """Return an operand with a row of ones below its `rows` rows."""
    name = f"WithOnes<{scalar}, {operand.name}>"
    return replace(operand, name=name, fields=(*operand.fields, rows), ones=True)


def activation_sink(
    scalar: str,
    code: int,
    bias: int | None,
    bias_stride: int,
    value: int,
    derivative: int | None,
    chain_stride: int,
    width: int,
) -> Operand:
    """Return the sink value = f(sum + bias), derivative = f'(sum + bias)."""
    fields = (bias, bias_stride, value, derivative, chain_stride, width)
    fits = aligned([value, derivative], [chain_stride, width])
    return Operand(f"ActivationSink<{scalar}, {code}>", fields, plain=True, aligned=fits)


def delta_sink(scalar: str, cell: Cell, width: int) -> Operand:
    """Return the sink delta = sum times derivative, and what is there or was left for it."""
    left, delta, stride = cell.take(), cell.delta or 0, cell.chain_stride
    first: tuple[int | None, int, int] = (delta if cell.add() else None, stride, 0)
    if left is not None:
        first = left.delta, left.chain_stride, int(cell.derivative is not None)
    fits = aligned([delta, cell.derivative, first[0]], [stride, width, first[1]])
    fields = (delta, cell.derivative, stride, width, *first)
    return Operand(f"DeltaSink<{scalar}>", fields, plain=True, aligned=fits)


def product(
    scalar: str,
    a: Operand,
    b: Operand,
    sink: Operand,
    *,
    m: int,
    n: int,
    k: int,
    slices: int = 1,
    length: int = 0,
    passes: int = 0,
    joins: bool = False,
    chains: int = 1,
) -> Launch:
    """Return the launch of sink(m, n) = sum over k of a(m, k) b(k, n) for every chain.

    With `passes` on tensor cores, unless there are 16 columns or fewer: the bits of a row do not
    depend on how many there are. `length`: terms of a slice; by default they are as equal as can
    be. `joins`: the sink's kJoins. `chains`: how many there will be, which decides the tiles and no
    bit.
    """
    operands = f"{a.name}, {b.name}, {sink.name}"
    length = length or -(-k // slices)
    known = all(one.plain or one.found for one in (a, b)) and sink.plain
    if scalar == "float" and known and not (passes and n > _NARROW):
        sizes = m, n, k, *(one.fields[2] for one in (a, b) if one.plain)
        if m > _NARROW and m * n * k >= _WIDE and max(sizes) < _MOST_WIDE:
            return _wide_product(a, b, sink, m, n, k, slices, length, chains)
    if passes and n > _NARROW:
        tile_m, tile_n = (16 if m <= 16 else 64 if m < _TALL else 128), 64
        across = {16: 8, 64: 4, 128: 2}[tile_m]  # warps
        if joins:
            tile_m, across = 128, 1
        name = f"TensorProduct<{operands}, {passes}, {tile_m}, {tile_n}, {across}>"
    else:
        tile_m, tile_n = (64, 16) if n <= 16 else (16, 64) if m <= 16 else (64, 64)
        name = f"Product<{scalar}, {operands}, {tile_m}, {tile_n}, {DEPTH}>"
    return Launch(
        name,
        (*a.fields, *b.fields, *sink.fields, m, n, k, slices, length),
        (-(-m // tile_m), -(-n // tile_n), slices),
        chains_along=2,
    )


def tap_gradient(
    panel: Panel, number: int, window: str, source: Cell, delta: Cell, terms: int, row: Row
) -> None:
    """Append the gradient of a convolution's weights and of the bias where `has_taps` says so."""
    channels, outs = row["channels"], row["out_channels"]
    _, slices, length = panel.cut(number, terms)
    across = next(n for n in _ACROSS if outs % n == 0)
    fields = (source.value, source.chain_stride, delta.delta, delta.chain_stride)
    sink = gradient_sink(panel, number, _TAPS * channels, outs, row, "")
    panel.backward.append(
        Launch(
            f"TapGradient<{window}, {across}>",
            (*fields, *sink.fields, terms, slices, length, int(row["bias"] >= 0)),
            (channels // _TAP_CHANNELS, outs // across, slices),
            chains_along=2,
            # of the kernel: three stages of 32 terms
            shared=3 * 32 * 4 * (_TAPS * _TAP_CHANNELS + across) + 4 * across,
        )
    )


def has_taps(panel: Panel, row: Row, source: Cell) -> bool:
    """Whether the gradient of a convolution's weights is one of `tap_gradient`.

    By shapes alone. What users give may begin anywhere, so the first value is not read by fours.
    """
    outs = row["out_channels"]
    taps = row["kernel_height"] * row["kernel_width"]
    return (
        panel.scalar == "float"
        and taps == _TAPS
        and row["argument"] == 1
        and row["channels"] % _TAP_CHANNELS == 0
        and outs % _ACROSS[-1] == 0
        and not (panel.passes.backward and outs > _NARROW)
        and source is not panel.cells[0]
    )


def gradient_sink(
    panel: Panel, number: int, rows: int, width: int, row: Row, blocks: str
) -> Operand:
    """Return the sink of a weight's gradient (rows, width) and its bias's, or of partial ones."""
    first, _, _ = panel.cut(number, panel.count)
    size, bias = rows * width // (row["argument"] if blocks else 1), row["bias"]
    if panel.slices[number].count == 1:
        place = (panel.grad, panel.dim, 0, row["weight"], bias)
    else:
        arrays = ((row["weight"], size), *([(bias, width)] if bias >= 0 else []))
        sums = panel.partials(arrays, panel.slices[number].count)
        place = (sums.slice(first, panel.itemsize), sums.size, sums.slice_stride, 0, size)
    fields = (*place, rows, width, int(panel.adds))
    scalar = panel.scalar
    name = f"GroupedGradientSink<{scalar}, {blocks}>" if blocks else f"GradientSink<{scalar}>"
    return Operand(name, fields, plain=not blocks)


def _wide_product(
    a: Operand,
    b: Operand,
    sink: Operand,
    m: int,
    n: int,
    k: int,
    slices: int,
    length: int,
    chains: int,
) -> Launch:
    rows, tiles = m - a.ones, _FOUND_TILES if a.found else _TILES
    chosen = min(tiles, key=lambda tile: _issue(tile, tiles[tile], rows, n, slices * chains))
    tile_m, tile_n = chosen
    fours = [one.aligned and tile >= 64 for one, tile in ((a, tile_m), (b, tile_n))]
    vectors = (
        4 if fours[0] and (a.found or (a.transposed and rows % 4 == 0)) else 1,
        4 if fours[1] and not b.transposed and n % 4 == 0 else 1,
        4 if sink.aligned and n % 4 == 0 and max(tile_m // 2, tile_n) >= 64 else 1,
    )
    sizes = ", ".join(map(str, (tile_m, tile_n, *vectors)))
    # Shared of the kernel: three stages of 16 terms, with four numbers of padding behind each line.
    left = tile_m * 20 if a.found and not a.transposed else 16 * (tile_m + 4)
    size = 3 * 4 * (left + 16 * (tile_n + 4)) + (4 * tile_n if a.ones else 16)
    return Launch(
        f"WideProduct<{a.name}, {b.name}, {sink.name}, {sizes}>",
        (*a.fields, *b.fields, *sink.fields, m, n, k, slices, length),
        (-(-rows // tile_m), -(-n // tile_n), slices),
        chains_along=2,
        shared=size if size > STATIC_SHARED else 0,
    )


def _issue(tile: tuple[int, int], counted: tuple[int, int], m: int, n: int, copies: int) -> float:
    """Return a time, by the paper's model of issue, of products by tiles on a large device."""
    instructions, resident = counted
    blocks = -(-m // tile[0]) * -(-n // tile[1]) * copies
    turns = -(-blocks // _PROCESSORS)
    warps = THREADS // 32 * min(resident, turns) / 4  # of a scheduler
    return turns * instructions / min(0.9, 0.45 + 0.15 * warps)


def weight_gradient(
    panel: Panel,
    number: int,
    inputs: Operand,
    delta: Operand,
    rows: int,
    width: int,
    terms: int,
    row: Row,
    blocks: str = "",
) -> None:
    """Append the gradient of a weight (rows, width) and of the bias, sums over `terms` places.

    `inputs` is (rows, terms) and `delta` (terms, width). Row `number` of the table says into how
    many partial sums they are cut; the panels of a pass add to each other. `blocks`: sizes of a
    weight that is zero outside blocks, ``taps, channels, outs, groups``.
    """
    scalar = panel.scalar
    _, slices, length = panel.cut(number, terms)
    sink = gradient_sink(panel, number, rows, width, row, blocks)
    if row["bias"] >= 0:
        inputs, rows = with_ones(scalar, inputs, rows), rows + 1
    passes = panel.passes.backward if rows > _NARROW else 0
    panel.backward.append(
        product(
            scalar,
            inputs,
            delta,
            sink,
            m=rows,
            n=width,
            k=terms,
            slices=slices,
            length=length,
            passes=passes,
            chains=panel.chains,
        )
    )
