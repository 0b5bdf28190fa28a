"""Convolutions of images and sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.models.layers import _window
from ribbit.models.layers._table import Table, Value

__all__ = ["Conv1D", "Conv2D"]


@dataclass(frozen=True)
class Conv2D:
    """A convolution (cross-correlation) of an image (H, W, C) with `filters` kernels.

    ``y[i, j, k] = b[k] + sum over r, s, c of x[i * stride + r - pad, j * stride + s - pad, c]
    * W[r, s, c, k]``, x being 0 outside the image. Parameters: weight (kernel height, kernel width,
    C, filters), bias (filters,).

    Parameters
    ----------
    filters : int
        Number of output channels, >= 1.
    kernel_size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), default 1
        Step of the window.
    padding : {"valid", "same"}, default "valid"
        "same" gives ceil(H / stride) by ceil(W / stride) places; of an odd number of padding
        cells the larger half lies behind, as in TensorFlow and JAX.
    bias : bool, default True
        Whether to add a bias.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.
    """

    op: ClassVar[int] = OPS["conv"]
    filters: int
    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] = field(default=1, kw_only=True)
    padding: str = field(default="valid", kw_only=True)
    bias: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "Conv2D")
        for name in ("kernel_size", "stride"):
            object.__setattr__(self, name, _window.pair("Conv2D", name, getattr(self, name)))

    def compile(self, table: Table, value: Value) -> Value:
        """Write weight and bias."""
        shape = _window.image(table, self, value)
        kernel, stride = _window.both(self.kernel_size), _window.both(self.stride)
        return _compile(self, table, value, shape, kernel, stride, (*kernel, shape[2]))


@dataclass(frozen=True)
class Conv1D:
    """A convolution (cross-correlation) of a sequence (T, C); weight (kernel size, C, filters).

    Parameters
    ----------
    filters : int
        Number of output channels, >= 1.
    kernel_size : int
        Length of the window.
    stride : int, default 1
        Step of the window.
    padding : {"valid", "same"}, default "valid"
        As for `Conv2D`.
    bias : bool, default True
        Whether to add a bias.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.
    """

    op: ClassVar[int] = OPS["conv"]
    filters: int
    kernel_size: int
    stride: int = field(default=1, kw_only=True)
    padding: str = field(default="valid", kw_only=True)
    bias: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "Conv1D")
        for name in ("kernel_size", "stride"):
            size = checks.integer(
                "Conv1D", name, getattr(self, name), minimum=1, maximum=_window.MAX_SIZE
            )
            object.__setattr__(self, name, size)

    def compile(self, table: Table, value: Value) -> Value:
        """Write weight and bias."""
        length, channels = _window.sequence(table, self, value)
        kernel, stride = (1, self.kernel_size), (1, self.stride)
        shape = (1, length, channels)
        out = _compile(self, table, value, shape, kernel, stride, (self.kernel_size, channels))
        return Value(out.number, out.shape[1:])


def _check(layer: Conv2D | Conv1D, name: str) -> None:
    filters = checks.integer(name, "filters", layer.filters, minimum=1, maximum=_window.MAX_SIZE)
    object.__setattr__(layer, "filters", filters)
    checks.choice(name, "padding", layer.padding, _window.PADDINGS)
    object.__setattr__(layer, "bias", checks.boolean(name, "bias", layer.bias))


def _compile(
    layer: Conv2D | Conv1D,
    table: Table,
    value: Value,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    inputs: tuple[int, ...],
) -> Value:
    out, columns = _window.geometry(
        table, layer, shape, kernel, stride, layer.padding, layer.filters
    )
    fan_in = kernel[0] * kernel[1] * shape[2]
    weight = table.parameter("weight", (*inputs, layer.filters), fan_in=fan_in, is_weight=True)
    bias = table.parameter("bias", (layer.filters,)) if layer.bias else -1
    return table.row(layer.op, value, out, weight=weight, bias=bias, **columns)
