"""The float64 answer for convolutional and recurrent networks: the oracle of the tests.

A wiring becomes the layer table that `tests.oracle` reads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads.networks import Layout, Shape, Wiring, same_padding
from benchmarks.workloads.reference import Array, log_prior
from tests.oracle.activation_reference import ACTIVATIONS
from tests.oracle.layer_reference import backward, network
from tests.oracle.op_reference import OPS, Row
from tests.oracle.reference import LIKELIHOODS, log_likelihood_terms

EMPTY = Row(*[0] * len(Row._fields))._replace(weight=-1, bias=-1, second=-1, third=-1)


class Value(tuple[int, ...]):
    """Shape of a value without the row axis; `number` is 0 for the input, r + 1 after row r."""

    number = 0


class LayerTable(Layout):
    """A `net` on shapes that writes the rows of the table.

    Attributes
    ----------
    rows : list of Row
        In the order of the layers; offsets are into the flat vector of parameters.
    """

    def __init__(self, wiring: Wiring, input_shape: Shape) -> None:
        self.rows: list[Row] = []
        super().__init__(wiring, Value(input_shape))

    def _row(self, op: str, x: Any, shape: Shape, **fields: int) -> Value:
        """Append a row that reads `x`; returns what it gives, of this shape."""
        images = dict(zip(("height", "width", "channels"), x, strict=True)) if len(x) == 3 else {}
        made = {"op": OPS.index(op), "index": len(self.rows), "input": x.number, **images, **fields}
        made |= {"n_in": math.prod(x), "n_out": math.prod(shape)}
        self.rows.append(EMPTY._replace(**made))
        value = Value(shape)
        value.number = len(self.rows)
        return value

    def _window(self, kernel: Shape, stride: Shape, shape: Shape) -> dict[str, int]:
        """Fields of a window that gives images of this shape (H', W', K)."""
        names = ("kernel_height", "kernel_width", "stride_height", "stride_width")
        names += ("out_height", "out_width", "out_channels")
        made = dict(zip(names, (*kernel, *stride, *shape), strict=True))
        return made | {"dilation_height": 1, "dilation_width": 1}

    def conv(
        self, x: Any, filters: int, kernel: Shape, stride: int = 1, same: bool = True
    ) -> Value:
        at = self.dim
        shape = super().conv(x, filters, kernel, stride, same)
        window = self._window(kernel, (stride, stride), shape) | {"argument": 1}  # group
        if same:
            sizes = zip(("pad_top", "pad_left"), x, kernel, strict=False)
            window |= {name: same_padding(n, k, stride)[0] for name, n, k in sizes}
        return self._row("conv", x, shape, weight=at, bias=self.dim - filters, **window)

    def frn(self, x: Any) -> Value:
        at, channels = self.dim, x[-1]
        super().frn(x)
        offsets = {"weight": at, "bias": at + channels, "third": at + 2 * channels}
        return self._row("filter_response_norm", x, x, **offsets)

    def silu(self, x: Any) -> Value:
        return self._row("activation", x, x, argument=ACTIVATIONS.index("silu"))

    def relu(self, x: Any) -> Value:
        return self._row("activation", x, x, argument=ACTIVATIONS.index("relu"))

    def add(self, x: Any, other: Any) -> Value:
        return self._row("add", x, super().add(x, other), second=other.number)

    def max_pool(self, x: Any, window: Shape, stride: Shape) -> Value:
        shape = super().max_pool(x, window, stride)
        return self._row("max_pool", x, shape, **self._window(window, stride, shape))

    def mean(self, x: Any) -> Value:
        window = self._window(x[:2], (1, 1), (1, 1, x[2]))
        return self._row("average_pool", x, super().mean(x), **window)

    def flatten(self, x: Any) -> Value:
        value = Value(super().flatten(x))
        value.number = x.number  # the oracle's values are flat
        return value

    def dense(self, x: Any, units: int) -> Value:
        at = self.dim
        shape = super().dense(x, units)
        return self._row("dense", x, shape, weight=at, bias=self.dim - units)

    def embed(self, x: Any, tokens: int, units: int) -> Value:
        at = self.dim
        shape = super().embed(x, tokens, units)
        return self._row("embedding", x, shape, weight=at, argument=tokens, channels=units)

    def lstm(self, x: Any, units: int) -> Value:
        at, gates = self.dim, 4 * units
        shape = super().lstm(x, units)
        offsets = {"weight": at, "third": at + x[2] * gates, "bias": self.dim - gates}
        return self._row("lstm", x, shape, out_channels=units, **offsets)


def value_and_grad(
    rows: list[Row],
    theta: Array,
    x: NDArray[Any],
    y: NDArray[Any],
    prior_scale: float,
    chunk: int = 32,
) -> tuple[float, Array]:
    """Log posterior and its gradient (P,): labels y (N,), iid normal prior; by chunks of rows."""
    value, gradient = log_prior(theta, prior_scale)
    categorical = LIKELIHOODS.index("categorical")
    for at in range(0, len(x), chunk):
        outputs, values = network(rows, theta, x[at : at + chunk])
        labels = y[at : at + chunk, None]
        logs, delta, _ = log_likelihood_terms(categorical, 1.0, outputs, labels)
        value += float(np.sum(logs))
        gradient += backward(rows, theta, values, delta)[0]
    return value, gradient
