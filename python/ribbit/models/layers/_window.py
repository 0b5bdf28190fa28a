"""Windows that slide over images and sequences: sizes, strides, padding."""

from __future__ import annotations

from typing import Any

from ribbit._arrays import checks
from ribbit.errors import ShapeError
from ribbit.models.layers._table import Table, Value

MAX_SIZE = 2**31 - 1
PADDINGS = ("valid", "same")


def pair(function: str, name: str, value: object) -> int | tuple[int, int]:
    """Return a size as it was given, an int or a pair of ints, after checking it."""
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(f"[{function}] expected {name} as an integer or two, got {value}")
        first, second = (
            checks.integer(function, f"{name}[{i}]", v, minimum=1, maximum=MAX_SIZE)
            for i, v in enumerate(value)
        )
        return first, second
    return checks.integer(function, name, value, minimum=1, maximum=MAX_SIZE)


def both(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width)."""
    return value if isinstance(value, tuple) else (value, value)


def image(table: Table, layer: object, value: Value) -> tuple[int, int, int]:
    """Return (H, W, C) of an image."""
    if len(value.shape) != 3:
        raise ShapeError(
            f"[{table.function}] expected an image (H, W, C) for {layer}, got {value.shape}"
        )
    height, width, channels = value.shape
    return height, width, channels


def sequence(table: Table, layer: object, value: Value) -> tuple[int, int]:
    """Return (T, C) of a sequence."""
    if len(value.shape) != 2:
        raise ShapeError(
            f"[{table.function}] expected a sequence (T, C) for {layer}, got {value.shape}"
        )
    length, channels = value.shape
    return length, channels


def _slide(size: int, kernel: int, stride: int, padding: str) -> tuple[int, int]:
    # How many places, and how many cells of padding before the first.
    if padding == "valid":
        return (size - kernel) // stride + 1, 0
    places = -(-size // stride)
    return places, max((places - 1) * stride + kernel - size, 0) // 2


def geometry(
    table: Table,
    layer: object,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: str,
    out_channels: int,
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the output (H', W', C') of a window on an image (H, W, C), and its columns.

    "same" is that of TensorFlow and JAX: ceil(size / stride) places, of the padding cells that
    needs the odd one behind.
    """
    height, width, channels = shape
    if padding == "valid" and (kernel[0] > height or kernel[1] > width):
        raise ShapeError(
            f"[{table.function}] expected an input at least as large as the window of {layer}, "
            f"got {(height, width)}"
        )
    out_height, top = _slide(height, kernel[0], stride[0], padding)
    out_width, left = _slide(width, kernel[1], stride[1], padding)
    columns = {
        "height": height,
        "width": width,
        "channels": channels,
        "kernel_height": kernel[0],
        "kernel_width": kernel[1],
        "stride_height": stride[0],
        "stride_width": stride[1],
        "pad_top": top,
        "pad_left": left,
        "out_height": out_height,
        "out_width": out_width,
        "out_channels": out_channels,
    }
    return (out_height, out_width, out_channels), columns
