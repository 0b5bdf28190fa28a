"""What layers compile to: rows of the layer table, named parameters, dropout rates."""

# Every interpreter of a network reads these rows (``cpp/core/network.h``). Value number 0 is the
# network's input, number r + 1 what row r gives.

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ribbit._backends.codes import COLUMNS, bits_of
from ribbit.errors import ShapeError

MAX_SIZE = 2**31 - 1  # of a layer: units, channels, cells
_MOST_SCALARS = 2**34
_NONE = dict.fromkeys(("weight", "bias", "second", "third"), -1)


@dataclass(frozen=True)
class Parameter:
    """One array of parameters of a network and its place in the flat vector."""

    name: str  # "<layer index>.<what>", such as "0.weight" or, in a Residual, "3.main.0.weight"
    shape: tuple[int, ...]  # shape of the array; a dense weight is (in, out)
    offset: int  # first element in the flat vector; the array lies there in C order
    fan_in: int  # inputs that one output sums over; 1 for what is no weight
    # True for weights; False for biases, and for scales, shifts and thresholds of norms
    is_weight: bool
    initial: float = 0.0  # where `Model.init` starts what is no weight: 1 for scales, else 0

    @functools.cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class TorchArrays:
    """What PyTorch makes of a layer's parameters, where it differs; ``torch_weights`` reads it."""

    # of an array of parameters by its last name; of several, it is the sum
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # the parameters belong to units one by one, so that they move with the units of a flattened
    # image
    units: bool = False
    # whether the layer does the same whatever order the units of a flattened image have
    any_order: Callable[[Mapping[str, int]], bool] = lambda row: True


@dataclass(frozen=True)
class Value:
    """What a row of the table gives: its number and its shape, without the batch axis."""

    number: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Scalars per data row."""
        return math.prod(self.shape)


class Table:
    """The layer table while it is being written, row by row."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.rates: list[float] = []
        self.parameters: list[Parameter] = []
        self.dropout: list[str] = []  # layers whose op drops units, as "2: Dropout(0.1)"
        self.tokens = 0  # how many different tokens the input may hold, 0: it holds numbers
        self._scope: list[str] = []
        self._indices: list[int] = []  # of the layers that are being compiled, outermost first
        self._layers = 0
        self._places: dict[int, str] = {}  # of layer objects with parameters, by identity

    @property
    def dim(self) -> int:
        """Number of parameters so far."""
        last = self.parameters[-1:]
        return last[0].offset + last[0].size if last else 0

    @property
    def place(self) -> str:
        """Where the layer that is being compiled stands, for example "3.main.0"."""
        return ".".join(self._scope)

    @property
    def function(self) -> str:
        """Who raises errors about this layer."""
        return f"Model, layer {self.place}"

    @contextmanager
    def layer(self, name: str, layer: object) -> Iterator[None]:
        """Count one more layer, whose names begin with `name` inside this block."""
        # A layer object with parameters stands at one place: at two it would be two layers, where
        # PyTorch means shared weights.
        self._scope.append(name)
        if id(layer) in self._places:
            place = self.place
            self._scope.pop()
            raise ValueError(
                f"[Model] expected each layer with parameters once, got one {type(layer).__name__} "
                f"object as layers {self._places[id(layer)]} and {place}: write it twice for two "
                "layers; weights cannot be shared"
            )
        before = len(self.parameters)
        self._indices.append(self._layers)
        self._layers += 1
        try:
            yield
        finally:
            if len(self.parameters) > before:
                self._places[id(layer)] = self.place
            self._scope.pop()
            self._indices.pop()

    def parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        fan_in: int = 1,
        is_weight: bool = False,
        initial: float = 0.0,
    ) -> int:
        """Append an array of parameters and return its offset."""
        offset = self.dim
        full = f"{self.place}.{name}"
        self.parameters.append(Parameter(full, shape, offset, fan_in, is_weight, initial))
        return offset

    def scale_and_shift(self, channels: int) -> dict[str, int]:
        """Append gamma, which starts at 1, and beta; return their columns."""
        gamma = self.parameter("gamma", (channels,), initial=1.0)
        return {"weight": gamma, "bias": self.parameter("beta", (channels,))}

    def row(
        self,
        op: int,
        value: Value,
        shape: tuple[int, ...],
        *,
        rate: float = 0.0,
        number: float = 0.0,
        **columns: int,
    ) -> Value:
        """Append a row that turns `value` into a value of `shape`; other columns by name."""
        for each in (value.shape, shape):
            if math.prod(each) > _MOST_SCALARS:
                raise ShapeError(
                    f"[{self.function}] expected at most 2**34 scalars per data row, got {each}"
                )
        given: dict[str, int] = {
            **dict.fromkeys(COLUMNS, 0),
            **_NONE,
            "op": op,
            "in_size": value.size,
            "out_size": math.prod(shape),
            "index": self._indices[-1],
            "input": value.number,
            "number": bits_of(number),
            **columns,
        }
        self.rows.append(tuple(given[name] for name in COLUMNS))
        self.rates.append(rate)
        return Value(len(self.rows), shape)

    def array(self) -> npt.NDArray[np.int64]:
        """Return the rows as an array (R, columns)."""
        return np.array(self.rows, dtype=np.int64).reshape(-1, len(COLUMNS))


@runtime_checkable
class Layer(Protocol):
    """What `Model` needs of a layer: that it writes itself into the layer table."""

    def _compile(self, table: Table, value: Value) -> Value:
        """Append rows and parameters that turn `value` into the value that is returned."""
        ...


def is_layer(value: object) -> bool:
    """Tell whether `value` is a layer object of this package, not a class or a user's layer."""
    return type(value).__module__.rpartition(".")[0] == __package__ and isinstance(value, Layer)
