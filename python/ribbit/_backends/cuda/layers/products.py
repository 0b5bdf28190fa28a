"""Matrix products of the device: operands, sinks and launches by the names of the C++ types."""

# Sizes: C chains, R rows of a panel. Every operand holds one matrix per chain.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ribbit._arrays.device import STATIC_SHARED, THREADS, Launch
from ribbit._backends.cuda.layers.panel import Cell, Panel, Row

DEPTH = 16  # terms of a sum that lie in shared memory at a time
_NARROW = 16  # columns, or weights of an output, that a tile of 64 would be mostly padding for
_WIDE = 1 << 18  # multiply-adds from which wide products pay
# What is counted in 32 bits: 16 rows or terms, 64 lines in memory.
MOST_WIDE, MOST_STRIDE = 1 << 26, 1 << 24
# Tiles of wide products of matrices: clocks of issue of 16 terms, as counted, and blocks of a
# multiprocessor. A clock for an instruction, and one more where two of the registers that it reads
# lie in one bank. Of those that find their numbers, below: instructions.
_TILES = {
    (256, 80): (1910, 2),
    (128, 128): (1350, 2),
    (128, 64): (750, 2),
    (128, 32): (447, 3),
    (128, 16): (252, 3),
    (64, 64): (390, 4),
    (64, 32): (282, 4),
    (64, 16): (176, 4),
    (32, 32): (186, 4),
    (32, 16): (128, 4),
}
# Of those on tensor cores: warps side by side, and the same for one pass and for three, which
# have no registers for the largest.
_TENSOR_TILES: dict[tuple[int, int], tuple[int, tuple[int, int], tuple[int, int] | None]] = {
    (256, 208): (2, (424, 1), None),
    (256, 128): (2, (305, 1), None),
    (256, 80): (2, (255, 2), (453, 1)),
    (128, 128): (4, (221, 2), (390, 1)),
    (256, 64): (2, (220, 2), (390, 1)),
    (128, 80): (2, (179, 2), (293, 1)),
    (128, 64): (2, (156, 2), (263, 2)),
    (256, 32): (1, (167, 2), (276, 2)),
    (128, 32): (1, (129, 3), (185, 2)),
    (64, 64): (4, (119, 3), (172, 2)),
    (64, 32): (2, (110, 4), (131, 3)),
}
# Of an H100, for each multiprocessor and clock, assumed: multiply-adds, bytes from L2.
TENSOR_RATE, L2_RATE = 635, 24
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
PROCESSORS = 132  # multiprocessors that are to have work: of an H100


@dataclass(frozen=True)
class Operand:
    """A C++ type that stands for a matrix, with its members."""

    name: str
    fields: tuple[Any, ...]
    plain: bool = False  # a matrix that lies in memory, or a sink that wide products know
    found: bool = False  # what wide products have the address of a number of, by the type's `find`
    transposed: bool = False  # neighbours in memory are neighbours in a column
    ones: bool = False  # there is a row of ones below
    # four neighbours can be moved at once: of a matrix, where its lines are multiples of 4
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
    room: int,
) -> Launch:
    """Return the launch of sink(m, n) = sum over k of a(m, k) b(k, n) for every chain."""
    # `passes` use tensor cores only above 16 columns: a row's bits do not depend on how many there
    # are. length: terms of a slice; joins: the sink's kJoins; chains and room decide tiles and no
    # bit.
    length = length or -(-k // slices)
    passes = passes if n > _NARROW else 0
    sizes = m, n, k, slices, length
    if scalar == "float" and sink.plain and all(one.plain or one.found for one in (a, b)):
        # Sums of a row of ones have other bits on tensor cores: whether it is there is decided by
        # what does not change with the rows.
        large = a.ones or m > _NARROW if passes else m > _NARROW and m * n * k >= _WIDE
        strides = [one.fields[2] for one in (a, b) if one.plain]
        counted = (m, n) if passes else (m, n, k)
        if large and max(counted) < MOST_WIDE and max(strides, default=0) < MOST_STRIDE:
            return _wide_product(a, b, sink, sizes, passes, chains, room)
    operands = f"{a.name}, {b.name}, {sink.name}"
    if passes:
        tile_m, tile_n, across = (16, 64, 8) if m <= 16 else (64, 64, 4)
        if joins:
            tile_m, across = 128, 1
        name = f"TensorProduct<{operands}, {passes}, {tile_m}, {tile_n}, {across}>"
    else:
        tile_m, tile_n = (64, 16) if n <= 16 else (16, 64) if m <= 16 else (64, 64)
        name = f"Product<{scalar}, {operands}, {tile_m}, {tile_n}, {DEPTH}>"
    return Launch(
        name,
        (*a.fields, *b.fields, *sink.fields, *sizes),
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
    """Whether the gradient of a convolution's weights is one of `tap_gradient`, by shapes alone."""
    # What users give may begin anywhere, so the first value is not read by fours.
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
    sizes: tuple[int, int, int, int, int],
    passes: int,
    chains: int,
    room: int,
) -> Launch:
    """Return the launch of a wide product; sizes: m, n, k, slices, terms of a slice."""
    m, n, k, slices, length = sizes
    rows, copies = m - a.ones, slices * chains
    if passes:
        tile_m, tile_n = _tensor_tile(rows, n, passes, copies, room)
        shape: tuple[int, ...] = (passes, tile_m, tile_n, _TENSOR_TILES[tile_m, tile_n][0])
    else:
        tiles = _FOUND_TILES if a.found else _TILES
        tile_m, tile_n = min(tiles, key=lambda tile: _issue(tile, tiles[tile], rows, n, copies))
        shape = tile_m, tile_n
    # Whether four terms, rows of A and columns of B begin at multiples of four.
    terms = k % 4 == 0 and (slices == 1 or length % 4 == 0)
    # Rows as they lie go to wide tiles one number at a time: copied by four they would be read by
    # four as well, neighbours in registers, so that all products of a term read one of the two
    # banks, half of them a clock longer (issue of WideProduct on an H200: 66 %).
    as_it_lies = terms and (passes > 0 or tile_n < 64)
    four_a = a.aligned and (a.found or (rows % 4 == 0 if a.transposed else as_it_lies))
    four_b = b.aligned and (terms if b.transposed else n % 4 == 0)
    if passes:
        side = 2 if sink.aligned and n % 2 == 0 else 1
    else:
        four_a, four_b = four_a and tile_m >= 64, four_b and tile_n >= 64 and not b.transposed
        side = 4 if sink.aligned and n % 4 == 0 and max(tile_m // 2, tile_n) >= 64 else 1
    shape = (*shape, 4 if four_a else 1, 4 if four_b else 1, side)
    # Shared of the kernel: three stages of 16 terms, with some numbers of padding behind each line.
    padding = 8 if passes else 4
    by_lines = (
        not a.transposed and (a.found or four_a or passes > 0),
        b.transposed and passes > 0,
    )
    numbers = sum(
        20 * tile if lines else DEPTH * (tile + padding)
        for tile, lines in zip((tile_m, tile_n), by_lines, strict=True)
    )
    kind = "WideTensorProduct" if passes else "WideProduct"
    size = 3 * 4 * numbers + (4 * tile_n if a.ones else 16)
    return Launch(
        f"{kind}<{a.name}, {b.name}, {sink.name}, {', '.join(map(str, shape))}>",
        (*a.fields, *b.fields, *sink.fields, *sizes),
        (-(-rows // tile_m), -(-n // tile_n), slices),
        chains_along=2,
        shared=size if size > STATIC_SHARED else 0,
    )


def _issue(tile: tuple[int, int], counted: tuple[int, int], m: int, n: int, copies: int) -> float:
    """Return what tiles are compared by: clocks over the share of them that so many warps use."""
    clocks, resident = counted
    blocks = -(-m // tile[0]) * -(-n // tile[1]) * copies
    turns = -(-blocks // PROCESSORS)
    warps = THREADS // 32 * min(resident, turns) / 4  # of a scheduler
    return turns * clocks / min(0.9, 0.45 + 0.15 * warps)


def _tensor_tile(m: int, n: int, passes: int, copies: int, room: int) -> tuple[int, int]:
    """Return the tile of the least time with `room` bytes of shared memory for any operands."""

    def time(tile: tuple[int, int]) -> float:
        most = 3 * 4 * sum(max(20 * side, DEPTH * (side + 8)) for side in tile) + 4 * tile[1]
        return math.inf if most > room else _tensor_time(tile, m, n, passes, copies)

    return min(_TENSOR_TILES, key=time)


def tensor_time(m: int, n: int, passes: int, copies: int) -> float:
    """Return the clocks that the busiest multiprocessor takes for 16 terms, by the best tile."""
    return min(_tensor_time(tile, m, n, passes, copies) for tile in _TENSOR_TILES)


def _tensor_time(tile: tuple[int, int], m: int, n: int, passes: int, copies: int) -> float:
    """Of issue, tensor cores or L2, whichever is the slowest."""
    _, once, thrice = _TENSOR_TILES[tile]
    counted = once if passes == 1 else thrice
    if counted is None:
        return math.inf
    turns = -(-(-(-m // tile[0]) * -(-n // tile[1]) * copies) // PROCESSORS)
    multiplied = turns * passes * tile[0] * tile[1] * DEPTH / TENSOR_RATE
    read = turns * 4 * DEPTH * (tile[0] + min(tile[1], n)) / L2_RATE
    return max(multiplied, read, THREADS // 32 / 4 * _issue(tile, counted, m, n, copies))


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
    """Append the gradient of a weight (rows, width) and of the bias, sums over `terms` places."""
    # inputs: (rows, terms); delta: (terms, width); the panels of a pass add to each other. blocks:
    # ``taps, channels, outs, groups`` of a weight that is zero outside blocks.
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
            room=panel.block_shared,
        )
    )
