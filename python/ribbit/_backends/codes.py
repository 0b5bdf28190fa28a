"""Numbers that the native core and the device's kernels share with Python."""

from __future__ import annotations

__all__ = ["COLUMNS"]

COLUMNS = (
    "op",
    "in_size",
    "out_size",
    "weight",  # offsets into the flat vector, -1: none
    "bias",
    "argument",
    "index",  # of the layer: part of the address of its masks
    "input",  # value number
    "second",  # value number of a sum's other summand, -1: none
    "third",  # offset of a third array: recurrent weights, thresholds, -1: none
    "height",  # of the input, seen as an image; 1 for sequences
    "width",
    "channels",
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "pad_top",
    "pad_left",
    "out_height",
    "out_width",
    "out_channels",
)
"""Columns of the layer table, in the order of ``enum class Column`` of the core."""
