"""Windows that slide over images and sequences: sizes, strides, padding."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ribbit._arrays import checks
from ribbit.errors import ShapeError
from ribbit.models.layers._table import MAX_SIZE, Table, Value

PADDINGS = ("valid", "same")


def pair(function: str, name: str, value: object, *, minimum: int = 1) -> int | tuple[int, int]:
    """Return a size as it was given, an int or a pair of ints, after checking it."""
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(f"[{function}] expected {name} as an integer or two, got {value}")
        first, second = (
            checks.integer(function, f"{name}[{i}]", v, minimum=minimum, maximum=MAX_SIZE)
            for i, v in enumerate(value)
        )
        return first, second
    return checks.integer(function, name, value, minimum=minimum, maximum=MAX_SIZE)


def padding(function: str, value: object) -> str | int | tuple[int, int]:
    """Return padding as it was given, a name, an int or a pair of ints, after checking it."""
    if isinstance(value, str):
        return checks.choice(function, "padding", value, PADDINGS)
    given = value if isinstance(value, tuple | list) else (value,)
    for cells in given:
        if isinstance(cells, bool) or not isinstance(cells, Integral):
            raise TypeError(
                f"[{function}] expected padding as 'valid' or 'same' or integers, "
                f"got {checks.summary(value)}"
            )
    return pair(function, "padding", value, minimum=0)


def sequence_padding(function: str, value: object) -> str | int:
    """Return padding of a sequence as it was given, a name or an int, after checking it."""
    found = padding(function, value)
    if isinstance(found, tuple):
        raise TypeError(
            f"[{function}] expected padding as 'valid' or 'same' or an integer, got {found}"
        )
    return found


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


def _slide(size: int, reach: int, stride: int, padding: str | int) -> tuple[int, int]:
    # How many places, and how many cells of padding before the first. reach: cells of a window.
    if padding == "same":
        places = -(-size // stride)
        return places, max((places - 1) * stride + reach - size, 0) // 2
    cells = padding if isinstance(padding, int) else 0
    return (size + 2 * cells - reach) // stride + 1, cells


def geometry(
    table: Table,
    layer: object,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: str | int | tuple[int, int],
    out_channels: int,
    dilation: tuple[int, int] = (1, 1),
) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Return the output (H', W', C') of a window on an image (H, W, C), and its columns."""
    # "same" is that of TensorFlow and JAX: ceil(size / stride) places, the odd padding cell behind.
    # Integers are cells on either side, as in PyTorch.
    height, width, channels = shape
    pads = padding if isinstance(padding, tuple) else (padding, padding)
    places = []
    for size, taps, step, spread, pad in zip(
        shape[:2], kernel, stride, dilation, pads, strict=True
    ):
        reach, cells = (taps - 1) * spread + 1, pad if isinstance(pad, int) else 0
        if pad != "same" and reach > size + 2 * cells:
            raise ShapeError(
                f"[{table.function}] expected an input at least as large as the window of {layer}, "
                f"got {(height, width)}"
            )
        if cells >= reach:
            raise ShapeError(
                f"[{table.function}] expected padding smaller than the window of {layer}, "
                f"got {cells} cells and a window of {reach}"
            )
        places.append(_slide(size, reach, step, pad))
    (out_height, top), (out_width, left) = places
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
        "dilation_height": dilation[0],
        "dilation_width": dilation[1],
    }
    return (out_height, out_width, out_channels), columns
