"""Layers of a network: immutable descriptions that write themselves into the layer table.

A new layer is one class here and one op in the native table; what needs to tell layers apart
(learned dropout rates, weights from PyTorch) reads the table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ribbit import _checks
from ribbit.layers._table import COLUMNS, Layer, Parameter, Table, Value
from ribbit.layers.activation import ACTIVATIONS, Activation
from ribbit.layers.conv import Conv1D, Conv2D
from ribbit.layers.dense import MAX_SIZE, Dense
from ribbit.layers.dropout import Dropout
from ribbit.layers.embedding import Embedding
from ribbit.layers.flatten import Flatten
from ribbit.layers.norm import FilterResponseNorm, LayerNorm
from ribbit.layers.pool import AvgPool2D, GlobalAvgPool2D, MaxPool1D, MaxPool2D
from ribbit.layers.recurrent import LSTM
from ribbit.layers.residual import Residual

_CLASSES = (
    Dense,
    Activation,
    Dropout,
    Flatten,
    Conv2D,
    Conv1D,
    MaxPool2D,
    MaxPool1D,
    AvgPool2D,
    GlobalAvgPool2D,
    FilterResponseNorm,
    LayerNorm,
    Residual,
    Embedding,
    LSTM,
)
_LAYERS: dict[str, type[Any]] = {cls.__name__: cls for cls in _CLASSES}

__all__ = [
    "ACTIVATIONS",
    "COLUMNS",
    "LSTM",
    "Activation",
    "AvgPool2D",
    "Conv1D",
    "Conv2D",
    "Dense",
    "Dropout",
    "Embedding",
    "FilterResponseNorm",
    "Flatten",
    "GlobalAvgPool2D",
    "Layer",
    "LayerNorm",
    "MaxPool1D",
    "MaxPool2D",
    "Parameter",
    "Residual",
    "Table",
    "Value",
    "describe",
    "from_description",
    "input_shape_of",
    "is_layer",
]


def describe(layer: Layer) -> dict[str, Any]:
    """Return a JSON-able description of a layer: its class and its fields."""
    fields = {}
    for item in dataclasses.fields(layer):  # type: ignore[arg-type]
        value = getattr(layer, item.name)
        if isinstance(value, tuple):
            value = [describe(v) if is_layer(v) else v for v in value]
        fields[item.name] = value
    return {"layer": type(layer).__name__, **fields}


def from_description(description: object) -> Layer:
    """Rebuild a layer from `describe`.

    Raises
    ------
    TypeError, ValueError
        If the description names no known layer or other fields than that layer's.
    """
    function = "layers.from_description"
    fields = dict(_checks.mapping(function, "description", description))
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(from_description(v) if isinstance(v, dict) else v for v in value)
    return _checks.rebuild(function, "layer", fields, _LAYERS)  # type: ignore[no-any-return]


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
        _checks.integer(function, f"input_shape[{i}]", size, minimum=1, maximum=MAX_SIZE)
        for i, size in enumerate(value)
    )
