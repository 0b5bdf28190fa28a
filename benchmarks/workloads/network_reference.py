"""The float64 NumPy gradient that the convolutional and recurrent networks are held to.

Written for clarity: a convolution is a sum over the cells of its kernel, each layer puts its own
derivative on a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads.networks import Array, Wiring, same_padding
from benchmarks.workloads.reference import Array as F64
from benchmarks.workloads.reference import activate, log_normaliser, softmax


@dataclass
class Node:
    """A value and the derivative of the log likelihood by it, of the same shape."""

    value: Any
    grad: Any


class Tape:
    """A `net` (see `workloads.networks`) that computes and can go back; rows (N, H, W, C)."""

    def __init__(self, arrays: Sequence[Array], theta: F64) -> None:
        self.grad = np.zeros_like(theta)
        ends = np.cumsum([array.size for array in arrays])[:-1]
        parts = zip(arrays, np.split(theta, ends), np.split(self.grad, ends), strict=True)
        self._left = iter([Node(v.reshape(a.shape), g.reshape(a.shape)) for a, v, g in parts])
        self._back: list[Callable[[], None]] = []

    def backward(self) -> None:
        """Go back from the last node, whose derivative is set."""
        while self._back:
            self._back.pop()()

    def _node(self, value: Any, back: Callable[[Any], None]) -> Node:
        node = Node(value, np.zeros_like(value))
        self._back.append(lambda: back(node.grad))
        return node

    def conv(self, x: Node, filters: int, kernel: Any, stride: int = 1, same: bool = True) -> Node:
        weight, bias = next(self._left), next(self._left)
        sizes = list(zip(x.value.shape[1:3], kernel, strict=True))
        pads = [same_padding(n, k, stride) if same else (0, 0) for n, k in sizes]
        padded = np.pad(x.value, [(0, 0), *pads, (0, 0)])
        last = [a - k + 1 for a, k in zip(padded.shape[1:3], kernel, strict=True)]
        cells = {
            (r, s): np.index_exp[:, r : r + last[0] : stride, s : s + last[1] : stride]
            for r in range(kernel[0])
            for s in range(kernel[1])
        }

        def back(grad: Any) -> None:
            bias.grad += grad.sum(axis=(0, 1, 2))
            padded_grad = np.zeros_like(padded)
            for cell, where in cells.items():
                weight.grad[cell] += np.tensordot(padded[where], grad, axes=((0, 1, 2), (0, 1, 2)))
                padded_grad[where] += grad @ weight.value[cell].T
            inside = [slice(a, a + n) for (a, _), (n, _) in zip(pads, sizes, strict=True)]
            x.grad += padded_grad[:, inside[0], inside[1]]

        terms = (padded[where] @ weight.value[cell] for cell, where in cells.items())
        return self._node(sum(terms) + bias.value, back)

    def frn(self, x: Node) -> Node:
        gamma, beta, tau = (next(self._left) for _ in range(3))
        inverse = 1.0 / np.sqrt(np.mean(x.value**2, axis=(1, 2), keepdims=True) + 1e-6)
        unit = x.value * inverse
        value = gamma.value * unit + beta.value
        above = value > tau.value

        def back(grad: Any) -> None:
            kept = grad * above
            tau.grad += (grad * ~above).sum(axis=(0, 1, 2))
            beta.grad += kept.sum(axis=(0, 1, 2))
            gamma.grad += (kept * unit).sum(axis=(0, 1, 2))
            kept = kept * gamma.value
            common = np.mean(kept * unit, axis=(1, 2), keepdims=True)
            x.grad += inverse * (kept - unit * common)

        return self._node(np.where(above, value, tau.value), back)

    def _elementwise(self, x: Node, name: str) -> Node:
        value, slope = activate(x.value.copy(), name)

        def back(grad: Any) -> None:
            x.grad += grad * slope

        return self._node(value, back)

    def silu(self, x: Node) -> Node:
        return self._elementwise(x, "silu")

    def relu(self, x: Node) -> Node:
        return self._elementwise(x, "relu")

    def add(self, x: Node, other: Node) -> Node:
        def back(grad: Any) -> None:
            x.grad += grad
            other.grad += grad

        return self._node(x.value + other.value, back)

    def max_pool(self, x: Node, window: Any, stride: Any) -> Node:
        views = np.lib.stride_tricks.sliding_window_view(x.value, window, axis=(1, 2))
        views = views[:, :: stride[0], :: stride[1]]  # (N, H', W', C, kh, kw)
        flat = views.reshape(*views.shape[:4], -1)
        largest = flat.argmax(axis=-1)

        def back(grad: Any) -> None:
            n, i, j, c = np.indices(largest.shape)
            r, s = np.divmod(largest, window[1])
            np.add.at(x.grad, (n, i * stride[0] + r, j * stride[1] + s, c), grad)

        return self._node(flat.max(axis=-1), back)

    def mean(self, x: Node) -> Node:
        places = x.value.shape[1] * x.value.shape[2]

        def back(grad: Any) -> None:
            x.grad += grad[:, None, None] / places

        return self._node(x.value.mean(axis=(1, 2)), back)

    def flatten(self, x: Node) -> Node:
        def back(grad: Any) -> None:
            x.grad += grad.reshape(x.value.shape)

        return self._node(x.value.reshape(len(x.value), -1), back)

    def dense(self, x: Node, units: int) -> Node:
        weight, bias = next(self._left), next(self._left)

        def back(grad: Any) -> None:
            weight.grad += x.value.T @ grad
            bias.grad += grad.sum(axis=0)
            x.grad += grad @ weight.value.T

        return self._node(x.value @ weight.value + bias.value, back)

    def embed(self, x: Node, tokens: int, units: int) -> Node:
        weight = next(self._left)

        def back(grad: Any) -> None:
            np.add.at(weight.grad, x.value, grad[:, 0])

        return self._node(weight.value[x.value][:, None], back)

    def lstm(self, x: Node, units: int) -> Node:
        weight, recurrent, bias = (next(self._left) for _ in range(3))
        inputs = x.value[:, 0]
        state = cell = np.zeros((len(inputs), units))
        steps = []
        for t in range(inputs.shape[1]):
            z = inputs[:, t] @ weight.value + state @ recurrent.value + bias.value
            i, f, g, o = np.split(z, 4, axis=1)
            i, f, o = (1.0 / (1.0 + np.exp(-gate)) for gate in (i, f, o))
            g = np.tanh(g)
            steps.append((state, cell, i, f, g, o))
            cell = f * cell + i * g
            state = o * np.tanh(cell)
        last = cell

        def back(grad: Any) -> None:
            after, by_cell = last, np.zeros_like(last)
            for t in reversed(range(len(steps))):
                before, cell, i, f, g, o = steps[t]
                squashed = np.tanh(after)
                by_cell = by_cell + grad * o * (1.0 - squashed**2)
                slopes = [i * (1 - i), f * (1 - f), 1 - g**2, o * (1 - o)]
                factors = [by_cell * g, by_cell * cell, by_cell * i, grad * squashed]
                z = np.concatenate([a * b for a, b in zip(slopes, factors, strict=True)], axis=1)
                weight.grad += inputs[:, t].T @ z
                recurrent.grad += before.T @ z
                bias.grad += z.sum(axis=0)
                x.grad[:, 0, t] += z @ weight.value.T
                grad, by_cell, after = z @ recurrent.value.T, by_cell * f, cell

        return self._node(state, back)


def value_and_grad(
    wiring: Wiring,
    arrays: Sequence[Array],
    theta: F64,
    x: NDArray[Any],
    y: NDArray[Any],
    prior_scale: float,
    chunk: int = 64,
) -> tuple[float, F64]:
    """Log posterior and its gradient (P,): labels y (N,), iid normal prior; by chunks of rows."""
    scaled = theta / prior_scale
    value = -0.5 * float(scaled @ scaled) - theta.size * log_normaliser(prior_scale)
    gradient = -scaled / prior_scale
    for at in range(0, len(x), chunk):
        rows, labels = x[at : at + chunk], y[at : at + chunk]
        tape = Tape(arrays, theta)
        inputs = rows if rows.dtype.kind == "i" else rows.astype(np.float64)
        output = wiring(tape, Node(inputs, np.zeros(rows.shape)))
        probabilities = softmax(output.value)
        picked = np.arange(len(labels)), labels
        value += float(np.log(probabilities[picked]).sum())
        output.grad = -probabilities
        output.grad[picked] += 1.0
        tape.backward()
        gradient += tape.grad
    return value, gradient
