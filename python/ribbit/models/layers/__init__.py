"""Layers of a network: immutable descriptions that write themselves into the layer table."""

# A new layer is one class here and one op in the native table; what needs to tell layers apart
# (learned dropout rates, weights from PyTorch) reads the table.

from __future__ import annotations

import dataclasses
from typing import Any

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._backends.codes import ACTIVATIONS as ACTIVATIONS
from ribbit._backends.codes import COLUMNS as COLUMNS
from ribbit.models.layers import (
    activation,
    conv,
    dense,
    dropout,
    embedding,
    flatten,
    lstm,
    norm,
    pool,
    residual,
)
from ribbit.models.layers._table import MAX_SIZE
from ribbit.models.layers._table import Layer as Layer
from ribbit.models.layers._table import Parameter as Parameter
from ribbit.models.layers._table import Table as Table
from ribbit.models.layers._table import TorchArrays as TorchArrays
from ribbit.models.layers._table import Value as Value
from ribbit.models.layers._table import is_layer as is_layer
from ribbit.models.layers.activation import *
from ribbit.models.layers.conv import *
from ribbit.models.layers.dense import *
from ribbit.models.layers.dropout import *
from ribbit.models.layers.embedding import *
from ribbit.models.layers.flatten import *
from ribbit.models.layers.lstm import *
from ribbit.models.layers.norm import *
from ribbit.models.layers.pool import *
from ribbit.models.layers.residual import *

# The layers; users find them in `ribbit` too.
__all__: list[str] = []
__all__ += activation.__all__
__all__ += conv.__all__
__all__ += dense.__all__
__all__ += dropout.__all__
__all__ += embedding.__all__
__all__ += flatten.__all__
__all__ += lstm.__all__
__all__ += norm.__all__
__all__ += pool.__all__
__all__ += residual.__all__

_LAYERS: dict[str, type[Any]] = {name: globals()[name] for name in __all__}


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
    """Rebuild a layer from `describe`."""
    function = "layers.from_description"
    fields = dict(checks.mapping(function, "description", description))
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(from_description(v) if isinstance(v, dict) else v for v in value)
    return checks.rebuild(function, "layer", fields, _LAYERS)  # type: ignore[no-any-return]


def input_shape_of(function: str, value: object) -> tuple[int, ...]:
    """Return an input shape as a tuple of positive ints."""
    if not isinstance(value, tuple | list) or not value:
        got = checks.summary(value)
        raise TypeError(
            f"[{function}] expected input_shape as a non-empty tuple of integers, got {got}"
        )
    return tuple(
        checks.integer(function, f"input_shape[{i}]", size, minimum=1, maximum=MAX_SIZE)
        for i, size in enumerate(value)
    )


explain(globals())
