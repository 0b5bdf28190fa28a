"""Layers of a network: immutable descriptions that compile to rows of the layer table.

A layer knows its output shape, its parameters and its own row; nothing else in the package looks
at layer types. A new layer is one class here, one op in the native table.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from ribbit import _checks
from ribbit.errors import ShapeError

__all__ = ["Activation", "Dense", "Dropout", "Layer", "Parameter"]

ACTIVATIONS: dict[str, int] = {
    "identity": 0,
    "relu": 1,
    "tanh": 2,
    "silu": 3,
    "sigmoid": 4,
    "gelu": 5,
    "softplus": 6,
}
"""Code of each activation in the layer table; gelu is the exact one, with the error function."""

_MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Parameter:
    """One array of parameters of a network and its place in the flat vector.

    Attributes
    ----------
    name : str
        ``"<layer index>.<what>"``, for example ``"0.weight"``; indices count every layer.
    shape : tuple of int
        Shape of the array; a dense weight is (in, out).
    offset : int
        First element in the flat vector; the array lies there in C order.
    fan_in : int
        Inputs that one output sums over; 1 for a bias.
    is_weight : bool
        True for weights, False for biases.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    fan_in: int
    is_weight: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@runtime_checkable
class Layer(Protocol):
    """What `Model` needs of a layer. Shapes are per data row, without the batch axis."""

    @property
    def rate(self) -> float:
        """Dropout rate; 0 for every other layer."""
        ...

    def output_shape(self, function: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the output for `input_shape`; ShapeError in the name of `function`."""
        ...

    def parameters(
        self, input_shape: tuple[int, ...], index: int, offset: int
    ) -> tuple[Parameter, ...]:
        """Parameters in flat order, the first at `offset`, for the layer at place `index`."""
        ...

    def row(self, input_shape: tuple[int, ...], index: int, offset: int) -> tuple[int, ...]:
        """Row (8,) of the layer table: op, in, out, weight offset, bias offset, arg, index, 0."""
        ...


@dataclass(frozen=True)
class Dense:
    """A fully connected layer, ``y = x @ W + b`` with W of shape (in, out).

    Parameters
    ----------
    units : int
        Number of outputs, >= 1.
    bias : bool, default True
        Whether to add a bias (units,).

    Raises
    ------
    TypeError, ValueError
        If `units` is not a positive integer or `bias` not a bool.
    """

    op: ClassVar[int] = 0
    units: int
    bias: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        units = _checks.integer("Dense", "units", self.units, minimum=1, maximum=_MAX_SIZE)
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "bias", _checks.boolean("Dense", "bias", self.bias))

    @property
    def rate(self) -> float:
        """Dropout rate, 0."""
        return 0.0

    def output_shape(self, function: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (units,); the input must be flat."""
        if len(input_shape) != 1:
            raise ShapeError(f"[{function}] expected a flat input for {self}, got {input_shape}")
        return (self.units,)

    def parameters(
        self, input_shape: tuple[int, ...], index: int, offset: int
    ) -> tuple[Parameter, ...]:
        """Return weight (in, units), then bias (units,)."""
        (fan_in,) = input_shape
        weight = Parameter(f"{index}.weight", (fan_in, self.units), offset, fan_in, True)
        if not self.bias:
            return (weight,)
        return weight, Parameter(f"{index}.bias", (self.units,), offset + weight.size, 1, False)

    def row(self, input_shape: tuple[int, ...], index: int, offset: int) -> tuple[int, ...]:
        """Return the row of the layer table."""
        (fan_in,) = input_shape
        bias_offset = offset + fan_in * self.units if self.bias else -1
        return (self.op, fan_in, self.units, offset, bias_offset, 0, index, 0)


@dataclass(frozen=True)
class Activation:
    """An elementwise activation.

    Parameters
    ----------
    name : str
        identity, relu, tanh, silu, sigmoid, gelu (exact, with the error function) or softplus.

    Raises
    ------
    TypeError, ValueError
        If `name` is not one of these.
    """

    op: ClassVar[int] = 1
    name: str

    def __post_init__(self) -> None:
        _checks.choice("Activation", "name", self.name, ACTIVATIONS)

    @property
    def rate(self) -> float:
        """Dropout rate, 0."""
        return 0.0

    def output_shape(self, function: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return `input_shape`."""
        return input_shape

    def parameters(
        self, input_shape: tuple[int, ...], index: int, offset: int
    ) -> tuple[Parameter, ...]:
        """Return no parameters."""
        return ()

    def row(self, input_shape: tuple[int, ...], index: int, offset: int) -> tuple[int, ...]:
        """Return the row of the layer table; arg is the code of the activation."""
        size = math.prod(input_shape)
        return (self.op, size, size, -1, -1, ACTIVATIONS[self.name], index, 0)


@dataclass(frozen=True)
class Dropout:
    """Dropout of units; the identity in every deterministic pass.

    Parameters
    ----------
    rate : float
        Probability that a unit is dropped, in [0, 1).

    Raises
    ------
    TypeError, ValueError
        If `rate` is not a number in [0, 1).
    """

    op: ClassVar[int] = 2
    rate: float

    def __post_init__(self) -> None:
        rate = _checks.fraction("Dropout", "rate", self.rate, zero=True)
        object.__setattr__(self, "rate", rate)

    def output_shape(self, function: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return `input_shape`."""
        return input_shape

    def parameters(
        self, input_shape: tuple[int, ...], index: int, offset: int
    ) -> tuple[Parameter, ...]:
        """Return no parameters."""
        return ()

    def row(self, input_shape: tuple[int, ...], index: int, offset: int) -> tuple[int, ...]:
        """Return the row of the layer table."""
        size = math.prod(input_shape)
        return (self.op, size, size, -1, -1, 0, index, 0)


_LAYERS: dict[str, type[Any]] = {cls.__name__: cls for cls in (Dense, Activation, Dropout)}


def describe(layer: Layer) -> dict[str, Any]:
    """Return a JSON-able description of a layer: its class and its fields."""
    fields = dataclasses.asdict(layer)  # type: ignore[call-overload]
    return {"layer": type(layer).__name__, **fields}


def from_description(description: object) -> Layer:
    """Rebuild a layer from `describe`.

    Raises
    ------
    TypeError, ValueError
        If the description names no known layer or other fields than that layer's.
    """
    fields = dict(_checks.mapping("layers.from_description", "description", description))
    return _checks.rebuild("layers.from_description", "layer", fields, _LAYERS)  # type: ignore[no-any-return]


def is_layer(value: object) -> bool:
    """Tell whether `value` is a layer object (a layer class is not)."""
    return not isinstance(value, type) and isinstance(value, Layer)


def input_shape_of(function: str, value: object) -> tuple[int, ...]:
    """Return an input shape as a tuple of positive ints."""
    if not isinstance(value, tuple | list) or not value:
        got = _checks.summary(value)
        raise TypeError(
            f"[{function}] expected input_shape as a non-empty tuple of integers, got {got}"
        )
    return tuple(
        _checks.integer(function, f"input_shape[{i}]", size, minimum=1, maximum=_MAX_SIZE)
        for i, size in enumerate(value)
    )


def names_of_dropout(layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """Return the dropout layers as ``"2: Dropout(0.1)"``."""
    return tuple(
        f"{i}: {type(layer).__name__}({layer.rate:g})"
        for i, layer in enumerate(layers)
        if getattr(type(layer), "op", None) == Dropout.op
    )


__all__ += ["ACTIVATIONS", "describe", "from_description", "is_layer"]
