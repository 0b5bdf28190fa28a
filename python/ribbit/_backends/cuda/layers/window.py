"""A window that slides over an image, as kernels name it."""

from __future__ import annotations

from ribbit._backends.cuda.layers.panel import Row

__all__ = ["sliding"]

_WINDOW = (  # template arguments of Sliding
    *("height", "width", "channels", "kernel_height", "kernel_width"),
    *("stride_height", "stride_width", "pad_top", "pad_left", "out_height", "out_width"),
)


def sliding(row: Row) -> str:
    """Return the C++ type of a row's window."""
    return f"Sliding<{', '.join(str(row[name]) for name in _WINDOW)}>"
