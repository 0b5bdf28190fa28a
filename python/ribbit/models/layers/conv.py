"""Convolutions of images and sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.errors import ShapeError
from ribbit.models.layers import _window
from ribbit.models.layers._table import MAX_SIZE, Table, TorchArrays, Value

__all__ = ["Affine", "Conv1D", "Conv2D"]


@dataclass(frozen=True)
class Conv2D:
    """A convolution (cross-correlation) of an image (H, W, C) with `filters` kernels.

    ``y[i, j, k] = b[k] + sum over r, s, c of x[i * stride + r * dilation - pad, j * stride + s *
    dilation - pad, c] * W[r, s, c, k]``, x being 0 outside the image. Parameters: weight (kernel
    height, kernel width, C, filters), bias (filters,). With groups, weight is (groups, kernel
    height, kernel width, C / groups, filters / groups).

    Parameters
    ----------
    filters : int
        Number of output channels, >= 1.
    kernel_size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), default 1
        Step of the window.
    padding : {"valid", "same"}, int or (int, int), default "valid"
        "same" gives ceil(H / stride) by ceil(W / stride) places; an odd number of padding cells has
        the larger half at the end, as in TensorFlow and JAX. An integer is the number of cells on
        either side, as in PyTorch: with a stride of 2 its ``padding=1`` differs from "same".
    dilation : int or (int, int), default 1
        Cells from one tap of the window to the next.
    groups : int, default 1
        Number of groups of neighbouring channels and filters; filters see the channels of their own
        group. As many groups as channels make a depthwise convolution.
    bias : bool, default True
        Whether to add a bias.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3, padding="same"), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 626)
    """

    op: ClassVar[int] = OPS["conv"]
    filters: int
    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] = field(default=1, kw_only=True)
    padding: str | int | tuple[int, int] = field(default="valid", kw_only=True)
    bias: bool = field(default=True, kw_only=True)
    dilation: int | tuple[int, int] = field(default=1, kw_only=True)
    groups: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "Conv2D")
        for name in ("kernel_size", "stride", "dilation"):
            object.__setattr__(self, name, _window.pair("Conv2D", name, getattr(self, name)))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write weight and bias."""
        shape = _window.image(table, self, value)
        kernel, stride = _window.both(self.kernel_size), _window.both(self.stride)
        return _compile(
            self, table, value, shape, kernel, stride, _window.both(self.dilation), self.padding
        )


@dataclass(frozen=True)
class Conv1D:
    """A convolution (cross-correlation) of a sequence (T, C); weight (kernel size, C, filters).

    With groups, weight is (groups, kernel size, C / groups, filters / groups).

    Parameters
    ----------
    filters : int
        Number of output channels, >= 1.
    kernel_size : int
        Length of the window.
    stride : int, default 1
        Step of the window.
    padding : {"valid", "same"} or int, default "valid"
        As for `Conv2D`.
    dilation, groups : int, default 1
        As for `Conv2D`.
    bias : bool, default True
        Whether to add a bias.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.

    Examples
    --------
    >>> layers = [rb.Conv1D(4, 3), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(10, 2))
    >>> model.output_shape, model.dim
    ((2,), 94)
    """

    op: ClassVar[int] = OPS["conv"]
    filters: int
    kernel_size: int
    stride: int = field(default=1, kw_only=True)
    padding: str | int = field(default="valid", kw_only=True)
    bias: bool = field(default=True, kw_only=True)
    dilation: int = field(default=1, kw_only=True)
    groups: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "Conv1D")
        for name in ("kernel_size", "stride", "dilation"):
            size = checks.integer("Conv1D", name, getattr(self, name), minimum=1, maximum=MAX_SIZE)
            object.__setattr__(self, name, size)

    def _compile(self, table: Table, value: Value) -> Value:
        """Write weight and bias."""
        length, channels = _window.sequence(table, self, value)
        kernel, stride, dilation = (1, self.kernel_size), (1, self.stride), (1, self.dilation)
        padding = self.padding if isinstance(self.padding, str) else (0, self.padding)
        shape = (1, length, channels)
        out = _compile(self, table, value, shape, kernel, stride, dilation, padding)
        return Value(out.number, out.shape[1:])


@dataclass(frozen=True)
class Affine:
    """A scale and a shift of each channel: (C,), (T, C) or (H, W, C).

    ``y = gamma * x + beta``. Batch normalisation in evaluation mode is such a layer:
    `Model.from_torch` puts an ``nn.BatchNorm`` here if no neighbour can take it. Parameters: gamma
    (C,) starts at 1, beta (C,) at 0.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.Affine(), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 410)
    """

    op: ClassVar[int] = OPS["conv"]
    torch: ClassVar[TorchArrays] = TorchArrays(
        {"gamma": ("weight",), "beta": ("bias",)}, units=True
    )

    def _compile(self, table: Table, value: Value) -> Value:
        """Write gamma and beta; argument: groups."""
        channels = value.shape[-1]
        shape = (1, value.size // channels, channels)
        _, columns = _window.geometry(table, self, shape, (1, 1), (1, 1), "valid", channels)
        columns |= table.scale_and_shift(channels) | {"argument": channels}
        return table.row(self.op, value, value.shape, **columns)


def _check(layer: Conv2D | Conv1D, name: str) -> None:
    filters = checks.integer(name, "filters", layer.filters, minimum=1, maximum=MAX_SIZE)
    object.__setattr__(layer, "filters", filters)
    check_padding = _window.padding if isinstance(layer, Conv2D) else _window.sequence_padding
    object.__setattr__(layer, "padding", check_padding(name, layer.padding))
    object.__setattr__(layer, "bias", checks.boolean(name, "bias", layer.bias))
    groups = checks.integer(name, "groups", layer.groups, minimum=1, maximum=MAX_SIZE)
    object.__setattr__(layer, "groups", groups)
    if filters % groups != 0:
        raise ValueError(
            f"[{name}] expected filters that divide into {groups} groups, got {filters}"
        )


def _compile(
    layer: Conv2D | Conv1D,
    table: Table,
    value: Value,
    shape: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: str | int | tuple[int, int],
) -> Value:
    groups = layer.groups
    if shape[2] % groups != 0:
        raise ShapeError(
            f"[{table.function}] expected channels that divide into {groups} groups, "
            f"got {shape[2]} channels"
        )
    out, columns = _window.geometry(
        table, layer, shape, kernel, stride, padding, layer.filters, dilation
    )
    channels = shape[2] // groups
    sizes = kernel if isinstance(layer, Conv2D) else kernel[1:]
    weight = table.parameter(
        "weight",
        (*((groups,) if groups > 1 else ()), *sizes, channels, layer.filters // groups),
        fan_in=kernel[0] * kernel[1] * channels,
        is_weight=True,
    )
    bias = table.parameter("bias", (layer.filters,)) if layer.bias else -1
    return table.row(layer.op, value, out, weight=weight, bias=bias, argument=groups, **columns)
