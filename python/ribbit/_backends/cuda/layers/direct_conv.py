"""Convolutions of 3 x 3 and their gradients that no product makes, where shapes fit."""

from __future__ import annotations

from ribbit._arrays.device import STATIC_SHARED, THREADS, Launch
from ribbit._backends.cuda.layers import products
from ribbit._backends.cuda.layers.panel import Cell, Panel, Row

_ACROSS = (64, 32, 16)  # outs of a block
_MOST_OUTS = 16  # that tensor cores leave to others
_SIDES = ("height", "width")
_RUN = 8  # sites of a line that a thread of DirectConvolution makes, of as many outs
_BAND = 8  # lines that DirectGradient has in shared memory
_LEAST_SHARED = 99 << 10  # bytes that a block of every device may ask for
_MOST_SHARED = 110 << 10  # bytes of a block of which a multiprocessor holds two


def launch(
    row: Row,
    source: tuple[int, int],
    weights: tuple[int, int],
    sink: products.Operand,
    *,
    lines: int,
    turned: bool,
    room: int,
) -> Launch:
    """Return the launch of a convolution that `fits`, or of its gradient by the cells."""
    # source and weights: address and chain stride; turned: of deltas with the weights turned; room:
    # bytes of shared memory of a block, which decides the tile and no bit.
    channels, outs = row["channels"], row["out_channels"]
    if turned:
        channels, outs = outs, channels
    across, down, size = _tile(row["height"], row["width"], outs)
    share = 1 if size <= room else 2
    if share > 1:
        across, down, size = _tile(row["height"], row["width"], outs, share)
    sizes = f"{row['height']}, {row['width']}, {channels}, {outs}"
    name = f"{sizes}, {'true' if turned else 'false'}, {sink.name}"
    return Launch(
        f"DirectConvolution<{name}>" if share == 1 else f"DirectConvolution<{name}, {share}>",
        (*source, *weights, *sink.fields, lines),
        (-(-lines // down), outs // across, 1),
        chains_along=2,
        shared=size if size > STATIC_SHARED else 0,
    )


def fits(panel: Panel, row: Row, source: Cell, *, turned: bool = False) -> bool:
    """Whether a convolution, or its gradient by the cells, is one of `launch`, by shapes alone."""
    channels, outs = row["channels"], row["out_channels"]
    height, width = row["height"], row["width"]
    passes = panel.passes.forward
    if turned:
        channels, outs, passes = outs, channels, panel.passes.backward
    if (passes and outs > _MOST_OUTS) or not _is_close(panel, row, source, turned=turned):
        return False
    _, down, size = _tile(height, width, outs)
    return (height % down == 0 or down % height == 0) and size <= _MOST_SHARED


def has_images(row: Row, *, turned: bool = False) -> bool:
    """Whether blocks of a fitting convolution have whole images; by shapes alone."""
    height, width, outs = row["height"], row["width"], row["channels" if turned else "out_channels"]
    tiles = [_tile(height, width, outs)]
    if tiles[0][2] > _LEAST_SHARED:
        tiles.append(_tile(height, width, outs, 2))
    return all(lines % height == 0 for _, lines, _ in tiles)


def gradient(panel: Panel, number: int, source: Cell, delta: Cell, row: Row) -> None:
    """Append the gradient of a convolution's weights and of the bias where `gradient_fits`."""
    channels, outs = row["channels"], row["out_channels"]
    bands = panel.count * (row["height"] // _BAND)
    _, slices, length = panel.cut(number, bands)
    across, size = _bands(row["width"], outs)
    stages = 2 if size <= panel.block_shared else 1
    if stages < 2:
        across, size = _bands(row["width"], outs, stages)
    sink = products.gradient_sink(panel, number, 9 * channels, outs, row, "")
    fields = (source.value, source.chain_stride, delta.delta, delta.chain_stride)
    sizes = f"{row['height']}, {row['width']}, {channels}, {outs}"
    panel.backward.append(
        Launch(
            f"DirectGradient<{sizes}, {across}{'' if stages == 2 else f', {stages}'}>",
            (*fields, *sink.fields, bands, slices, length, int(row["bias"] >= 0)),
            (channels // products.DEPTH, outs // across, slices),
            chains_along=2,
            shared=size if size > STATIC_SHARED else 0,
        )
    )


def gradient_fits(panel: Panel, row: Row, source: Cell) -> bool:
    """Whether the gradient of a convolution's weights is one of `gradient`: by shapes alone."""
    width, outs = row["width"], row["out_channels"]
    return (
        _is_close(panel, row, source)
        and not (panel.passes.backward and outs > _MOST_OUTS)
        and row["height"] % _BAND == 0
        and _bands(width, outs)[1] <= _MOST_SHARED
    )


def _is_close(panel: Panel, row: Row, source: Cell, *, turned: bool = False) -> bool:
    """Whether a convolution has windows of 3 x 3 around each cell, and numbers go by sixteens."""
    return (
        panel.scalar == "float"
        and all(row[f"{what}_{side}"] == 1 for what in ("stride", "dilation") for side in _SIDES)
        and row["kernel_height"] == row["kernel_width"] == 3
        and row["pad_top"] == row["pad_left"] == 1
        and all(row[f"out_{side}"] == row[side] for side in _SIDES)
        and row["argument"] == 1
        and row["channels"] % products.DEPTH == row["out_channels"] % products.DEPTH == 0
        and row["width"] in (8, 16, 32, 64)
        and (turned or source is not panel.cells[0])
    )


def _bands(width: int, outs: int, stages: int = 2) -> tuple[int, int]:
    """Return outs and shared bytes of a block of DirectGradient, as the kernel has it."""
    across = next(n for n in _ACROSS if outs % n == 0)
    stage = (_BAND + 2) * (width + 2) * products.DEPTH + _BAND * width * across
    return across, 4 * (max(stages * stage, 72 * THREADS // 2) + THREADS)


def _tile(height: int, width: int, outs: int, share: int = 1) -> tuple[int, int, int]:
    """Return outs, lines and shared bytes of a block of DirectConvolution, as the kernel has it."""
    across = next(n for n in _ACROSS if outs % n == 0)
    lines = THREADS // (across // _RUN) // (width // _RUN) // share
    part = min(lines, height)
    raw = (width + 2) * products.DEPTH + (width // _RUN + 1) * 4
    pitch = (raw + 15) // 32 * 32 + 16
    stored = lines // part * (part + 2)
    return across, lines, 4 * (stored * pitch + 9 * products.DEPTH * (across + 4))
