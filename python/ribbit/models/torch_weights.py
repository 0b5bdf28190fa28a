"""Weights of a model as a PyTorch state dict, and back: an interpreter of the layer table."""

# Every array is a block (A, B, C) that torch holds as (C, B, A): a dense weight (places, channels,
# out), a convolution (cells of the window, channels, out) of each group, a vector (1, n, 1).

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.packages import needing
from ribbit._backends.codes import COLUMNS
from ribbit.errors import DTypeError, ShapeError
from ribbit.models import layers

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

_BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")
_DENSE, _CONV, _ADD, _LSTM = (
    layer.op for layer in (layers.Dense, layers.Conv2D, layers.Residual, layers.LSTM)
)
_FRN, _EMBEDDING = layers.FilterResponseNorm.op, layers.Embedding.op
_POOLS = (layers.MaxPool2D.op, layers.AvgPool2D.op)
_CLASSES = (getattr(layers, name) for name in layers.__all__)
_ARRAYS = {layer.op: layer.torch for layer in _CLASSES if hasattr(layer, "torch")}
_AS_HERE = layers.TorchArrays()


class Network(Protocol):
    """What is read of a model; see `ribbit.Model`."""

    @property
    def dim(self) -> int:
        """Number of parameters."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a data row."""
        ...

    @property
    def parameters(self) -> tuple[layers.Parameter, ...]:
        """Arrays of parameters, in flat order."""
        ...

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """Layer table (R, columns)."""
        ...

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Dropout rate of each row of the table."""
        ...

    @property
    def tokens(self) -> int:
        """The input holds integers below this number; 0: it holds numbers."""
        ...

    @property
    def layers(self) -> tuple[Any, ...]:
        """The layers."""
        ...

    def apply(self, theta: FloatArray, x: npt.ArrayLike) -> FloatArray:
        """Evaluate the network."""
        ...


@dataclass(frozen=True)
class _Entry:
    # One array of a model, and its names in torch: of several, it is the sum.
    parameter: layers.Parameter
    names: tuple[str, ...]
    block: tuple[int, int, int]
    shapes: tuple[tuple[int, ...], ...]  # in torch, the first is the usual one
    groups: int = 1  # blocks, one behind the other


def from_torch(
    function: str, model: Network, state_dict: object, dtype: npt.DTypeLike
) -> FloatArray:
    """Return the flat vector (dim,) of `state_dict`; `function` names the caller in errors."""
    given = checks.mapping(function, "state_dict", state_dict)
    chosen = checks.float_dtype(function, dtype)
    for key in given:
        if key.rpartition(".")[2] in _BATCH_NORM:
            raise ValueError(
                f"[{function}] expected no batch normalisation (it couples the rows, so it has no "
                f"posterior of the weights), got {key!r}: for a module in evaluation mode, "
                "Model.from_torch(module, example) merges it into the layer next to it"
            )
    entries = list(_entries(function, model))
    wanted = sum(len(entry.names) for entry in entries)
    counts = f"{wanted} arrays in state_dict, got {len(given)}"
    left = iter(given.items())
    theta: FloatArray = np.empty(model.dim, chosen)
    for entry in entries:
        p, parts = entry.parameter, []
        for name in entry.names:
            item = next(left, None)
            if item is None:
                raise ValueError(f"[{function}] expected {counts}: none is left for {name!r}")
            key, value = item
            array = checks.numeric(function, repr(key), host(value))
            if array.shape not in entry.shapes:
                shapes = " or ".join(map(str, entry.shapes))
                raise ShapeError(
                    f"[{function}] expected {name!r} of shape {shapes} for {p.name!r} {p.shape}, "
                    f"got {key!r} of shape {array.shape} (of {wanted} arrays, {len(given)} given)"
                )
            parts.append(array)
        total = parts[0] if len(parts) == 1 else np.add(*parts, dtype=np.float64)
        array = checks.data(function, repr(key), total, chosen)
        blocks = array.reshape(entry.groups, *entry.block[::-1])
        theta[p.offset : p.offset + p.size] = blocks.swapaxes(1, 3).reshape(-1)
    item = next(left, None)
    if item is not None:
        raise ValueError(f"[{function}] expected {counts}: {item[0]!r} has no place")
    return theta


def to_torch(function: str, model: Network, theta: object) -> dict[str, torch.Tensor]:
    """Return a state dict of `theta` (dim,), copied; `function` names the caller in errors."""
    got = checks.summary(theta)
    if not isinstance(theta, np.ndarray) or theta.dtype not in (np.float32, np.float64):
        raise DTypeError(
            f"[{function}] expected theta as a float32 or float64 NumPy array, got {got}"
        )
    if theta.shape != (model.dim,):
        raise ShapeError(f"[{function}] expected theta of shape ({model.dim},), got {got}")
    with needing(function, "torch"):
        import torch
    out: dict[str, torch.Tensor] = {}
    for entry in _entries(function, model):
        p = entry.parameter
        blocks = theta[p.offset : p.offset + p.size].reshape(entry.groups, *entry.block)
        turned = blocks.swapaxes(1, 3)
        array = np.array(turned, order="C", copy=True).reshape(entry.shapes[0])
        first, *others = entry.names
        out[first] = torch.from_numpy(array)
        out.update((name, torch.zeros_like(out[first])) for name in others)
    return out


def host(value: Any) -> Any:
    """Return a tensor in float64, as NumPy knows no bfloat16; anything else is left alone."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()


def _entries(function: str, model: Network) -> Iterator[_Entry]:
    """Give the arrays of a model in flat order."""
    arrays = {p.offset: p for p in model.parameters}
    # Of each value (places, channels), where torch has the channels first: images, and sequences
    # unless an embedding or an LSTM gave them; (1, size) where it has the same order; None for a
    # sum of the two.
    orders: list[tuple[int, int] | None] = [_order(*model.input_shape)]
    for values in model.table.tolist():
        row = dict(zip(COLUMNS, values, strict=True))
        op, order = row["op"], orders[row["input"]]
        arrays_there, places = _ARRAYS.get(op, _AS_HERE), 1
        if op == _DENSE or (arrays_there.units and row["channels"] == row["in_size"]):
            places = _known(function, order)[0]
        if places > 1 and not arrays_there.any_order(row):
            raise ValueError(
                f"[{function}] expected units in one order in torch, which layer {row['index']} "
                "needs, got a flattened image or sequence"
            )
        for offset in sorted({row["weight"], row["bias"], row["third"]} - {-1}):
            dense_bias = op == _DENSE and offset == row["bias"]
            groups = row["argument"] if op == _CONV else 1
            yield _entry(op, arrays[offset], 1 if dense_bias else places, groups)
        if op in (_DENSE, _EMBEDDING, _LSTM):
            order = (1, row["out_size"])
        elif op in (_CONV, *_POOLS) and places == 1:  # else an Affine, unit by unit
            order = _order(row["out_height"], row["out_width"], row["out_channels"])
        elif op == _ADD and orders[row["second"]] != order:
            order = None
        orders.append(order)
    _known(function, orders[-1])


def _order(*shape: int) -> tuple[int, int]:
    *places, channels = shape
    return (math.prod(places), channels) if channels > 1 else (1, math.prod(places))


def _known(function: str, order: tuple[int, int] | None) -> tuple[int, int]:
    if order is None:
        raise ValueError(
            f"[{function}] expected both paths of a Residual to have their units in one order in "
            "torch, got a flattened image or sequence on one path alone"
        )
    return order


def _entry(op: int, p: layers.Parameter, places: int, groups: int) -> _Entry:
    layer, _, name = p.name.rpartition(".")
    names = tuple(f"{layer}.{n}" for n in _ARRAYS.get(op, _AS_HERE).names.get(name, (name,)))
    if op == _EMBEDDING or len(p.shape) == 1:
        also = ((1, p.size, 1, 1), (1, p.size, 1)) if op == _FRN else ()
        return _Entry(p, names, (places, p.size // places, 1), (p.shape, *also))
    *kernel, inputs, out = p.shape[groups > 1 :]
    block = (places * math.prod(kernel), inputs // places, out)
    return _Entry(p, names, block, ((groups * out, inputs, *kernel),), groups)
