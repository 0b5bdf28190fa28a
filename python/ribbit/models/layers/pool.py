"""Pooling of images and sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.models.layers import _window
from ribbit.models.layers._table import MAX_SIZE, Table, Value

__all__ = ["AvgPool2D", "GlobalAvgPool2D", "MaxPool1D", "MaxPool2D"]


@dataclass(frozen=True)
class _Pool2D:
    """A window that slides over an image (H, W, C); what it does with its cells is the `op`."""

    op: ClassVar[int]
    pool_size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = field(default=None, kw_only=True)
    padding: str | int | tuple[int, int] = field(default="valid", kw_only=True)

    def __post_init__(self) -> None:
        name = type(self).__name__
        object.__setattr__(self, "pool_size", _window.pair(name, "pool_size", self.pool_size))
        if self.stride is not None:
            object.__setattr__(self, "stride", _window.pair(name, "stride", self.stride))
        object.__setattr__(self, "padding", _window.padding(name, self.padding))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write a row."""
        shape = _window.image(table, self, value)
        kernel = _window.both(self.pool_size)
        step = kernel if self.stride is None else _window.both(self.stride)
        out, columns = _window.geometry(table, self, shape, kernel, step, self.padding, shape[2])
        return table.row(self.op, value, out, **columns)


@dataclass(frozen=True)
class MaxPool2D(_Pool2D):
    """The largest value of each channel in a window that slides over an image (H, W, C).

    In a tie the gradient goes to the first, row by row.

    Parameters
    ----------
    pool_size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), optional
        Step of the window. Default: `pool_size`.
    padding : {"valid", "same"}, int or (int, int), default "valid"
        As for `Conv2D`; padding cells are left out.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.MaxPool2D(2), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 186)
    """

    op: ClassVar[int] = OPS["max_pool"]


@dataclass(frozen=True)
class AvgPool2D(_Pool2D):
    """The mean of each channel in a window that slides over an image (H, W, C).

    Parameters
    ----------
    pool_size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), optional
        Step of the window. Default: `pool_size`.
    padding : {"valid", "same"}, int or (int, int), default "valid"
        As for `Conv2D`; padding cells are not counted.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.AvgPool2D(2), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 186)
    """

    op: ClassVar[int] = OPS["average_pool"]


@dataclass(frozen=True)
class MaxPool1D:
    """The largest value of each channel in a window that slides over a sequence (T, C).

    Parameters
    ----------
    pool_size : int
        Length of the window.
    stride : int, optional
        Step of the window. Default: `pool_size`.
    padding : {"valid", "same"} or int, default "valid"
        As for `Conv2D`; padding cells are left out.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or `padding` is unknown.

    Examples
    --------
    >>> layers = [rb.Conv1D(4, 3), rb.MaxPool1D(2), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(10, 2))
    >>> model.output_shape, model.dim
    ((2,), 62)
    """

    op: ClassVar[int] = OPS["max_pool"]
    pool_size: int
    stride: int | None = field(default=None, kw_only=True)
    padding: str | int = field(default="valid", kw_only=True)

    def __post_init__(self) -> None:
        for name in ("pool_size", "stride"):
            size = getattr(self, name)
            if name == "pool_size" or size is not None:
                size = checks.integer("MaxPool1D", name, size, minimum=1, maximum=MAX_SIZE)
                object.__setattr__(self, name, size)
        padding = _window.sequence_padding("MaxPool1D", self.padding)
        object.__setattr__(self, "padding", padding)

    def _compile(self, table: Table, value: Value) -> Value:
        """Write a row."""
        length, channels = _window.sequence(table, self, value)
        kernel, stride = (1, self.pool_size), (1, self.stride or self.pool_size)
        shape = (1, length, channels)
        padding = self.padding if isinstance(self.padding, str) else (0, self.padding)
        out, columns = _window.geometry(table, self, shape, kernel, stride, padding, channels)
        return table.row(self.op, value, out[1:], **columns)


@dataclass(frozen=True)
class GlobalAvgPool2D:
    """The mean of each channel over an image: (H, W, C) -> (C,).

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.GlobalAvgPool2D()]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((4,), 112)
    """

    op: ClassVar[int] = OPS["average_pool"]

    def _compile(self, table: Table, value: Value) -> Value:
        """Write a row: one window of the size of the image."""
        shape = _window.image(table, self, value)
        kernel = shape[:2]
        _, columns = _window.geometry(table, self, shape, kernel, (1, 1), "valid", shape[2])
        return table.row(self.op, value, shape[2:], **columns)
