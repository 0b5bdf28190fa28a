"""The networks that are convolutional or recurrent: how they are wired, once for all frameworks.

A wiring is a function ``(net, x) -> outputs``; `net` has a method per layer (`Layout` lists them)
and takes its parameters from the flat vector in the order in which they are asked for. A sequence
is an image of height 1. `Layout` is the `net` whose values are shapes: it finds the parameters and
the cost; the NumPy reference and each rival have one that computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]
Wiring = Callable[[Any, Any], Any]


def resnet20(net: Any, x: Any) -> Any:
    """ResNet-20 with filter response normalisation and SiLU; x (N, 32, 32, 3)."""
    x = net.silu(net.frn(net.conv(x, 16, (3, 3))))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage > 0 and block == 0 else 1
            main = net.silu(net.frn(net.conv(x, filters, (3, 3), stride)))
            main = net.frn(net.conv(main, filters, (3, 3)))
            if stride == 2:
                x = net.frn(net.conv(x, filters, (1, 1), stride))
            x = net.silu(net.add(main, x))
    return net.dense(net.mean(x), 10)


def lenet5(net: Any, x: Any) -> Any:
    """LeNet-5 with ReLU and max pools; x (N, 28, 28, 1)."""
    for filters in (6, 16, 120):
        x = net.max_pool(net.relu(net.conv(x, filters, (5, 5))), (3, 3), (2, 2))
    return net.dense(net.relu(net.dense(net.flatten(x), 84)), 10)


def strided(net: Any, x: Any) -> Any:
    """Three 5 x 5 convolutions of stride 2 with SiLU, one dense layer; x (N, 28, 28, 1)."""
    for filters in (16, 32, 64):
        x = net.silu(net.conv(x, filters, (5, 5), 2))
    return net.dense(net.flatten(x), 10)


def cnn_lstm(net: Any, x: Any) -> Any:
    """Embedding, convolution, SiLU, max pool, the last state of an LSTM; x (N, 100) tokens."""
    x = net.silu(net.conv(net.embed(x, 20_000, 128), 64, (1, 5), same=False))
    return net.dense(net.lstm(net.max_pool(x, (1, 4), (1, 4)), 128), 2)


@dataclass(frozen=True)
class Array:
    """One array of parameters: what it is (a kernel is "conv"), its shape, its inputs."""

    kind: str
    shape: Shape
    fan_in: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Cells before and behind that give ceil(size / stride) places; the odd one lies behind."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class Layout:
    """A `net` on shapes without the row axis: finds parameters and multiply-adds per row.

    Attributes
    ----------
    arrays : list of Array
        In the order of the flat vector.
    macs : list of int
        Multiply-adds of one forward pass of one row, by layer: kernels (also where they lie over
        the padding), dense and LSTM products.
    """

    def __init__(self, wiring: Wiring, input_shape: Shape) -> None:
        self.arrays: list[Array] = []
        self.macs: list[int] = []
        self.outputs: int = wiring(self, input_shape)[-1]

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum(array.size for array in self.arrays)

    def gradient_flops(self, rows: int) -> float:
        """Multiplies and adds of one gradient: three passes, the first layer only two.

        A layer behind an embedding needs the gradient by its input, though it is the first.
        """
        spared = 0 if self.arrays[0].kind == "embedding" else self.macs[0]
        return 2.0 * rows * (3 * sum(self.macs) - spared)

    def _weights(self, kind: str, shape: Shape, macs: int) -> None:
        self.arrays.append(Array(kind, shape, math.prod(shape[:-1])))
        self.macs.append(macs)

    def conv(
        self, x: Shape, filters: int, kernel: Shape, stride: int = 1, same: bool = True
    ) -> Any:
        """Convolution with bias; (H, W, C) -> (H', W', filters), kernel (kh, kw, C, filters)."""
        sizes = list(zip(x, kernel, strict=False))
        if same:
            places = [-(-size // stride) for size, _ in sizes]
        else:
            places = [(size - cells) // stride + 1 for size, cells in sizes]
        shape = (*kernel, x[2], filters)
        self._weights("conv", shape, math.prod(places) * math.prod(shape))
        self.arrays.append(Array("bias", (filters,)))
        return (*places, filters)

    def frn(self, x: Shape) -> Shape:
        """max(gamma x / sqrt(mean of x^2 over places + 1e-6) + beta, tau), by channel."""
        self.arrays += [Array(kind, x[-1:]) for kind in ("gamma", "beta", "tau")]
        return x

    def silu(self, x: Shape) -> Shape:
        """Activation x sigmoid(x)."""
        return x

    relu = silu

    def add(self, x: Shape, other: Shape) -> Shape:
        """Sum of two paths."""
        assert x == other
        return x

    def max_pool(self, x: Shape, window: Shape, stride: Shape) -> Shape:
        """Largest value of each window that lies inside; (H, W, C) -> (H', W', C)."""
        places = [(a - b) // c + 1 for a, b, c in zip(x, window, stride, strict=False)]
        return (*places, x[2])

    def mean(self, x: Shape) -> Shape:
        """Mean over the places: (H, W, C) -> (C,)."""
        return x[-1:]

    def flatten(self, x: Shape) -> Shape:
        """Flatten (H, W, C) in C order."""
        return (math.prod(x),)

    def dense(self, x: Shape, units: int) -> Shape:
        """Dense layer x W + b, W (in, units)."""
        self._weights("dense", (x[0], units), x[0] * units)
        self.arrays.append(Array("bias", (units,)))
        return (units,)

    def embed(self, x: Shape, tokens: int, units: int) -> Shape:
        """Rows of the weight (tokens, units): (T,) -> (1, T, units)."""
        self.arrays.append(Array("embedding", (tokens, units), 1))
        return (1, *x, units)

    def lstm(self, x: Shape, units: int) -> Shape:
        """Last state of an LSTM from zero, gates i, f, g, o: (1, T, C) -> (units,)."""
        _, length, channels = x
        gates = 4 * units
        self._weights("lstm", (channels, gates), length * channels * gates)
        self._weights("lstm", (units, gates), (length - 1) * units * gates)
        self.arrays.append(Array("bias", (gates,)))
        return (units,)
