"""A window that slides over an image and its weights, as kernels name them."""

from __future__ import annotations

from ribbit._backends.cuda.layers import products
from ribbit._backends.cuda.layers.panel import Row
from ribbit._backends.cuda.layers.products import Operand

_WINDOW = (  # template arguments of Sliding
    *("height", "width", "channels", "kernel_height", "kernel_width"),
    *("stride_height", "stride_width", "pad_top", "pad_left", "out_height", "out_width"),
    *("dilation_height", "dilation_width"),
)


def sliding(row: Row) -> str:
    """Return the C++ type of a row's window."""
    return f"Sliding<{', '.join(str(row[name]) for name in _WINDOW)}>"


def kernel(scalar: str, row: Row, base: int, chain_stride: int) -> Operand:
    """Return the weights of a convolution as (taps x channels, outs)."""
    if row["argument"] == 1:
        return products.matrix(scalar, base, chain_stride, row["out_channels"])
    return Operand(f"GroupedKernel<{scalar}, {_blocks(row)}, false>", (base, chain_stride))


def turned_kernel(scalar: str, row: Row, base: int, chain_stride: int) -> Operand:
    """Return the weights of a convolution as (taps x outs, channels)."""
    if row["argument"] == 1:
        name = f"TurnedKernel<{scalar}, {row['channels']}, {row['out_channels']}>"
        return Operand(name, (base, chain_stride), found=True, transposed=True)
    return Operand(f"GroupedKernel<{scalar}, {_blocks(row)}, true>", (base, chain_stride))


def grouped(row: Row) -> str:
    """Return what the gradient of a convolution's weights passes on its way, "" for one group."""
    return "" if row["argument"] == 1 else _blocks(row)


def _blocks(row: Row) -> str:
    taps = row["kernel_height"] * row["kernel_width"]
    return f"{taps}, {row['channels']}, {row['out_channels']}, {row['argument']}"
